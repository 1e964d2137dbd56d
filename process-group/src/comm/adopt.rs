//! Communicators that another library made and will destroy.

use std::{
    any::Any,
    ffi::c_int,
    sync::{Arc, Mutex, atomic::AtomicPtr},
};

use cuda_driver::Context;
use nccl_sys::ncclComm_t;

use super::{
    CommError, Communicator, Config, Nccl, Result,
    call::call,
    communicator::settings,
    making::Making,
    open_group, reaper,
    service::Service,
    shared::{MemberSetup, Shared},
};
use crate::store::Deadline;

impl Communicator {
    /// Wraps a communicator that another library, for example PyTorch or cudarc, made and will destroy. Makes no
    /// collective call, so the other ranks need not adopt theirs.
    ///
    /// `raw` is this rank's NCCL handle. `rank` and `size` are this rank and the number of ranks, and `context` is the
    /// context of the communicator's device. The rank, the size and the device must be those that NCCL reports. Of
    /// `config`, only the name and the [window facts](Config::window_facts) take effect. The other settings are only
    /// checked, because the communicator exists already. `owner` is any value that keeps the communicator alive.
    ///
    /// The returned value supports the same operations, windows and registrations as any other communicator, and
    /// [`Builder::build_with`](crate::group::Builder::build_with) makes a process group of it. This crate never
    /// finalizes, destroys or aborts the adopted communicator:
    /// - [`destroy`](Self::destroy), [`shrink`](Self::shrink), [`revoke`](Self::revoke), [`suspend`](Self::suspend) and
    ///   aborts return [`CommError::Adopted`]. An abort also ends the waits of this rank and makes every further call
    ///   fail. Kernels and threads that are blocked in NCCL stay blocked until the owner unblocks them. The owner can do
    ///   so with `ncclCommRevoke`, which does not free the communicator.
    /// - [`release`](Self::release), or dropping the value, ends this crate's use of the communicator. A thread of this
    ///   crate deregisters the windows and registrations that were made through the value, and then drops the reference
    ///   to `owner`. If there are windows or registrations to deregister, the thread first waits until no stream of the
    ///   device is being captured and the device is idle. If the deadline of `release` (after a drop: 10 s) passes
    ///   first, `release` returns [`CommError::Leaked`], and the thread continues in the background. After a drop, the
    ///   [drop error hook](super::set_drop_error_hook) gets this error. If a deregistration fails, the reference to
    ///   `owner` is never dropped.
    ///
    /// If the text of an error says to abort the communicator, release the value instead, and have the owner abort.
    ///
    /// Communicators that are [split](Self::split) off from an adopted communicator are not adopted. This crate made
    /// them, and this crate destroys them.
    ///
    /// The example `adopt` all-reduces over a communicator that the program made by calling NCCL directly.
    ///
    /// # Errors
    /// - [`CommError::AdoptionMismatch`] if NCCL reports another rank, size or device than the caller;
    /// - [`CommError::Nccl`] if NCCL failed, or if the communicator has an asynchronous error;
    /// - [`CommError::Missing`] if the loaded library lacks a function that this needs;
    /// - [`CommError::Setting`] and [`CommError::Config`] for settings that the release does not accept;
    /// - [`CommError::InsideGroup`] if this thread has an open NCCL group;
    /// - [`CommError::Thread`] if the service thread could not be started.
    ///
    /// After an error, the reference to `owner` is dropped.
    ///
    /// # Safety
    /// - `raw` is a communicator of the library `nccl`. The communicator was made in blocking mode, and its creation
    ///   has completed.
    /// - The communicator stays alive as long as the reference to `owner` is held: until that reference is dropped,
    ///   nobody finalizes, destroys or aborts the communicator.
    /// - While this value, or a process group over this value, makes an NCCL call with the communicator, no other code
    ///   is inside NCCL with the communicator. Queries of asynchronous errors are exempt and may run at any time; a
    ///   process group makes them on threads of its own.
    /// - As long as this value is in use, no other code has queued work of the communicator in an NCCL group. No method
    ///   of this value is called inside an NCCL group that another library has opened on the thread.
    /// - Nobody else deregisters the windows and registrations that were made through this value.
    /// - At most one value at a time adopts the communicator.
    /// - When this value is released or dropped, no work of another rank uses this rank's windows any more, and no
    ///   graph that uses these windows is launched again. Dropping a process group drops this value. The group's
    ///   [`destroy`](crate::ProcessGroup::destroy) waits for the members' work.
    /// - Memory that was registered with [`register`](Self::register) stays allocated until its registration is
    ///   dropped. If this value is dropped before the registration, the memory stays allocated until the reference to
    ///   `owner` is dropped.
    pub unsafe fn adopt(
        nccl: &Nccl,
        context: &Context,
        raw: ncclComm_t,
        rank: usize,
        size: usize,
        config: &Config,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Result<Self> {
        let lowered = settings("adopt", nccl, config)?;
        let config = Config { window_facts: config.window_facts.or_environment(), ..config.clone() };
        let handle = Arc::new(AtomicPtr::new(raw));
        let shared = Shared::new(&MemberSetup { nccl, context, rank }, size, &config, lowered, handle);
        compare(&shared)?;
        shared.guard.open();
        shared.async_error()?;
        let service = Service::start(shared.name())?;
        // `shared` is new, so neither field was set before.
        let _ = shared.making.set(Making::ADOPTED);
        let _ = shared.owner.set(Mutex::new(Some(owner)));
        Ok(Self { shared, service, config })
    }

    /// Returns true if the communicator was [adopted](Self::adopt).
    #[must_use]
    pub fn is_adopted(&self) -> bool {
        self.shared.is_adopted()
    }

    /// Ends this crate's use of the communicator. If the communicator was [adopted](Self::adopt), deregisters the
    /// windows and registrations that were made through this value, and then drops the reference to the owner. The
    /// other ranks take no part in that. If the communicator was not adopted, [destroys](Self::destroy) it, which is
    /// collective.
    ///
    /// # Errors
    /// - [`CommError::Leaked`] if a call did not return from NCCL, or the device did not become idle, by the deadline.
    ///   The release then goes on in the background;
    /// - [`CommError::Nccl`] and [`CommError::Driver`] if a window or registration could not be deregistered. The
    ///   reference to the owner is kept for the rest of the process;
    /// - those of [`destroy`](Self::destroy), for a communicator that is not adopted.
    pub fn release(self, deadline: Deadline) -> Result<()> {
        if !self.is_adopted() {
            return self.destroy(deadline);
        }
        open_group::refuse_inside("release")?;
        reaper::release(&self.shared).finish(deadline)
    }
}

/// Checks that NCCL reports the rank, the size and the device that the caller of `adopt` gave.
fn compare(shared: &Shared) -> Result<()> {
    let (nccl, name, raw) = (&shared.nccl, shared.name(), shared.raw());
    let (mut rank, mut size, mut device): (c_int, c_int, c_int) = (0, 0, 0);
    // SAFETY: the communicator is alive by the contract of `adopt`. NCCL writes three integers, each to a local that
    // outlives the calls.
    unsafe {
        call!(nccl, name, ncclCommUserRank(raw, &mut rank))?;
        call!(nccl, name, ncclCommCount(raw, &mut size))?;
        call!(nccl, name, ncclCommCuDevice(raw, &mut device))?;
    }
    let ordinal = shared.context.device().ordinal() as usize;
    let facts =
        [("rank", shared.place.rank, rank), ("size", shared.place.size, size), ("device", ordinal, device)];
    match facts.into_iter().find(|(_, expected, found)| usize::try_from(*found) != Ok(*expected)) {
        None => Ok(()),
        Some((what, expected, found)) => {
            Err(CommError::AdoptionMismatch { communicator: name.to_owned(), what, expected, found })
        }
    }
}
