//! The example `agreement` on three simulated hosts, over a network that is slow, loses frames, or breaks.

use std::{
    env, io,
    net::Ipv4Addr,
    thread,
    time::{Duration, Instant},
};

use bootstrap::store::{Deadline, Store, TcpStore};
use gpu_sim::process::test_command;

use crate::{
    network::{Conditions, Network},
    other::Other,
};

#[path = "../../examples/agreement.rs"]
#[expect(dead_code, reason = "only the part of one process is used")]
mod agreement;

const MEMBERS: u32 = 3;
const PATIENCE: Duration = Duration::from_secs(3);
/// The maximum time until all members have ended. After a patience of at most 6 s, up to 10 s may pass for the action
/// and 5 s for the outcomes. The rest is for the start of processes and for lost frames. It is also the patience of
/// members whose patience must not end.
const LONGEST: Duration = Duration::from_secs(40);

/// The environment variable for the role of a process that a test starts. `host ADDRESS` hosts the store at this IP
/// address. `posted STORE VOTE` waits until two members have posted in the vote whose keys begin with VOTE. `RANK STORE
/// PATIENCE` is a member, with its patience in milliseconds. STORE is the address and port of the store.
const ROLE: &str = "BOOTSTRAP_SEVERAL_HOSTS_ROLE";

/// The body of the processes that [`start`] starts.
#[test]
#[ignore = "the body of a process that a test starts"]
fn role() {
    let role = env::var(ROLE).expect("a test below starts this process");
    match &role.split(' ').collect::<Vec<_>>()[..] {
        ["host", address] => {
            let address: Ipv4Addr = address.parse().unwrap();
            let options = TcpStore::options().listen(address.into());
            let store = options.host(0, Deadline::after(PATIENCE)).unwrap();
            println!("said: {}", store.address());
            let _ = io::stdin().read_line(&mut String::new());
        }
        ["posted", address, vote] => {
            let store = TcpStore::connect(address, Deadline::after(LONGEST)).unwrap();
            let count = format!("{vote}/count");
            while store.get(&count, Deadline::after(LONGEST)).unwrap() != b"2" {
                thread::sleep(Duration::from_millis(10));
            }
            println!("said: 2");
        }
        [rank, address, patience] => {
            let patience = Duration::from_millis(patience.parse().unwrap());
            match agreement::member(address, rank.parse().unwrap(), patience) {
                Ok(port) => println!("said: port {port}"),
                Err(error) => println!("said: {error}"),
            }
        }
        other => panic!("{other:?}"),
    }
}

/// Starts a process on a host, with the value `role` for the variable [`ROLE`].
fn start(network: &Network, host: usize, role: &str) -> Other {
    let mut command = test_command(concat!(module_path!(), "::role")).unwrap();
    Other::start(&mut network.on(host, command.env(ROLE, role)), "said: ")
}

/// Three hosts, with a store on host 0.
struct Hosts {
    _store: Other,
    address: String,
    network: Network,
}

impl Hosts {
    /// Makes the hosts and starts the store. If this machine cannot have network namespaces, prints the reason and
    /// returns `None`.
    fn new(conditions: Conditions) -> Option<Self> {
        let network = match Network::new(MEMBERS as usize, conditions) {
            Ok(network) => network,
            Err(why) => {
                println!("skipped: no network namespaces: {why}");
                return None;
            }
        };
        let mut store = start(&network, 0, &format!("host {}", network.address(0)));
        let address = store.said();
        Some(Self { _store: store, address, network })
    }

    fn member(&self, rank: u32, patience: Duration) -> Other {
        let role = format!("{rank} {} {}", self.address, patience.as_millis());
        start(&self.network, rank as usize, &role)
    }
}

#[test]
fn members_agree_over_a_slow_and_lossy_network() {
    let conditions =
        Conditions { delay: Duration::from_millis(30), jitter: Duration::from_millis(20), loss: 3 };
    let Some(hosts) = Hosts::new(conditions) else { return };
    let mut members: Vec<_> = (0..MEMBERS).map(|rank| hosts.member(rank, LONGEST)).collect();
    for member in &mut members {
        assert_eq!(member.said(), "port 40010");
    }
}

/// The link of host 2 is cut before its member starts.
#[test]
fn a_host_that_cannot_be_reached_is_named() {
    let Some(hosts) = Hosts::new(Conditions::default()) else { return };
    hosts.network.cut(2);
    let begun = Instant::now();
    let mut members: Vec<_> = (0..MEMBERS).map(|rank| hosts.member(rank, PATIENCE)).collect();
    let said: Vec<String> = members.iter_mut().map(Other::said).collect();
    assert!(begun.elapsed() < LONGEST, "{:?}", begun.elapsed());
    assert_eq!(said[0], said[1]);
    assert!(said[0].starts_with("rank 2 did not come within the "), "{}", said[0]);
    assert!(said[2].starts_with("no store at "), "{}", said[2]);
}

/// The link of host 2 is cut after its member has posted its record and while it waits for the others. The other
/// members use that record, and then find that rank 2 is lost. Rank 2 cannot know whether they have agreed.
#[test]
fn a_host_that_is_cut_off_is_in_doubt_and_the_others_lose_it() {
    let Some(hosts) = Hosts::new(Conditions::default()) else { return };
    let begun = Instant::now();
    let mut last = hosts.member(2, PATIENCE);
    let mut first = hosts.member(0, 2 * PATIENCE);
    let records = format!("posted {} port/records", hosts.address);
    assert_eq!(start(&hosts.network, 0, &records).said(), "2");
    hosts.network.cut(2);
    let mut second = hosts.member(1, 2 * PATIENCE);
    assert!(last.said().contains("it is unknown whether the others have agreed"));
    let said = [first.said(), second.said()];
    assert!(begun.elapsed() < LONGEST, "{:?}", begun.elapsed());
    assert_eq!(said[0], said[1]);
    assert!(said[0].contains("rank 2 is lost"), "{}", said[0]);
}
