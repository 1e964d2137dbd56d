//! Every order of calls. Four ranks form pairs (TP) and strides (DP), later also the world. Each rank commits one
//! pool for its groups in an order of its own, or another pool for each group.
//!
//! The expected result is computed from sets of blocked ranks only. Then the commit's state machine runs in every
//! order, with every precedence among the ranks. If the calls do not cross, all commit. If they do, every rank of the
//! circle is told so, with the group at which each of them waits. Members agree, and no rank waits past the deadline.
//! [`tracing`] does the same in orders in which several ranks search for the circle at the same time.

mod tracing;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use bootstrap::agreement::{self, Agreement, Answer as StoreAnswer, Member, Memory, Output, Request};
use symm_mem::agreement::{
    Agreed, Capabilities, CommitOutcome, CommitPlan, CommitProtocol, CommitRecord, Ending, GroupId, GroupLog,
    LogPoint, MeetingId, MeetingKind, PeerOffer, Policy, PoolId, RankList, Readiness, Refusal,
    RegistrationOutcome, Segment, Start, WindowSupport, commit_ending,
};

use crate::common::test_effort;

const RANKS: usize = 4;
const DEADLINE: Duration = Duration::from_secs(30);
/// The groups by number: the world, pairs, strides.
const GROUPS: [(u64, &[u32]); 5] =
    [(0, &[0, 1, 2, 3]), (1, &[0, 1]), (2, &[2, 3]), (3, &[0, 2]), (4, &[1, 3])];

fn members(group: u64) -> &'static [u32] {
    GROUPS[group as usize].1
}

type Result = std::result::Result<Agreed, Ending>;
type Input = agreement::Input<CommitProtocol>;

/// The state machine of a commit, with the plan of its last action.
pub(crate) struct Commit {
    machine: Agreement<CommitProtocol>,
    member: Member,
    last: Option<CommitPlan>,
}

/// The next step of a commit.
pub(crate) enum Next {
    Store(Request),
    Act(CommitPlan),
    Ended(Result),
}

impl Commit {
    pub(crate) fn new(start: Start<CommitProtocol>) -> Self {
        let Start { member, record } = start;
        let nonce = member.rank.into();
        let machine = Agreement::new(member.clone(), record, nonce).expect("the rank is a member");
        Self { machine, member, last: None }
    }

    /// Gives the state machine an input; `None` at the beginning. If the commit has ended, removes its keys.
    pub(crate) fn step(&mut self, input: Option<Input>, store: &mut Store, now: Duration) -> Next {
        let output = match input {
            None => self.machine.begin(now),
            Some(input) => self.machine.step(input, now),
        };
        match output {
            Output::Store(request) => Next::Store(request),
            Output::Act { plan, .. } => {
                self.last = Some(plan.clone());
                Next::Act(plan)
            }
            Output::Done(end) => {
                store.0.remove(&end.read);
                let ending = |ending| commit_ending(ending, &self.member, self.last.as_ref());
                Next::Ended(end.result.map_err(ending))
            }
        }
    }
}

/// State of a rank.
pub(crate) enum At {
    /// Its next input is available; `None` at the beginning of a commit.
    Ready(Option<Input>),
    /// It waits for a key.
    Key(String, Duration),
    /// It is in a library call.
    Library,
    Finished,
}

struct Rank {
    order: Vec<u64>,
    next: usize,
    machine: Option<(Commit, GroupLog, Vec<Segment>, Duration)>,
    at: At,
    /// The keys that it reads, one after the other as a driver does; and the values read so far.
    looks: (Vec<String>, Vec<Option<Vec<u8>>>),
    results: BTreeMap<u64, Result>,
}

impl Rank {
    /// Reads the next key, if one is left.
    fn look(&mut self, store: &Store) -> bool {
        let (keys, values) = &mut self.looks;
        let Some(key) = keys.get(values.len()) else { return false };
        values.push(store.0.0.get(key).cloned());
        if values.len() == keys.len() {
            self.at = ready(StoreAnswer::Values(std::mem::take(values)));
            keys.clear();
        }
        true
    }
}

/// The store, without threads.
#[derive(Default)]
pub(crate) struct Store(Memory);

/// The state of a rank with this answer of the store.
pub(crate) fn ready(answer: StoreAnswer) -> At {
    At::Ready(Some(Input::Store(answer)))
}

fn registered() -> At {
    At::Ready(Some(Input::Acted(CommitOutcome::Registered(RegistrationOutcome::Registered))))
}

/// The pool that is committed for a group.
type PoolOf = fn(u64) -> u32;
const ONE_POOL: PoolOf = |_| 0;
const A_POOL_EACH: PoolOf = |group| group as u32;

/// Runs the ranks, each with its order of groups; `choose` picks the next one among those that can proceed. If none
/// can, time passes until the first rank gives up, and with it every rank whose patience ends at most `drift` later.
fn run(
    orders: &[Vec<u64>],
    pool_of: PoolOf,
    drift: Duration,
    mut choose: impl FnMut(&[usize]) -> usize,
) -> Vec<BTreeMap<u64, Result>> {
    let mut store = Store::default();
    let mut now = Duration::ZERO;
    let mut inside: BTreeMap<u64, BTreeSet<usize>> = BTreeMap::new();
    let mut ranks: Vec<Rank> = orders
        .iter()
        .map(|order| {
            let at = At::Ready(None);
            let looks = (Vec::new(), Vec::new());
            Rank { order: order.clone(), next: 0, machine: None, at, looks, results: BTreeMap::new() }
        })
        .collect();
    loop {
        let able: Vec<usize> = (0..ranks.len()).filter(|rank| store.lets_go_on(&ranks[*rank].at)).collect();
        if able.is_empty() {
            let until = |rank: &Rank| match rank.at {
                At::Key(_, until) => Some(until),
                _ => None,
            };
            let Some(first) = ranks.iter().filter_map(until).min() else { break };
            for rank in &mut ranks {
                if let Some(until) = until(rank).filter(|until| *until <= first + drift) {
                    now = now.max(until);
                    rank.at = ready(StoreAnswer::Expired);
                }
            }
            continue;
        }
        let chosen = choose(&able);
        if ranks[chosen].look(&store) {
            continue;
        }
        now += Duration::from_micros(1);
        let group = ranks[chosen].order[ranks[chosen].next];
        let output = go_on(chosen, &mut ranks[chosen], pool_of, &mut store, now);
        ranks[chosen].at = match output {
            None => At::Ready(None),
            Some(Next::Act(CommitPlan::Register { .. })) => {
                let entered = inside.entry(group).or_default();
                entered.insert(chosen);
                if entered.len() == members(group).len() {
                    for rank in entered.iter().copied().filter(|rank| *rank != chosen) {
                        ranks[rank].at = registered();
                    }
                    registered()
                } else {
                    At::Library
                }
            }
            Some(Next::Store(Request::Fetch { keys })) => {
                ranks[chosen].looks = (keys, Vec::new());
                At::Ready(None)
            }
            Some(Next::Store(request)) => store.answer(request),
            Some(_) => panic!("the logs of the ranks are equal"),
        };
        if ranks[chosen].next == ranks[chosen].order.len() {
            ranks[chosen].at = At::Finished;
        }
    }
    assert!(ranks.iter().all(|rank| matches!(rank.at, At::Finished)), "a rank is blocked inside the library");
    ranks.into_iter().map(|rank| rank.results).collect()
}

/// Gives a rank's state machine the input that it waits for; `None` when a commit has ended.
fn go_on(number: usize, rank: &mut Rank, pool_of: PoolOf, store: &mut Store, now: Duration) -> Option<Next> {
    let input = store.input(&mut rank.at);
    let group = rank.order[rank.next];
    let (machine, ..) = rank.machine.get_or_insert_with(|| begin(number as u32, group, pool_of(group), now));
    let result = match machine.step(input, store, now) {
        Next::Ended(result) => result,
        next => return Some(next),
    };
    let (_, mut group_log, segments, begun) = rank.machine.take()?;
    assert!(now - begun <= DEADLINE, "rank {number} waited past the deadline in group {group}");
    group_log.conclude(&result, &segments);
    rank.results.insert(group, result);
    rank.next += 1;
    None
}

fn begin(rank: u32, group: u64, pool: u32, now: Duration) -> (Commit, GroupLog, Vec<Segment>, Duration) {
    let pool = PoolId { domain: 1, generation: 1, instance: 1, pool };
    let mut group_log = GroupLog::new(pool, GroupId { uid: group, epoch: 0 }, rank, members(group).to_vec());
    let log = LogPoint { length: 1, hash: 7 };
    let record = CommitRecord {
        policy: Policy::Strict,
        readiness: Readiness::Ready,
        domain: RankList((0..RANKS as u32).collect()),
        capabilities: Capabilities { library: 22809, windows: WindowSupport::Available },
        enqueued: Vec::new(),
        address_space_left: None,
        committed: group_log.committed(),
        log,
        log_since: 0,
        segments: vec![Segment { ordinal: 0, bytes: 2 << 20, flags: 0, log }],
        peers: PeerOffer::Missing { cause: "these ranks have no memory".to_owned() },
    };
    let (start, segments) = group_log.begin(record, DEADLINE);
    (Commit::new(start), group_log, segments, now)
}

impl Store {
    /// Returns whether a rank in state `at` can proceed.
    pub(crate) fn lets_go_on(&self, at: &At) -> bool {
        match at {
            At::Ready(_) => true,
            At::Key(key, _) => self.0.0.contains_key(key),
            At::Library | At::Finished => false,
        }
    }

    /// The next input of a rank.
    pub(crate) fn input(&self, at: &mut At) -> Option<Input> {
        match at {
            At::Ready(input) => input.take(),
            At::Key(key, _) => Some(Input::Store(StoreAnswer::Result(self.0.0[key].clone()))),
            At::Library | At::Finished => unreachable!("it cannot go on"),
        }
    }

    pub(crate) fn answer(&mut self, request: Request) -> At {
        if let Request::Enter { key, .. } = &request {
            // A rank is in one commit at a time.
            self.0.leave_decided(key);
        }
        match (self.0.execute(&request), request) {
            (Some(answer), _) => {
                assert_ne!(answer, StoreAnswer::Taken, "a member posts once");
                ready(answer)
            }
            (None, Request::Await { key, until }) => At::Key(key, until),
            (None, request) => unreachable!("{request:?} does not wait"),
        }
    }
}

/// The final state if each call blocks until all members have made it: the groups that are done, and the group at
/// which each stuck rank waits.
fn block(orders: &[Vec<u64>]) -> (BTreeSet<u64>, BTreeMap<u32, u64>) {
    let (mut done, mut next) = (BTreeSet::new(), vec![0; orders.len()]);
    loop {
        let at = |rank: u32| orders[rank as usize].get(next[rank as usize]).copied();
        let met = GROUPS.iter().find(|(group, members)| members.iter().all(|rank| at(*rank) == Some(*group)));
        let Some((group, members)) = met else {
            return (done, (0..orders.len() as u32).filter_map(|rank| Some((rank, at(rank)?))).collect());
        };
        done.insert(*group);
        members.iter().for_each(|rank| next[*rank as usize] += 1);
    }
}

/// The ranks that wait in a circle with `rank`; empty if there is no circle.
fn circle_of(rank: u32, stuck: &BTreeMap<u32, u64>) -> BTreeSet<u32> {
    let reached = |from: u32| {
        let (mut reached, mut front) = (BTreeSet::from([stuck[&from]]), vec![stuck[&from]]);
        while let Some(next) = front.pop() {
            let elsewhere = members(next).iter().filter_map(|rank| stuck.get(rank));
            front.extend(elsewhere.filter(|group| reached.insert(**group)));
        }
        reached
    };
    let own = reached(rank).into_iter().filter(|group| {
        stuck.iter().any(|(other, at)| at == group && reached(*other).contains(&stuck[&rank]))
    });
    let circle: BTreeSet<u64> = own.collect();
    let inside = |(other, group): (&u32, &u64)| circle.contains(group).then_some(*other);
    if circle.len() > 1 { stuck.iter().filter_map(inside).collect() } else { BTreeSet::new() }
}

/// Checks the results of these orders; `at` names the run in messages.
fn check(
    orders: &[Vec<u64>],
    results: &[BTreeMap<u64, Result>],
    at: &str,
    tally: &mut BTreeMap<&'static str, u64>,
) {
    let (done, stuck) = block(orders);
    let at = format!("orders {orders:?}, {at}");
    for (group, members) in GROUPS.iter().filter(|(group, _)| orders[0].len() == 3 || *group > 0) {
        let first = &results[members[0] as usize][group];
        assert!(
            members.iter().all(|rank| &results[*rank as usize][group] == first),
            "{at}: group {group} differs"
        );
        if done.contains(group) {
            assert!(first.is_ok(), "{at}: group {group}: {first:?}");
        }
    }
    if stuck.is_empty() {
        *tally.entry("committed").or_default() += 1;
        assert!(results.iter().flat_map(BTreeMap::values).all(std::result::Result::is_ok), "{at}");
        return;
    }
    *tally.entry("crossing").or_default() += 1;
    let mut circles = 0;
    for (rank, group) in &stuck {
        let expected = circle_of(*rank, &stuck);
        if expected.is_empty() {
            continue;
        }
        circles += 1;
        let Err(Ending::Refused(Refusal::SyncTimeout { missing, circle, .. })) =
            &results[*rank as usize][group]
        else {
            panic!("{at}: rank {rank} in group {group}: {:?}", results[*rank as usize][group])
        };
        // The error lists the group of each rank in the circle, and the missing ranks of this group with the place
        // where they wait instead.
        let told: BTreeMap<u32, u64> = circle
            .iter()
            .map(|waiting| match MeetingId::at(&waiting.place).map(|meeting| meeting.kind) {
                Some(MeetingKind::Commit { group }) => (waiting.rank, group.uid),
                other => panic!("{at}: {other:?}"),
            })
            .collect();
        let wanted: BTreeMap<u32, u64> = expected.iter().map(|other| (*other, stuck[other])).collect();
        assert_eq!(told, wanted, "{at}: rank {rank}");
        let absent = |it: &&u32| stuck.get(it) != Some(group) && expected.contains(it);
        let wanted: Vec<u32> = members(*group).iter().filter(absent).copied().collect();
        let named: Vec<u32> = missing.iter().map(|it| it.rank).filter(|it| expected.contains(it)).collect();
        assert_eq!(named, wanted, "{at}: rank {rank}");
    }
    assert!(circles > 1, "{at}: {stuck:?}");
}

fn orders_of(groups: &[u64]) -> Vec<Vec<u64>> {
    match groups {
        [] => vec![Vec::new()],
        _ => (0..groups.len())
            .flat_map(|first| {
                let rest = [&groups[..first], &groups[first + 1..]].concat();
                orders_of(&rest).into_iter().map(move |order| [&[groups[first]], order.as_slice()].concat())
            })
            .collect(),
    }
}

/// All orders of all ranks, each with its own groups.
fn all_orders(with_world: bool) -> Vec<Vec<Vec<u64>>> {
    let of_rank = |rank: u32| {
        let has = |(group, members): &&(u64, &[u32])| members.contains(&rank) && (with_world || *group > 0);
        let groups: Vec<u64> = GROUPS.iter().filter(has).map(|(group, _)| *group).collect();
        orders_of(&groups)
    };
    let mut all: Vec<Vec<Vec<u64>>> = vec![Vec::new()];
    for rank in 0..RANKS as u32 {
        let longer = |begun: &Vec<Vec<u64>>| {
            let begun = begun.clone();
            of_rank(rank).into_iter().map(move |order| [begun.clone(), vec![order]].concat())
        };
        all = all.iter().flat_map(longer).collect();
    }
    all
}

/// All precedences among these ranks.
fn precedences(ranks: &[u64]) -> Vec<Vec<usize>> {
    let orders = orders_of(ranks).into_iter();
    orders.map(|order| order.into_iter().map(|rank| rank as usize).collect()).collect()
}

/// The first rank in `precedence` that can proceed.
fn first(precedence: &[usize], able: &[usize]) -> usize {
    let mut first = precedence.iter().copied().filter(|rank| able.contains(rank));
    first.next().expect("all ranks have a precedence")
}

/// All orders of all ranks, each under every `step`th precedence. The orders begin at different precedences, so that
/// each precedence has its share of orders.
fn explore(with_world: bool, pool_of: PoolOf, step: usize) -> (usize, BTreeMap<&'static str, u64>) {
    let (all, mut tally) = (all_orders(with_world), BTreeMap::new());
    for (number, orders) in all.iter().enumerate() {
        for precedence in precedences(&[0, 1, 2, 3]).into_iter().skip(number % step).step_by(step) {
            let results = run(orders, pool_of, Duration::ZERO, |able| first(&precedence, able));
            check(orders, &results, &format!("precedence {precedence:?}"), &mut tally);
        }
    }
    (all.len(), tally)
}

#[test]
fn every_order_of_two_calls_commits_or_tells_the_circle() {
    for pool_of in [ONE_POOL, A_POOL_EACH] {
        let (orders, tally) = explore(false, pool_of, 1);
        // Two of the sixteen cross: those in which all ranks take the direction around the square that no other
        // takes.
        assert_eq!((orders, tally["committed"], tally["crossing"]), (16, 14 * 24, 2 * 24));
    }
}

fn every_order_of_three_calls_ends(pool_of: PoolOf) {
    let step = 24_u64.div_ceil(test_effort()) as usize;
    let (orders, tally) = explore(true, pool_of, step);
    assert_eq!(orders, 1296);
    assert_eq!(tally["committed"] + tally["crossing"], 1296 * 24 / step as u64);
    println!("{tally:?}");
}

#[test]
fn every_order_of_three_calls_of_one_pool_commits_or_tells_the_circle() {
    every_order_of_three_calls_ends(ONE_POOL);
}

#[test]
fn every_order_of_three_calls_of_a_pool_each_commits_or_tells_the_circle() {
    every_order_of_three_calls_ends(A_POOL_EACH);
}
