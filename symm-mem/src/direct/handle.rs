//! A program's handle on a direct path: pools to share, and numbers of messages.

use std::{
    sync::{Arc, Mutex, PoisonError, Weak},
    thread,
    time::Duration,
};

use process_group::store::Deadline;

use super::{
    core::{Core, DirectReport},
    flag_page::FlagPage,
    shared::Segment,
};
use crate::{
    error::{CallContext, Error},
    error_kind::ErrorKind,
    symmetric_pool::SymmetricPool,
};

/// A handle on a group's direct path. Cheap to clone. The group owns the path, and the handle does not keep it alive.
#[derive(Debug, Clone)]
pub struct Direct {
    /// Prefix of errors, which names the group.
    call: CallContext,
    /// Time that [`share`](Self::share) waits at its end for the other members' announcements.
    deadline: Duration,
    core: Weak<Core>,
    /// Locked by the call that shares segments.
    sharing: Arc<Mutex<()>>,
}

impl Direct {
    pub(super) fn new(call: CallContext, deadline: Duration, core: &Arc<Core>) -> Self {
        Self { call, deadline, core: Arc::downgrade(core), sharing: Arc::default() }
    }

    /// Maps the segments of `pool` that the members have not mapped yet. From then on, messages are
    /// [zero-copy messages](super#zero-copy-messages) if the buffer of the end that comes first lies in one of these
    /// segments. Returns the number of newly mapped segments.
    ///
    /// At its end, the call waits until the other members have mapped the segments too, at most for
    /// [`DirectOptions::deadline`](super::DirectOptions::deadline). A member that is late is no error: until it has
    /// mapped the segments, this rank's buffers in them are not offered to it.
    ///
    /// Collective: all members call it at the same point of the program, for example after a
    /// [`commit`](SymmetricPool::commit) or another call that may have made the pool grow. A commit is not needed:
    /// the members agree on every segment here. Without new segments, the call only waits for members that have not
    /// mapped earlier ones yet.
    ///
    /// The path keeps the pool's memory until the group ends, as a communicator with windows in this memory does.
    /// Segments can be [retired](SymmetricPool::retire) before.
    ///
    /// # Errors
    /// [`ErrorKind::RendezvousRefused`], the same on all members, if the members' segments differ or cannot be shared.
    /// Exception: if some members have fewer new segments than others, only the others get the error. Segments before
    /// the one that failed stay mapped. [`ErrorKind::PathEnded`] once the group is gone.
    ///
    /// After an error of another kind, for example of the store, on this rank only, the other members may have mapped
    /// the segment. Then their buffers in that segment, or in one that is shared later, are not offered to this rank: a
    /// message goes through the ring if the end with such a buffer comes first.
    pub fn share(&self, pool: &SymmetricPool) -> Result<usize, Error> {
        let _alone = self.sharing.lock().unwrap_or_else(PoisonError::into_inner);
        let core = self.core()?;
        let (missing, rendezvous) = (core.shared.missing(pool), core.rendezvous.clone());
        // The end of the group waits until nobody else holds the core, so the calls below do not hold it. They end with
        // an error once the group is over.
        drop(core);
        for buffer in &missing {
            let mapped = rendezvous.map(buffer).inspect_err(|error| self.stop_after(error));
            let (number, _) = mapped.map_err(|error| self.call.error(error.into_kind()))?;
            let core = self.core()?;
            let own = &core.flag_pages[core.rank];
            core.shared.add(pool, Segment { number, buffer: buffer.clone() });
            // From here on, peers may offer their buffers in this segment to this rank.
            if !own.has_stopped_mapping() {
                own.set_mapped(number);
            }
        }
        self.await_others()?;
        Ok(missing.len())
    }

    /// Announces that this rank maps no further segments, if other members may have mapped one that this rank has not.
    /// This rank may map later segments, but does not announce them: the announced number would say that this rank has
    /// mapped all segments up to it.
    fn stop_after(&self, error: &Error) {
        if let (None, Ok(core)) = (error.rendezvous_refusal(), self.core()) {
            core.flag_pages[core.rank].stop_mapping();
        }
    }

    /// Waits until every other member has announced that it has mapped the same segments, or that it maps no further
    /// ones. Also returns `Ok` after an abort, if another rank has given up (announced that it ends its waits), and at
    /// the deadline: this rank's buffers are offered only to members that have mapped the segment. Returns
    /// [`ErrorKind::PathEnded`] if the group is gone.
    fn await_others(&self) -> Result<(), Error> {
        let deadline = Deadline::after(self.deadline);
        while !deadline.expired() {
            let core = self.core()?;
            let own = core.flag_pages[core.rank].mapped();
            let knows = |page: &Arc<FlagPage>| page.mapped() >= own || page.has_stopped_mapping();
            if core.is_over() || core.flag_pages.iter().all(knows) {
                break;
            }
            drop(core);
            thread::sleep(Duration::from_micros(50));
        }
        Ok(())
    }

    /// Returns the numbers of messages so far.
    ///
    /// # Errors
    /// [`ErrorKind::PathEnded`] once the group is gone.
    pub fn report(&self) -> Result<DirectReport, Error> {
        Ok(self.core()?.report())
    }

    fn core(&self) -> Result<Arc<Core>, Error> {
        self.core.upgrade().ok_or_else(|| self.call.error(ErrorKind::PathEnded))
    }
}
