//! Shrinking a communicator to a subset of its ranks, and revoking a communicator's enqueued work.

use std::{
    ffi::c_int,
    sync::{
        Arc,
        atomic::{AtomicPtr, Ordering},
    },
};

use nccl_sys::{Feature, NCCL_REVOKE_DEFAULT, NCCL_SHRINK_ABORT, NCCL_SHRINK_DEFAULT, ncclComm, ncclComm_t};

use super::{
    ArgumentError, Communicator, Config, Result,
    call::{call, unwritten},
    call_guard::Kind,
    communicator::settings,
    making::{self, Making, Origin, ShrinkMode},
    open_group,
    service::Service,
    shared::{MemberSetup, Serving, Shared},
    types::Place,
};
use crate::store::Deadline;

impl Communicator {
    /// Makes a new communicator of the ranks of this communicator without those in `excluded`. The remaining ranks keep
    /// their order. Collective over the remaining ranks, which all pass the same list. The excluded ranks do not call,
    /// and may have failed. This call does not agree on the list: every remaining rank must already know it
    /// ([`ProcessGroup::shrink`](crate::ProcessGroup::shrink) agrees on it).
    ///
    /// No thread may be blocked inside NCCL with this communicator: the call waits until the deadline for such threads
    /// to return. [`ShrinkMode`] decides what happens to work on the device. A communicator that is poisoned because
    /// NCCL reported an error can still be shrunk with [`ShrinkMode::AfterFailure`].
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
        let mut list = check_excluded(self.place(), CALL, excluded)?;
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
            // SAFETY: the call guard keeps the parent alive during the call. `handle`, `list` and `settings` outlive
            // the call. The child owns `handle`, so the address stays valid as long as the child.
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

    /// Gives up the work that this rank has enqueued. Kernels that wait for other ranks end with undefined results.
    /// Afterwards this communicator takes no further work, but can be split, shrunk, destroyed and aborted. Local: NCCL
    /// does not notify the other ranks, so every rank that is to continue must revoke its communicator too.
    ///
    /// Waits until the deadline for threads that are inside NCCL with this communicator. If a thread is blocked in
    /// NCCL, abort instead. Needs NCCL 2.28.7.
    ///
    /// # Errors
    /// [`CommError::Missing`](super::CommError::Missing) below 2.28.7;
    /// [`CommError::Adopted`](super::CommError::Adopted) for an [adopted](Self::adopt) communicator;
    /// [`CommError::Revoked`](super::CommError::Revoked) on a second call; [`CommError::Nccl`](super::CommError::Nccl)
    /// and [`CommError::DeadlineExceeded`](super::CommError::DeadlineExceeded), which poison the communicator.
    #[doc(alias = "ncclCommRevoke")]
    pub fn revoke(&self, deadline: Deadline) -> Result<()> {
        const CALL: &str = "ncclCommRevoke";
        open_group::refuse_inside(CALL)?;
        self.shared.refuse_adopted(CALL)?;
        self.nccl().api().require(Feature::REVOKE)?;
        let waiting_for = "this rank's work to be given up".into();
        self.begin(CALL, waiting_for, |shared| {
            // Set before the call, so that work that arrives during the call is refused at once.
            shared.guard.set_revoked(true);
            // SAFETY: the call guard keeps the communicator alive during the call.
            let revoked = unsafe {
                call!(&shared.nccl, shared.name(), ncclCommRevoke(shared.raw(), NCCL_REVOKE_DEFAULT as c_int))
            };
            revoked.inspect_err(|_| shared.guard.set_revoked(false))
        })
        .finish(deadline)
    }
}

/// Returns the communicator that `call` made from `parent` and wrote to `handle`. Runs on the parent's service thread,
/// while the call holds the parent's guard.
///
/// Two kinds of children are not returned but [kept](Shared::keep_child) by the parent. NCCL 2.18 to 2.30 also writes
/// the handle of a child whose creation failed (`ncclCommInitRankFunc`); such a child has to be aborted. A child that
/// was made while an abort of the parent set the abort flags of both looks valid, but does nothing.
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
    // A failed child may not know its rank and size. They only appear in its name, so the parent's are used instead.
    let (rank, size) = *place.as_ref().unwrap_or(&(parent.place.rank, parent.place.size));
    let setup = MemberSetup { nccl: &parent.nccl, context: &parent.context, rank };
    let shared = Shared::new(&setup, size, &config, raw, handle);
    shared.guard.open();
    // An abort that closes the parent's guard after this check sets the parent's abort flags later still. By then the
    // child's flag is no longer linked to the parent's, so the child stays usable.
    let whole = place.and_then(|_| parent.guard.check_not_closed(call));
    match whole.and_then(|()| Service::start(shared.name())) {
        Ok(service) => {
            // Never set before: a communicator is made once.
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
    // SAFETY: `child` was just made. NCCL writes two integers, each to a local that outlives the calls.
    unsafe {
        call!(&parent.nccl, parent.name(), ncclCommUserRank(child, &mut rank))?;
        call!(&parent.nccl, parent.name(), ncclCommCount(child, &mut size))?;
    }
    Ok((rank as usize, size as usize))
}

/// Checks the list of ranks to exclude. Returns the ranks in ascending order, as NCCL requires.
pub(crate) fn check_excluded(
    place: &Place,
    call: &'static str,
    excluded: &[usize],
) -> Result<Vec<i32>, ArgumentError> {
    let mut sorted = excluded.to_vec();
    sorted.sort_unstable();
    let problem = if excluded.is_empty() {
        "that is nobody"
    } else if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
        "a rank is named twice"
    } else if sorted.last().is_some_and(|last| *last >= place.size) {
        "not all of them are its ranks"
    } else if excluded.contains(&place.rank) {
        "this rank is among them"
    } else {
        // Every rank is below the communicator's size, which NCCL holds in an `i32`.
        return Ok(sorted.into_iter().map(|rank| rank as i32).collect());
    };
    let (rank, size, excluded) = (place.rank, place.size, excluded.to_vec());
    Err(ArgumentError::Excluded { call, rank, size, excluded, problem })
}
