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
    /// Wraps a communicator that somebody else made and will destroy, for example PyTorch or cudarc. Local: makes no
    /// collective call.
    ///
    /// `raw` is this rank's handle, `rank`, `size` and `context` are its rank, its number of ranks and its device. They
    /// are compared with NCCL's answers. Of `config`, the name and the
    /// [facts that decide on windows](Config::window_facts) are used, and no other setting.
    ///
    /// The value has the operations, windows and registrations of any communicator, and
    /// [`Builder::build_with`](crate::group::Builder::build_with) makes a process group of it. It never finalizes,
    /// destroys or aborts the communicator:
    /// - [`destroy`](Self::destroy), [`shrink`](Self::shrink), [`revoke`](Self::revoke) and aborts return
    ///   [`CommError::Adopted`]. An abort also ends the waits of this rank and makes every further call fail, but
    ///   kernels and threads that are blocked in NCCL stay blocked until the owner helps them. `ncclCommRevoke` does
    ///   that without freeing the communicator.
    /// - [`release`](Self::release), or dropping the value, ends its use. Windows and registrations that were made
    ///   through it are deregistered, and the reference to `owner` is dropped after that, on a thread of this crate.
    ///   If any are left, the release first waits until the device is idle and no stream of it captures. If that takes
    ///   too long, [`CommError::Leaked`] is reported, and the release goes on in the background. If a deregistration
    ///   fails, `owner` is kept for the rest of the process.
    ///
    /// Where an error asks for an abort of the communicator, release it instead, and have its owner abort it.
    ///
    /// Communicators that are [split](Self::split) off are not adopted: they are this crate's own.
    ///
    /// The example `adopt` all-reduces over a communicator that was made by calls of NCCL alone.
    ///
    /// # Errors
    /// - [`CommError::AdoptionMismatch`] if NCCL gives another rank, size or device;
    /// - [`CommError::Nccl`], also with an asynchronous error of the communicator; [`CommError::Missing`];
    /// - [`CommError::Setting`] and [`CommError::Config`] for settings that the release does not accept;
    /// - [`CommError::InsideGroup`], [`CommError::Thread`].
    ///
    /// After an error, the reference to `owner` is dropped.
    ///
    /// # Safety
    /// - `raw` is a communicator of the library `nccl`. It is completely made, and it is a blocking one.
    /// - The communicator stays alive as long as the reference to `owner` is held: nobody finalizes, destroys or aborts
    ///   it before.
    /// - Meanwhile nobody else is inside NCCL with it while a call of this value, or of a group over it, is, and nobody
    ///   else holds queued work of it in an NCCL group. No call of this value is made inside an NCCL group that another
    ///   library has opened on the thread. Only queries of asynchronous errors may run at any time; a process group makes
    ///   them on threads of its own.
    /// - Nobody else deregisters the windows and registrations that were made through this value.
    /// - It is adopted at most once at a time.
    /// - When this value is released or dropped, no work of another rank uses this rank's windows any more, and no
    ///   graph that uses them is launched again. Dropping a group drops this value; the group's
    ///   [`destroy`](crate::ProcessGroup::destroy) waits for the members' work.
    /// - Memory that was registered with [`register`](Self::register) stays allocated until its registration was
    ///   dropped before this value, or else until the reference to `owner` is dropped.
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
        // Set once: the state is new.
        let _ = shared.making.set(Making::ADOPTED);
        let _ = shared.owner.set(Mutex::new(Some(owner)));
        Ok(Self { shared, service, config })
    }

    /// Returns true if the communicator was [adopted](Self::adopt).
    #[must_use]
    pub fn is_adopted(&self) -> bool {
        self.shared.is_adopted()
    }

    /// Ends the use of the communicator. One that was [adopted](Self::adopt) is left to its owner: what was registered
    /// through it is deregistered, and then the reference to its owner is dropped. That is not collective. Any other
    /// communicator is [destroyed](Self::destroy).
    ///
    /// # Errors
    /// - [`CommError::Leaked`] if a call did not return from NCCL, or the device did not become idle, by the deadline.
    ///   The release then goes on in the background;
    /// - [`CommError::Nccl`] and [`CommError::Driver`] if something could not be deregistered. The owner is kept for
    ///   the rest of the process;
    /// - those of [`destroy`](Self::destroy), for a communicator that is not adopted.
    pub fn release(self, deadline: Deadline) -> Result<()> {
        if !self.is_adopted() {
            return self.destroy(deadline);
        }
        open_group::refuse_inside("release")?;
        reaper::release(&self.shared).finish(deadline)
    }
}

/// Compares the rank, the size and the device with NCCL's answers.
fn compare(shared: &Shared) -> Result<()> {
    let (nccl, name, raw) = (&shared.nccl, shared.name(), shared.raw());
    let (mut rank, mut size, mut device): (c_int, c_int, c_int) = (0, 0, 0);
    // SAFETY: the communicator is alive by the contract of `adopt`; writes three integers, to locals that outlive the
    // calls.
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
