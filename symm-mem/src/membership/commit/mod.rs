//! Commits: the members of a group agree on the segments of a [pool](crate::SymmetricPool) and register them as NCCL
//! windows. This is a collective operation.
//!
//! In the [agreement](crate::agreement), each member posts a record, which is its message to the others. The decision
//! follows from the records of all members.
//!
//! | file | subject |
//! |---|---|
//! | `member` | runs the agreement of a commit over a store, and does this rank's part of the agreed work |
//! | `offer` | the record that this rank posts in a commit |
//! | `options`, `report` | the caller's options, and the result |
//! | `peers` | offers this rank's segments and [signal pad](crate::rendezvous) to the members, and maps theirs |
//! | `plain` | registers segments with `ncclCommRegister` if NCCL does not support windows for the group |
//! | `watch` | unblocks a member if its registration can no longer succeed |
//! | this file | a commit, from the call to the publication of its result |

mod member;
pub(crate) mod offer;
mod options;
pub(crate) mod peers;
mod plain;
mod report;
mod watch;

use std::{sync::Arc, time::Instant};

use bootstrap::agreement::remove_left;
use caching_alloc::core::symmetric::SymmetricSegment;
use process_group::{
    comm::{CommError, Window, WindowRequest, WindowRequestError},
    error_text,
    store::{Deadline, StoreError},
};

use self::{
    member::Member,
    offer::{JOINED_SINCE, LocalState, can_register, live_segments},
    peers::{OfferedPeers, OpenedPeers},
};
pub use self::{options::CommitOptions, report::CommitReport};
use super::{
    group::{SymmetricGroup, end_poisoned},
    group_state::GroupState,
    lookup::RegistrationState,
    mapped::MappedSegment,
    memberships::Memberships,
    registration_guard::RegistrationGuard,
};
use crate::{
    agreement::{
        Agreed, CommitProtocol, CommitRecord, Ending, NoWindows, PeerMappings, PeerOffer, Poison, Readiness,
        Segment, Start, WindowSupport,
    },
    error::Error,
    error_kind::ErrorKind,
    lock::lock,
    rendezvous::{GroupInfo, Pads, PeerBuffers, PeerGroup, PeerMapping},
    sharing::Site,
};

/// The windows that this rank has registered in a commit, and the members' memory that it has opened.
#[derive(Default)]
pub struct Done {
    /// One entry for each registered segment, in the order of the segments: the serial number of its window, the
    /// window, and the segment's offset in it in bytes. Segments that share a window have equal serial numbers. In the
    /// simulation of many ranks in one process, an entry has only the serial number, and its second value is `None`.
    pub windows: Vec<(u64, Option<(Window, u64)>)>,
    /// The members' memory, if this rank has opened (mapped) it.
    pub opened: Option<OpenedPeers>,
}

impl Memberships {
    /// Registers the pool's new segments as windows of `group`, on all members or on none. Skips the commit if this
    /// rank need not take part, see [`skip`](Self::skip). `inside_group` is true if the thread that requested the
    /// commit has an NCCL group open (`ncclGroupStart`). It is an argument because
    /// [`commit_all`](crate::commit_all) may run this method on another thread, which cannot detect the open group.
    pub(crate) fn commit(
        &self,
        group: &dyn SymmetricGroup,
        options: CommitOptions,
        inside_group: bool,
    ) -> Result<CommitReport, Error> {
        let begun = Instant::now();
        let (id, ranks) = (group.id(), group.ranks());
        let group_state = self.group_state(id, ranks.clone());
        let mut group_state = lock(&group_state);
        if let Some(report) = self.skip(&mut group_state, options) {
            return check_open(group).map(|()| report).map_err(|cause| group_state.call().error(cause));
        }
        group_state.set_members(ranks, group.name());
        if let Some(error) = group_state.decline_unfit(self.domain(), group.communicator(), options.deadline)
        {
            return Err(error);
        }
        let (guard, pool_use) = (RegistrationGuard::take(group.communicator()), self.uses.commit());
        let conflict = match (&pool_use, &guard) {
            (None, _) => Some("another thread retires segments of this pool; the retirement must end first"),
            (_, None) => Some(
                "another thread commits another pool for this group, or retires segments of one; all ranks must make \
                 these calls in the same order",
            ),
            _ => None,
        };
        let local_state = LocalState::of(group, options, inside_group, conflict);
        let (result, segments, failure) = self.run_commit(group, &mut group_state, options, local_state);
        let (result, failure) = match result {
            Ok(report)
                if options.windows
                    && report.new_segments > 0
                    && matches!(report.without, Some(NoWindows::Unsupported { .. })) =>
            {
                let left = options.deadline.saturating_sub(begun.elapsed());
                let new = &segments[..report.new_segments.min(segments.len())];
                let (registered, failure) = self.register_plainly(group, &mut group_state, new, left);
                (registered.map(|registered| CommitReport { registered, ..report }), failure)
            }
            result => (result, failure),
        };
        if let (Err(Ending::Poisoned(Poison::MembersLost { .. })), Some(health)) =
            (&result, group.health_handle())
        {
            // A member is lost. This rank's health monitor may not know it yet, because another member may have noticed
            // the loss first. Wait until the group has ended on this rank, so that `standing` returns the error that
            // ended it.
            health.await_end(Deadline::after(options.deadline.saturating_sub(begun.elapsed())));
        }
        let ended = group.standing();
        match result {
            Ok(report) => {
                group.compare_places(group_state.places.clone());
                Ok(CommitReport { elapsed: begun.elapsed(), ..report })
            }
            Err(ending) => {
                if let Some(poison) = group_state.log.poison() {
                    end_poisoned(group, self.domain().rank(), poison);
                }
                let is_agreed = ending.is_agreed();
                let kind = ErrorKind::of_ending(ending, ErrorKind::Refused, failure, vec![id]);
                Err(group_state.call().error_of_group(ended, is_agreed, kind))
            }
        }
    }

    /// Runs the agreement of a commit, registers the segments, and applies the result to `group_state` and to the
    /// pool's table of segments. Returns the result, the new segments in this rank's record, and the store's error if
    /// the store failed.
    fn run_commit(
        &self,
        group: &dyn SymmetricGroup,
        group_state: &mut GroupState,
        options: CommitOptions,
        local_state: LocalState,
    ) -> (Result<CommitReport, Ending>, Vec<Segment>, Option<StoreError>) {
        let check = |requests: &[WindowRequest]| group.communicator().check_windows(requests);
        let mut offered = None;
        let offer = |group_state: &mut GroupState, new: &[Segment]| match self.offer_peers(
            group_state,
            group,
            new,
            options,
        ) {
            Ok((memory, offer)) => {
                offered = Some(memory);
                offer
            }
            Err(cause) => PeerOffer::Missing { cause },
        };
        let (start, segments) = self.begin_commit(group_state, options, local_state, check, offer);
        let mut member = Member {
            memberships: self,
            group,
            segments: &segments,
            windows: Vec::new(),
            offered,
            opened: None,
        };
        let (result, failure) = member.run(start);
        let Member { windows, opened, offered, .. } = member;
        // From now on, a member that opens this rank's memory gets an error. If this rank took part in the agreement to
        // its end, no member opens the memory any more. A member may still do so if this rank has left the agreement
        // early, for example because it lost the store.
        drop(offered);
        let windows = windows.into_iter().map(|window| (window.0.serial(), Some(window))).collect();
        let cause = failure.as_ref().map(ToString::to_string);
        let result = self.end_commit(group_state, result, cause, &segments, Done { windows, opened });
        for place in group_state.log.take_left() {
            remove_left(&**self.domain().store(), &place);
        }
        (result, segments, failure)
    }

    /// Skips a commit if this rank need not take part, because all of this is true:
    /// - [`CommitOptions::verify`] is false.
    /// - The pool is [unchanged](GroupState::is_unchanged).
    /// - A commit for the group has succeeded since the pool was made or last
    ///   [forgot](crate::SymmetricPool::forget) the group.
    ///
    /// Counts the skipped commit, and returns the report of a commit without new segments. Returns `None` if this rank
    /// must take part.
    pub fn skip(&self, group_state: &mut GroupState, options: CommitOptions) -> Option<CommitReport> {
        if options.verify || !group_state.is_unchanged(&self.memory().arena()) {
            return None;
        }
        let group = group_state.log.group();
        let report = CommitReport::of(group, self.table().states(group)?);
        group_state.log.skip();
        Some(report)
    }

    /// Offers the new segments `new` to the members of `group`. Returns the offered memory, which the members can open
    /// (map) until the value is dropped, and the description of the offer for this rank's record. If this rank cannot
    /// offer the segments, returns a description of the reason as the error.
    fn offer_peers(
        &self,
        group_state: &mut GroupState,
        group: &dyn SymmetricGroup,
        new: &[Segment],
        options: CommitOptions,
    ) -> Result<(OfferedPeers, PeerOffer), String> {
        if !options.map_peers {
            return Err("CommitOptions::map_peers is false".to_owned());
        }
        if !self.memory().arena().source().is_exportable() {
            return Err("the pool's memory cannot be shared with other ranks".to_owned());
        }
        let peers = match &group_state.peers {
            Some(peers) => peers.clone(),
            None => {
                let communicator = group.communicator();
                let info = GroupInfo::of_parts(
                    (group.id(), group.name().unwrap_or_default()),
                    communicator.rank(),
                    group_state.log.members(),
                    self.domain().store().clone(),
                    group.health_handle(),
                );
                let context = communicator.context();
                let site = Site::of(context).map_err(|error| error_text(&error))?;
                group_state.peers.insert(Arc::new(PeerGroup::new(info, context, site))).clone()
            }
        };
        OfferedPeers::make(peers, self.memory(), new, group_state.mapped.next())
    }

    /// Begins a commit of the pool's new segments. `local_state` is the state of the group on this rank at the start of
    /// the commit. `check` checks, without contact to other ranks, whether this rank could register the new segments as
    /// windows. `offer` offers the given new segments to the other members. Returns the arguments with which this rank
    /// takes part in the agreement, and the new segments in this rank's record.
    pub fn begin_commit(
        &self,
        group_state: &mut GroupState,
        options: CommitOptions,
        local_state: LocalState,
        check: impl FnOnce(&[WindowRequest]) -> Result<(), WindowRequestError>,
        offer: impl FnOnce(&mut GroupState, &[Segment]) -> PeerOffer,
    ) -> (Start<CommitProtocol>, Vec<Segment>) {
        let arena = self.memory().arena();
        let log = arena.log().state().into();
        let log_since = arena.log().oldest();
        let joins = options.joined && local_state.capabilities.library >= JOINED_SINCE;
        let segments = live_segments(arena.segments(), joins);
        let frozen = arena.is_frozen();
        let registers = local_state.capabilities.windows == WindowSupport::Available
            && group_state.log.members().len() > 1;
        let is_new = |it: &&SymmetricSegment| registers && !it.retired && group_state.log.is_new(it.ordinal);
        let candidates: Vec<_> = arena.segments().iter().filter(is_new).copied().collect();
        let is_exportable = arena.source().is_exportable();
        drop(arena);
        let readiness = match local_state.readiness {
            Readiness::GroupOpen => Readiness::GroupOpen,
            _ if frozen => Readiness::Capturing,
            Readiness::Ready => can_register(&candidates, is_exportable, check),
            other => other,
        };
        let new = segments.iter().filter(|segment| group_state.log.is_new(segment.ordinal));
        let new: Vec<Segment> = new.copied().collect();
        let peers = match readiness {
            Readiness::Ready if !new.is_empty() => offer(group_state, &new),
            _ => PeerOffer::Missing { cause: "it has no new segments, or is not ready".to_owned() },
        };
        let record = CommitRecord {
            domain: self.domain().ranks().into(),
            policy: options.policy,
            readiness,
            capabilities: local_state.capabilities,
            enqueued: local_state.enqueued,
            address_space_left: local_state.address_space_left,
            committed: group_state.log.committed(),
            log,
            log_since,
            segments,
            peers,
        };
        group_state.log.begin(record, options.deadline)
    }

    /// Applies the result of a commit of the segments `offered`, and publishes the group's new state in the pool's
    /// table of segments. `offered` has the new segments in this rank's record. A successful commit adds a prefix of
    /// this list to the group. `cause` is the store's error, if the store failed. Returns the report of the commit, in
    /// which `registered` and `elapsed` are not set yet.
    pub fn end_commit(
        &self,
        group_state: &mut GroupState,
        result: Result<Agreed, Ending>,
        cause: Option<String>,
        offered: &[Segment],
        Done { windows, opened }: Done,
    ) -> Result<CommitReport, Ending> {
        let group = group_state.log.group();
        group_state.conclude(&result, offered, cause);
        let agreed = result.inspect_err(|ending| {
            if let Ending::Refused(refusal) = ending {
                self.update_table(|table| table.with_pending(group, Some(refusal.clone())));
            }
            self.publish_poison(group_state);
        });
        let Agreed { segments: new_segments, without, pending, peers, .. } = agreed?;
        let new_segments = new_segments as usize;
        // If one member could not open the offered memory, no member keeps the mappings made in this commit.
        let opened = opened.filter(|_| peers == PeerMappings::Opened {});
        let (owner, mapped) = opened.map(|opened| self.keep_peers(opened, offered)).unzip();
        let unmapped = match peers {
            PeerMappings::Unmapped { reason } if new_segments > 0 => Some(reason),
            _ => None,
        };
        let mut states = self.table().states(group).cloned().unwrap_or_default();
        states.peers = owner.or(states.peers);
        states.compared = group_state.log.equal_length();
        let new = offered.iter().take(new_segments);
        states
            .unmapped
            .extend(unmapped.iter().flat_map(|reason| new.clone().map(|it| (it.ordinal, reason.clone()))));
        states
            .without
            .extend(without.iter().flat_map(|reason| new.clone().map(|it| (it.ordinal, reason.clone()))));
        let before = states.windows();
        let mut windows = windows.into_iter().filter(|_| without.is_none());
        for segment in new {
            let (state, window) = match windows.next() {
                Some((serial, window)) => (RegistrationState::Window { serial }, window),
                None => (RegistrationState::Agreed, None),
            };
            states.enter(segment.ordinal, state, window);
        }
        let report = CommitReport::of(group, &states);
        let new_windows = report.windows - before;
        self.update_table(|table| table.with_group(group, states).with_pending(group, pending.clone()));
        group_state.mapped.add(mapped.unwrap_or_default());
        Ok(CommitReport { new_segments, new_windows, without, pending, unmapped, ..report })
    }

    /// Attaches the mappings of `opened` to the pool's segments, and gives the signal pads of `opened` to the
    /// [`PeerGroup`] of `opened`. Call this only if all members have opened each other's memory. The commit has added a
    /// prefix of `offered` to the group. `opened` has one mapping for each segment of this prefix, in the same order.
    /// The pool keeps the mappings in its [`Attachments`](crate::pool::Attachments), and finds them by the `PeerGroup`.
    /// Returns the `PeerGroup`, and the new entries for the group's list of mapped segments.
    fn keep_peers(&self, opened: OpenedPeers, offered: &[Segment]) -> (Arc<PeerGroup>, Vec<MappedSegment>) {
        let OpenedPeers { group, first, pads, segments } = opened;
        if let Some((own, pads)) = pads {
            group.set_pads(Pads::new(own, pads));
        }
        let keep = |(number, (segment, buffers)): (u64, (&Segment, Arc<PeerBuffers>))| {
            let mapping = Arc::new(PeerMapping { number, buffers });
            self.memory().attachments().put(&group.mappings, segment.ordinal, mapping);
            let pool = (self.memory(), self.published());
            MappedSegment::new(number, group.clone(), pool, segment.ordinal)
        };
        let mapped = (first..).zip(offered.iter().zip(segments)).map(keep).collect();
        (group, mapped)
    }
}

/// Returns an error if the group has ended or was aborted. Called for a skipped commit, which does not detect this
/// itself.
fn check_open(group: &dyn SymmetricGroup) -> Result<(), ErrorKind> {
    group.standing().map_err(|cause| ErrorKind::GroupOver { cause })?;
    match group.communicator().check() {
        Err(closed @ CommError::Closed { .. }) => Err(ErrorKind::GroupOver { cause: closed.into() }),
        _ => Ok(()),
    }
}
