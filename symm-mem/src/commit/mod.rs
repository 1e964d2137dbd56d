//! The one collective: a group's members agree on a pool's segments and register them.
//!
//! | file | subject |
//! |---|---|
//! | `driver` | runs the machine of [`crate::agreement`] over a store |
//! | `group` | what a commit needs of a group |
//! | `plain` | registers plainly what could not become windows |
//! | `turn` | one commit of a communicator at a time |
//! | `watch` | frees a member that is blocked in a registration which cannot succeed |
//! | here | what this rank brings, and what becomes of the result |

pub(crate) mod driver;
#[cfg(test)]
mod driver_tests;
mod group;
mod plain;
mod turn;
mod watch;

use std::{
    any::Any,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use caching_alloc::core::symmetric::{OperationKind as ArenaOperationKind, SymmetricSegment};
use cuda_driver::DevicePtr;
use process_group::{
    comm::{CommError, Communicator, Group, Window, WindowOutcome, WindowRequest},
    group::SymmetricPlaces,
    store::Deadline,
};

pub use self::group::{CommunicatorGroup, SymmetricGroup};
use self::{driver::Local, watch::Watch};
pub(crate) use self::{plain::PlainRegistration, turn::Turn};
use crate::{
    agreement::{
        Agreed, BlockPlace, Capabilities, Commit, Conclusion, Ending, Enqueued, GroupId, LogPoint, NoWindows,
        Operation, OperationKind, Outcome, Poison, Policy, PoolId, Readiness, Refusal, Seat, Segment,
        Situation, WindowSupport,
    },
    error::CommitError,
    pool::{Memory, Standing, SymmetricPool},
};

/// How a commit is made. All members give the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommitOptions {
    /// How differences between ranks are treated.
    pub policy: Policy,
    /// The time after which every member has an answer. A member may come up to half of it later than the first;
    /// the rest is for the registration.
    pub deadline: Duration,
    /// Whether adjacent new segments share a window where the library allows it (NCCL 2.30.3), which saves the time of
    /// the further ones. NCCL's one-sided calls take windows of one segment only: whoever uses them says no.
    pub joined: bool,
}

/// How long the abort of a poisoned group may take to free what it held.
pub(crate) const ABORT_PATIENCE: Duration = Duration::from_secs(2);

impl Default for CommitOptions {
    /// Strict, within 30 seconds, with as few windows as can be.
    fn default() -> Self {
        Self { policy: Policy::Strict, deadline: Duration::from_secs(30), joined: true }
    }
}

impl CommitOptions {
    /// With this policy.
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// With this deadline.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Whether adjacent segments share a window.
    #[must_use]
    pub fn joined(mut self, joined: bool) -> Self {
        self.joined = joined;
        self
    }
}

/// What a commit achieved; equal on all members but for `elapsed`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitReport {
    /// The group.
    pub group: GroupId,
    /// How many segments became the group's by this commit.
    pub new_segments: usize,
    /// How many windows they are; adjacent ones may share one.
    pub new_windows: usize,
    /// How many segments of the pool are the group's.
    pub segments: usize,
    /// How many windows they are.
    pub windows: usize,
    /// Why the new segments have no windows: a group of one, or a library without. The same offsets are the same
    /// block on every rank all the same.
    pub without: Option<NoWindows>,
    /// Whether all members have registered the new segments plainly (`ncclCommRegister`), because they could not become
    /// windows. Where one cannot, none has: [`SymmetricPool::explain`] says why.
    pub registered: bool,
    /// With [`Policy::Prefix`]: what was left out and why.
    pub pending: Option<Refusal>,
    /// From the call to the last member's outcome.
    pub elapsed: Duration,
}

/// A rank's seat in a group, with what is remembered of its commits.
pub(crate) struct Seated {
    pub(crate) seat: Seat,
    /// Why the segments committed from this ordinal on have no windows.
    pub(crate) without: Vec<(u32, NoWindows)>,
    /// The segments that are not registered plainly either, and why not.
    pub(crate) unregistered: Vec<(u32, String)>,
    /// What the last commit left out, and why.
    pub(crate) pending: Option<Refusal>,
    /// Where the group's buffers lie in the pool, for groups that compare it.
    places: Arc<dyn SymmetricPlaces>,
}

impl Seated {
    /// Forgets what a communicator that is gone was given; the pool has retired `retired`.
    pub(crate) fn forget(&mut self, retired: &[u32]) {
        self.seat.forget();
        retired.iter().for_each(|ordinal| self.seat.retire(*ordinal));
        (self.without, self.unregistered, self.pending) = (Vec::new(), Vec::new(), None);
    }

    /// Why segment `ordinal`, which the group has committed, is no window; `None` if it is one.
    pub(crate) fn why_without(&self, ordinal: u32) -> Option<&NoWindows> {
        self.without.iter().rev().find(|(at, _)| *at == ordinal).map(|(_, reason)| reason)
    }

    /// Why segment `ordinal`, which is no window, is not registered plainly either.
    pub(crate) fn why_unregistered(&self, ordinal: u32) -> Option<&str> {
        self.unregistered.iter().rev().find(|(at, _)| *at == ordinal).map(|(_, cause)| cause.as_str())
    }
}

impl SymmetricPool {
    /// Makes the pool's new segments windows of `group`: on all members, or on none.
    ///
    /// Collective over the group: every member calls it at the same point of the program, with the same options. To
    /// be called while nothing is captured and no NCCL group is open, after the same collectives have been
    /// enqueued on all members. A group's commits, of whatever pools, come one after the other: NCCL pairs windows
    /// by their order. Of several groups, every rank commits the one with the lowest number first
    /// ([`commit_all`] does).
    ///
    /// # Errors
    /// [`CommitError`]; [`Refused`](CommitError::Refused) and [`Poisoned`](CommitError::Poisoned) are given to every
    /// member alike, before its deadline.
    pub fn commit(
        &self,
        group: &dyn SymmetricGroup,
        options: CommitOptions,
    ) -> Result<CommitReport, CommitError> {
        self.commit_from(group, options, Group::is_open())
    }

    /// Brings a group to the pool that may have come late, after segments have been committed for others or retired:
    /// a commit with nothing behind it, of all segments that are not retired. Collective over the group, with all
    /// that holds for [`commit`](Self::commit), which does the same for a group that was not attached before; here a
    /// group that the pool cannot serve is found out where groups are made.
    ///
    /// A member that has retired other segments than the rest is told apart before any window is made
    /// ([`Poison::CommittedLogDiverged`]).
    ///
    /// # Errors
    /// [`CommitError::GroupOutsideDomain`] and all others of a commit.
    pub fn attach(
        &self,
        group: &dyn SymmetricGroup,
        options: CommitOptions,
    ) -> Result<CommitReport, CommitError> {
        self.commit(group, options)
    }

    /// Commits for a caller that has an NCCL group open or not: on another thread that could not be told.
    fn commit_from(
        &self,
        group: &dyn SymmetricGroup,
        options: CommitOptions,
        inside: bool,
    ) -> Result<CommitReport, CommitError> {
        let begun = Instant::now();
        let id = group.id();
        let seated = self.seated(id, group.ranks())?;
        let mut seated = lock(&seated);
        let turn = Turn::take(group.communicator());
        let found = Found::of(group, inside, turn.is_some());
        let (machine, segments) = self.begin_commit(&mut seated, options, found);
        let mut member = Member {
            pool: self,
            group,
            communicator: group.communicator(),
            segments: &segments,
            windows: Vec::new(),
        };
        let (conclusion, failure) = driver::run(machine, self.domain().store(), &mut member);
        let windows = member.windows;
        let serials: Vec<u64> = windows.iter().map(|(window, _)| window.serial()).collect();

        let cause = failure.as_ref().map(ToString::to_string);
        let (result, doomed) = self.end_commit(&mut seated, conclusion, cause, &segments, &serials, windows);
        if failure.is_none() {
            // What is left behind costs a few bytes in the store, no more; but a store that has failed is asked once.
            let _ = doomed.iter().try_for_each(|key| self.domain().store().delete(key).map(drop));
        }
        let (result, failure) = match result {
            Ok(report)
                if report.new_segments > 0
                    && matches!(report.without, Some(NoWindows::Unsupported { .. })) =>
            {
                let left = Deadline::after(options.deadline.saturating_sub(begun.elapsed()));
                let new = &segments[..report.new_segments.min(segments.len())];
                let (registered, failure) = self.register_plainly(group, &mut seated, new, left);
                (registered.map(|registered| CommitReport { registered, ..report }), failure)
            }
            result => (result, failure),
        };
        let ended = group.standing();
        match result {
            Ok(report) => {
                group.compare_places(seated.places.clone());
                Ok(CommitReport { elapsed: begun.elapsed(), ..report })
            }
            Err(ending) => {
                if seated.seat.poison().is_some() {
                    // Members that are blocked inside the library come out. What could not be freed is leaked by
                    // the communicator, which says so when it is used.
                    let patience = Deadline::after(ABORT_PATIENCE.min(options.deadline / 16));
                    let _ = group.communicator().abort_handle().abort(patience);
                }
                // Where the group is over, whatever else failed did so for that.
                Err(match ended {
                    Err(source) => CommitError::GroupOver { group: id, source: Arc::new(source) },
                    Ok(()) => failed(id, ending, failure),
                })
            }
        }
    }

    /// Why `group` is poisoned for this pool, if it is.
    pub fn poison(&self, group: GroupId) -> Option<Poison> {
        let seated = self.seats().get(&group).cloned()?;
        let seated = lock(&seated);
        seated.seat.poison().cloned()
    }

    /// The seat of this rank in group `id` of `ranks`, made when it is first asked for.
    pub(crate) fn seated(&self, id: GroupId, ranks: Vec<u32>) -> Result<Arc<Mutex<Seated>>, CommitError> {
        let domain = self.domain();
        let outside: Vec<u32> =
            ranks.iter().copied().filter(|rank| domain.ranks().binary_search(rank).is_err()).collect();
        if !outside.is_empty() {
            return Err(CommitError::GroupOutsideDomain { group: id, domain: domain.uid(), outside });
        }
        let seat = || {
            let mut seat = Seat::new(self.id(), id, domain.rank(), ranks);
            self.retired().iter().for_each(|ordinal| seat.retire(*ordinal));
            Seated {
                seat,
                without: Vec::new(),
                unregistered: Vec::new(),
                pending: None,
                places: self.places_for(id),
            }
        };
        Ok(self.seats().entry(id).or_insert_with(|| Arc::new(Mutex::new(seat()))).clone())
    }

    /// Begins a commit with what the pool has. Returns the machine and the segments that it is about.
    pub(crate) fn begin_commit(
        &self,
        seated: &mut Seated,
        options: CommitOptions,
        found: Found,
    ) -> (Commit, Vec<Segment>) {
        let arena = self.memory().arena();
        let state = arena.log().state();
        let log = LogPoint { length: state.length, hash: state.hash };
        let log_since = arena.log().recent().next().map_or(state.length, |operation| operation.seq);
        let joins = options.joined && found.capabilities.library >= JOINED_SINCE;
        let segments = offered(arena.segments(), joins);
        let frozen = arena.is_frozen();
        drop(arena);
        let readiness = match found.readiness {
            Readiness::GroupOpen => Readiness::GroupOpen,
            _ if frozen => Readiness::Capturing,
            other => other,
        };
        seated.seat.begin(Situation {
            policy: options.policy,
            deadline: options.deadline,
            readiness,
            capabilities: found.capabilities,
            enqueued: found.enqueued,
            address_space_left: found.address_space_left,
            log,
            log_since,
            segments,
        })
    }

    /// Takes over what came of the commit that was about `offered`, and publishes what was agreed. `serials` and
    /// `windows`, each with where in it the segment begins, are those of the segments that were registered, `cause` is what the store said if it failed. Returns
    /// also the keys that this rank is to remove.
    pub(crate) fn end_commit(
        &self,
        seated: &mut Seated,
        conclusion: Conclusion,
        cause: Option<String>,
        offered: &[Segment],
        serials: &[u64],
        windows: Vec<(Window, u64)>,
    ) -> (Result<CommitReport, Ending>, Vec<String>) {
        let doomed = seated.seat.conclude(&conclusion, offered);
        let result = match conclusion.result {
            Ok(agreed) => Ok(self.publish(seated, agreed, offered, serials, windows)),
            Err(ending) => {
                match (&ending, cause) {
                    (Ending::Refused(refusal), _) => seated.pending = Some(refusal.clone()),
                    (Ending::StoreFailed { registering: true }, Some(cause)) => {
                        seated.seat.set_poison(Poison::StoreLost { rank: self.domain().rank(), cause });
                    }
                    _ => {}
                }
                if seated.seat.poison().is_some() {
                    self.update_table(|table| table.without_group(seated.seat.group()));
                }
                Err(ending)
            }
        };
        (result, doomed)
    }

    fn publish(
        &self,
        seated: &mut Seated,
        agreed: Agreed,
        offered: &[Segment],
        serials: &[u64],
        windows: Vec<(Window, u64)>,
    ) -> CommitReport {
        let Agreed { segments: new_segments, without, pending, .. } = agreed;
        let new_segments = new_segments as usize;
        let group = seated.seat.group();
        let mut standings = self.table().standings(group).cloned().unwrap_or_default();
        let before = standings.windows();
        let mut windows = windows.into_iter();
        let mut serials = serials.iter().filter(|_| without.is_none());
        for segment in offered.iter().take(new_segments) {
            match serials.next() {
                Some(&serial) => {
                    standings.enter(segment.ordinal, Standing::Window { serial }, windows.next());
                }
                None => standings.enter(segment.ordinal, Standing::Agreed, None),
            }
            seated.without.extend(without.clone().map(|reason| (segment.ordinal, reason)));
        }
        seated.pending.clone_from(&pending);
        let (segments, windows) = (standings.committed(), standings.windows());
        let new_windows = windows - before;
        self.update_table(|table| table.with_group(group, standings));
        let elapsed = Duration::ZERO;
        CommitReport {
            group,
            new_segments,
            new_windows,
            segments,
            windows,
            without,
            registered: false,
            pending,
            elapsed,
        }
    }
}

/// What a commit finds of its group and of the thread that makes it. Nothing here fails: what is wrong goes into the
/// record, so that all hear.
pub(crate) struct Found {
    pub(crate) readiness: Readiness,
    pub(crate) capabilities: Capabilities,
    pub(crate) enqueued: Vec<Enqueued>,
    pub(crate) address_space_left: Option<u64>,
}

impl Found {
    fn of(group: &dyn SymmetricGroup, inside: bool, alone: bool) -> Self {
        let communicator = group.communicator();
        let readiness = if inside {
            Readiness::GroupOpen
        } else if !alone {
            let cause = "another thread commits another pool for this group; the same one must come first on every rank";
            Readiness::Failed { ordinal: None, cause: cause.to_owned() }
        } else {
            match communicator.check() {
                Ok(()) => Readiness::Ready,
                Err(error) => Readiness::Failed { ordinal: None, cause: error.to_string() },
            }
        };
        let windows = match group.windows_supported() {
            Ok(()) => WindowSupport::Available,
            Err(reason) => WindowSupport::Unavailable { reason: reason.to_string() },
        };
        let library = communicator.nccl().release().code().unsigned_abs();
        Self {
            readiness,
            capabilities: Capabilities { library, windows },
            enqueued: group.enqueued(),
            address_space_left: address_space_left(communicator),
        }
    }
}

/// The order in which commits are made, of (rank, group, pool): ranks apart, each with its groups by number.
pub(crate) fn in_order(commits: &[(u32, GroupId, PoolId)]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..commits.len()).collect();
    order.sort_by_key(|index| commits[*index]);
    order
}

/// Commits several pools for several groups: for a rank with several groups, and for a thread that drives several
/// ranks. Each rank (that is, each domain handle's rank) commits its groups in the order of their numbers; ranks run
/// side by side, on threads that end before this returns. A commit that fails does not keep the others from being
/// made. One result each, in the order given.
///
/// The deadline is that of the whole call: each commit is given what the former ones have left of it.
///
/// # Errors
/// Each as [`SymmetricPool::commit`].
pub fn commit_all(
    commits: &[(&SymmetricPool, &dyn SymmetricGroup)],
    options: CommitOptions,
) -> Vec<Result<CommitReport, CommitError>> {
    let named: Vec<(u32, GroupId, PoolId)> =
        commits.iter().map(|(pool, group)| (pool.domain().rank(), group.id(), pool.id())).collect();
    let order = in_order(&named);
    let ranks: Vec<&[usize]> = order
        .chunk_by(|one, other| commits[*one].0.domain().rank() == commits[*other].0.domain().rank())
        .collect();
    let (inside, begun) = (Group::is_open(), Instant::now());
    let of_rank = |indices: &[usize]| -> Vec<(usize, Result<CommitReport, CommitError>)> {
        let commit = |index: usize| {
            let (pool, group) = commits[index];
            let left = options.deadline.saturating_sub(begun.elapsed());
            (index, pool.commit_from(group, options.deadline(left), inside))
        };
        indices.iter().copied().map(commit).collect()
    };
    let mut results = match ranks.as_slice() {
        [] => Vec::new(),
        [only] => of_rank(only),
        several => thread::scope(|scope| {
            let threads: Vec<_> = several.iter().map(|indices| scope.spawn(|| of_rank(indices))).collect();
            // A panic in a commit is a panic here.
            threads
                .into_iter()
                .flat_map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect()
        }),
    };
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

/// This rank's side of one commit.
struct Member<'a> {
    pool: &'a SymmetricPool,
    group: &'a dyn SymmetricGroup,
    communicator: &'a Communicator,
    segments: &'a [Segment],
    /// Each segment's window, and where in it the segment begins.
    windows: Vec<(Window, u64)>,
}

impl Local for Member<'_> {
    fn goes_on(&self) -> bool {
        self.group.standing().is_ok()
    }

    fn hash_at(&self, length: u64) -> Option<u64> {
        self.pool.memory().arena().log().hash_at(length)
    }

    fn operation(&self, sequence: u64) -> Option<Operation> {
        self.pool.memory().arena().log().operation(sequence).map(operation)
    }

    fn register(
        &mut self,
        segments: u32,
        joined: &[u32],
        deadline: Deadline,
        verdict_key: String,
    ) -> Outcome {
        let mut requests: Vec<WindowRequest> = Vec::new();
        // Of each segment, which request, and where in it.
        let mut places: Vec<(usize, u64)> = Vec::new();
        let arena = self.pool.memory().arena();
        let agreed = self.segments.iter().take(segments as usize);
        for segment in agreed.filter_map(|it| arena.segments().get(it.ordinal as usize)) {
            let (address, bytes) = (segment.memory.address, segment.bytes as usize);
            match requests.last_mut() {
                Some(last) if joined.contains(&segment.ordinal) => {
                    places.push((places.last().map_or(0, |(at, _)| *at), last.bytes as u64));
                    last.bytes += bytes;
                }
                _ => {
                    places.push((requests.len(), 0));
                    requests.push(WindowRequest::symmetric(DevicePtr(address), bytes));
                }
            }
        }
        drop(arena);
        let domain = self.pool.domain().clone();
        let _watch = Watch::begin(domain, self.communicator.abort_handle(), verdict_key, deadline);
        let memory: Arc<Memory> = self.pool.memory().clone();
        self.communicator.keep(memory as Arc<dyn Any + Send + Sync>);
        // SAFETY: the communicator itself keeps the memory, on this rank and by the same code on the others, until
        // it is gone; segments neither move nor shrink, and a retired one goes when all have deregistered it.
        let outcomes = match unsafe { self.communicator.register_windows(&requests, deadline) } {
            Ok(outcomes) => outcomes,
            Err(CommError::DeadlineExceeded { .. }) => return Outcome::Blocked,
            Err(error) => return Outcome::Failed { ordinal: None, cause: error.to_string() },
        };
        let mut windows = Vec::new();
        let mut unsupported = None;
        for outcome in outcomes {
            match outcome {
                WindowOutcome::Registered(window) => windows.push(window),
                WindowOutcome::Unsupported(reason) => unsupported = Some(reason.to_string()),
                other => {
                    return Outcome::Failed { ordinal: None, cause: format!("unknown outcome {other:?}") };
                }
            }
        }
        match unsupported {
            None => {
                let window = |(at, begin): &(usize, u64)| Some((windows.get(*at)?.clone(), *begin));
                self.windows = places.iter().filter_map(window).collect();
                Outcome::Registered
            }
            Some(reason) if windows.is_empty() => Outcome::Unsupported { reason },
            Some(reason) => {
                let (got, asked) = (windows.len(), requests.len());
                let cause = format!("only {got} of {asked} requests became windows: {reason}");
                Outcome::Failed { ordinal: None, cause }
            }
        }
    }
}

/// What windows may still take of the communicator's symmetric address space, in bytes, as far as this rank knows:
/// NCCL reserves the largest device memory among the members, rounded up to 4 GiB.
fn address_space_left(communicator: &Communicator) -> Option<u64> {
    const STEP: u64 = 4 << 30;
    let total = communicator.context().device().total_memory().ok()? as u64;
    Some(total.next_multiple_of(STEP).saturating_sub(communicator.window_bytes()))
}

/// The first release with windows over several segments.
const JOINED_SINCE: u32 = 23003;

/// What a commit is about: the segments that are not retired. Where windows over several segments can be had, with who
/// follows whom.
fn offered(segments: &[SymmetricSegment], joins: bool) -> Vec<Segment> {
    let mut end = None;
    let live = segments.iter().filter(|it| !it.retired);
    let offer = live.map(|it| {
        let follows = joins && end == Some(it.memory.address);
        end = Some(it.memory.address + it.bytes);
        Segment { flags: if follows { Segment::FOLLOWS } else { 0 }, ..segment(it) }
    });
    offer.collect()
}

fn segment(segment: &SymmetricSegment) -> Segment {
    let SymmetricSegment { ordinal, bytes, log, .. } = *segment;
    Segment { ordinal, bytes, flags: 0, log: LogPoint { length: log.length, hash: log.hash } }
}

pub(crate) fn operation(operation: &caching_alloc::core::symmetric::Operation) -> Operation {
    let kind = match operation.kind {
        ArenaOperationKind::Allocate => OperationKind::Allocate,
        ArenaOperationKind::Free => OperationKind::Free,
        ArenaOperationKind::Refuse => OperationKind::Refuse,
        ArenaOperationKind::Retire => OperationKind::Retire,
    };
    Operation {
        kind,
        bytes: operation.bytes,
        place: operation
            .placement
            .map(|placement| BlockPlace { ordinal: placement.ordinal, offset: placement.offset }),
        tag: operation.tag.as_ref().map(ToString::to_string),
        call_site: format!("{}:{}", operation.file, operation.line),
    }
}

fn failed(group: GroupId, ending: Ending, failure: Option<process_group::store::StoreError>) -> CommitError {
    match (ending, failure) {
        (Ending::Refused(refusal), _) => CommitError::Refused { group, refusal },
        (Ending::Poisoned(poison), _) => CommitError::Poisoned { group, poison },
        (Ending::StoreFailed { registering: poisoned }, Some(source)) => {
            CommitError::Store { group, poisoned, source }
        }
        (Ending::Unreadable(source), _) => CommitError::Unreadable { group, source },
        (Ending::OutOfStep | Ending::StoreFailed { .. }, _) => CommitError::OutOfStep { group },
    }
}

pub(crate) fn lock(seated: &Mutex<Seated>) -> MutexGuard<'_, Seated> {
    seated.lock().unwrap_or_else(PoisonError::into_inner)
}
