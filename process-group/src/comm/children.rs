//! Shrinking and revoking: communicators of a subset of the ranks, and giving up enqueued work.

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
    call_guard::Kind,
    communicator::settings,
    making::{self, Making, Origin, ShrinkMode},
    open_group,
    service::Service,
    shared::{MemberSetup, Serving, Shared},
};
use crate::store::Deadline;

impl Communicator {
    /// Makes a communicator of this one's ranks without the `excluded`, in the same order. Collective over the
    /// remaining ranks, which all give the same list. The excluded ranks do not call, and may be gone. This call does
    /// not agree on the list: every survivor must already know the same list
    /// ([`ProcessGroup::shrink`](crate::ProcessGroup::shrink) agrees on it).
    ///
    /// No thread may be blocked inside NCCL with this communicator: the call waits for such threads until the
    /// deadline. For work on the device see [`ShrinkMode`]. A communicator that is poisoned because NCCL reported an
    /// error can be shrunk [after a failure](ShrinkMode::AfterFailure).
    ///
    /// # Errors
    /// - [`CommError::Adopted`](super::CommError::Adopted) for an [adopted](Self::adopt) communicator;
    /// - [`CommError::Missing`](super::CommError::Missing) below 2.27.3;
    /// - [`CommError::Argument`](super::CommError::Argument) for a list that is empty, names this rank or a rank that
    ///   does not exist, or names a rank twice;
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
        self.shared.refuse_adopted(CALL)?;
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
            // SAFETY: the parent is alive while this call is inside. The cell, the list and the settings outlive the
            // call. The cell lives as long as the child.
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
                parent.guard.poison("it was shrunk after a failure");
            }
            let making = begun.done(&parent.context, Origin::Shrink(mode));
            child(parent, CALL, made, handle, raw, (config, making))
        })
        .finish(deadline)
    }

    /// Gives up the work that this rank has enqueued. Kernels that wait for other ranks end, and their results are
    /// undefined. The communicator takes no further work, but can be split, shrunk, destroyed and aborted. Local: the
    /// other ranks are not told, and every rank that is to continue revokes it too.
    ///
    /// Waits until the deadline for threads that are inside NCCL with this communicator. If one is blocked there, use
    /// an abort instead. NCCL 2.28.7.
    ///
    /// # Errors
    /// [`CommError::Missing`](super::CommError::Missing) below 2.28.7;
    /// [`CommError::Adopted`](super::CommError::Adopted) for an [adopted](Self::adopt) communicator;
    /// [`CommError::Revoked`](super::CommError::Revoked) the second time; [`CommError::Nccl`](super::CommError::Nccl) and
    /// [`CommError::DeadlineExceeded`](super::CommError::DeadlineExceeded), which poison the communicator.
    #[doc(alias = "ncclCommRevoke")]
    pub fn revoke(&self, deadline: Deadline) -> Result<()> {
        const CALL: &str = "ncclCommRevoke";
        open_group::refuse_inside(CALL)?;
        self.shared.refuse_adopted(CALL)?;
        self.nccl().api().require(Feature::REVOKE)?;
        let waiting_for = "this rank's work to be given up".into();
        self.begin(CALL, waiting_for, |shared| {
            // Before the call: NCCL refuses calls that arrive in between, and the guard gives the reason.
            shared.guard.revoke();
            // SAFETY: the communicator is alive while this call is inside.
            unsafe {
                call!(&shared.nccl, shared.name(), ncclCommRevoke(shared.raw(), NCCL_REVOKE_DEFAULT as c_int))
            }
        })
        .finish(deadline)
    }
}

/// Returns the communicator that `call` made from `parent` and wrote to `handle`. Runs on the service thread of the
/// parent, inside its guard.
///
/// NCCL also writes a child whose making failed (`ncclCommInitRankFunc`, 2.18 to 2.30); it has to be aborted. A child
/// that was made while an abort of its parent raised the flags of both looks valid, but does nothing. Neither is
/// returned: the parent [keeps](Shared::keep_child) them.
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
    // A failed child may have no rank and size of its own. Only its name uses them.
    let (rank, size) = *place.as_ref().unwrap_or(&(parent.place.rank, parent.place.size));
    let setup = MemberSetup { nccl: &parent.nccl, context: &parent.context, rank };
    let shared = Shared::new(&setup, size, &config, raw, handle);
    shared.guard.open();
    // If the guard closes after this check, the flags are raised later too, and the child's flag is no longer linked
    // to its parent's.
    let whole = place.and_then(|_| parent.guard.check_not_closed(call));
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

/// Returns the rank and the size of a child that was just made from `parent`.
fn place(parent: &Shared, child: ncclComm_t) -> Result<(usize, usize)> {
    let (mut rank, mut size) = (0, 0);
    // SAFETY: the communicator was just made; writes two integers, to locals that outlive the calls.
    unsafe {
        call!(&parent.nccl, parent.name(), ncclCommUserRank(child, &mut rank))?;
        call!(&parent.nccl, parent.name(), ncclCommCount(child, &mut size))?;
    }
    Ok((rank as usize, size as usize))
}
