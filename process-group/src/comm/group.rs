//! NCCL groups: several calls whose work is launched together.

use std::{cell::RefCell, marker::PhantomData, sync::Arc};

use super::{
    Nccl, Result,
    call::call,
    call_guard::Kind,
    open_group::{self, is_open, refuse_inside},
    reaper,
    shared::Shared,
};

thread_local! {
    /// The communicators with queued work in this thread's open group.
    static MEMBERS: RefCell<Vec<Arc<Shared>>> = const { RefCell::new(Vec::new()) };
}

/// Records that `shared` has queued work in this thread's open group. The caller holds an entry of the communicator's
/// call guard.
#[cold]
pub(crate) fn enrol(shared: &Arc<Shared>) {
    MEMBERS.with_borrow_mut(|members| {
        if !members.iter().any(|member| Arc::ptr_eq(member, shared)) {
            shared.guard.join_group();
            members.push(shared.clone());
        }
    });
}

/// An open NCCL group of this thread. Collectives, sends and receives that the thread enqueues while the group is open,
/// on any communicator, are launched together when the group is finished. They therefore do not wait for one another.
///
/// Some other calls are refused while the group is open, such as those that make, split, destroy or abort a
/// communicator, or register a window. A thread has at most one open group.
///
/// ```no_run
/// # use process_group::comm::{Communicator, DataType, Group};
/// # fn exchange(communicator: &Communicator, from: cuda_driver::DevicePtr, to: cuda_driver::DevicePtr,
/// #     stream: &cuda_driver::Stream) -> process_group::comm::Result<()> {
/// let peer = communicator.rank() ^ 1;
/// let group = Group::begin(communicator.nccl())?;
/// // SAFETY: each buffer holds 1024 elements and outlives the work.
/// unsafe {
///     communicator.send(from, 1024, DataType::F32, peer, stream)?;
///     communicator.recv(to, 1024, DataType::F32, peer, stream)?;
/// }
/// group.finish()
/// # }
/// ```
///
/// An NCCL group belongs to the thread that opened it, so this value cannot be sent to another thread:
/// ```compile_fail,E0277
/// fn elsewhere(group: process_group::comm::Group) {
///     std::thread::spawn(move || group.finish());
/// }
/// ```
#[doc(alias = "ncclGroupStart")]
#[must_use = "a group that is dropped at once holds nothing together"]
#[derive(Debug)]
pub struct Group {
    nccl: Nccl,
    ended: bool,
    thread: PhantomData<*const ()>,
}

impl Group {
    /// Opens a group on this thread.
    ///
    /// # Errors
    /// [`CommError::InsideGroup`](super::CommError::InsideGroup) if this thread has an open group already;
    /// [`CommError::Nccl`](super::CommError::Nccl).
    pub fn begin(nccl: &Nccl) -> Result<Self> {
        refuse_inside("ncclGroupStart")?;
        // SAFETY: the function has no arguments.
        unsafe { call!(nccl, "a group", ncclGroupStart()) }?;
        open_group::set(true);
        Ok(Self { nccl: nccl.clone(), ended: false, thread: PhantomData })
    }

    /// Returns true while this thread has an open group.
    #[must_use]
    pub fn is_open() -> bool {
        is_open()
    }

    /// Closes the group and launches the queued work. Dropping the group does the same, but passes an error to the
    /// [drop error hook](super::set_drop_error_hook).
    ///
    /// # Errors
    /// [`CommError::Nccl`](super::CommError::Nccl). Some of the queued work may have been launched. Every communicator
    /// with work in the group is poisoned, unless NCCL refused the arguments.
    #[doc(alias = "ncclGroupEnd")]
    pub fn finish(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.ended, true) {
            return Ok(());
        }
        open_group::set(false);
        let mut members = MEMBERS.take();
        // All threads enter the guards in ascending order of serial number, so two groups cannot deadlock.
        members.sort_unstable_by_key(|member| member.serial);
        let entries: Result<Vec<_>> =
            members.iter().map(|member| member.guard.enter("ncclGroupEnd", Kind::GroupEnd, None)).collect();
        let names: Vec<_> = members.iter().map(|member| member.name()).collect();
        // SAFETY: `begin` opened this group on this thread. Every communicator with queued work is alive, because an
        // abort does not free it before the group has left its guard.
        let ended = unsafe { call!(&self.nccl, &names.join(" and "), ncclGroupEnd()) };
        for member in &members {
            if let Err(error) = &ended
                && error.poisons()
            {
                member.guard.poison(&error.to_string());
            }
        }
        let entered = entries.map(drop);
        members.iter().for_each(|member| member.guard.leave_group());
        ended.and(entered)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            reaper::report(&error);
        }
    }
}
