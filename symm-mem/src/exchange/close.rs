//! Closing of [plans](super::Plan) and of sets of [regions](super::Regions). In this file, "plan" also stands for the
//! transfers between the regions of this rank and one peer, which are closed independently of those with other peers.
//!
//! A rank closes a plan after it has dropped the plan: it closes (unmaps) the peers' memory that only this plan uses,
//! and reports this to the peers. After that, the rank keeps its own buffers and [signal slots](super::slots) of the
//! plan until all peers have closed the plan too. If that takes longer than the [lease](super::lease), the buffers are
//! [quarantined](Quarantined).
//!
//! The *closing thread* of the exchange does this, so dropping a plan never blocks on transfers under way, on the
//! device, on the store or on peers.

use std::{
    sync::{Arc, Condvar, Mutex, PoisonError, atomic::Ordering},
    time::{Duration, Instant},
};

use cuda_driver::graph::RelaxedCapture;
use process_group::store::Deadline;

use super::{
    Fault, Quarantined,
    core::{Core, closed_key},
    lease::{Lease, LeaseState},
    quiet,
    shared::Shared,
    watch::CHECK_INTERVAL,
};
use crate::lock::lock;

/// Interval at which the closing thread checks whether peers have closed the plans that this rank has closed, if it has
/// no other work.
const LEASE_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Longest time for which [`Exchange::close`](super::Exchange::close) waits after its deadline. In this time, the
/// closing thread closes the plans whose transfers were aborted at the deadline. That usually takes a few polls of the
/// device. It takes longer if the device does not answer, or if the thread waits for a [quiet
/// moment](quiet::try_quiesce).
pub(super) const GRACE: Duration = Duration::from_secs(5);

/// The state that the closing thread shares with the threads that use the exchange and its plans.
pub(super) struct Closer {
    /// Time within which the peers must close a plan, counted from the time at which this rank has closed it.
    lease: Duration,
    /// Creation time of this value. The time at which a lease ends is counted from here.
    begun: Instant,
    state: Mutex<CloserState>,
    changed: Condvar,
}

#[derive(Default)]
struct CloserState {
    /// The dropped plans that this rank or a peer has yet to close, or whose buffers this rank has yet to free.
    dropped: Vec<(Arc<Core>, Stage)>,
    quarantine: Vec<Quarantined>,
    /// True while the closing thread works on the plans that it has taken out of `dropped`.
    busy: bool,
    stopping: bool,
    /// True while a call of [`Closer::settle`] waits past its deadline. The closing thread then aborts the transfers of
    /// dropped plans, and treats all running leases as overdue.
    past_deadline: bool,
}

/// The stage of a dropped plan.
enum Stage {
    /// The plan's transfers may be under way. This rank closes the plan once they have ended.
    Closing,
    /// This rank has closed the plan. Peers that have not closed it may still access this rank's buffers and slots.
    Lent(Lease),
    /// All ranks have closed the plan. This rank's buffers can be freed.
    Over,
}

impl Closer {
    pub(super) fn new(lease: Duration) -> Self {
        Self { lease, begun: Instant::now(), state: Mutex::default(), changed: Condvar::new() }
    }

    fn update(&self, change: impl FnOnce(&mut CloserState)) {
        change(&mut lock(&self.state));
        self.changed.notify_all();
    }

    /// Hands a dropped plan to the thread.
    pub(super) fn close(&self, core: Arc<Core>) {
        self.update(|state| state.dropped.push((core, Stage::Closing)));
    }

    /// Tells the thread to end once nothing is left to close.
    pub(super) fn stop(&self) {
        self.update(|state| state.stopping = true);
    }

    /// Waits until every dropped plan is closed on all ranks and freed, or quarantined, and returns true. Returns false
    /// if some plans remain at `end`: the closing thread continues with them later. After `deadline`, the transfers of
    /// dropped plans are aborted ([`Fault::Aborted`]), and leases count as overdue.
    pub(super) fn settle(&self, deadline: Deadline, end: Deadline) -> bool {
        let mut state = lock(&self.state);
        while (state.busy || !state.dropped.is_empty()) && !end.expired() {
            state.past_deadline = deadline.expired();
            let limit = if state.past_deadline { end } else { deadline };
            let patience = limit.remaining().min(LEASE_POLL_INTERVAL);
            state = self.changed.wait_timeout(state, patience).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.past_deadline = false;
        !state.busy && state.dropped.is_empty()
    }

    /// Returns the plans that peers did not close in time, and removes them from this state.
    pub(super) fn quarantine(&self) -> Vec<Quarantined> {
        std::mem::take(&mut lock(&self.state).quarantine)
    }

    /// Waits until this rank has closed the plans that it has dropped, for at most four [`CHECK_INTERVAL`]s. Called
    /// before each agreement on a new plan, because the agreement keeps open all peers' memory that is open when it
    /// begins. So a dropped plan that is not closed by then may be closed only after the agreement has ended.
    pub(super) fn catch_up(&self) {
        let end = Deadline::after(4 * CHECK_INTERVAL);
        let is_closing = |(_, stage): &(_, Stage)| matches!(stage, Stage::Closing);
        let mut state = lock(&self.state);
        while (state.busy || state.dropped.iter().any(is_closing)) && !end.expired() {
            let left = end.remaining();
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Main loop of the closing thread. Ends when [`Closer::stop`] was called and nothing is left to close. Then lets the
/// [watch thread](super::watch) end too.
pub(super) fn run(shared: &Shared) {
    // If a capture is open, calls from here must neither join it nor invalidate it.
    let _relaxed = RelaxedCapture::enter(shared.context.driver());
    let closer = &shared.closer;
    let mut state = lock(&closer.state);
    loop {
        if state.dropped.is_empty() {
            if state.stopping {
                break;
            }
            state = closer.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            continue;
        }
        let dropped = std::mem::take(&mut state.dropped);
        let past_deadline = state.past_deadline;
        state.busy = true;
        drop(state);
        if past_deadline {
            // Abort all transfers before any plan is closed: to close one plan's memory, the driver may wait for the
            // transfers of another plan.
            let running = dropped.iter().filter(|(core, _)| !core.is_idle() && core.fault().is_ok());
            running.for_each(|(core, _)| shared.fail(core, Fault::Aborted));
        }
        let advance = |(core, stage)| advance(shared, core, stage, past_deadline);
        let left: Vec<_> = dropped.into_iter().filter_map(advance).collect();
        state = lock(&closer.state);
        let only_leases = left.iter().all(|(_, stage)| matches!(stage, Stage::Lent(_)));
        state.dropped.splice(..0, left);
        state.busy = false;
        closer.changed.notify_all();
        if !state.dropped.is_empty() {
            let patience = if only_leases { LEASE_POLL_INTERVAL } else { CHECK_INTERVAL };
            state = closer.changed.wait_timeout(state, patience).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
    drop(state);
    shared.watch.stop();
}

/// Moves a dropped plan through its [stages](Stage), as far as possible without waiting for its transfers or for peers.
/// Returns the plan and its stage if the function must be called again for the plan. If `past_deadline`, a running
/// lease counts as overdue.
fn advance(
    shared: &Shared,
    core: Arc<Core>,
    mut stage: Stage,
    past_deadline: bool,
) -> Option<(Arc<Core>, Stage)> {
    if matches!(stage, Stage::Closing) {
        if !core.is_idle() || !try_close(shared, &core) {
            return Some((core, stage));
        }
        stage = Stage::Lent(announce_closed(shared, &core));
    }
    if let Stage::Lent(lease) = &mut stage {
        match ask_peers(shared, &core, lease, past_deadline) {
            LeaseState::Runs => return Some((core, stage)),
            LeaseState::Overdue => {
                let peers = lease.waiting().to_vec();
                lock(&shared.closer.state).quarantine.push(Quarantined::new(core, peers));
                return None;
            }
            LeaseState::Over => {
                shared.slots().give_back(core.slots.clone());
                stage = Stage::Over;
            }
        }
    }
    // Frees this rank's buffers that have no other owner.
    let may_wait = core.may_wait_when_freed();
    quiet::free(core, may_wait).map(|core| (core, stage))
}

/// For regions, first tells the peer that this rank sends no further
/// [notification](super::Regions::transfer_and_notify). Then [closes](Core::close) the plan. Returns true if the plan
/// is closed, and false if a later call must try again.
fn try_close(shared: &Shared, core: &Core) -> bool {
    let attempts = core.drop_notice_attempts.load(Ordering::Acquire);
    if attempts > 0 {
        let mut words = core.endpoints.iter().map(|endpoint| endpoint.theirs.dropped);
        // SAFETY: words of the peers' slots, which stay mapped as long as `shared` lives. A peer frees its slots only
        // after this rank has told it that the regions are closed.
        let told = words.try_for_each(|word| unsafe { shared.control.write_value32(word, 1) }).is_ok();
        core.drop_notice_attempts.store(if told { 0 } else { attempts - 1 }, Ordering::Release);
        if !told && attempts > 1 {
            return false;
        }
    }
    // Writes to the peers' slots may still be under way on this stream: the writes above, or those of the watch thread
    // after the plan has failed. Wait for them, because a peer that learns that this rank has closed the plan may reuse
    // these slots for another plan.
    let _ = shared.control.synchronize();
    core.close(&shared.plans())
}

/// Tells the peers of a plan that this rank has closed it. Starts the plan's lease and returns it.
fn announce_closed(shared: &Shared, core: &Core) -> Lease {
    for peer in core.peers() {
        // The error is ignored: if a peer does not see the key, the peer's lease becomes overdue, and the peer's memory
        // is quarantined.
        let _ = shared.info.store.set(&closed_key(&core.key, shared.rank(), peer), &[1]);
    }
    Lease::new(core.peers(), shared.closer.begun.elapsed().saturating_add(shared.closer.lease))
}

/// Reads from the store which peers have closed the plan, and returns the state of the plan's lease. If
/// `past_deadline`, a running lease counts as overdue.
fn ask_peers(shared: &Shared, core: &Core, lease: &mut Lease, past_deadline: bool) -> LeaseState {
    let store = &shared.info.store;
    let key = |peer: &u32| closed_key(&core.key, *peer, shared.rank());
    let has_closed = |peer: &u32| store.check(&[&key(peer)]).unwrap_or(false);
    let closed: Vec<u32> = lease.waiting().iter().copied().filter(has_closed).collect();
    for peer in &closed {
        // The error is ignored: a key that cannot be deleted costs only a few bytes in the store.
        let _ = store.delete(&key(peer));
    }
    lease.step(&closed, if past_deadline { Duration::MAX } else { shared.closer.begun.elapsed() })
}
