//! Leases: how long a rank keeps its own memory for peers that have not closed it yet.
//!
//! In this file, "plan" stands for a [`Plan`](super::Plan), or for all transfers between this rank's
//! [regions](super::Regions) and those of one peer. So each peer of a set of regions has its own lease.
//!
//! The peers of a plan access this rank's buffers and [signal slots](super::slots). A rank *closes* a plan after its
//! program has dropped it: the rank closes (unmaps) the peers' memory that the plan uses, and reports this to the
//! peers. Then it must keep its own buffers and slots until all peers have closed the plan too. This time is the lease.
//! It begins when this rank has closed the plan, and ends at the first of these:
//!
//! - Every peer has reported that it has closed the plan.
//! - The time [`ExchangeOptions::lease`](super::ExchangeOptions::lease) is over.
//! - The deadline of [`Exchange::close`](super::Exchange::close) is reached.
//!
//! If some peers have not reported by the end, the memory is [quarantined](Quarantined).

use std::{fmt, mem::ManuallyDrop, sync::Arc, time::Duration};

use super::{Memory, core::Core};

/// A running lease of a plan that this rank has closed.
#[derive(Debug)]
pub struct Lease {
    /// The peers that have not reported yet that they have closed the plan, as ranks of the job.
    waiting: Vec<u32>,
    /// The time at which the lease expires, counted from the creation of the [closer](super::close::Closer).
    until: Duration,
}

/// The state of a [`Lease`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseState {
    /// Some peers have not closed the plan, so they may still access this rank's memory.
    Runs,
    /// All peers have closed the plan, possibly after the lease has expired.
    Over,
    /// The lease has expired, and some peers have not closed the plan. After the deadline of
    /// [`Exchange::close`](super::Exchange::close), the caller of [`Lease::step`] lets every lease expire.
    Overdue,
}

impl Lease {
    /// Starts a lease for `peers`, which must close the plan before time `until`. `until`, and `now` of
    /// [`step`](Self::step), are counted from the creation of the [closer](super::close::Closer).
    pub fn new(peers: Vec<u32>, until: Duration) -> Self {
        Self { waiting: peers, until }
    }

    /// The peers that have not closed the plan.
    pub fn waiting(&self) -> &[u32] {
        &self.waiting
    }

    /// Removes the peers in `closed`, which have closed the plan, and returns the state at time `now`.
    pub fn step(&mut self, closed: &[u32], now: Duration) -> LeaseState {
        self.waiting.retain(|peer| !closed.contains(peer));
        match (self.waiting.is_empty(), now >= self.until) {
            (true, _) => LeaseState::Over,
            (false, false) => LeaseState::Runs,
            (false, true) => LeaseState::Overdue,
        }
    }
}

/// This rank's memory of a [plan](super::Plan) or of [regions](super::Regions) that some peers have not closed within
/// the [lease](super::ExchangeOptions::lease). These peers may still access the memory, so the exchange does not free
/// it. The exchange also does not reuse the slots by which the peers signal to this rank. Dropping this value leaks the
/// memory.
///
/// A set of regions has one such value for each of these peers, and the values share the memory. There can also be a
/// value for a plan or regions that this rank failed to agree on, if the other ranks may have agreed on them.
pub struct Quarantined {
    core: ManuallyDrop<Arc<Core>>,
    peers: Vec<u32>,
}

impl Quarantined {
    pub(super) fn new(core: Arc<Core>, peers: Vec<u32>) -> Self {
        Self { core: ManuallyDrop::new(core), peers }
    }

    /// The name of the plan, or of the regions.
    #[must_use]
    pub fn plan(&self) -> &str {
        &self.core.plan
    }

    /// The generation of the plan, or of the regions: a number that identifies them among the plans and regions of the
    /// same name (see [`Plan::generation`](super::Plan::generation)).
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.core.generation
    }

    /// The peers that had not closed the plan or regions when the lease ended, as ranks of the job, ascending. Not
    /// updated later.
    #[must_use]
    pub fn peers(&self) -> &[u32] {
        &self.peers
    }

    /// This rank's buffers that the plan uses, or this rank's regions.
    pub fn memory(&self) -> impl Iterator<Item = &Memory> {
        self.core.memory.iter()
    }

    /// Frees the memory, unless clones of the [`Memory`] values exist elsewhere, for example in the value of another
    /// peer of the same regions. The exchange still does not reuse the signal slots.
    ///
    /// To free memory of `cuMemAlloc`, the driver waits until the device has no work. Meanwhile, other threads of the
    /// process may block in the driver. So first end all transfers and kernels of the process that wait for another
    /// rank.
    ///
    /// # Safety
    /// None of the [peers](Self::peers) accesses the memory any more, for example because their processes have ended.
    pub unsafe fn release(mut self) {
        // SAFETY: `self` is consumed, so nothing uses `core` afterwards. Dropping `self` does not drop `core` again.
        unsafe { ManuallyDrop::drop(&mut self.core) };
    }
}

impl fmt::Debug for Quarantined {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (plan, generation, peers) = (self.plan(), self.generation(), &self.peers);
        let bytes: usize = self.memory().map(Memory::bytes).sum();
        write!(
            out,
            "Quarantined({bytes} bytes of generation {generation} of plan {plan:?}, held by ranks {peers:?})"
        )
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// A lease is over once all peers have closed the plan. It is overdue if it expires before that.
        #[test]
        fn a_lease_ends_with_the_last_peer_or_its_time(
            peers in proptest::collection::vec(0u32..6, 0..6),
            events in proptest::collection::vec((0u32..6, 0u64..20), 0..20),
        ) {
            let mut lease = Lease::new(peers.clone(), Duration::from_millis(100));
            let (mut now, mut left) = (Duration::ZERO, peers);
            for (closed, later) in events {
                now += Duration::from_millis(later);
                left.retain(|peer| *peer != closed);
                let expected = match (left.is_empty(), now >= Duration::from_millis(100)) {
                    (true, _) => LeaseState::Over,
                    (false, true) => LeaseState::Overdue,
                    (false, false) => LeaseState::Runs,
                };
                prop_assert_eq!(lease.step(&[closed], now), expected);
                prop_assert_eq!(lease.waiting(), &left[..]);
                if expected != LeaseState::Runs {
                    break;
                }
            }
        }
    }
}
