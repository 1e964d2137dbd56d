//! Aborts a [direct path](crate::direct), and drops it with its group. A receiver that offers its buffer for a
//! [zero-copy message](crate::direct#zero-copy-messages) can withdraw the offer until the sender takes it
//! ([claim](crate::direct::claim)).

use std::{
    cell::Cell,
    mem::ManuallyDrop,
    sync::{Arc, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use cuda_driver::graph::is_capturing;
use process_group::{group::path::Way, store::Deadline};

use super::{
    super::{
        flag_page::{Phase, Signal},
        lane::Lane,
    },
    DirectCore,
};
use crate::{idle::when_idle, lock::lock};

/// The longest time that [`end`](DirectCore::end) and the drop of the path wait for launched work to complete. Also the
/// time limit of [`settle`](DirectCore::settle), and the time after which the thread that [`abort`](DirectCore::abort)
/// starts polls less often.
const PATIENCE: Duration = Duration::from_secs(10);

/// The longest time after a receiver's abort that its streams still wait for senders that copy zero-copy messages into
/// its buffers.
const GRACE: Duration = Duration::from_secs(2);

/// The longest time after an abort that a sender's stream still waits for [*ready*](Phase::Ready), before it copies a
/// zero-copy message into the receiver's buffer. [`is_grace_over`](DirectCore::is_grace_over) describes when the time
/// begins. When it is over, the stream copies, even if the buffer is not ready.
///
/// `SENDER_GRACE` is longer than [`GRACE`], so that the receiver's stream can become ready in time. Until `GRACE` is
/// over, that stream may be blocked by a wait for the copy of an earlier message. Afterwards it still has to complete
/// its earlier work on the buffer.
const SENDER_GRACE: Duration = Duration::from_secs(4);

impl DirectCore {
    /// Returns true if no thread is enqueueing and no launched work runs. Ignores captured work.
    fn is_idle(&self) -> bool {
        self.enqueuers.load(Ordering::SeqCst) == 0 && self.lanes.iter().all(Lane::is_idle)
    }

    /// If the path is not [idle](Self::is_idle), or has captured work: announces that this rank [gives
    /// up](crate::direct::flag_page), and then ends the waits of its streams, except the waits for signals that
    /// [`holds`](Self::holds) exempts. Returns whether the path was idle before that.
    fn end_waits(&self) -> bool {
        let is_idle = self.is_idle();
        if !is_idle || self.has_captured.load(Ordering::Relaxed) {
            let own = &self.flag_pages[self.rank];
            // The flag is set before the waits are ended: a stream whose wait was ended copies chunks into slots that
            // may not be empty. By then, the flag must tell the peers that the data is invalid.
            own.give_up();
            own.release(|peer, signal| self.holds(peer, signal));
        }
        is_idle
    }

    /// Returns whether the extra time after this rank's abort is over for the messages with `peer` in direction `way`.
    /// Returns false before the abort. The extra time is:
    /// - For receives: [`GRACE`] from the abort on.
    /// - For sends: [`SENDER_GRACE`] from the abort on. It begins again when this function, called after the abort,
    ///   finds for the first time that `peer` has given up.
    fn is_grace_over(&self, peer: usize, way: Way) -> bool {
        let is_past = |since: &Instant, grace| since.elapsed() >= grace;
        self.aborted.get().is_some_and(|aborted| match way {
            Way::Receive => is_past(aborted, GRACE),
            Way::Send => {
                // The receiver's `GRACE` began before the receiver announced that it gives up. So it ends before this
                // rank's `SENDER_GRACE`.
                let has_given_up = self.flag_pages[peer].has_given_up();
                let given_up = has_given_up.then(|| self.given_up_since[peer].get_or_init(Instant::now));
                is_past(given_up.map_or(aborted, |given_up| given_up.max(aborted)), SENDER_GRACE)
            }
        })
    }

    /// Returns true if an abort must not end the streams' waits for `signal` yet, because their [extra
    /// time](Self::is_grace_over) is not over. Also withdraws offers, as [`expects_push`](Self::expects_push) does,
    /// even if the extra time is over.
    fn holds(&self, peer: usize, signal: Signal) -> bool {
        self.expects_push(peer, signal) && !self.is_grace_over(peer, signal.way)
    }

    /// Returns true if streams of this rank may still have to wait for this signal of `peer`, because of a message that
    /// the sender copies into the receiver's buffer. If the signal is the [*done*](Phase::Done) of receives that are
    /// not captured, also withdraws the offers of these receives, except those that `peer` has taken.
    ///
    /// The receiver may reuse its buffer once its wait for *done* has ended. So before an abort ends these waits, both
    /// ends give each other time: the sender's stream waits until the receiver's stream has completed its earlier work
    /// on the buffer, and the receiver's stream waits until the sender's stream has copied.
    fn expects_push(&self, peer: usize, Signal { way, phase, captured }: Signal) -> bool {
        if (way, phase) != (Way::Send, Phase::Ready) && (way, phase) != (Way::Receive, Phase::Done) {
            return false;
        }
        let own = &self.flag_pages[self.rank];
        let is_taken = |number| way == Way::Send || !self.withdraw(peer, number);
        self.lane(way, peer).pushes().has_any(captured, own.passed(peer, way), is_taken)
    }

    /// Returns the lowest other rank that has announced that it gives up, or `None` if there is none.
    pub(in crate::direct) fn given_up(&self) -> Option<usize> {
        (0..self.world).find(|peer| *peer != self.rank && self.flag_pages[*peer].has_given_up())
    }

    /// Makes the path refuse later calls, and repeatedly ends the waits of launched work. Returns true once the path is
    /// [idle](Self::is_idle), and false if the deadline expires first.
    pub(in crate::direct) fn abort(self: &Arc<Self>, deadline: Deadline) -> bool {
        if !self.is_aborted.swap(true, Ordering::SeqCst) {
            self.aborted.get_or_init(Instant::now);
            // A stream may reach a wait long after the deadline, and a graph may run at any time. So a thread continues
            // to end waits after this call has returned.
            let core = Arc::downgrade(self);
            let linger = move || {
                let slower_from = Deadline::after(PATIENCE);
                while let Some(core) = core.upgrade() {
                    if core.end_waits() && !core.has_captured.load(Ordering::Relaxed) {
                        return;
                    }
                    drop(core);
                    thread::sleep(Duration::from_millis(if slower_from.expired() { 20 } else { 1 }));
                }
            };
            // If the thread cannot be started, only the loop below ends waits.
            let _ = thread::Builder::new().name("direct-abort".into()).spawn(linger);
        }
        loop {
            if self.end_waits() {
                return true;
            }
            if deadline.expired() {
                return false;
            }
            thread::sleep(Duration::from_micros(200).min(deadline.remaining()));
        }
    }

    /// Called when the group is dropped. Aborts launched work that still runs (captured work does not count), and then
    /// drops the path, as described below. But if a graph has messages of the path, the path is dropped with the last
    /// such graph.
    /// - If the work takes longer than [`PATIENCE`], a thread continues to abort until the work has ended, and then
    ///   drops the path.
    /// - If the work ends earlier, this call drops the path. If the path was aborted and has captured work, the call
    ///   first runs [`settle`](Self::settle), because runs of graphs, on this rank or on peers, may still use the
    ///   buffers of messages.
    pub(in crate::direct) fn end(mut self: Arc<Self>) {
        if !self.is_idle() && !self.abort(Deadline::after(PATIENCE)) {
            // The device may still write to the memory, so the memory is kept until the work has ended.
            let kept = ManuallyDrop::new(self);
            let linger = move || {
                while !kept.abort(Deadline::after(PATIENCE)) {}
                drop(ManuallyDrop::into_inner(kept));
            };
            // If the thread cannot be started, the memory is leaked. A leak is better than reuse while the device
            // writes to it.
            let _ = thread::Builder::new().name("direct-end".into()).spawn(linger);
            return;
        }
        if self.is_aborted.load(Ordering::Relaxed) && self.has_captured.load(Ordering::Relaxed) {
            self.settle();
        }
        if lock(&self.graphs).strong_count() > 0 {
            return;
        }
        // The thread started by an abort, and calls on `Direct` handles, may still hold a reference for a short time.
        while let Err(held) = Arc::try_unwrap(self) {
            self = held;
            thread::sleep(Duration::from_micros(100));
        }
    }

    /// Gives runs of graphs time to end, before the caller drops the path or reuses the buffers of messages. Repeatedly
    /// ends the waits of this rank's streams. Returns when two conditions have been true for about 50 ms, at the latest
    /// after [`PATIENCE`]:
    /// - No stream of this rank has completed a wait:
    ///   [`release`](crate::direct::flag_page::FlagPage::release) has found all words still set.
    /// - [`holds`](Self::holds) has returned false for every signal.
    ///
    /// This rank cannot query whether graphs run, so graphs may still run when this function returns.
    fn settle(&self) {
        const QUIET_POLLS: u32 = 50;
        let (deadline, mut quiet_polls) = (Deadline::after(PATIENCE), 0);
        while quiet_polls < QUIET_POLLS && !deadline.expired() {
            let holds_any = Cell::new(false);
            let is_held = |peer, signal| {
                let is_held = self.holds(peer, signal);
                holds_any.set(holds_any.get() || is_held);
                is_held
            };
            let has_set = self.flag_pages[self.rank].release(is_held);
            quiet_polls = if has_set || holds_any.get() { 0 } else { quiet_polls + 1 };
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for DirectCore {
    /// If the path has captured work, a run of a graph that was dropped may be under way. Then the memory is kept until
    /// the device is idle. Waits for that at most [`PATIENCE`], and not at all during a capture, which may be one of
    /// this thread.
    fn drop(&mut self) {
        if !*self.has_captured.get_mut() {
            return;
        }
        let limit = if matches!(is_capturing(&self.context), Ok(false)) { PATIENCE } else { Duration::ZERO };
        // If the device cannot be waited for, the memory is leaked.
        let owners = (self.flag_pages.clone(), self.memory.clone(), self.mapped.clone());
        let kept = ManuallyDrop::new(owners);
        let _ = when_idle(vec![self.context.clone()], limit, || drop(ManuallyDrop::into_inner(kept)));
    }
}
