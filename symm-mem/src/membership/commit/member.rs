//! Runs this rank's part in the agreement of a [commit](crate::SymmetricPool::commit), on the caller's thread:
//! - Posts this rank's record, which is its message to the other members.
//! - If the members agree on new segments: registers them as windows, and opens (maps) the memory that the members
//!   offer.
//! - If the members search for the first difference between their pools' [logs](crate::SymmetricPool::log) of requests:
//!   supplies hashes and entries of this rank's log.

use std::{any::Any, sync::Arc};

use bootstrap::agreement::{self, verdict_key};
use cuda_driver::DevicePtr;
use process_group::{
    comm::{CommError, Window, WindowOutcome, WindowRequest},
    store::{Deadline, StoreError},
};

use super::{
    offer::{cause, ended_by_another, operation},
    peers::{OfferedPeers, OpenedPeers},
    watch::VerdictWatch,
};
use crate::{
    agreement::{
        Agreed, CommitOutcome, CommitPlan, CommitProtocol, Ending, PeerMappings, RegistrationOutcome,
        Segment, Start, commit_ending, ending::store_error,
    },
    membership::{
        group::{SymmetricGroup, object_of},
        memberships::Memberships,
    },
    pool::PoolMemory,
    sharing,
};

/// The state of one commit on this rank.
pub(super) struct Member<'a> {
    pub(super) memberships: &'a Memberships,
    pub(super) group: &'a dyn SymmetricGroup,
    /// The new segments in this rank's record ([`CommitRecord`](crate::agreement::CommitRecord)). The members agree on
    /// a prefix of this list.
    pub(super) segments: &'a [Segment],
    /// The window of each agreed segment, and the segment's offset in the window in bytes. Set by a successful
    /// [`register`](Self::register), otherwise empty.
    pub(super) windows: Vec<(Window, u64)>,
    /// The memory that this rank offers, if it offers any.
    pub(super) offered: Option<OfferedPeers>,
    /// The memory of all members, as opened by this rank. Set by a successful [`open`](Self::open).
    pub(super) opened: Option<OpenedPeers>,
}

impl Member<'_> {
    /// Runs the agreement. Returns the result, and the store's error if the store failed.
    pub(super) fn run(
        &mut self,
        start: Start<CommitProtocol>,
    ) -> (Result<Agreed, Ending>, Option<StoreError>) {
        let Start { member, record } = start;
        let (length, mut actions, mut last) = (record.log.length, 0, None);
        let (domain, memory) = (self.memberships.domain(), self.memberships.memory());
        let object = object_of(domain, self.group);
        let act = |plan: &CommitPlan, deadline: Deadline, _: &dyn Fn() -> bool| {
            let verdict_key = verdict_key(&member.name, actions);
            actions += 1;
            last = Some(plan.clone());
            match plan {
                CommitPlan::Register(agreed) => {
                    CommitOutcome::Registered(self.register(agreed, deadline, verdict_key))
                }
                CommitPlan::Open(agreed) => CommitOutcome::Opened(self.open(agreed, deadline)),
                CommitPlan::Hashes { range, .. } => {
                    CommitOutcome::hashes(*range, |length| memory.arena().log().hash_at(length))
                }
                CommitPlan::Recall { sequence, .. } => {
                    CommitOutcome::recalled(*sequence, length, |sequence| {
                        memory.arena().log().operation(sequence).map(operation)
                    })
                }
            }
        };
        match agreement::run::<CommitProtocol>(&**domain.store(), member.clone(), record, act, object) {
            Ok(agreed) => (Ok(agreed), None),
            Err(mut failed) => {
                let error = store_error(&mut failed, &member);
                (Err(commit_ending(failed.ending, &member, last.as_ref())), error)
            }
        }
    }

    /// Registers the agreed segments as windows, and returns the outcome, which this rank posts to the others. Gives up
    /// at the deadline, or earlier if the registration can no longer succeed. It cannot succeed once the store has one
    /// of these under `verdict_key`:
    /// - A verdict that [poisons](crate::Poison) the group. The verdict is the members' agreed judgement of all
    ///   outcomes. One failed outcome decides it, so it may exist before this rank has an outcome.
    /// - A failure of the agreement.
    fn register(&mut self, agreed: &Agreed, deadline: Deadline, verdict_key: String) -> RegistrationOutcome {
        let Agreed { segments, joined, .. } = agreed;
        let mut requests: Vec<WindowRequest> = Vec::new();
        // For each segment, the index of its request and its offset in that request in bytes.
        let mut positions: Vec<(usize, u64)> = Vec::new();
        let arena = self.memberships.memory().arena();
        let agreed = self.segments.iter().take(*segments as usize);
        for segment in agreed.filter_map(|it| arena.segments().get(it.ordinal as usize)) {
            let (address, bytes) = (segment.memory.address, segment.bytes as usize);
            match requests.last_mut() {
                Some(last) if joined.contains(&segment.ordinal) => {
                    positions.push((positions.last().map_or(0, |(at, _)| *at), last.bytes as u64));
                    last.bytes += bytes;
                }
                _ => {
                    positions.push((requests.len(), 0));
                    requests.push(WindowRequest::symmetric(DevicePtr(address), bytes));
                }
            }
        }
        drop(arena);
        let domain = self.memberships.domain().clone();
        let communicator = self.group.communicator();
        let (abort, health) = (communicator.abort_handle(), self.group.health_handle());
        let _watch = VerdictWatch::begin(domain, abort, health, verdict_key, deadline);
        let memory: Arc<PoolMemory> = self.memberships.memory().clone();
        communicator.keep(memory as Arc<dyn Any + Send + Sync>);
        // SAFETY: each rank's communicator keeps that rank's segments allocated until the communicator has ended,
        // except retired segments. A retired segment is freed earlier, but only after all ranks have deregistered its
        // window. Segments neither move nor shrink.
        let outcomes = match unsafe { communicator.register_windows(&requests, deadline) } {
            Ok(outcomes) => outcomes,
            Err(CommError::DeadlineExceeded { .. }) => return RegistrationOutcome::Blocked,
            Err(error) => return self.failed(error),
        };
        let mut windows = Vec::new();
        let mut unsupported = None;
        for outcome in outcomes {
            match outcome {
                WindowOutcome::Registered(window) => windows.push(window),
                WindowOutcome::Unsupported(reason) => unsupported = Some(reason.to_string()),
                other => {
                    return RegistrationOutcome::Failed {
                        ordinal: None,
                        cause: format!("unknown outcome {other:?}"),
                    };
                }
            }
        }
        match unsupported {
            None => {
                let window = |(at, begin): &(usize, u64)| Some((windows.get(*at)?.clone(), *begin));
                self.windows = positions.iter().filter_map(window).collect();
                RegistrationOutcome::Registered
            }
            Some(reason) if windows.is_empty() => RegistrationOutcome::Unsupported { reason },
            Some(reason) => {
                let (got, asked) = (windows.len(), requests.len());
                let cause = format!("only {got} of {asked} requests became windows: {reason}");
                RegistrationOutcome::Failed { ordinal: None, cause }
            }
        }
    }

    /// Opens (maps) the memory that the members offer in `agreed`, and returns the outcome. Gives up at the deadline.
    fn open(&mut self, agreed: &Agreed, deadline: Deadline) -> sharing::OpeningOutcome {
        let (Some(offered), PeerMappings::Offered { members }) = (&mut self.offered, &agreed.peers) else {
            return sharing::OpeningOutcome::Failed { cause: "it has offered no memory".to_owned() };
        };
        match offered.open(members, deadline) {
            Ok(opened) => {
                self.opened = Some(opened);
                sharing::OpeningOutcome::Mapped
            }
            Err(outcome) => outcome,
        }
    }

    /// Returns the outcome of a registration that failed with `error`.
    fn failed(&self, error: CommError) -> RegistrationOutcome {
        // `error` may be a consequence of the loss of a member: the first member that notices the loss aborts its
        // communicator, and this rank's registration then fails. Wait until this rank has noticed the loss too, so that
        // the outcome can name the lost member.
        if let Some(health) = self.group.health_handle() {
            health.await_cause(&error);
        }
        match ended_by_another(self.group, self.memberships.domain().rank()) {
            Some(rank) => RegistrationOutcome::Ended { rank },
            None => RegistrationOutcome::Failed { ordinal: None, cause: cause(self.group, error) },
        }
    }
}
