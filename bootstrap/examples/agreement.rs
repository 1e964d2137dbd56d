//! Three processes agree on a port that each of them can open. If they do not agree, each learns the reason.
//!
//! `cargo run -p lockstep-bootstrap --example agreement` starts them on one host. Each process offers three ports. If
//! there are ports that all processes offer, every process opens the lowest of them. The port is agreed if all succeed.
//!
//! On three hosts: run `cargo run -p lockstep-bootstrap --example tcp_store -- serve 10.0.0.1:5000` on the host with
//! the address 10.0.0.1, and `cargo run -p lockstep-bootstrap --example agreement -- 10.0.0.1:5000 RANK` on each host,
//! with a different RANK from 0 to 2. The test `bootstrap/tests/end_to_end/several_hosts.rs` runs the function `member`
//! on simulated hosts, over a slow, lossy or broken network.

use std::{
    error::Error,
    net::{Ipv4Addr, TcpListener},
    process::{Command, ExitCode},
    time::Duration,
};

use bootstrap::{
    agreement::{Decision, Member, Protocol, Report, run},
    store::{Deadline, TcpStore},
    wire,
};

const MEMBERS: u32 = 3;

/// Agrees on a port.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Port;

impl Protocol for Port {
    const PROTOCOL: wire::Protocol = wire::Protocol { magic: *b"PO", version: 1 };
    /// The ports that a member offers.
    type Record = Vec<u16>;
    /// The port to open.
    type Plan = u16;
    /// The error of the member that could not open the port, or `None` if it has opened the port.
    type Outcome = Option<String>;
    /// The port.
    type Agreed = u16;
    type Refusal = String;

    fn decide(records: &[(u32, Vec<u16>)]) -> Decision<Self> {
        let is_common = |port: &u16| records.iter().all(|(_, ports)| ports.contains(port));
        match records.iter().flat_map(|(_, ports)| ports).copied().filter(is_common).min() {
            Some(port) => Decision::Act { plan: port },
            None => Decision::Refused { refusal: "no port is offered by all".into() },
        }
    }

    fn is_final(problem: &Option<String>) -> bool {
        problem.is_some()
    }

    fn judge(port: &u16, reports: &[(u32, Report<Option<String>>)]) -> Decision<Self> {
        let problem = reports.iter().find_map(|(rank, report)| match report {
            Report::Outcome(Some(problem)) => Some(format!("rank {rank}: {problem}")),
            _ => None,
        });
        let late = reports.iter().find(|(_, report)| *report == Report::Late);
        match (problem, late) {
            (Some(refusal), _) => Decision::Refused { refusal },
            (None, Some((rank, _))) => Decision::Refused { refusal: format!("rank {rank} is lost") },
            (None, None) => Decision::Agreed { agreed: *port },
        }
    }
}

/// Takes part as `rank`, over the store at `address`. Returns the agreed port. `patience` limits the wait for the store
/// and the wait for the other members.
pub(crate) fn member(address: &str, rank: u32, patience: Duration) -> Result<u16, Box<dyn Error>> {
    // An operation of the store should not wait longer for its answer than the agreement waits for the other members.
    let store = TcpStore::options().patience(patience).connect(address, Deadline::after(patience))?;
    let seat = Member {
        name: "port".into(),
        rank,
        members: (0..MEMBERS).collect(),
        generation: 1,
        patience,
        deadline: None,
    };
    // Only port 40010 is offered by all members.
    let offered = vec![40_000 + rank as u16, 40_010, 40_020 + rank as u16];
    let open = |port: &u16, _: Deadline, _: &dyn Fn() -> bool| {
        // The members may share a host, so each opens the port on a loopback address of its own.
        TcpListener::bind((Ipv4Addr::new(127, 0, 1, rank as u8 + 1), *port))
            .err()
            .map(|error| error.to_string())
    };
    Ok(run::<Port>(&store, seat, offered, open, || Ok(()))?)
}

const USAGE: &str = "agreement [ADDRESS:PORT RANK]: without arguments, starts three members on this host; with them, is \
                     the member RANK (0 to 2) beside the store at ADDRESS:PORT";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match &arguments[..] {
        [] => start_members(),
        [address, rank] => match rank.parse() {
            Ok(rank) if rank < MEMBERS => print_port(address, rank),
            _ => Err(format!("invalid rank {rank:?}: expected 0 to {}; {USAGE}", MEMBERS - 1).into()),
        },
        _ => Err(USAGE.into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn print_port(address: &str, rank: u32) -> Result<(), Box<dyn Error>> {
    let port = member(address, rank, Duration::from_secs(30))?;
    println!("rank {rank}: port {port}");
    Ok(())
}

fn start_members() -> Result<(), Box<dyn Error>> {
    let host = TcpStore::host(0)?;
    let program = std::env::current_exe()?;
    let start = |rank: u32| Command::new(&program).args([host.address(), rank.to_string()]).spawn();
    let children = (0..MEMBERS).map(start).collect::<Result<Vec<_>, _>>()?;
    for mut child in children {
        let status = child.wait()?;
        if !status.success() {
            return Err(format!("a member ended with {status}").into());
        }
    }
    Ok(())
}
