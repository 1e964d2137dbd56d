//! Ranks, a store and a library under one seeded scheduler.
//!
//! The simulation runs in one thread with its own clock in µs. Every request to the store takes a random time in each
//! direction. A call into the library begins at once, unless the run's [`Trouble`] delays it, and its answer takes a
//! random time.
//! Events at the same time happen in a random order. The clock of each rank has its own offset.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, HashMap, HashSet},
    hash::{DefaultHasher, Hash, Hasher},
    sync::Weak,
    time::Duration,
};

use bootstrap::agreement::{Answer, Decision, Request, read_verdict};

use super::{
    exchanges::Allocation,
    keys::Keys,
    library::{Extent, Library, Life},
    random::Random,
    rank::{Rank, stores},
    results::{Ended, Used},
    scenario::Scenario,
    trouble::Trouble,
    violation::{Limits, Violation},
    work::{self, StoreRequest},
};
use crate::{
    agreement::{CommitProtocol, Outcome, Rejection, meeting_id::generation_key},
    exchange::protocol::AllocationId,
    rendezvous::protocol::Record,
};

#[derive(Debug)]
pub(super) enum Event {
    /// The rank continues its program.
    Resume(u32),
    /// The store receives a request of a rank, with the rank's token. The rank ignores the answer if it has another
    /// token by then.
    Request(u32, u64, StoreRequest),
    /// An answer arrives at the rank.
    Answer(u32, u64, work::Answer),
    /// The rank maps its peers' memory.
    Share(u32, u64, Vec<Record>),
    /// The rank's call into the library begins.
    Enter(u32, u64, Life, Vec<Extent>),
    /// The rank checks if peers have closed the memory that it has lent them.
    Collect(u32),
    /// The first rank learns that the second one is dead.
    Noticed(u32, u32),
}

/// The store that ranks use to agree.
#[derive(Debug, Default)]
pub(super) struct Store {
    pub(super) keys: Keys,
    /// The waits: key, rank, and token of the rank.
    waiting: Vec<(String, u32, u64)>,
    served: u64,
    dead: bool,
}

pub(super) struct World {
    pub(super) scenario: Scenario,
    pub(super) random: Random,
    pub(super) now: u64,
    pub(super) ranks: Vec<Rank>,
    pub(super) store: Store,
    pub(super) library: Library,
    /// Members in a registration: the key of their verdict, rank, and token.
    pub(super) watched: Vec<(String, u32, u64)>,
    /// The memory that ranks offer to their peers, by token: rank, and identity of the memory.
    pub(super) offers: HashMap<u64, (u32, u64)>,
    /// The allocations that ranks lend, until they are freed.
    pub(super) allocations: HashMap<(u32, AllocationId), Weak<Allocation>>,
    /// The allocation lent for each transfer, by the exchange's key and the index of the transfer.
    pub(super) lent: HashMap<(String, usize), Weak<Allocation>>,
    pub(super) ended: Vec<Ended>,
    pub(super) uses: BTreeMap<(u64, u64), Vec<Used>>,
    pub(super) steps: u64,
    pub(super) record: u64,
    pub(super) states: HashSet<u64>,
    pub(super) trace: Option<Vec<String>>,
    sequence: u64,
    events: BinaryHeap<Reverse<(u64, u64, u64)>>,
    pending: HashMap<u64, Event>,
}

/// Adds a line to the trace, if there is one.
macro_rules! tell {
    ($world:expr, $($what:tt)*) => {
        if $world.trace.is_some() {
            let line = format!("{:>9} us  {}", $world.now, format_args!($($what)*));
            $world.trace.as_mut().into_iter().for_each(|trace| trace.push(line.clone()));
        }
    };
}
pub(super) use tell;

/// The delay before a failed store request is repeated, in µs.
const RETRY_INTERVAL: u64 = 50_000;
/// The shortest time, from the first failure of a request, for which a member in doubt repeats it, in µs.
pub(super) const RETRY_FLOOR: u64 = 5_000_000;
/// More steps than any terminating run takes.
const ENDLESS: u64 = 1_000_000;

impl World {
    pub(super) fn new(seed: u64, limits: &Limits, trace: bool) -> Result<Self, Violation> {
        let mut random = Random(seed);
        let mut scenario = Scenario::draw(&mut random, limits);
        let size = scenario.programs.len() as u32;
        let lives = stores(&mut random)?;
        let programs = std::mem::take(&mut scenario.programs);
        let rank = |(number, program): (u32, _)| {
            let small = scenario.trouble == Trouble::Exhausted && scenario.is_culprit(number);
            let capacity = if small { (2 << 20) * random.below(12) } else { scenario.capacity };
            let extra = scenario.trouble == Trouble::ExtraDomain && scenario.is_culprit(number);
            let domain = scenario.domain(number, size);
            Rank::new(number, &domain, extra, program, capacity, &lives, &mut random)
        };
        let ranks = (0..).zip(programs).map(rank).collect::<Result<Vec<Rank>, Violation>>()?;
        let mut store = Store::default();
        for rank in &ranks {
            let generation = rank.pool.id().generation.to_string();
            store.keys.values.0.insert(generation_key(1, rank.number), generation.into_bytes());
        }
        Ok(Self {
            scenario,
            random,
            now: 0,
            ranks,
            store,
            library: Library::default(),
            watched: Vec::new(),
            offers: HashMap::new(),
            allocations: HashMap::new(),
            lent: HashMap::new(),
            ended: Vec::new(),
            uses: BTreeMap::new(),
            steps: 0,
            record: 0,
            states: HashSet::new(),
            trace: trace.then(Vec::new),
            sequence: 0,
            events: BinaryHeap::new(),
            pending: HashMap::new(),
        })
    }

    pub(super) fn rank(&mut self, rank: u32) -> &mut Rank {
        &mut self.ranks[rank as usize]
    }

    /// Processes events until none is left. Fails if an invariant is violated, or after [`ENDLESS`] steps.
    pub(super) fn run(&mut self) -> Result<(), Violation> {
        for rank in 0..self.ranks.len() as u32 {
            self.soon(Event::Resume(rank));
        }
        while let Some(Reverse((time, order, id))) = self.events.pop() {
            self.now = time;
            let Some(event) = self.pending.remove(&id) else { continue };
            self.steps += 1;
            if self.steps > ENDLESS {
                return Err(Violation("the run does not end".into()));
            }
            self.record = Random(self.record ^ time ^ order).next() ^ id;
            self.happen(event)?;
            self.visit();
        }
        Ok(())
    }

    pub(super) fn at(&mut self, time: u64, event: Event) {
        self.sequence += 1;
        let order = self.random.next();
        self.events.push(Reverse((time.max(self.now), order, self.sequence)));
        self.pending.insert(self.sequence, event);
    }

    pub(super) fn delay(&mut self) -> u64 {
        let slowest = self.scenario.slowest;
        1 + self.random.below(slowest)
    }

    pub(super) fn soon(&mut self, event: Event) {
        let time = self.now + self.delay();
        self.at(time, event);
    }

    fn happen(&mut self, event: Event) -> Result<(), Violation> {
        let rank = match &event {
            Event::Request(..) => None,
            Event::Resume(rank)
            | Event::Answer(rank, ..)
            | Event::Share(rank, ..)
            | Event::Enter(rank, ..)
            | Event::Collect(rank)
            | Event::Noticed(rank, _) => Some(*rank),
        };
        if let Some(rank) = rank {
            if self.ranks[rank as usize].dead {
                return Ok(());
            }
            if self.ranks[rank as usize].stopped_until > self.now {
                let later = self.ranks[rank as usize].stopped_until;
                self.at(later, event);
                return Ok(());
            }
            // An answer to a request that the rank no longer waits for is not a step of the rank.
            let stale = matches!(&event, Event::Answer(_, token, _) | Event::Share(_, token, _) | Event::Enter(_, token, ..)
                if *token != self.ranks[rank as usize].token);
            if stale || !self.strike(rank) {
                return Ok(());
            }
        }
        match event {
            Event::Request(rank, token, request) => {
                self.serve(rank, token, request);
                Ok(())
            }
            Event::Resume(rank) => self.resume(rank),
            Event::Answer(rank, token, answer) => self.answer(rank, token, answer),
            Event::Share(rank, token, records) => {
                self.share(rank, token, &records);
                Ok(())
            }
            Event::Enter(rank, token, group, extents) => self.enter(rank, token, group, extents, false),
            Event::Collect(rank) => {
                self.collect(rank);
                Ok(())
            }
            Event::Noticed(rank, lost) => self.noticed(rank, lost),
        }
    }

    /// Counts a step of the rank, and applies the run's trouble if it is due at this step. Returns false if the rank
    /// dies.
    fn strike(&mut self, rank: u32) -> bool {
        let now = self.now;
        let (trouble, culprit) = (self.scenario.trouble, self.scenario.is_culprit(rank));
        let state = self.rank(rank);
        state.steps += 1;
        let steps = state.steps;
        match trouble {
            Trouble::Killed(at) if culprit && at == steps => {
                state.dead = true;
                self.store.waiting.retain(|(_, waiting, _)| *waiting != rank);
                tell!(self, "rank {rank} dies");
                if let Some(after) = self.scenario.noticed {
                    for other in (0..self.ranks.len() as u32).filter(|other| *other != rank) {
                        let late = after + self.delay();
                        self.at(now + late, Event::Noticed(other, rank));
                    }
                }
                false
            }
            Trouble::Stopped(at, ms) if culprit && at == steps => {
                state.stopped_until = now + 1000 * ms;
                tell!(self, "rank {rank} stops for {ms} ms");
                true
            }
            Trouble::CutOff(at, ms) if culprit && at == steps => {
                state.cut_off = now + 1000 * ms;
                tell!(self, "rank {rank} is cut off from the store for {ms} ms");
                self.interrupt(|waiting| waiting == rank);
                true
            }
            _ => true,
        }
    }

    /// Processes a request in the store.
    fn serve(&mut self, rank: u32, token: u64, request: StoreRequest) {
        self.store.served += 1;
        if !self.store.dead
            && matches!(self.scenario.trouble, Trouble::StoreDies(at) if at <= self.store.served)
        {
            self.store.dead = true;
            self.interrupt(|_| true);
        }
        let answer = if !self.reaches_store(rank) {
            if self.retries(rank, token) {
                return self.at(self.now + RETRY_INTERVAL, Event::Request(rank, token, request));
            }
            Answer::StoreFailed
        } else {
            if let Some(task) = &mut self.rank(rank).task {
                task.failing_since = None;
            }
            match request {
                StoreRequest::Set { key, value } => {
                    // In production, a rank that lends memory polls this key. The model does not poll: it schedules a
                    // check after each write.
                    let (said, lender) = key.rsplit_once('/').unwrap_or_default();
                    if let (true, Ok(lender)) = (said.contains("/closed/"), lender.parse()) {
                        self.soon(Event::Collect(lender));
                    }
                    self.store.keys.values.0.insert(key, value);
                    Answer::Stored
                }
                StoreRequest::Agreement(request) => match self.execute(&request) {
                    Some(answer) => answer,
                    None => {
                        let Request::Await { key, .. } = request else { return };
                        return self.store.waiting.push((key, rank, token));
                    }
                },
            }
        };
        self.soon(Event::Answer(rank, token, work::Answer::Store(answer)));
    }

    /// Executes a request of an agreement, and wakes the ranks that wait for the key. Returns `None` for a wait for a
    /// key that has no value.
    fn execute(&mut self, request: &Request) -> Option<Answer> {
        // A rank of the simulation takes part in one agreement at a time. So no decided agreement has to stay in its
        // list.
        if let Request::Enter { key, .. } = request {
            self.store.keys.values.leave_decided(key);
        }
        let answer = self.store.keys.values.execute(request)?;
        if let (Request::Propose { key, .. }, Answer::Result(stands)) = (request, &answer) {
            if is_dead(stands) {
                self.free_the_blocked(key);
            }
            let waiting = std::mem::take(&mut self.store.waiting);
            let (woken, waiting) = waiting.into_iter().partition(|(at, ..)| at == key);
            self.store.waiting = waiting;
            let woken: Vec<(String, u32, u64)> = woken;
            for (_, rank, token) in woken {
                self.soon(Event::Answer(rank, token, work::Answer::Store(answer.clone())));
            }
        }
        Some(answer)
    }

    pub(super) fn reaches_store(&self, rank: u32) -> bool {
        !self.store.dead && self.ranks[rank as usize].cut_off <= self.now
    }

    /// Interrupts the waits at the store of the ranks for which `breaks` is true. These ranks repeat their requests.
    fn interrupt(&mut self, breaks: impl Fn(u32) -> bool) {
        let waiting = std::mem::take(&mut self.store.waiting);
        let (broken, waiting) = waiting.into_iter().partition(|(_, rank, _)| breaks(*rank));
        self.store.waiting = waiting;
        let broken: Vec<(String, u32, u64)> = broken;
        for (key, rank, token) in broken {
            // The event for the end of the wait is already scheduled, so `until` is not used.
            let request = Request::Await { key, until: Duration::ZERO };
            self.soon(Event::Request(rank, token, StoreRequest::Agreement(request)));
        }
    }

    /// Returns true if a rank repeats a failed store request. Members in doubt repeat their current request until their
    /// deadline, and for at least [`RETRY_FLOOR`], like those of `bootstrap::agreement::run`. They do not if they know
    /// that a member is dead.
    fn retries(&mut self, rank: u32, token: u64) -> bool {
        let now = self.now;
        let state = self.rank(rank);
        let current = state.token == token && !state.is_over();
        let in_doubt = state.task.as_mut().filter(|task| current && task.work.is_in_doubt());
        in_doubt.is_some_and(|task| {
            let floor = *task.failing_since.get_or_insert(now) + RETRY_FLOOR;
            now < floor.max(task.span.begun + task.span.deadline)
        })
    }

    /// Unblocks the members that are still in the registration with this verdict key, whose value says that their group
    /// is dead. Leaves out some members at random, because unblocking is not guaranteed.
    fn free_the_blocked(&mut self, key: &str) {
        let watching = std::mem::take(&mut self.watched);
        let (freed, watching): (Vec<_>, Vec<_>) =
            watching.into_iter().partition(|(watched, ..)| watched == key);
        self.watched = watching;
        for (_, rank, token) in freed {
            let outcome = Outcome::Failed { ordinal: None, cause: "aborted".to_owned() };
            if !self.random.one_in(4) {
                self.soon(Event::Answer(rank, token, work::Answer::Registered(outcome, Vec::new())));
            }
        }
    }

    /// Sends a rank's request to the store. A request that writes may be sent twice, like that of a client that repeats
    /// it after it lost the first answer.
    pub(super) fn ask(&mut self, rank: u32, token: u64, request: StoreRequest) {
        if let Some(until) = request.waits_until() {
            let until = self.ranks[rank as usize].world_time(until);
            self.at(until, Event::Answer(rank, token, work::Answer::Store(Answer::Expired)));
        }
        let reads = matches!(
            request,
            StoreRequest::Agreement(Request::Fetch { .. } | Request::Check { .. } | Request::Await { .. })
        );
        if !reads && self.scenario.repeats && self.random.one_in(6) {
            if let StoreRequest::Agreement(request) = &request {
                self.store.keys.repeat(request);
            }
            let first = self.now + self.delay();
            let second = first + self.delay();
            self.at(first, Event::Request(rank, u64::MAX, request.clone()));
            self.at(second, Event::Request(rank, token, request));
            return;
        }
        self.soon(Event::Request(rank, token, request));
    }

    /// Records the state for the coverage count. A state consists of the trouble and the code of every rank,
    /// independent of their order. The code covers the rank's meeting and request, and flags for a dead rank, a lost
    /// store, a capture, graphs, and a poisoned group.
    fn visit(&mut self) {
        let mut ranks: Vec<u64> = self.ranks.iter().map(Rank::code).collect();
        ranks.sort_unstable();
        let mut hasher = DefaultHasher::new();
        std::mem::discriminant(&self.scenario.trouble).hash(&mut hasher);
        ranks.hash(&mut hasher);
        self.states.insert(hasher.finish());
    }
}

/// Returns true if the value of a verdict key says that a group is dead.
pub(crate) fn is_dead(stands: &[u8]) -> bool {
    matches!(
        read_verdict::<CommitProtocol>(stands),
        Some(Err(_) | Ok(Decision::Refused { refusal: Rejection::Poisoned { .. } }))
    )
}
