//! The one collective: a group's members agree on a pool's segments and register them.
//!
//! | file | subject |
//! |---|---|
//! | `driver` | runs a commit's machine of [`crate::agreement`] over a store |
//! | `error` | what a commit can end with instead |
//! | `group` | what a commit needs of a group |
//! | `meeting` | the same for what a rendezvous and an exchange meet by |
//! | `member` | answers the machine: this rank's past, and the registration that was agreed |
//! | `offer` | what this rank brings to a commit |
//! | `options`, `report` | what a caller gives, and gets |
//! | `plain` | registers plainly what could not become windows |
//! | `seated` | what is remembered of a group between commits |
//! | `several` | several commits by one call |
//! | `turn` | one commit of a communicator at a time |
//! | `watch` | frees a member that is blocked in a registration which cannot succeed |
//! | here | a commit from its call to what is published |

pub(crate) mod driver;
#[cfg(test)]
mod driver_tests;
mod error;
mod group;
pub(crate) mod meeting;
mod member;
pub(crate) mod offer;
mod options;
mod plain;
mod report;
mod seated;
pub(crate) mod several;
mod turn;
mod watch;

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use caching_alloc::core::symmetric::SymmetricSegment;
use process_group::{
    comm::{Communicator, Group, Window, WindowRequest, WindowRequestError},
    store::Deadline,
};

pub(crate) use self::error::over;
pub use self::{
    error::CommitError,
    group::{CommunicatorGroup, SymmetricGroup},
    options::CommitOptions,
    report::CommitReport,
    several::commit_all,
};
use self::{
    error::failed,
    group::misnamed,
    member::Member,
    offer::{Candidates, Found, JOINED_SINCE, offered},
};
pub(crate) use self::{
    plain::PlainRegistration,
    seated::{Seated, lock},
    turn::Turn,
};
use crate::{
    agreement::{
        Agreed, Commit, Conclusion, Decision, Ending, GroupId, NoWindows, Poison, Readiness, Seat, Segment,
        Situation, WindowSupport,
    },
    pool::{Standing, SymmetricPool},
};

/// How long the abort of a poisoned group may take to free what it held.
const ABORT_PATIENCE: Duration = Duration::from_secs(2);

/// Ends a group that is poisoned on this rank, `own`. If this rank lost the store, the others may go on, so they are told;
/// any other poison is theirs too.
pub(crate) fn end_poisoned(group: &dyn SymmetricGroup, own: u32, poison: &Poison) {
    if matches!(poison, Poison::StoreLost { rank, .. } if *rank == own) {
        group.fail(&poison.to_string());
    }
    // Members that are blocked inside the library come out. What could not be freed is leaked by the communicator, which
    // says so when it is used.
    let _ = group.communicator().abort_handle().abort(Deadline::after(ABORT_PATIENCE));
}

impl SymmetricPool {
    /// Makes the pool's new segments windows of `group`: on all members, or on none.
    ///
    /// Collective over the group: every member calls it at the same point of the program, with the same options. To
    /// be called while no stream of the device captures and no NCCL group is open (refused on all members otherwise, with the
    /// capture as it was), after the same collectives and both ends of the
    /// same messages have been enqueued on the members. A group's commits, of whatever pools, come one after the
    /// other: NCCL pairs windows by their order. Of several groups, every rank commits the one with the lowest number
    /// first ([`commit_all`] does).
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
        let (id, ranks) = (group.id(), group.ranks());
        let seated = self.seated(id, ranks.clone());
        let mut seated = lock(&seated);
        seated.seat.set_members(ranks);
        if let Some(error) = self.decline_misfit(&mut seated, group.communicator()) {
            return Err(error);
        }
        let turn = Turn::take(group.communicator());
        let found = Found::of(group, inside, turn.is_some());
        let check = |requests: &[WindowRequest]| group.communicator().check_windows(requests);
        let (machine, segments) = self.begin_commit(&mut seated, options, found, check);
        let mut member = Member {
            pool: self,
            group,
            communicator: group.communicator(),
            segments: &segments,
            windows: Vec::new(),
        };
        let (conclusion, failure) =
            driver::run(machine, self.domain().store(), options.deadline, &mut member);
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
                let left = options.deadline.saturating_sub(begun.elapsed());
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
                if let Some(poison) = seated.seat.poison() {
                    end_poisoned(group, self.domain().rank(), poison);
                }
                Err(match over(ended, ending.is_agreed()) {
                    Some(source) => CommitError::GroupOver { group: id, source },
                    None => failed(id, ending, failure),
                })
            }
        }
    }

    /// Why `group` is poisoned for this pool, if it is. Waits for nothing, also while a commit is under way.
    pub fn poison(&self, group: GroupId) -> Option<Poison> {
        self.table().poison(group).cloned()
    }

    /// Makes known that the group is dead, if it is.
    pub(crate) fn publish_poison(&self, seated: &Seated) {
        if let Some(poison) = seated.seat.poison() {
            self.update_table(|table| table.with_poison(seated.seat.group(), poison.clone()));
        }
    }

    /// The seat of this rank in group `id` of `ranks`, made when it is first asked for.
    pub(crate) fn seated(&self, id: GroupId, ranks: Vec<u32>) -> Arc<Mutex<Seated>> {
        let seat = || {
            let mut seat = Seat::new(self.id(), id, self.domain().rank(), ranks);
            self.retired().iter().for_each(|ordinal| seat.retire(*ordinal));
            Seated {
                seat,
                without: Vec::new(),
                unregistered: Vec::new(),
                pending: None,
                places: self.places_for(id),
            }
        };
        self.seats().entry(id).or_insert_with(|| Arc::new(Mutex::new(seat()))).clone()
    }

    /// Looks whether the group's members, as this rank names them, are ranks of the domain and those of the communicator. If
    /// not, the other members are told at once: they wait for this rank.
    fn decline_misfit(&self, seated: &mut Seated, communicator: &Communicator) -> Option<CommitError> {
        let outside = self.outside(seated);
        let cause = match &outside {
            Some(error) => error.to_string(),
            None => misnamed(seated.seat.members(), self.domain().rank(), communicator)?,
        };
        let group = seated.seat.group();
        let (key, refusal) = seated.seat.decline(cause);
        let decision = Decision::refuse(refusal.clone()).encode();
        let stands = self.domain().store().compare_set(&key, b"", &decision);
        // That the group is outside of the domain this rank knows by itself.
        Some(outside.unwrap_or_else(|| match stands.map(|stands| Decision::decode(&stands)) {
            Ok(Ok(Decision::Refuse { refusal, .. })) => CommitError::Refused { group, refusal },
            Ok(_) => CommitError::Refused { group, refusal },
            Err(source) => CommitError::Store { group, poisoned: false, source },
        }))
    }

    /// The error of a group that has members outside of the pool's domain.
    pub(crate) fn outside(&self, seated: &Seated) -> Option<CommitError> {
        let (domain, seat) = (self.domain(), &seated.seat);
        let is_outside = |rank: &u32| domain.ranks().binary_search(rank).is_err();
        let outside: Vec<u32> = seat.members().iter().copied().filter(is_outside).collect();
        let (group, domain) = (seat.group(), domain.uid());
        (!outside.is_empty()).then_some(CommitError::GroupOutsideDomain { group, domain, outside })
    }

    /// Begins a commit with what the pool has; `check` says whether this rank could make windows of that. Returns the
    /// machine and the segments that it is about.
    pub(crate) fn begin_commit(
        &self,
        seated: &mut Seated,
        options: CommitOptions,
        found: Found,
        check: impl FnOnce(&[WindowRequest]) -> Result<(), WindowRequestError>,
    ) -> (Commit, Vec<Segment>) {
        let arena = self.memory().arena();
        let log = arena.log().state().into();
        let log_since = arena.log().oldest();
        let joins = options.joined && found.capabilities.library >= JOINED_SINCE;
        let segments = offered(arena.segments(), joins);
        let frozen = arena.is_frozen();
        let registers =
            found.capabilities.windows == WindowSupport::Available && seated.seat.members().len() > 1;
        let is_new = |it: &SymmetricSegment| registers && seated.seat.is_new(it.ordinal);
        let candidates = Candidates::of(&arena, is_new);
        drop(arena);
        let readiness = match found.readiness {
            Readiness::GroupOpen => Readiness::GroupOpen,
            _ if frozen => Readiness::Capturing,
            Readiness::Ready => candidates.check(check),
            other => other,
        };
        seated.seat.begin(Situation {
            policy: options.policy,
            deadline: options.deadline,
            readiness,
            domain: self.domain().ranks().to_vec(),
            capabilities: found.capabilities,
            enqueued: found.enqueued,
            address_space_left: found.address_space_left,
            log,
            log_since,
            segments,
        })
    }

    /// Takes over what came of the commit that was about `offered`, and publishes what was agreed. `serials` and
    /// `windows`, each with where in it the segment begins, are those of the segments that were registered; `cause` is
    /// what the store said if it failed. Returns also the keys that this rank is to remove.
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
                if let Ending::Refused(refusal) = &ending {
                    seated.pending = Some(refusal.clone());
                }
                if let Some(poison) = ending.doubt(self.domain().rank(), cause) {
                    seated.seat.set_poison(poison);
                }
                self.publish_poison(seated);
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
