//! One rank: a device, an arena over its virtual memory, groups, and the commit's machine over the store's.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use caching_alloc::{
    core::symmetric::{Geometry, Placement, SymmetricArena},
    driver::{Sharing, VirtualMemorySource},
};
use cuda_driver::{Context, DevicePtr, Driver, Stream, StreamFlags};
use gpu_sim::sched;
use nccl_sys::{Api, ncclUniqueId};
use process_group::store::machine::{Reply, Request};
use symm_mem::agreement::{
    Agreed, Capabilities, Commit, Conclusion, Ending, Enqueued, GroupId, Input, Outcome, Output, Policy,
    PoolId, Readiness, Seat, Segment, Situation, Verdict, WindowSupport,
};

use super::{
    desk::Desk,
    library::{Group, Job, Registration},
    network::{Connection, Network},
    scenario::{DEADLINE, PATIENCE, Scenario, Trouble},
};
use crate::commit::offer::{operation, segment};

const MIB: u64 = 1 << 20;
/// How many floats are summed.
const COUNT: usize = 256;

/// A commit as it went on one rank.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Ended {
    pub(super) rank: u32,
    pub(super) group: u64,
    pub(super) members: Vec<u32>,
    pub(super) round: u64,
    pub(super) result: Result<Agreed, Ending>,
    pub(super) begun: Duration,
    pub(super) ended: Duration,
    pub(super) deadline: Duration,
    /// A registration call was refused on this rank.
    pub(super) refused: bool,
    /// Whether a sum over the group was right, if one was made.
    pub(super) sum: Option<bool>,
}

/// What the actors of a rank share.
#[derive(Default)]
pub(super) struct Desks {
    pub(super) jobs: Desk<Job>,
    pub(super) watches: Desk<Watch>,
}

/// What the rank's watch is asked to do: free the group if the members' verdict is that it is dead.
pub(super) struct Watch {
    group: Arc<Group>,
    verdict_key: String,
    until: Duration,
    over: Arc<AtomicBool>,
}

/// The rank's watching actor.
pub(super) fn watch(network: Arc<Network>, watches: &Desk<Watch>) {
    let mut store = Connection::open(network);
    while let Some(Watch { group, verdict_key, until, over }) = watches.take("a registration to watch", None)
    {
        let verdict = store.get(verdict_key, until).map(|bytes| Verdict::decode(&bytes));
        if matches!(verdict, Some(Ok(Verdict::Poison { .. }))) && !over.load(Relaxed) {
            group.abort();
        }
    }
}

/// Closes the desks when the rank ends, also by a panic.
struct Leave(Arc<Desks>);

impl Drop for Leave {
    fn drop(&mut self) {
        self.0.jobs.close();
        self.0.watches.close();
    }
}

/// What a rank starts from.
pub(super) struct Start {
    pub(super) rank: u32,
    pub(super) scenario: Scenario,
    pub(super) driver: Driver,
    pub(super) nccl: Api,
    pub(super) id: ncclUniqueId,
    pub(super) network: Arc<Network>,
    pub(super) desks: Arc<Desks>,
}

struct Member {
    group: Arc<Group>,
    seat: Seat,
    rounds: u64,
    sums: u64,
}

struct Rank {
    rank: u32,
    context: Context,
    stream: Stream,
    arena: SymmetricArena,
    blocks: Vec<Placement>,
    members: BTreeMap<u64, Member>,
    store: Connection,
    desks: Arc<Desks>,
}

/// The rank's actor: from its communicators to their end.
pub(super) fn live(start: Start) -> Vec<Ended> {
    let _leave = Leave(start.desks.clone());
    let scenario = start.scenario.clone();
    let mut rank = Rank::join(start);
    for bytes in scenario.requests(rank.rank) {
        let placed = rank.arena.allocate(bytes).expect("there is room");
        rank.blocks.push(placed.placement);
    }
    let own = rank.rank == scenario.culprit;
    let mut ended = Vec::new();

    let mut order: Vec<u64> = rank.members.keys().copied().collect();
    match scenario.trouble {
        Trouble::Swapped if own => order.reverse(),
        Trouble::Late(by) if own => sched::sleep(by).expect("the world goes on"),
        Trouble::Absent if own => order.clear(),
        _ => {}
    }
    for group in order {
        ended.push(rank.commit(group, Policy::Strict, DEADLINE));
    }
    // Once more, with all the time that it takes: what can be agreed on is.
    let absent = |members: &[u32]| scenario.trouble == Trouble::Absent && members.contains(&scenario.culprit);
    let order: Vec<u64> =
        rank.members.iter().filter(|(_, it)| !absent(&it.group.members)).map(|(uid, _)| *uid).collect();
    for group in order {
        ended.push(rank.commit(group, Policy::Prefix, PATIENCE));
    }
    rank.leave();
    ended
}

impl Rank {
    fn join(start: Start) -> Self {
        let Start { rank, scenario, driver, nccl, id, network, desks } = start;
        let context =
            driver.device(rank).and_then(|device| device.retain_primary()).expect("a device for each");
        let stream = Stream::new(&context, StreamFlags::NON_BLOCKING).expect("a stream");
        let source =
            VirtualMemorySource::new(&context, Sharing::by_descriptor()).expect("it has virtual memory");
        let geometry = Geometry { first_segment: 2 * MIB, largest_segment: 8 * MIB };
        let arena = SymmetricArena::new(Arc::new(source), geometry).expect("its steps are small");

        let current = context.enter().expect("the device is well");
        let world = Group::join(&nccl, id, rank, scenario.size);
        let pair = world.split(10, |rank| rank / 2, rank);
        let stride = world.split(20, |rank| rank % 2, rank);
        drop(current);
        let pool = PoolId { domain: 1, generation: 1, pool: 0 };
        let member = |group: Group| {
            let seat = Seat::new(pool, GroupId { uid: group.uid, epoch: 0 }, rank, group.members.clone());
            (group.uid, Member { group: Arc::new(group), seat, rounds: 0, sums: 0 })
        };
        let members = [world, pair, stride].map(member).into();
        let store = Connection::open(network);
        Self { rank, context, stream, arena, blocks: Vec::new(), members, store, desks }
    }

    fn leave(self) {
        let Self { context, stream, arena, members, .. } = self;
        let current = context.enter().expect("the device is well");
        for member in members.into_values().rev() {
            member.group.destroy();
        }
        drop(current);
        arena.release().expect("nobody holds the segments");
        drop(stream);
    }

    fn commit(&mut self, uid: u64, policy: Policy, deadline: Duration) -> Ended {
        let begun = sched::now();
        let enqueued = self.members.values().map(|member| Enqueued {
            group: GroupId { uid: member.group.uid, epoch: 0 },
            collectives: member.sums,
            messages: Vec::new(),
        });
        let situation = Situation {
            policy,
            deadline,
            readiness: Readiness::Ready,
            capabilities: Capabilities { library: 22809, windows: WindowSupport::Available },
            enqueued: enqueued.collect(),
            address_space_left: None,
            log: self.arena.log().state().into(),
            log_since: self.arena.log().oldest(),
            segments: self.arena.segments().iter().map(segment).collect(),
        };
        let Some(member) = self.members.get_mut(&uid) else { panic!("the rank is in the group") };
        let (machine, segments) = member.seat.begin(situation);
        let (group, round) = (member.group.clone(), member.rounds);
        member.rounds += 1;
        let mut refused = false;
        let conclusion = self.run(machine, &group, &segments, &mut refused);
        let Some(member) = self.members.get_mut(&uid) else { panic!("the rank is in the group") };
        let doomed = member.seat.conclude(&conclusion, &segments);
        if member.seat.poison().is_some() {
            group.abort();
        }
        let committed = member.seat.committed().length;
        let ended = sched::now();
        for key in doomed {
            self.store.ask(Request::Delete { key: key.into() });
        }
        let sum = conclusion.result.is_ok().then(|| self.sum(&group, committed)).flatten();
        let members = group.members.clone();
        let result = conclusion.result;
        Ended { rank: self.rank, group: uid, members, round, result, begun, ended, deadline, refused, sum }
    }

    /// Runs the commit's machine to its end.
    fn run(
        &mut self,
        mut machine: Commit,
        group: &Arc<Group>,
        segments: &[Segment],
        refused: &mut bool,
    ) -> Conclusion {
        let mut input = Input::Start;
        loop {
            input = match machine.step(input, sched::now()) {
                Output::Done(conclusion) => return conclusion,
                Output::Set { key, value } => match self.store.ask(Request::Set { key: key.into(), value }) {
                    None => Input::Stored,
                    other => panic!("{other:?} in answer to set"),
                },
                Output::Add { key } => match self.store.ask(Request::Add { key: key.into(), delta: 1 }) {
                    Some(Reply::Integer(count)) => Input::Count(count.unsigned_abs()),
                    other => panic!("{other:?} in answer to add"),
                },
                Output::Fetch { keys } => {
                    let keys = keys.into_iter().map(Into::into).collect();
                    match self.store.ask(Request::MultiGet { keys }) {
                        // No value of the protocol is empty.
                        Some(Reply::Values(values)) => Input::Values(
                            values.into_iter().map(|value| Some(value).filter(|it| !it.is_empty())).collect(),
                        ),
                        other => panic!("{other:?} in answer to multi_get"),
                    }
                }
                Output::Propose { key, value } => {
                    let request = Request::CompareSet { key: key.into(), expected: Vec::new(), new: value };
                    match self.store.ask(request) {
                        Some(Reply::Bytes(stands)) => Input::Stands(stands),
                        other => panic!("{other:?} in answer to compare_set"),
                    }
                }
                Output::Await { key, until } => {
                    self.store.get(key, until).map_or(Input::Expired, Input::Stands)
                }
                Output::Hashes { lengths } => {
                    Input::Hashes(lengths.iter().map(|length| self.arena.log().hash_at(*length)).collect())
                }
                Output::Recall { sequence } => {
                    Input::Operation(self.arena.log().operation(sequence).map(operation))
                }
                Output::Register { segments: count, until, verdict_key, .. } => {
                    let agreed = &segments[..count as usize];
                    let (outcome, struck) = self.register(group, agreed, until, verdict_key);
                    *refused |= struck;
                    Input::Registered(outcome)
                }
            }
        }
    }

    fn register(
        &self,
        group: &Arc<Group>,
        agreed: &[Segment],
        until: Duration,
        verdict_key: String,
    ) -> (Outcome, bool) {
        let windows = agreed.iter().map(|segment| {
            let memory = &self.arena.segments()[segment.ordinal as usize].memory;
            (DevicePtr(memory.address), memory.bytes as usize)
        });
        let (answer, over) = (Arc::new(Desk::default()), Arc::new(AtomicBool::new(false)));
        self.desks.watches.put(Watch { group: group.clone(), verdict_key, until, over: over.clone() });
        self.desks.jobs.put(Job {
            group: group.clone(),
            context: self.context.clone(),
            windows: windows.collect(),
            answer: answer.clone(),
        });
        let registration = answer.take("the registration of windows", Some(until));
        over.store(true, Relaxed);
        registration.map_or((Outcome::Blocked, false), |Registration { outcome, refused }| (outcome, refused))
    }

    /// Sums over the group in the first block, if that lies in a committed segment. Whether the sum is right.
    fn sum(&mut self, group: &Group, committed: u64) -> Option<bool> {
        let block = *self.blocks.first()?;
        if u64::from(block.ordinal) >= committed {
            return None;
        }
        let at = DevicePtr(self.arena.address(block)?);
        let own = (self.rank + 1) as f32;
        let expected: f32 = group.members.iter().map(|rank| (rank + 1) as f32).sum();
        // SAFETY: the block is alive until the rank leaves.
        unsafe { self.stream.fill_u32(at, own.to_bits(), COUNT) }.expect("the block can be filled");
        let current = self.context.enter().expect("the device is well");
        group.all_reduce(at, COUNT, &self.stream);
        drop(current);
        self.stream.synchronize().expect("the sum is made");
        let mut found = vec![0f32; COUNT];
        // SAFETY: nothing writes to the block meanwhile.
        unsafe { self.context.copy_to_host(&mut found, at) }.expect("the block can be read");
        if let Some(member) = self.members.get_mut(&group.uid) {
            member.sums += 1;
        }
        Some(found.iter().all(|value| *value == expected))
    }
}
