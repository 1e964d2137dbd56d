//! The functions of this rank that the agreement of a commit calls: they supply hashes and entries of the rank's
//! allocation history, register the agreed windows, and open the memory that the members offer.

use std::{any::Any, sync::Arc};

use cuda_driver::DevicePtr;
use process_group::{
    comm::{CommError, Communicator, Window, WindowOutcome, WindowRequest},
    store::Deadline,
};

use super::{
    driver::Local,
    offer::{cause, ended_by_another, operation},
    peers::{OfferedPeers, OpenedPeers},
    watch::Watch,
};
use crate::{
    agreement::{Agreed, Operation, Outcome, PeerMappings, Segment},
    membership::{group::SymmetricGroup, memberships::Memberships},
    pool::Memory,
    sharing,
};

/// The state of one commit on this rank.
pub(super) struct Member<'a> {
    pub(super) memberships: &'a Memberships,
    pub(super) group: &'a dyn SymmetricGroup,
    pub(super) communicator: &'a Communicator,
    pub(super) segments: &'a [Segment],
    /// The window of each agreed segment, and the segment's offset in the window in bytes. Set by a successful
    /// [`register`](Local::register), otherwise empty.
    pub(super) windows: Vec<(Window, u64)>,
    /// The memory that this rank offers, if it offers any.
    pub(super) offered: Option<OfferedPeers>,
    /// The memory of all members that this rank has opened. Set by a successful [`open`](Local::open).
    pub(super) opened: Option<OpenedPeers>,
}

impl Local for Member<'_> {
    fn hash_at(&self, length: u64) -> Option<u64> {
        self.memberships.memory().arena().log().hash_at(length)
    }

    fn operation(&self, sequence: u64) -> Option<Operation> {
        self.memberships.memory().arena().log().operation(sequence).map(operation)
    }

    fn register(&mut self, agreed: &Agreed, deadline: Deadline, verdict_key: String) -> Outcome {
        let Agreed { segments, joined, .. } = agreed;
        let mut requests: Vec<WindowRequest> = Vec::new();
        // For each segment, the index of its request and its offset in that request in bytes.
        let mut places: Vec<(usize, u64)> = Vec::new();
        let arena = self.memberships.memory().arena();
        let agreed = self.segments.iter().take(*segments as usize);
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
        let domain = self.memberships.domain().clone();
        let (abort, health) = (self.communicator.abort_handle(), self.group.health_handle());
        let _watch = Watch::begin(domain, abort, health, verdict_key, deadline);
        let memory: Arc<Memory> = self.memberships.memory().clone();
        self.communicator.keep(memory as Arc<dyn Any + Send + Sync>);
        // SAFETY: each rank's communicator keeps that rank's memory allocated until the communicator has ended.
        // Segments neither move nor shrink. A retired segment is freed only after all ranks have deregistered its
        // window.
        let outcomes = match unsafe { self.communicator.register_windows(&requests, deadline) } {
            Ok(outcomes) => outcomes,
            Err(CommError::DeadlineExceeded { .. }) => return Outcome::Blocked,
            Err(error) => return self.failed(error),
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

    fn open(&mut self, agreed: &Agreed, deadline: Deadline) -> sharing::Outcome {
        let (Some(offered), PeerMappings::Offered { members }) = (&mut self.offered, &agreed.peers) else {
            return sharing::Outcome::Failed { cause: "it has offered no memory".to_owned() };
        };
        match offered.open(members, deadline) {
            Ok(opened) => {
                self.opened = Some(opened);
                sharing::Outcome::Mapped
            }
            Err(outcome) => outcome,
        }
    }
}

impl Member<'_> {
    /// Returns the outcome of a registration that failed with `error`.
    fn failed(&self, error: CommError) -> Outcome {
        // `error` may be a consequence of the loss of a member: the first member that notices the loss aborts its
        // communicator, and this rank's registration then fails. Wait until this rank has noticed the loss too, so that
        // the outcome can name the lost member.
        if let Some(health) = self.group.health_handle() {
            health.await_cause(&error);
        }
        match ended_by_another(self.group, self.memberships.domain().rank()) {
            Some(rank) => Outcome::Ended { rank },
            None => Outcome::Failed { ordinal: None, cause: cause(self.group, error) },
        }
    }
}
