//! A rank: its pools with their device, its groups, and its current *meeting* (an agreement among ranks). The terms
//! *domain*, *trouble*, *culprit*, *record*, *log* and *poisoned* are defined in [`super`]. The *epoch* of a group is a
//! part of its id: a rank can create a group again, in the same epoch or in the next one ([`Action::Make`]).

use std::{
    collections::{BTreeMap, VecDeque},
    hash::{DefaultHasher, Hash, Hasher},
    mem,
    ops::Range,
    sync::Arc,
    time::Duration,
};

use bootstrap::agreement::{self, Gone};
use caching_alloc::core::symmetric::SymmetricArena;
use process_group::{
    group::GroupId,
    store::{HashStore, Store},
};
use symm_agreement::{Enqueued, LogPoint, MessageCounts, PoolId, RetirePlan, hash::chain};
use symm_mem::{
    Domain, Geometry, GraphPin, PoolCapture, SymmetricBlock, SymmetricPool,
    internals::{GraphHold, PoolMemory, instance_key},
};

use crate::{
    device::Device,
    exchanges::{Allocation, Exchanges},
    library::{Extent, Life},
    pools::memory_of,
    random::Random,
    results::{Kind, Meeting, Span},
    scenario::Action,
    violation::Violation,
    work::{Answer, MappingKey, Work},
};

/// Returns two stores, which are used only to create domains. Each rank creates a domain in each of them: in the first
/// store, the domain of its pools; in the second, a domain that only supplies the pool id [`Rank::twin`].
///
/// The *instance number* of a domain is a random number, equal on all ranks. Domains in different stores differ in it.
/// In production, the domain draws the number and writes it to the store. Here the stores already contain instance
/// numbers that are drawn from the seed, so that each run of a seed has the same numbers.
pub(crate) fn stores(random: &mut Random) -> Result<[Arc<HashStore>; 2], Violation> {
    let stores = [Arc::new(HashStore::new()), Arc::new(HashStore::new())];
    for store in &stores {
        for generation in [1, 2] {
            let instance = random.next().to_le_bytes();
            store.set(&instance_key(1, generation), &instance).map_err(Violation::of)?;
        }
    }
    Ok(stores)
}

/// The state of a group on a rank.
pub(crate) struct Membership {
    pub(crate) id: GroupId,
    pub(crate) members: Vec<u32>,
    /// The number of the next commit of the rank's [first pool](Rank::pool) for the group. A commit that the rank
    /// skips, by [`Action::Skip`] or because nothing is new, has a number too. If the rank creates the group again, the
    /// numbers go on in the same epoch, and begin at 0 in a new epoch.
    pub(crate) commits: u64,
    /// Like `commits`, but counts the commits of the rank's [second pool](Rank::second).
    pub(crate) second_commits: u64,
    /// The number of the next rendezvous of the group. It begins at 0 when the rank creates the group.
    pub(crate) rendezvous: u64,
    /// How many times the rank has created the group with this id, see [`Life`].
    pub(crate) life: u64,
    /// The number of collectives that the rank has enqueued on the group. The count goes on if the rank creates the
    /// group again, also in a new epoch.
    pub(crate) collectives: u64,
    /// For each peer, the number of messages sent to it and the number of messages received from it, counted like
    /// `collectives`.
    pub(crate) messages: BTreeMap<u32, (u64, u64)>,
    /// A reference to the pool's memory, so that dropping the pool does not free memory that the group's communicator
    /// has registered. The rank holds it from its first attempt to register segments until the communicator has ended.
    pub(crate) kept: Option<Arc<PoolMemory>>,
    /// The mappings of peers' memory that rendezvous have made. In a rendezvous, the members map each other's memory.
    /// Each value is the number of the rendezvous that made the mapping (counted by `rendezvous`), and the
    /// [numbers](crate::work::Work::Meet::identity) that the rank has read from the start of the mapped memory.
    pub(crate) peer_mappings: BTreeMap<MappingKey, (u64, Vec<u64>)>,
}

impl Membership {
    /// Returns the state of a group that the rank has created for the first time.
    pub(crate) fn new(uid: u64, members: Vec<u32>) -> Self {
        Self {
            id: GroupId { uid, epoch: 0 },
            members,
            commits: 0,
            second_commits: 0,
            rendezvous: 0,
            life: 1,
            collectives: 0,
            messages: BTreeMap::new(),
            kept: None,
            peer_mappings: BTreeMap::new(),
        }
    }

    /// Counts a message sent to `peer`.
    pub(crate) fn send(&mut self, peer: u32) {
        self.messages.entry(peer).or_default().0 += 1;
    }

    /// Counts a message received from `peer`.
    pub(crate) fn receive(&mut self, peer: u32) {
        self.messages.entry(peer).or_default().1 += 1;
    }

    /// Returns the number of messages sent to `peer` and the number of messages received from it.
    fn counts_with(&self, peer: u32) -> (u64, u64) {
        self.messages.get(&peer).copied().unwrap_or_default()
    }

    /// Compares the work of two ranks on a group. `self` is the state of the group on rank `own`, and `theirs` is its
    /// state on rank `other`. Returns true if both ranks have enqueued the same number of collectives, and if for each
    /// direction between them, the sends of one rank and the receives of the other are equal in number.
    pub(crate) fn is_even(&self, own: u32, other: u32, theirs: &Self) -> bool {
        let ((sent, received), (their_sent, their_received)) =
            (self.counts_with(other), theirs.counts_with(own));
        self.collectives == theirs.collectives && (sent, received) == (their_received, their_sent)
    }
}

/// A graph capture in progress.
pub(crate) struct Capture {
    /// The pool's handle of the capture, or `None` if the rank has not declared the capture to the pool by
    /// `begin_capture`.
    pub(crate) declared: Option<PoolCapture>,
    /// A random number, in place of the driver's id of the capture.
    number: u64,
    /// Keeps the blocks that the captured work uses from being freed, if the capture was not declared to the pool.
    hold: Option<Arc<GraphHold>>,
    /// The addresses of the blocks that the captured work uses.
    used: Vec<Range<u64>>,
}

/// The resources of a captured graph.
pub(crate) struct Graph {
    _pin: Option<GraphPin>,
    _hold: Option<Arc<GraphHold>>,
    /// The addresses of the blocks that the captured work uses.
    used: Vec<Range<u64>>,
}

impl Capture {
    pub(crate) fn begin(pool: &SymmetricPool, declared: bool, number: u64) -> Self {
        let declared = declared.then(|| pool.begin_capture());
        Self { declared, number, hold: None, used: Vec::new() }
    }

    /// Records that the captured work uses `block`.
    pub(crate) fn uses(&mut self, pool: &SymmetricPool, block: &SymmetricBlock) {
        let (begin, bytes) = (block.ptr().0, block.bytes());
        self.used.push(begin..begin + bytes);
        match &mut self.declared {
            Some(declared) => declared.uses(block),
            None => {
                let hold = memory_of(pool).graph_hold(self.number);
                if let Some(hold) = &hold {
                    memory_of(pool).arena().hold_range(&[hold.pin], begin, bytes);
                }
                self.hold = hold;
            }
        }
    }

    pub(crate) fn end(self) -> Graph {
        let Self { declared, hold, used, .. } = self;
        Graph { _pin: declared.map(PoolCapture::finish), _hold: hold, used }
    }
}

/// A meeting in progress on a rank.
pub(crate) struct Task {
    pub(crate) work: Work,
    pub(crate) span: Span,
    /// The number of operations in the log of the rank's [first pool](Rank::pool) when the meeting began.
    pub(crate) history: u64,
    /// True if the rank has begun to register windows in this commit. Always false in other meetings.
    pub(crate) registered: bool,
    /// The store key of this rank's [record](super), without the rank at the end of the key. `None` until the rank asks
    /// the store to store the record.
    pub(crate) record_prefix: Option<String>,
    /// True if the last request of the meeting waits for a key of the store.
    pub(crate) waits: bool,
    /// The code of the state machine's last request, see [`Want::code`](crate::work::Want::code). [`Rank::code`]
    /// contains it.
    pub(crate) request_code: u64,
}

pub(crate) struct Rank {
    pub(crate) number: u32,
    pub(crate) program: VecDeque<Action>,
    pub(crate) device: Arc<Device>,
    /// The first pool, which all actions use that name no other pool.
    pub(crate) pool: SymmetricPool,
    /// A second pool of the domain, which stays empty. Its commits test that ranks can commit two pools for a group,
    /// also in different orders ([`Trouble::CrossesPools`](crate::trouble::Trouble::CrossesPools)).
    pub(crate) second: SymmetricPool,
    /// A pool id that belongs to no pool of the rank. Its domain number and its pool number equal those in the id of
    /// `pool`, but its [instance number](stores) differs. In exchanges, the rank names some allocations that it lends
    /// as segments of `pool`, and others as segments of a pool with this id. This tests that a comparison of ids
    /// includes the instance number.
    pub(crate) twin: PoolId,
    /// The rank's blocks, each with its identity: a hash of all operations of the pool up to the placement of the
    /// block. A block has the same identity on all ranks whose pools have executed the same operations.
    pub(crate) blocks: Vec<(SymmetricBlock, u64)>,
    pub(crate) capture: Option<Capture>,
    pub(crate) graphs: Vec<Graph>,
    /// The groups that the rank has created, by uid.
    pub(crate) groups: BTreeMap<u64, Membership>,
    /// The rank's one-sided exchanges, by the uid of the group. In an exchange, members lend each other memory, see
    /// [`exchanges`](crate::exchanges).
    pub(crate) exchanges: BTreeMap<u64, Exchanges>,
    /// The simulated device memory of exchanges: the rank allocates here the memory that it lends, and maps here the
    /// memory that peers lend.
    pub(crate) lending: Arc<Device>,
    /// The allocations outside the pools that the rank has offered in rendezvous, by id. They are *persistent*: the
    /// rank keeps them until the end of the run, and all ranks use the same ids. They are on `lending`, and begin with
    /// the id.
    pub(crate) persistent: BTreeMap<u64, Allocation>,
    /// The number of allocations that the rank has made on `lending` for exchanges.
    pub(crate) allocations: u64,
    /// The number of the rank's next agreement on a length.
    pub(crate) lengths: u64,
    /// The number of the rank's next retirement.
    pub(crate) retirements: u64,
    /// The number of window registrations begun. A trouble can select a registration by this number.
    pub(crate) registrations: u32,
    /// The number of plain registrations (`ncclCommRegister`) begun. A trouble can select a registration by this
    /// number.
    pub(crate) plain_registrations: u32,
    pub(crate) task: Option<Task>,
    /// The token of the last request of the rank's meeting, see [the terms](super).
    pub(crate) token: u64,
    /// How far the rank's own clock is ahead of the simulation's clock.
    pub(crate) clock: Duration,
    /// The number of [steps](super) of the rank, which are the events that it handles. A trouble can select a step by
    /// this number.
    pub(crate) steps: u64,
    /// The number of actions that the rank has begun in all its meetings, for example to register windows. See
    /// [`CutOffAt::Action`](crate::trouble::CutOffAt::Action). The [`Action`]s of its program do not count.
    pub(crate) actions: u64,
    /// Like `actions`, but counts only actions of retirements.
    pub(crate) retirement_actions: u64,
    pub(crate) dead: bool,
    /// The time until which the rank cannot reach the store, on the simulation's clock in µs.
    pub(crate) cut_off: u64,
    /// True if a meeting of this rank has ended because the store failed.
    pub(crate) lost: bool,
    /// The dead rank that this rank's watchdogs have reported, or `None`.
    pub(crate) reported_dead: Option<u32>,
    /// True once this rank has deviated from its peers, as the culprit of a trouble that makes it deviate only once,
    /// for example in its first exchange.
    pub(crate) has_deviated: bool,
    /// The time until which the rank handles no events, on the simulation's clock in µs.
    pub(crate) stopped_until: u64,
    /// A hash of all operations in the pool's log. The simulation computes this hash itself, and does not use the hash
    /// in the log.
    pub(crate) identity: u64,
    /// The number of operations that are hashed in `identity`.
    operations: u64,
    /// The identity of each segment, by ordinal: the value of `identity` after the operation for which the pool created
    /// the segment.
    segments: Vec<u64>,
}

impl Rank {
    /// Creates a rank whose domain has the members `ranks`. If `extra` is true, the rank creates the domain twice, see
    /// [`Trouble::ExtraDomain`](crate::trouble::Trouble::ExtraDomain). The first device is for the rank's pools, and
    /// the second one for the memory of its exchanges. The `stores` are those that [`stores`] returns.
    pub(crate) fn new(
        number: u32,
        ranks: &[u32],
        extra: bool,
        program: Vec<Action>,
        [device, lending]: [Device; 2],
        stores: &[Arc<HashStore>; 2],
        random: &mut Random,
    ) -> Result<Self, Violation> {
        let device = Arc::new(device);
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
            lending: Arc::new(lending),
            persistent: BTreeMap::new(),
            allocations: 0,
            lengths: 0,
            retirements: 0,
            registrations: 0,
            plain_registrations: 0,
            task: None,
            token: 0,
            clock: Duration::from_micros(random.below(1 << 40)),
            steps: 0,
            actions: 0,
            retirement_actions: 0,
            dead: false,
            cut_off: 0,
            lost: false,
            reported_dead: None,
            has_deviated: false,
            stopped_until: 0,
            identity: 0,
            operations: 0,
            segments: Vec::new(),
        })
    }

    /// Adds the new operations of the pool's log to the hash `identity`. Records the identity of each new segment, and
    /// writes it to the start of the segment.
    pub(crate) fn observe(&mut self) -> Result<(), Violation> {
        let arena = memory_of(&self.pool).arena();
        for operation in history(&arena, self.operations) {
            self.identity = chain(self.identity, operation);
            self.operations += 1;
            let made = arena.segments().get(self.segments.len());
            if let Some(made) = made.filter(|segment| segment.log.length == self.operations) {
                self.device.write(made.memory.address, self.identity)?;
                self.segments.push(self.identity);
            }
        }
        Ok(())
    }

    /// Returns the current [`Life`] of a group on this rank. Its number is 0 if the rank has not created the group.
    pub(crate) fn life(&self, id: GroupId) -> Life {
        Life { group: id, number: self.groups.get(&id.uid).map_or(0, |it| it.life) }
    }

    pub(crate) fn is_poisoned(&self, id: GroupId) -> bool {
        self.pool.poison(id).is_some()
    }

    /// Keeps the pool's memory until the group's communicator has ended, see [`Membership::kept`].
    pub(crate) fn keep_memory(&mut self, group: u64) {
        let memory = memory_of(&self.pool).clone();
        self.groups.entry(group).and_modify(|it| it.kept = Some(memory));
    }

    /// Returns the pool that a meeting of this kind is about: the second pool for [`Kind::Second`], else the first.
    pub(crate) fn pool_of(&self, kind: Kind) -> &SymmetricPool {
        if matches!(kind, Kind::Second(_)) { &self.second } else { &self.pool }
    }

    /// Returns an address range that overlaps `bytes` and that a graph or the current capture of the rank uses, or
    /// `None` if there is no such range.
    pub(crate) fn used_by_graph(&self, bytes: Range<u64>) -> Option<Range<u64>> {
        let captured = self.capture.iter().flat_map(|capture| &capture.used);
        let mut used = self.graphs.iter().flat_map(|graph| &graph.used).chain(captured);
        used.find(|used| used.start < bytes.end && bytes.start < used.end).cloned()
    }

    /// Returns true if the rank stops waiting in its meeting because its watchdogs have reported that a member of one
    /// of the meeting's groups is dead. Returns false for an agreement on a length, which has no groups, and for a
    /// retirement in which the rank has begun to deregister.
    pub(crate) fn is_over(&self) -> bool {
        let Some((task, reported_dead)) = self.task.as_ref().zip(self.reported_dead) else { return false };
        let in_group = |uid| self.groups.get(&uid).is_some_and(|it| it.members.contains(&reported_dead));
        let deregisters = matches!(
            &task.work,
            Work::Retire { machine, .. } if machine.last == Some(RetirePlan::Deregister {})
        );
        let mut groups =
            task.work.groups().into_iter().map(|id| id.uid).chain(task.span.meeting.kind.group());
        !deregisters && groups.any(in_group)
    }

    /// Returns the answer that ends the rank's wait for the store when [`is_over`](Self::is_over) is true.
    pub(crate) fn over(&self) -> Answer {
        let rank = self.reported_dead.unwrap_or(self.number);
        Answer::Store(agreement::Answer::Over(Gone { rank, cause: "it is dead".to_owned() }))
    }

    /// Returns a description of the current meeting for the trace, or an empty text if there is none.
    pub(crate) fn doing(&self) -> String {
        let meeting = self.task.as_ref().map(|task| task.span.meeting);
        meeting.map_or_else(String::new, |Meeting { kind, round, .. }| format!("{kind:?} {round}"))
    }

    /// Returns a hash of the rank's state. The simulation counts the distinct states that its runs visit, and compares
    /// them by these codes. The code leaves out numbers that only grow, such as those of meetings, because no state
    /// would occur twice with them.
    pub(crate) fn code(&self) -> u64 {
        let at =
            self.task.as_ref().map(|task| (task.request_code, mem::discriminant(&task.span.meeting.kind)));
        let poisoned = self.groups.values().any(|it| self.is_poisoned(it.id));
        let mut hasher = DefaultHasher::new();
        (at, self.dead, self.lost, self.capture.is_some(), self.graphs.is_empty(), poisoned)
            .hash(&mut hasher);
        hasher.finish()
    }

    /// Returns the address range and the identity of the segment with this ordinal (its number in the pool), or `None`
    /// if the segment does not exist on this rank.
    pub(crate) fn extent(&self, ordinal: u32) -> Option<Extent> {
        let segment = memory_of(&self.pool).arena().segments().get(ordinal as usize).copied()?;
        let identity = *self.segments.get(ordinal as usize)?;
        Some(Extent { address: segment.memory.address, bytes: segment.bytes, identity })
    }

    /// Returns the ordinals of the segments that are not retired.
    pub(crate) fn live_segments(&self) -> Vec<u32> {
        let arena = memory_of(&self.pool).arena();
        arena.segments().iter().filter(|segment| !segment.retired).map(|segment| segment.ordinal).collect()
    }

    /// Returns the state of the pool's log at the creation of a segment, or `None` if the segment does not exist on
    /// this rank.
    pub(crate) fn log_of(&self, ordinal: u32) -> Option<LogPoint> {
        let arena = memory_of(&self.pool).arena();
        arena.segments().get(ordinal as usize).map(|segment| segment.log.into())
    }

    /// Returns the number of operations in the pool's log.
    pub(crate) fn operations(&self) -> u64 {
        memory_of(&self.pool).arena().log().state().length
    }

    /// Returns the first `count` operations of the pool's log.
    pub(crate) fn history(&self, count: u64) -> Vec<[u64; 4]> {
        history(&memory_of(&self.pool).arena(), 0).take(count as usize).collect()
    }

    pub(crate) fn enqueued(&self) -> Vec<Enqueued> {
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
        self.groups.values().map(count).collect()
    }

    /// Converts a time on the simulation's clock, in µs, to the rank's own clock.
    pub(crate) fn time(&self, now: u64) -> Duration {
        Duration::from_micros(now) + self.clock
    }

    /// Converts a time on the rank's own clock to the simulation's clock, in µs.
    pub(crate) fn world_time(&self, time: Duration) -> u64 {
        time.saturating_sub(self.clock).as_micros() as u64
    }

    /// Returns the block with index `nth` modulo the number of blocks, or `None` if there are no blocks.
    pub(crate) fn block(&self, nth: u64) -> Option<&(SymmetricBlock, u64)> {
        let count = self.blocks.len() as u64;
        (count > 0).then(|| &self.blocks[(nth % count) as usize])
    }
}

/// Returns the operations of a pool's log from number `since` on. Each operation is four numbers: its kind, its size in
/// bytes, and the segment ordinal and byte offset of its placement. The last two are `u64::MAX` if the operation is a
/// failed request.
fn history(arena: &SymmetricArena, since: u64) -> impl Iterator<Item = [u64; 4]> {
    let log = arena.log();
    (since..log.state().length).filter_map(|number| log.operation(number)).map(|it| {
        let [ordinal, offset] = it.placement.map_or([u64::MAX; 2], |at| [at.ordinal.into(), at.offset]);
        [it.kind as u64, it.bytes, ordinal, offset]
    })
}
