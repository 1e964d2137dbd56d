//! Destroys a communicator together with all ranks, or aborts a communicator of this rank.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use nccl_sys::Feature;

use super::{
    CommError, Communicator, Result, abort,
    call::call,
    call_guard::Kind,
    open_group, reaper,
    service::{Listener, Ticket, Unkept, promise},
    shared::Serving,
    turn::FREEING,
};
use crate::store::Deadline;

/// How a destroyed communicator ended, in the errors of later calls.
const DESTROYED: &str = "destroyed";

impl Communicator {
    /// Destroys the communicator once all enqueued work is done, or given up by a [revocation](Self::revoke).
    /// Collective: every rank must destroy the communicator. Windows and local registrations that remain are
    /// deregistered. Destroy captured graphs that use the communicator first: this call waits until they are destroyed.
    ///
    /// # Errors
    /// - [`CommError::DeadlineExceeded`] if other ranks did not finish in time. The communicator is then aborted in the
    ///   background.
    /// - [`CommError::Leaked`] if NCCL did not return from the destruction itself, which goes on and may still succeed.
    /// - [`CommError::Poisoned`] for a communicator that can only be aborted.
    /// - [`CommError::Adopted`] for a communicator that was [adopted](Self::adopt). The communicator is then
    ///   [released](Self::release) in the background.
    #[doc(alias = "ncclCommDestroy")]
    #[doc(alias = "ncclCommFinalize")]
    pub fn destroy(self, deadline: Deadline) -> Result<()> {
        Self::destroy_together(vec![self], deadline).pop().unwrap_or(Ok(()))
    }

    /// Like [`destroy`](Self::destroy), for one thread that drives several ranks. Returns one result for each
    /// communicator, in the given order.
    pub fn destroy_together(communicators: Vec<Self>, deadline: Deadline) -> Vec<Result<()>> {
        if open_group::is_open() {
            return communicators.iter().map(|_| open_group::refuse_inside("ncclCommDestroy")).collect();
        }
        let finalizing: Vec<_> = communicators
            .iter()
            // If NCCL has not begun to make the communicator, there is nothing to destroy.
            .map(|communicator| {
                communicator.shared.refuse_adopted("ncclCommDestroy")?;
                let made = !communicator.shared.guard.close_unmade(DESTROYED);
                Ok(made.then(|| communicator.begin_finalize()))
            })
            .collect();
        let finish = |serving: Result<Serving<()>>| serving?.finish(deadline);
        let finalized: Vec<_> =
            finalizing.into_iter().map(|serving: Result<_>| serving.transpose().map(finish)).collect();
        let destroying: Vec<_> = communicators
            .iter()
            .zip(finalized)
            .map(|(communicator, finalized)| Some(finalized?.and_then(|()| communicator.begin_destroy())))
            .collect();
        let finish = |(communicator, destroying): (&Self, Option<Result<_>>)| {
            destroying.map_or(Ok(()), |destroying| communicator.finish_destroy(destroying?, deadline))
        };
        communicators.iter().zip(destroying).map(finish).collect()
    }

    fn begin_finalize(&self) -> Serving<()> {
        let waiting_for = "all ranks to finish their work and destroy the communicator".into();
        let call = ("ncclCommFinalize", Kind::Suspended);
        self.shared.registry.retire();
        Serving::begin(&self.shared, &self.service, call, waiting_for, |shared| {
            // A revoked communicator has no work to finish, and NCCL refuses to finalize it.
            if !shared.nccl.has(Feature::CONFIG) || shared.guard.is_revoked() {
                return Ok(());
            }
            // SAFETY: the call guard keeps the communicator alive during the call.
            unsafe { call!(&shared.nccl, shared.name(), ncclCommFinalize(shared.raw())) }
        })
    }

    fn begin_destroy(&self) -> Result<Destroying> {
        const CALL: &str = "ncclCommDestroy";
        /// How long a caller of `destroy` still waits after an abort. `ncclCommDestroy` returns within this time if it
        /// is not blocked.
        const GRACE: Duration = Duration::from_millis(50);
        let (promise, ticket) = promise();
        let interruption = ticket.interruption(GRACE);
        self.shared.guard.close_working(CALL, DESTROYED, &interruption)?;
        let shared = self.shared.clone();
        let returned = Arc::new(AtomicBool::new(false));
        let has_returned = returned.clone();
        self.service.keep(promise, move || {
            let end = || {
                // Queries and local registrations may still be inside NCCL. They do not block, so they return soon.
                let wait = Deadline::after(abort::PATIENCE);
                shared.guard.wait_empty(wait).map_err(|held| abort::leaked(&shared, held))?;
                let _entry = shared.guard.enter_closed(CALL);
                shared.context.with_current(|| {
                    // An error here is only reported: `ncclCommDestroy` repeats a deregistration that failed.
                    let _ = shared.deregister_all().inspect_err(reaper::report);
                    let _turn = FREEING.take(wait);
                    // SAFETY: the guard is closed and no other thread is inside NCCL with the communicator, so this is
                    // the last call.
                    unsafe { call!(&shared.nccl, shared.name(), ncclCommDestroy(shared.raw())) }
                })?
            };
            // After a failure the state of the communicator is unknown, and no call may use it again.
            let freed = end().inspect_err(|_| abort::keep(&shared));
            shared.guard.set_freed(freed.as_ref().copied());
            freed?;
            // The caller may have stopped waiting, and recorded that the call has not returned.
            has_returned.store(true, Ordering::SeqCst);
            shared.guard.set_ending(DESTROYED);
            shared.let_go().iter().for_each(reaper::take);
            Ok(())
        });
        Ok(Destroying { ticket, returned, _interruption: interruption })
    }

    fn finish_destroy(&self, destroying: Destroying, deadline: Deadline) -> Result<()> {
        destroying.ticket.wait(deadline).unwrap_or_else(|unkept| {
            let why = match unkept {
                Unkept::Interrupted => "it was aborted while ncclCommDestroy was blocked".into(),
                _ => format!("ncclCommDestroy did not return within {:.1?}", deadline.waited()),
            };
            // The destruction may still succeed later. The service thread then replaces this text.
            self.shared.guard.set_ending(&format!("being destroyed: {why}"));
            if destroying.returned.load(Ordering::SeqCst) {
                self.shared.guard.set_ending(DESTROYED);
            }
            Err(CommError::Leaked { communicator: self.name().into(), why })
        })
    }

    /// Aborts the communicator at once, even if work is enqueued or calls are blocked. Every rank must abort.
    ///
    /// This method consumes the communicator, so it cannot be used afterwards:
    /// ```compile_fail,E0382
    /// # use process_group::{comm::{Communicator, Result}, store::Deadline};
    /// fn end(communicator: Communicator, deadline: Deadline) -> Result<()> {
    ///     communicator.abort(deadline)?;
    ///     communicator.destroy(deadline)
    /// }
    /// ```
    ///
    /// # Errors
    /// [`CommError::Leaked`] if a call of this process did not return from NCCL by the deadline. The communicator's
    /// memory is then not freed. [`CommError::Adopted`] for a communicator that was [adopted](Self::adopt) (the
    /// communicator is then [released](Self::release) in the background).
    #[doc(alias = "ncclCommAbort")]
    pub fn abort(self, deadline: Deadline) -> Result<()> {
        self.abort_handle().abort(deadline)
    }
}

/// A communicator that is being destroyed.
struct Destroying {
    ticket: Ticket<Result<()>>,
    /// True once NCCL has destroyed the communicator.
    returned: Arc<AtomicBool>,
    /// Ends the wait of `ticket` when the communicator is aborted. The call guard holds only a weak reference.
    _interruption: Arc<Listener>,
}
