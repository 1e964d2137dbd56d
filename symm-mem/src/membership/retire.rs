//! Retirement of segments: all ranks of the pool's [`Domain`](crate::Domain) deregister the windows of the segments and
//! remove the segments from the pool, or no rank does. If no group of the pool is [poisoned](Poison), each rank then
//! frees the memory of the segments.

use std::{
    cell::Cell,
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use bootstrap::agreement::{self, remove_left};
use caching_alloc::core::symmetric::SymmetricSegment;
use cuda_driver::{Context, graph::is_capturing};
use process_group::{
    comm::{CommError, Group, Window},
    store::{Deadline, StoreError},
};

use super::{
    group::{SymmetricGroup, check, end_poisoned, readiness},
    group_state::GroupState,
    lookup::Table,
    memberships::Memberships,
    registration_guard::RegistrationGuard,
};
use crate::{
    agreement::{
        Candidate, Committed, Ending, Enqueued, GroupId, GroupLog, Poison, Readiness, Release, RetireOutcome,
        RetirePlan, RetireProtocol, Retired, RetirementRecord, Start, ending::store_error, retirement_ending,
    },
    error::{CallContext, Error},
    error_kind::ErrorKind,
    group_object::{GroupObject, is_closed},
    idle::when_idle,
    lock::lock,
};

/// Result of a [retirement](crate::SymmetricPool::retire); equal on all ranks except for `bytes`, `windows` and
/// `elapsed`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetireReport {
    /// Ordinals (numbers in the pool) of the retired segments.
    pub ordinals: Vec<u32>,
    /// Number of bytes of these segments that this call returned to the driver. Memory that the driver failed to
    /// release is not counted. Memory of earlier retirements is not counted, even if this call returned it.
    ///
    /// 0 on a rank on which a group of the pool is [poisoned](crate::Poison), because that group's communicator may
    /// still have windows in the memory. The next retirement after the pool has
    /// [forgotten](crate::SymmetricPool::forget) the group returns the memory. Without such a retirement, the memory is
    /// returned with the rest of the pool's memory.
    pub bytes: u64,
    /// Number of windows that this rank deregistered, in all groups.
    pub windows: usize,
    /// Duration of the call on this rank.
    pub elapsed: Duration,
}

/// A group that takes part in a retirement, with the group's state on this rank.
struct Participant<'a> {
    group: &'a dyn SymmetricGroup,
    group_state: Arc<Mutex<GroupState>>,
    /// Held until the retirement has ended, so that no other thread registers or deregisters windows of the group.
    /// `None` if another thread held the guard: this rank then reports that it is not ready.
    _guard: Option<RegistrationGuard<'a>>,
}

impl Memberships {
    /// Retires the segments `ordinals` on all ranks of the domain, or on none. `groups` are the groups that take part:
    /// they must include all groups that have committed one of the segments.
    #[track_caller]
    pub(crate) fn retire(
        &self,
        ordinals: &[u32],
        groups: &[&dyn SymmetricGroup],
        deadline: Duration,
    ) -> Result<RetireReport, Error> {
        let begun = Instant::now();
        let ordinals: Vec<u32> = ordinals.iter().copied().collect::<BTreeSet<u32>>().into_iter().collect();
        let (participants, mut trouble) = self.participants(groups);
        let pool_use = self.uses.retire();
        if pool_use.is_none() {
            trouble.get_or_insert("another thread commits this pool, or retires segments of it".to_owned());
        }
        let group_states: Vec<Arc<Mutex<GroupState>>> =
            participants.iter().map(|participant| participant.group_state.clone()).collect();
        let readiness = readiness_of(&participants, trouble, self.memory().context());
        let mut enqueued: Vec<Enqueued> =
            participants.iter().flat_map(|participant| participant.group.enqueued()).collect();
        enqueued.sort_by_key(|it| it.group);
        enqueued.dedup_by_key(|it| it.group);
        let start = self.begin_retirement(&ordinals, &group_states, readiness, enqueued, deadline);
        let (result, windows, failure) = self.run_retirement(start, &ordinals, &participants);
        let cause = failure.as_ref().map(ToString::to_string);
        let (bytes, newly_poisoned) = self.end_retirement(&ordinals, &group_states, &result, cause);
        for participant in
            participants.iter().filter(|participant| newly_poisoned.contains(&participant.group.id()))
        {
            let poison = lock(&participant.group_state).log.poison().cloned();
            if let Some(poison) = poison {
                end_poisoned(participant.group, self.domain().rank(), &poison);
            }
        }
        let ending = match result {
            Ok(Retired::Everywhere {}) => {
                return Ok(RetireReport { ordinals, bytes, windows, elapsed: begun.elapsed() });
            }
            Ok(Retired::Poisoned { poison, .. }) => Ending::Poisoned(poison),
            Err(ending) => ending,
        };
        let poisoned = participants.iter().filter(|it| lock(&it.group_state).log.poison().is_some());
        let poisoned = poisoned.map(|participant| participant.group.id()).collect();
        let call = CallContext::of_pool("retirement", self.id());
        Err(call.error(ErrorKind::of_ending(ending, ErrorKind::Refused, failure, poisoned)))
    }

    /// Returns two values: the groups that take part, in ascending order of their ids, and a description of a problem
    /// with one of `groups` (`None` if there is no problem).
    fn participants<'a>(&self, groups: &[&'a dyn SymmetricGroup]) -> (Vec<Participant<'a>>, Option<String>) {
        let mut trouble = None;
        let mut participants: Vec<Participant<'a>> = Vec::new();
        for group in groups {
            let group_state = self.group_state(group.id(), group.ranks());
            let outside = lock(&group_state).outside(self.domain());
            match outside {
                Some(error) => trouble = Some(error.to_string()),
                None if participants.iter().any(|participant| participant.group.id() == group.id()) => {}
                None => {
                    let guard = RegistrationGuard::take(group.communicator());
                    if guard.is_none() {
                        let cause = format!("another thread commits a pool for group {}", group.id());
                        trouble.get_or_insert(cause);
                    }
                    participants.push(Participant { group: *group, group_state, _guard: guard });
                }
            }
        }
        participants.sort_by_key(|participant| participant.group.id());
        (participants, trouble)
    }

    /// Begins a retirement of the segments `ordinals` (in ascending order) with the groups of `group_states`.
    /// `readiness` is the result of this rank's checks of the groups and devices. `enqueued` has the numbers of
    /// collectives and messages (sends and receives) that this rank has enqueued, by group. Returns the arguments with
    /// which this rank takes part in the agreement of all ranks on the retirement.
    pub fn begin_retirement(
        &self,
        ordinals: &[u32],
        group_states: &[Arc<Mutex<GroupState>>],
        readiness: Readiness,
        enqueued: Vec<Enqueued>,
        deadline: Duration,
    ) -> Start<RetireProtocol> {
        let groups: Vec<Committed> = group_states
            .iter()
            .map(|group_state| {
                let group_state = lock(group_state);
                Committed { group: group_state.log.group(), log: group_state.log.committed() }
            })
            .collect();
        let table = self.table();
        let arena = self.memory().arena();
        let log = arena.log().state().into();
        let frozen = arena.is_frozen();
        let is_live = |ordinal: &u32| arena.segments().get(*ordinal as usize).is_some_and(|it| !it.retired);
        let unknown = ordinals.iter().find(|ordinal| !is_live(ordinal)).copied();
        let segments = ordinals.iter().map(|&ordinal| {
            let (graphs, blocks) = (arena.graphs_of(ordinal), arena.blocks_in(ordinal));
            let given = |group: &GroupId| groups.iter().any(|it| it.group == *group);
            let uncovered = table.groups_of(ordinal).filter(|group| !given(group)).collect();
            Candidate { ordinal, graphs, blocks, uncovered }
        });
        let segments = segments.collect();
        drop(arena);
        let readiness = match (readiness, unknown, table.split_window(ordinals)) {
            (Readiness::GroupOpen, ..) => Readiness::GroupOpen,
            (Readiness::Capturing, ..) => Readiness::Capturing,
            _ if frozen => Readiness::Capturing,
            (_, Some(ordinal), _) => {
                let cause = "there is no such segment, or it was retired before".to_owned();
                Readiness::Failed { ordinal: Some(ordinal), cause }
            }
            (_, None, Some((ordinal, group, others))) => {
                let cause = format!(
                    "it shares a window of group {group} with the segments {others:?}, which can only be retired together"
                );
                Readiness::Failed { ordinal: Some(ordinal), cause }
            }
            (readiness, None, None) => readiness,
        };
        let domain = self.domain();
        let record = RetirementRecord { readiness, enqueued, log, groups, segments };
        let round = self.meetings().retirements.count();
        Start::retirement(self.id(), round, domain.rank(), domain.ranks().to_vec(), record, deadline)
    }

    /// Runs this rank's part in the agreement on the retirement, and in the work that the ranks agree on. Returns the
    /// result of the retirement, the number of windows that this rank deregistered, and the store's error if the store
    /// failed.
    fn run_retirement(
        &self,
        start: Start<RetireProtocol>,
        ordinals: &[u32],
        participants: &[Participant<'_>],
    ) -> (Result<Retired, Ending>, usize, Option<StoreError>) {
        let Start { member, record } = start;
        let (deregistration_begun, mut windows, mut last) = (Cell::new(false), 0, None);
        let act = |plan: &RetirePlan, deadline, _: &dyn Fn() -> bool| {
            last = Some(plan.clone());
            match plan {
                RetirePlan::Quiesce {} => RetireOutcome::Quiet(self.wait_until_idle(participants, deadline)),
                RetirePlan::Deregister {} => {
                    deregistration_begun.set(true);
                    let (release, deregistered) = self.deregister(ordinals, participants, deadline);
                    windows = deregistered;
                    RetireOutcome::Deregistered(release)
                }
            }
        };
        // The end of a group ends this rank's part in the agreement, but only until this rank has begun to deregister.
        // From then on, the rank waits for the verdict: the ranks' common judgement of the outcomes on all ranks. It
        // names every rank and every ended group whose windows may remain. Without the verdict, the error would name
        // only one rank. The wait has a time limit.
        let watched = || if deregistration_begun.get() { &[] } else { participants };
        let store = self.domain().store();
        let object = GroupObject {
            rank: member.rank,
            store: store.clone(),
            check: || watched().iter().try_for_each(|participant| participant.group.standing()),
            health: || watched().iter().filter_map(|participant| participant.group.health_handle()),
            ignores: is_closed,
        };
        let ended = agreement::run::<RetireProtocol>(&**store, member.clone(), record, act, object);
        let left = self.meetings().end(&member, ended.is_ok());
        left.iter().for_each(|place| remove_left(&**store, place));
        match ended {
            Ok(retired) => (Ok(retired), windows, None),
            Err(mut failed) => {
                let error = store_error(&mut failed, &member);
                (retirement_ending(failed.ending, &member, last.as_ref()), windows, error)
            }
        }
    }

    /// Waits until the pool's device and the devices of the groups in `participants` are idle. Returns
    /// [`Release::Done`] if they are, [`Release::Blocked`] if they are not idle by the deadline, or [`Release::Failed`]
    /// if the wait failed.
    fn wait_until_idle(&self, participants: &[Participant<'_>], deadline: Deadline) -> Release {
        let contexts: Vec<Context> = self
            .memory()
            .context()
            .into_iter()
            .cloned()
            .chain(participants.iter().map(|participant| participant.group.communicator().context().clone()))
            .collect();
        match when_idle(contexts, deadline.remaining(), || ()) {
            Ok(true) => Release::Done {},
            Ok(false) => Release::Blocked {},
            Err(cause) => Release::Failed { cause },
        }
    }

    /// Unmaps the peers' memory of the segments `ordinals`. Then removes the windows and plain registrations
    /// (`ncclCommRegister`) of this rank's segments, group by group in the order of `participants`, and within a group
    /// in the order of `ordinals`. If a deregistration fails because its group has ended, continues with the next
    /// group. Any other failure ends the call. Returns the outcome, which this rank posts to the others, and the number
    /// of deregistered windows.
    fn deregister(
        &self,
        ordinals: &[u32],
        participants: &[Participant<'_>],
        deadline: Deadline,
    ) -> (Release, usize) {
        // Unmap the peers' segments first, so that they are unmapped even if a deregistration fails. The driver frees a
        // peer's memory only once no rank maps it any more.
        self.memory().attachments().forget(ordinals);
        let table = self.table();
        let mut deregistered = 0;
        let mut ended_groups = Vec::new();
        let mut first_cause = None;
        for participant in participants {
            match deregister_from(participant, ordinals, &table, deadline) {
                Ok(windows) => deregistered += windows,
                Err(error) => match (participant.group.standing(), error) {
                    // The end of the group caused the failure. Continue with the windows of the other groups.
                    (Err(ended), _) => {
                        ended_groups.push(participant.group.id());
                        first_cause.get_or_insert(ended.to_string());
                    }
                    (Ok(()), CommError::DeadlineExceeded { .. }) => {
                        return (Release::Blocked {}, deregistered);
                    }
                    (Ok(()), error) => return (Release::Failed { cause: error.to_string() }, deregistered),
                },
            }
        }
        match first_cause {
            None => (Release::Done {}, deregistered),
            Some(cause) => (Release::Over { groups: ended_groups, cause }, deregistered),
        }
    }

    /// Applies the result of the retirement of `ordinals` with the groups of `group_states`. `cause` is the store's
    /// error if the store failed. Returns the number of bytes freed, and the groups that this call has
    /// [poisoned](Poison). The caller must abort the communicators of these groups.
    #[track_caller]
    pub fn end_retirement(
        &self,
        ordinals: &[u32],
        group_states: &[Arc<Mutex<GroupState>>],
        result: &Result<Retired, Ending>,
        cause: Option<String>,
    ) -> (u64, Vec<GroupId>) {
        match result {
            Ok(Retired::Everywhere {}) => (self.remove_and_free(ordinals), Vec::new()),
            Ok(Retired::Poisoned { poison, culprits, over }) => {
                let is_affected = |log: &GroupLog| {
                    over.contains(&log.group()) || log.members().iter().any(|it| culprits.contains(it))
                };
                let poisoned = self.poison_groups(group_states, poison, is_affected);
                self.remove_and_free(ordinals);
                (0, poisoned)
            }
            Err(ending) => {
                let doubt = ending.doubt(self.domain().rank(), cause);
                (0, doubt.map_or_else(Vec::new, |poison| self.poison_groups(group_states, &poison, |_| true)))
            }
        }
    }

    /// Removes the segments from the pool. If no group of this pool is poisoned, also frees their memory and memory
    /// left from earlier retirements. Returns the number of bytes of these segments that were freed.
    #[track_caller]
    fn remove_and_free(&self, ordinals: &[u32]) -> u64 {
        let is_poisoned = self.remove_segments(ordinals);
        let mut arena = self.memory().arena();
        let segment = |ordinal: &u32| arena.segments().get(*ordinal as usize).copied();
        let segments: Vec<SymmetricSegment> = ordinals.iter().filter_map(segment).collect();
        for ordinal in ordinals {
            let retired = arena.retire(*ordinal);
            debug_assert!(retired.is_ok(), "{retired:?}");
        }
        // A poisoned group's communicator may still have windows in the memory.
        if is_poisoned {
            return 0;
        }
        // Memory that the driver fails to release is left out of the count. The arena does not try to release it again.
        let failed = arena.give_back().err().unwrap_or_default();
        let is_freed = |it: &&SymmetricSegment| failed.iter().all(|(memory, _)| *memory != it.memory);
        segments.iter().filter(is_freed).map(|segment| segment.bytes).sum()
    }

    /// Poisons the groups of `group_states` for which `is_affected` returns true, and returns them.
    fn poison_groups(
        &self,
        group_states: &[Arc<Mutex<GroupState>>],
        poison: &Poison,
        is_affected: impl Fn(&GroupLog) -> bool,
    ) -> Vec<GroupId> {
        let mut poisoned = Vec::new();
        for group_state in group_states {
            let mut group_state = lock(group_state);
            if is_affected(&group_state.log) {
                group_state.log.set_poison(poison.clone());
                self.publish_poison(&group_state);
                poisoned.push(group_state.log.group());
            }
        }
        poisoned
    }
}

/// Removes the plain registrations (`ncclCommRegister`) and windows of the segments in one group. Returns the number of
/// windows.
fn deregister_from(
    participant: &Participant<'_>,
    ordinals: &[u32],
    table: &Table,
    deadline: Deadline,
) -> Result<usize, CommError> {
    let id = participant.group.id();
    for registration in ordinals.iter().filter_map(|ordinal| table.registered(*ordinal, id)) {
        registration.deregister(deadline)?;
    }
    let windows = ordinals.iter().filter_map(|ordinal| table.window(*ordinal, id));
    let mut windows: Vec<Window> = windows.map(|(window, _)| window.clone()).collect();
    // Segments can share a window, so `windows` can have duplicates. They are adjacent, as `dedup_by_key` needs:
    // `ordinals` is ascending, and each segment between two segments of a window is in the same window or was retired.
    windows.dedup_by_key(|window| window.serial());
    let count = windows.len();
    if count > 0 {
        // SAFETY: all ranks agreed to retire these segments after they found that no block or graph uses them. Then
        // every rank waited until its devices were idle, so no work uses the windows.
        unsafe { participant.group.communicator().deregister_windows(windows, deadline) }?;
    }
    Ok(count)
}

/// Returns the readiness of this rank for a retirement. Does not check the segments. The rank is ready if the groups
/// can take part, no stream of their devices or of the pool's device is capturing, and the calling thread has no NCCL
/// group open. Errors of these checks become part of the result, which the rank posts, so that all ranks get them.
/// `trouble` is a problem that is already known. `context` is that of the pool.
fn readiness_of(
    participants: &[Participant<'_>],
    trouble: Option<String>,
    context: Option<&Context>,
) -> Readiness {
    let trouble = trouble.or_else(|| {
        // If a group has ended, its error is more specific than that of its communicator.
        participants.iter().find_map(|participant| match participant.group.standing() {
            Err(ended) => Some(ended.to_string()),
            // A communicator that is not created yet is accepted, because it has no windows.
            Ok(()) => check(participant.group.communicator(), false).err().map(|error| error.to_string()),
        })
    });
    let mut contexts =
        context.into_iter().chain(participants.iter().map(|it| it.group.communicator().context()));
    let is_capturing = contexts
        .try_fold(false, |found, context| Ok::<_, cuda_driver::Error>(found || is_capturing(context)?));
    readiness(Group::is_open(), trouble, is_capturing.map_err(|error| error.to_string()))
}
