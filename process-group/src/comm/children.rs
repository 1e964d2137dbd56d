//! Communicators of some of a communicator's ranks, and how what it does is given up before.

use std::{
    ffi::c_int,
    sync::{
        Arc,
        atomic::{AtomicPtr, Ordering},
    },
};

use nccl_sys::{Feature, NCCL_REVOKE_DEFAULT, NCCL_SHRINK_ABORT, NCCL_SHRINK_DEFAULT, ncclComm, ncclComm_t};

use super::{
    Communicator, Config, Result,
    call::{call, unwritten},
    communicator::settings,
    gate::Kind,
    group,
    making::{self, Making, Origin},
    service::Service,
    shared::{Seat, Serving, Shared},
};
use crate::store::Deadline;

/// What becomes of a communicator's work when it is [shrunk](Communicator::shrink).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ShrinkMode {
    /// There is none: every rank's is done. The communicator goes on beside the new one.
    #[doc(alias = "NCCL_SHRINK_DEFAULT")]
    Orderly,
    /// It is given up first, since a rank that it waits for is gone. The communicator can only be aborted afterwards.
    #[doc(alias = "NCCL_SHRINK_ABORT")]
    AfterFailure,
}

impl Communicator {
    /// Makes a communicator of this one's ranks but the `excluded`, in their order. Collective over those that are
    /// left, which all give the same list; the excluded do not call, and may be gone. Nothing is agreed here: who
    /// survives must be known alike ([`ProcessGroup::shrink`](crate::ProcessGroup::shrink) agrees on it).
    ///
    /// No thread may be blocked inside NCCL with this communicator: it is waited for until the deadline. Work on the
    /// device is another matter; see [`ShrinkMode`]. A communicator that is poisoned, because NCCL reported an error,
    /// can be shrunk [after a failure](ShrinkMode::AfterFailure).
    ///
    /// # Errors
    /// - [`CommError::Missing`](super::CommError::Missing) below 2.27.3;
    /// - [`CommError::Argument`](super::CommError::Argument) for a list that is empty, names this rank or one that is
    ///   not there, or one twice;
    /// - [`CommError::DeadlineExceeded`](super::CommError::DeadlineExceeded) and
    ///   [`CommError::Nccl`](super::CommError::Nccl), which poison this communicator too.
    #[doc(alias = "ncclCommShrink")]
    pub fn shrink(
        &self,
        excluded: &[usize],
        mode: ShrinkMode,
        config: &Config,
        deadline: Deadline,
    ) -> Result<Self> {
        const CALL: &str = "ncclCommShrink";
        let raw = settings(CALL, self.nccl(), config)?;
        self.nccl().api().require(Feature::SHRINK)?;
        let mut list = self.place().excluded(CALL, excluded)?;
        let count = list.len() as c_int;
        let (kind, flags) = match mode {
            ShrinkMode::Orderly => (Kind::Child, NCCL_SHRINK_DEFAULT),
            ShrinkMode::AfterFailure => (Kind::Rescue, NCCL_SHRINK_ABORT),
        };
        let waiting_for = format!("the other survivors to shrink, without the ranks {excluded:?}");
        let config = config.clone();
        Serving::begin(&self.shared, &self.service, (CALL, kind), waiting_for, move |parent| {
            let handle = Arc::<AtomicPtr<ncclComm>>::default();
            let mut settings = raw.raw();
            let begun = making::Begun::now(&parent.context);
            // SAFETY: the parent is alive while this call is inside; the cell, the list and the settings outlive the
            // call, and the cell what it becomes.
            let made = unsafe {
                let (out, list) = (handle.as_ptr(), list.as_mut_ptr());
                let flags = flags as c_int;
                call!(
                    &parent.nccl,
                    parent.name(),
                    ncclCommShrink(parent.raw(), list, count, out, &mut settings, flags)
                )
            };
            if mode == ShrinkMode::AfterFailure {
                parent.gate.poison("it was shrunk after a failure");
            }
            let making = begun.done(&parent.context, Origin::Shrink(mode));
            child(parent, CALL, made, handle, raw, (config, making))
        })
        .finish(deadline)
    }

    /// Gives up what this rank has enqueued: kernels that wait for others end, and their results are undefined. The
    /// communicator takes no further work, but can be split, shrunk, destroyed and aborted. Local: the other ranks are
    /// not told, and every one that is to go on revokes it too.
    ///
    /// Not while a thread is blocked inside NCCL with this communicator, which is waited for until the deadline: that
    /// takes an abort. NCCL 2.28.7.
    ///
    /// # Errors
    /// [`CommError::Missing`](super::CommError::Missing) below 2.28.7;
    /// [`CommError::Revoked`](super::CommError::Revoked) the second time; [`CommError::Nccl`](super::CommError::Nccl) and
    /// [`CommError::DeadlineExceeded`](super::CommError::DeadlineExceeded), which poison the communicator.
    #[doc(alias = "ncclCommRevoke")]
    pub fn revoke(&self, deadline: Deadline) -> Result<()> {
        const CALL: &str = "ncclCommRevoke";
        group::refuse_inside(CALL)?;
        self.nccl().api().require(Feature::REVOKE)?;
        let waiting_for = "this rank's work to be given up".into();
        self.begin(CALL, waiting_for, |shared| {
            // Before the call: what comes in between is refused by NCCL, and told why by us.
            shared.gate.revoke();
            // SAFETY: the communicator is alive while this call is inside.
            unsafe {
                call!(&shared.nccl, shared.name(), ncclCommRevoke(shared.raw(), NCCL_REVOKE_DEFAULT as c_int))
            }
        })
        .finish(deadline)
    }
}

/// What `call` has made of `parent` and written to `handle`. On the service thread of the parent, inside its gate.
///
/// NCCL gives a child also where its making failed (`ncclCommInitRankFunc`, 2.18 to 2.30), to be aborted. And a child
/// that was made while an abort of its parent raised the flags of both looks whole, and does nothing. Neither is given
/// to anybody: the parent [keeps](Shared::keep_child) them.
pub(super) fn child(
    parent: &Shared,
    call: &'static str,
    made: Result<()>,
    handle: Arc<AtomicPtr<ncclComm>>,
    raw: nccl_sys::Config,
    (config, making): (Config, Making),
) -> Result<Communicator> {
    let comm = handle.load(Ordering::Acquire);
    if comm.is_null() {
        made?;
        return Err(unwritten(parent.nccl.api(), call, parent.name(), "communicator"));
    }
    let place = made.and_then(|()| place(parent, comm));
    // What failed may have no place of its own; its name is all that it takes one for.
    let (rank, size) = *place.as_ref().unwrap_or(&(parent.place.rank, parent.place.size));
    let seat = Seat { nccl: &parent.nccl, context: &parent.context, rank };
    let shared = Shared::new(&seat, size, &config, raw, handle);
    shared.gate.open();
    // Who closes the gate later raises the flags later, and finds the child's no longer linked with its parent's.
    let whole = place.and_then(|_| parent.gate.check_not_closed(call));
    match whole.and_then(|()| Service::start(shared.name())) {
        Ok(service) => {
            // Set once: a communicator is made once.
            let _ = shared.making.set(making);
            Ok(Communicator { shared, service, config })
        }
        Err(error) => {
            parent.keep_child(shared);
            Err(error)
        }
    }
}

/// The rank and the size of a child that was just made of `parent`.
fn place(parent: &Shared, child: ncclComm_t) -> Result<(usize, usize)> {
    let (mut rank, mut size) = (0, 0);
    // SAFETY: the communicator was just made; writes two integers, to locals that outlive the calls.
    unsafe {
        call!(&parent.nccl, parent.name(), ncclCommUserRank(child, &mut rank))?;
        call!(&parent.nccl, parent.name(), ncclCommCount(child, &mut size))?;
    }
    Ok((rank as usize, size as usize))
}
