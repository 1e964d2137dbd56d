//! Closing of plans and regions. A rank closes a plan or regions by closing the peers' memory that they use. After
//! that, it keeps its own memory and signal slots until the peers have closed the same plan or regions, for at most the
//! time of a [lease](super::lease). In this file, "plan" stands for both.
//!
//! The *closing thread* of the exchange closes dropped plans, so dropping a plan never blocks on transfers under way,
//! on the device, on the store or on peers.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, atomic::Ordering},
    time::{Duration, Instant},
};

use cuda_driver::graph::RelaxedCapture;
use process_group::store::Deadline;

use super::{
    Fault, Quarantined,
    core::{Core, closed_key},
    handles::Open,
    lease::{Lease, Standing},
    quiet,
    shared::Shared,
    watch::TICK,
};

/// Interval at which the closing thread checks whether peers have closed the plans that this rank has closed, if it has
/// no other work.
const ASK: Duration = Duration::from_millis(20);

/// Longest time for which [`Exchange::close`](super::Exchange::close) waits after its deadline. In this time, the
/// closing thread closes the plans whose transfers were aborted at the deadline. That usually takes a few polls of the
/// device. It takes longer if the device does not answer, or if the ranks of this process always have a transfer under
/// way (see [quiet]).
pub(super) const GRACE: Duration = Duration::from_secs(5);

/// The state that the closing thread shares with the threads that use the exchange and its plans.
pub(super) struct Closer {
    /// Time that peers have to close memory that this rank lent to them, after this rank has closed the plan.
    lease: Duration,
    begun: Instant,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Plans that were dropped, but not closed yet.
    closing: Vec<Arc<Core>>,
    leases: Vec<(Arc<Core>, Lease)>,
    /// Peers' memory that this rank no longer needs. The thread closes each allocation that has no other holder.
    borrowed: Vec<Open>,
    /// Plans that this rank and all peers have closed. This rank's buffers of these plans can be freed.
    over: Vec<Arc<Core>>,
    quarantine: Vec<Quarantined>,
    /// The thread has taken `closing`, `leases`, `borrowed` and `over`, and has not put the remainder back yet.
    busy: bool,
    stopping: bool,
    /// The deadline of [`Closer::settle`] has passed. The closing thread then aborts the transfers of dropped plans,
    /// and treats all running leases as overdue.
    hurry: bool,
}

impl State {
    fn is_empty(&self) -> bool {
        self.closing.is_empty() && self.leases.is_empty() && self.borrowed.is_empty() && self.over.is_empty()
    }
}

impl Closer {
    pub(super) fn new(lease: Duration) -> Self {
        Self { lease, begun: Instant::now(), state: Mutex::default(), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    /// Hands peers' memory to the closing thread, which closes it. The caller must not close the memory itself: the
    /// driver may block the caller until the device is idle, and the device may wait for work that the caller has not
    /// enqueued yet.
    pub(super) fn let_go(&self, open: Open) {
        if !open.is_empty() {
            self.tell(|state| state.borrowed.push(open));
        }
    }

    /// Hands a dropped plan to the thread.
    pub(super) fn close(&self, core: Arc<Core>) {
        self.tell(|state| state.closing.push(core));
    }

    /// Tells the thread to end once nothing is left to close.
    pub(super) fn stop(&self) {
        self.tell(|state| state.stopping = true);
    }

    /// Waits until nothing is left to close, and returns true. Returns false if something is left at `end`: the thread
    /// closes the remainder later. After `deadline`, the transfers of dropped plans are aborted ([`Fault::Aborted`]),
    /// and leases count as overdue.
    pub(super) fn settle(&self, deadline: Deadline, end: Deadline) -> bool {
        let mut state = self.lock();
        while (state.busy || !state.is_empty()) && !end.expired() {
            state.hurry = deadline.expired();
            let limit = if state.hurry { end } else { deadline };
            let patience = limit.remaining().min(ASK);
            state = self.changed.wait_timeout(state, patience).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.hurry = false;
        !state.busy && state.is_empty()
    }

    /// Returns the plans that peers did not close in time, and removes them from this state.
    pub(super) fn quarantine(&self) -> Vec<Quarantined> {
        std::mem::take(&mut self.lock().quarantine)
    }

    /// Gives the closing thread time to close the dropped plans before an agreement on a plan or regions: waits until
    /// they are closed, for at most four [`TICK`]s. Each agreement begins with this call. After the call, the agreement
    /// takes references to all open allocations, which keep them open until the agreement has ended. So if a dropped
    /// plan is not closed within the wait, its peers' memory stays open during the agreement, and this rank tells the
    /// peers only afterwards that it has closed the plan.
    pub(super) fn catch_up(&self) {
        let moment = Deadline::after(4 * TICK);
        let mut state = self.lock();
        while (state.busy || !state.closing.is_empty()) && !moment.expired() {
            let left = moment.remaining();
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Clears `held` if [`quiet::moment`] allows that now. Dropping the values closes or frees memory.
    fn free<T>(&self, held: &mut Vec<T>) {
        if !held.is_empty()
            && let Some(_moment) = quiet::moment()
        {
            held.clear();
        }
    }

    fn lend(&self, core: &Core) -> Lease {
        Lease::new(core.peers(), self.begun.elapsed().saturating_add(self.lease))
    }
}

/// Main loop of the closing thread. Ends when [`Closer::stop`] was called and nothing is left to close. Then lets the
/// watch thread end too.
pub(super) fn run(shared: &Shared) {
    // If a capture is open, calls from here must neither join it nor invalidate it.
    let _relaxed = RelaxedCapture::enter(shared.context.driver());
    let closer = &shared.closer;
    let mut state = closer.lock();
    loop {
        if state.is_empty() {
            if state.stopping {
                break;
            }
            state = closer.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            continue;
        }
        let mut closing = std::mem::take(&mut state.closing);
        let mut leases = std::mem::take(&mut state.leases);
        let mut borrowed = std::mem::take(&mut state.borrowed);
        let mut over = std::mem::take(&mut state.over);
        let hurry = state.hurry;
        state.busy = true;
        drop(state);

        if hurry {
            for core in closing.iter().filter(|core| !core.is_idle() && core.fault().is_ok()) {
                core.fail(Fault::Aborted);
                shared.watch.failed(core);
            }
        }
        closer.free(&mut borrowed);
        for core in closing.extract_if(.., |core| core.is_idle() && has_closed(shared, core)) {
            let lease = announce_closed(shared, &core);
            leases.push((core, lease));
        }
        let overdue = collect(shared, &mut leases, &mut over, hurry);
        closer.free(&mut over);

        state = closer.lock();
        let only_leases = closing.is_empty() && borrowed.is_empty() && over.is_empty();
        let patience = if only_leases { ASK } else { TICK };
        state.closing.splice(..0, closing);
        state.leases.splice(..0, leases);
        state.borrowed.splice(..0, borrowed);
        state.over.splice(..0, over);
        state.quarantine.extend(overdue);
        state.busy = false;
        closer.changed.notify_all();
        if !state.is_empty() {
            state = closer.changed.wait_timeout(state, patience).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
    drop(state);
    shared.watch.stop();
}

/// For regions, first tells the peers that this rank sends no further notification. Then closes the peers' memory that
/// a dropped plan holds, if [`quiet::moment`] allows that now. Returns true if the peers can be told that the plan is
/// closed. Returns false if a later call must try again, for example because an agreement under way still holds some of
/// the memory.
fn has_closed(shared: &Shared, core: &Core) -> bool {
    let attempts = core.left_attempts.load(Ordering::Acquire);
    if attempts > 0 {
        let mut words = core.wires.iter().map(|wire| wire.theirs.left);
        // SAFETY: words of the peers' slots, which stay mapped as long as `shared` lives. A peer frees its slots only
        // after this rank has told it that the regions are closed.
        let told = words.try_for_each(|word| unsafe { shared.control.write_value32(word, 1) }).is_ok();
        core.left_attempts.store(if told { 0 } else { attempts - 1 }, Ordering::Release);
        if !told && attempts > 1 {
            return false;
        }
    }
    // Writes to the peers' slots may still be under way on the control stream: the writes above, or those of the watch
    // thread after the plan has failed. Wait for them, because a peer that learns that this rank has closed the plan
    // may reuse these slots for another plan.
    let _ = shared.control.synchronize();
    let is_closed = core.is_closed() || quiet::moment().map(|_moment| core.close()).is_some();
    is_closed && core.has_let_go(&shared.plans())
}

/// Tells the peers of a plan that this rank has closed it. Returns a lease for the plan, which begins now.
fn announce_closed(shared: &Shared, core: &Core) -> Lease {
    for peer in core.peers() {
        // The error is ignored: if a peer does not see the key, its own lease becomes overdue, and its memory is
        // quarantined.
        let _ = shared.info.store.set(&closed_key(&core.key, shared.rank(), peer), &[1]);
    }
    shared.closer.lend(core)
}

/// Removes the leases that have ended. If all peers have closed a plan, gives its slots back and moves the plan to
/// `over`. Returns the plans whose lease is overdue, because their memory must not be freed. If `hurry` is true, every
/// lease that still runs counts as overdue.
fn collect(
    shared: &Shared,
    leases: &mut Vec<(Arc<Core>, Lease)>,
    over: &mut Vec<Arc<Core>>,
    hurry: bool,
) -> Vec<Quarantined> {
    let (store, closer) = (&shared.info.store, &shared.closer);
    let now = if hurry { Duration::MAX } else { closer.begun.elapsed() };
    let mut overdue = Vec::new();
    for (core, mut lease) in std::mem::take(leases) {
        let said = |peer: &u32| closed_key(&core.key, *peer, shared.rank());
        let has_closed = |peer: &u32| store.check(&[&said(peer)]).unwrap_or(false);
        let closed: Vec<u32> = lease.waiting().iter().copied().filter(has_closed).collect();
        for peer in &closed {
            // The error is ignored: a key that cannot be deleted costs only a few bytes in the store.
            let _ = store.delete(&said(peer));
        }
        match lease.step(&closed, now) {
            Standing::Runs => {
                leases.push((core, lease));
                continue;
            }
            Standing::Over => {
                shared.slots().give_back(core.slots.clone());
                over.push(core);
            }
            Standing::Overdue => {
                overdue.push(Quarantined::new(core, lease.waiting().to_vec()));
            }
        }
    }
    overdue
}

/// Peers' memory. Dropping this value hands the memory to the closing thread.
pub(super) struct Borrowed<'a> {
    pub(super) open: Open,
    closer: &'a Closer,
}

impl<'a> Borrowed<'a> {
    pub(super) fn new(open: Open, closer: &'a Closer) -> Self {
        Self { open, closer }
    }
}

impl Drop for Borrowed<'_> {
    fn drop(&mut self) {
        self.closer.let_go(std::mem::take(&mut self.open));
    }
}
