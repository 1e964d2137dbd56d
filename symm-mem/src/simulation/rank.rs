//! A rank: its pool over its device, its groups, and what it is in the middle of.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Range,
    sync::Arc,
    time::Duration,
};

use process_group::{
    group::GroupId,
    store::{HashStore, Store},
};

use super::{
    Violation,
    device::Device,
    library::{Extent, Life},
    plans::Exchanges,
    random::Random,
    scenario::Action,
    work::Work,
};
use crate::{
    Domain, Geometry, GraphPin, PoolCapture, SymmetricBlock, SymmetricPool,
    agreement::{Enqueued, LogPoint, MessageCounts, PoolId, hash::chain},
    domain::instance_key,
    pool::{GraphHold, Memory},
};

/// Stores in which ranks count their domains. The numbers there that are random in life are drawn from the seed.
pub(super) fn stores(random: &mut Random) -> Result<[Arc<HashStore>; 2], Violation> {
    let stores = [Arc::new(HashStore::new()), Arc::new(HashStore::new())];
    for store in &stores {
        for generation in [1, 2] {
            let instance = random.next().to_le_bytes();
            store.set(&instance_key(1, generation), &instance).map_err(Violation::of)?;
        }
    }
    Ok(stores)
}

/// What peers' memory is remembered for: a segment of the pool, or a persistent allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Home {
    Segment(u32),
    Persistent(u64),
}

/// An operation of a pool's history: its kind, its bytes, its place.
type Entry = (u64, u64, Option<(u32, u64)>);

/// A rank's side of a group.
pub(super) struct Membership {
    pub(super) id: GroupId,
    pub(super) members: Vec<u32>,
    /// How many commits it has begun, over all lives of the group.
    pub(super) commits: u64,
    /// The same of the second pool.
    pub(super) seconds: u64,
    pub(super) meetings: u64,
    /// How often it has made the group under this name.
    pub(super) life: u64,
    pub(super) collectives: u64,
    /// How many messages it has sent to each peer, and received.
    pub(super) messages: BTreeMap<u32, (u64, u64)>,
    /// What the communicator keeps.
    pub(super) kept: Option<Arc<Memory>>,
    /// Where peers' memory is mapped: since which rendezvous, and what lies there.
    pub(super) homes: BTreeMap<Home, (u64, Vec<u64>)>,
}

impl Membership {
    /// It sends a message to `peer`.
    pub(super) fn send(&mut self, peer: u32) {
        self.messages.entry(peer).or_default().0 += 1;
    }

    /// It receives a message from `peer`.
    pub(super) fn receive(&mut self, peer: u32) {
        self.messages.entry(peer).or_default().1 += 1;
    }

    fn with(&self, peer: u32) -> (u64, u64) {
        self.messages.get(&peer).copied().unwrap_or_default()
    }

    /// Whether nothing waits that `own` or `other`, of whom `theirs` is the same membership, alone has enqueued.
    pub(super) fn is_even(&self, own: u32, other: u32, theirs: &Self) -> bool {
        let ((sent, received), (their_sent, their_received)) = (self.with(other), theirs.with(own));
        self.collectives == theirs.collectives && (sent, received) == (their_received, their_sent)
    }
}

/// A capture in progress.
pub(super) struct Capture {
    /// If it was declared to the pool.
    pub(super) declared: Option<PoolCapture>,
    /// The driver's number of it.
    number: u64,
    hold: Option<Arc<GraphHold>>,
    used: Vec<Range<u64>>,
}

/// What a graph was captured with.
pub(super) struct Graph {
    _pin: Option<GraphPin>,
    _hold: Option<Arc<GraphHold>>,
    used: Vec<Range<u64>>,
}

impl Capture {
    pub(super) fn begin(pool: &SymmetricPool, declared: bool, number: u64) -> Self {
        let declared = declared.then(|| pool.begin_capture());
        Self { declared, number, hold: None, used: Vec::new() }
    }

    /// What is captured uses `block`.
    pub(super) fn uses(&mut self, pool: &SymmetricPool, block: &SymmetricBlock) {
        let (begin, bytes) = (block.ptr().0, block.bytes());
        self.used.push(begin..begin + bytes);
        match &mut self.declared {
            Some(declared) => declared.uses(block),
            None => {
                let hold = pool.memory().graph_hold(self.number);
                if let Some(hold) = &hold {
                    pool.memory().hold_for_graph(hold, begin, bytes);
                }
                self.hold = hold;
            }
        }
    }

    pub(super) fn end(self) -> Graph {
        let Self { declared, hold, used, .. } = self;
        Graph { _pin: declared.map(PoolCapture::finish), _hold: hold, used }
    }
}

/// Which meeting it is, and how long it may take, in µs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    pub(super) round: u64,
    pub(super) epoch: u64,
    pub(super) begun: u64,
    pub(super) deadline: u64,
}

/// A meeting in progress.
pub(super) struct Task {
    pub(super) work: Work,
    pub(super) span: Span,
    /// How many operations the pool had seen.
    pub(super) history: usize,
    pub(super) registered: bool,
    /// Whether it waits for others at the store.
    pub(super) waits: bool,
    /// What it wanted last.
    pub(super) at: u64,
}

pub(super) struct Rank {
    pub(super) number: u32,
    pub(super) program: VecDeque<Action>,
    pub(super) device: Arc<Device>,
    pub(super) pool: SymmetricPool,
    /// Another pool of the domain, in which nothing is.
    pub(super) second: SymmetricPool,
    /// A pool of another store that counts alike.
    pub(super) twin: PoolId,
    /// Its blocks, with the identity of each: what the pool had been asked for when it was placed.
    pub(super) blocks: Vec<(SymmetricBlock, u64)>,
    pub(super) capture: Option<Capture>,
    pub(super) graphs: Vec<Graph>,
    pub(super) groups: BTreeMap<u64, Membership>,
    pub(super) exchanges: BTreeMap<u64, Exchanges>,
    /// Where what it lends lies, and how many allocations it has made there.
    pub(super) lending: Arc<Device>,
    pub(super) allocations: u64,
    pub(super) lengths: u64,
    pub(super) retirements: u64,
    /// By what meetings are about, as their keys say it: the last that all had come to.
    pub(super) attended: BTreeMap<String, u64>,
    pub(super) registrations: u32,
    pub(super) plain_registrations: u32,
    pub(super) task: Option<Task>,
    pub(super) token: u64,
    pub(super) clock: Duration,
    pub(super) steps: u64,
    pub(super) dead: bool,
    /// Until when it cannot reach the store.
    pub(super) cut_off: u64,
    /// Whether the store has failed it.
    pub(super) lost: bool,
    /// The rank that its watchdogs say is dead.
    pub(super) heard: Option<u32>,
    /// Whether it has done what only the culprit does, and once.
    pub(super) odd: bool,
    pub(super) stopped_until: u64,
    /// A hash of all that the pool was asked for, which is not the pool's own.
    identity: u64,
    operations: u64,
    /// The identity at the creation of each segment.
    segments: Vec<u64>,
}

impl Rank {
    pub(super) fn new(
        number: u32,
        ranks: &[u32],
        extra: bool,
        program: Vec<Action>,
        capacity: u64,
        stores: &[Arc<HashStore>; 2],
        random: &mut Random,
    ) -> Result<Self, Violation> {
        // Every rank's memory lies elsewhere, and some have their segments in another order than the others.
        let place = 1 + random.below(1 << 20);
        let base = (1 << 45) + (place << 21);
        let device = Arc::new(Device::new(number, base, capacity).falling(place.is_multiple_of(8)));
        let domain = |store: &Arc<HashStore>| {
            Domain::new(store.clone(), 1, number, ranks.iter().copied()).map_err(Violation::of)
        };
        if extra {
            domain(&stores[0])?;
        }
        let (domain, twin) = (domain(&stores[0])?, domain(&stores[1])?.next_pool());
        let geometry = Geometry { first_segment: 2 << 20, largest_segment: 8 << 20 };
        let pool = || SymmetricPool::with_source(&domain, device.clone(), geometry).map_err(Violation::of);
        let (pool, second) = (pool()?, pool()?);
        Ok(Self {
            number,
            program: program.into(),
            device,
            pool,
            second,
            twin,
            blocks: Vec::new(),
            capture: None,
            graphs: Vec::new(),
            groups: BTreeMap::new(),
            exchanges: BTreeMap::new(),
            lending: Arc::new(Device::new(number, 1 << 50, u64::MAX >> 1)),
            allocations: 0,
            lengths: 0,
            retirements: 0,
            attended: BTreeMap::new(),
            registrations: 0,
            plain_registrations: 0,
            task: None,
            token: 0,
            clock: Duration::from_micros(random.below(1 << 40)),
            steps: 0,
            dead: false,
            cut_off: 0,
            lost: false,
            heard: None,
            odd: false,
            stopped_until: 0,
            identity: 0,
            operations: 0,
            segments: Vec::new(),
        })
    }

    /// Looks at what the pool was asked for since the last time.
    pub(super) fn observe(&mut self) {
        let arena = self.pool.memory().arena();
        for operation in arena.log().recent().skip(self.operations as usize) {
            let place = operation.placement.map_or([u64::MAX; 2], |it| [it.ordinal.into(), it.offset]);
            self.identity =
                chain(self.identity, [operation.kind as u64, operation.bytes, place[0], place[1]]);
            self.operations += 1;
            let made = arena.segments().get(self.segments.len()).map(|segment| segment.log.length);
            if made == Some(self.operations) {
                self.segments.push(self.identity);
            }
        }
    }

    pub(super) fn identity(&self) -> u64 {
        self.identity
    }

    /// The life that the rank is in of a group of its.
    pub(super) fn life(&self, id: GroupId) -> Life {
        Life { group: id, number: self.groups.get(&id.uid).map_or(0, |it| it.life) }
    }

    /// A meeting about `what` has ended here; `all` came to it, or not.
    pub(super) fn attend(&mut self, what: String, round: u64, all: bool) {
        if all {
            self.attended.insert(what, round);
        }
    }

    pub(super) fn is_poisoned(&self, id: GroupId) -> bool {
        self.pool.poison(id).is_some()
    }

    /// What a graph of its uses of these bytes, or what it captures.
    pub(super) fn used_by_graph(&self, bytes: Range<u64>) -> Option<Range<u64>> {
        let captured = self.capture.iter().flat_map(|capture| &capture.used);
        let mut used = self.graphs.iter().flat_map(|graph| &graph.used).chain(captured);
        used.find(|used| used.start < bytes.end && bytes.start < used.end).cloned()
    }

    /// Whether it is known that a member of what the rank is in is dead, and the rank waits no longer for that.
    pub(super) fn is_over(&self) -> bool {
        let Some((task, heard)) = self.task.as_ref().zip(self.heard) else { return false };
        let in_group = |group: &u64| self.groups.get(group).is_some_and(|it| it.members.contains(&heard));
        match &task.work {
            Work::Commit { group, .. }
            | Work::Second { group, .. }
            | Work::Plain { group, .. }
            | Work::Meet { group, .. } => in_group(group),
            Work::Exchange(work) => in_group(&work.group),
            Work::Retire { machine, seats, .. } => {
                !machine.is_releasing() && seats.iter().any(|(group, _)| in_group(group))
            }
            Work::Length { .. } => false,
        }
    }

    /// What it is in, for a reader.
    pub(super) fn doing(&self) -> String {
        self.task
            .as_ref()
            .map_or_else(String::new, |task| format!("{:?} {}", task.work.kind(), task.span.round))
    }

    /// What it is at, without numbers that grow.
    pub(super) fn code(&self) -> u64 {
        let at = self.task.as_ref().map_or(0, |task| task.at + 16 * task.work.code());
        let poisoned = self.groups.values().any(|it| self.is_poisoned(it.id));
        let flags = [self.dead, self.lost, self.capture.is_some(), !self.graphs.is_empty(), poisoned];
        flags.iter().fold(at, |code, flag| 2 * code + u64::from(*flag))
    }

    /// What lies in a segment, and where.
    pub(super) fn extent(&self, ordinal: u32) -> Option<Extent> {
        let segment = self.pool.memory().arena().segments().get(ordinal as usize).copied()?;
        let identity = *self.segments.get(ordinal as usize)?;
        Some(Extent { address: segment.memory.address, bytes: segment.bytes, identity })
    }

    /// The segments that are not retired.
    pub(super) fn live_segments(&self) -> Vec<u32> {
        let arena = self.pool.memory().arena();
        arena.segments().iter().filter(|segment| !segment.retired).map(|segment| segment.ordinal).collect()
    }

    /// The log at the creation of a segment, and its length in bytes.
    pub(super) fn made(&self, ordinal: u32) -> Option<(LogPoint, u64)> {
        let arena = self.pool.memory().arena();
        let segment = arena.segments().get(ordinal as usize)?;
        Some((segment.log.into(), segment.bytes))
    }

    /// What the pool was asked for, one entry an operation.
    pub(super) fn history(&self) -> Vec<Entry> {
        let arena = self.pool.memory().arena();
        let entry = |it: caching_alloc::core::symmetric::Operation| {
            (it.kind as u64, it.bytes, it.placement.map(|place| (place.ordinal, place.offset)))
        };
        arena.log().recent().map(entry).collect()
    }

    pub(super) fn enqueued(&self) -> Vec<Enqueued> {
        let with = |(peer, counts): (&u32, &(u64, u64))| MessageCounts {
            peer: *peer,
            sent: counts.0,
            received: counts.1,
            captured: false,
        };
        let count = |it: &Membership| Enqueued {
            group: it.id,
            collectives: it.collectives,
            messages: it.messages.iter().map(with).collect(),
        };
        let mut enqueued: Vec<Enqueued> = self.groups.values().map(count).collect();
        enqueued.sort_by_key(|it| it.group);
        enqueued
    }

    /// The time on the rank's own clock.
    pub(super) fn time(&self, now: u64) -> Duration {
        Duration::from_micros(now) + self.clock
    }

    /// A time on the rank's own clock, on the world's.
    pub(super) fn world_time(&self, until: Duration) -> u64 {
        until.saturating_sub(self.clock).as_micros() as u64
    }

    /// A block by a number that is taken modulo how many there are.
    pub(super) fn block(&self, nth: u64) -> Option<&(SymmetricBlock, u64)> {
        let count = self.blocks.len() as u64;
        (count > 0).then(|| &self.blocks[(nth % count) as usize])
    }
}
