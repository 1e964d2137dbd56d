//! What this rank has lent to the peers of a plan, until they have let go of it: memory that they reach into, and the
//! slots that they signal to.

use std::{fmt, mem::ManuallyDrop, sync::Arc, time::Duration};

use super::{Memory, core::Core};

/// A lease that runs: this rank has let go of the plan, these peers have not said so yet.
#[derive(Debug)]
pub(crate) struct Lease {
    waiting: Vec<u32>,
    until: Duration,
}

/// What becomes of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Peers may reach into what is lent.
    Runs,
    /// All have let go.
    Over,
    /// Peers have not let go in time.
    Overdue,
}

impl Lease {
    /// Of `peers`, who have until `until` to let go.
    pub(crate) fn new(peers: Vec<u32>, until: Duration) -> Self {
        Self { waiting: peers, until }
    }

    /// Who has not let go yet.
    pub(crate) fn waiting(&self) -> &[u32] {
        &self.waiting
    }

    /// `closed` have let go; it is `now`.
    pub(crate) fn step(&mut self, closed: &[u32], now: Duration) -> Standing {
        self.waiting.retain(|peer| !closed.contains(peer));
        match (self.waiting.is_empty(), now >= self.until) {
            (true, _) => Standing::Over,
            (false, false) => Standing::Runs,
            (false, true) => Standing::Overdue,
        }
    }
}

/// What peers of a plan have not let go of in time: its memory, which they may reach into still, and which is therefore not
/// freed. Dropping this leaves it where it is for good; so are the plan's slots.
pub struct Quarantined {
    core: ManuallyDrop<Arc<Core>>,
    peers: Vec<u32>,
}

impl Quarantined {
    pub(super) fn new(core: Arc<Core>, peers: Vec<u32>) -> Self {
        Self { core: ManuallyDrop::new(core), peers }
    }

    /// The plan's name.
    #[must_use]
    pub fn plan(&self) -> &str {
        &self.core.plan
    }

    /// The plan's generation.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.core.generation
    }

    /// Who has not let go, as ranks of the job, ascending.
    #[must_use]
    pub fn peers(&self) -> &[u32] {
        &self.peers
    }

    /// The buffers of the plan.
    pub fn memory(&self) -> impl Iterator<Item = &Memory> {
        self.core.wires.iter().map(|wire| &wire.memory)
    }

    /// Gives the memory back.
    ///
    /// # Safety
    /// No [peer](Self::peers) reaches into it any more, for example because its process has ended.
    pub unsafe fn release(mut self) {
        // SAFETY: `self` is gone after this, and dropping it does not touch the plan.
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
        /// What peers do not let go of is never given back; all that they let go of in time is.
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
                    (true, _) => Standing::Over,
                    (false, true) => Standing::Overdue,
                    (false, false) => Standing::Runs,
                };
                prop_assert_eq!(lease.step(&[closed], now), expected);
                prop_assert_eq!(lease.waiting(), &left[..]);
                if expected != Standing::Runs {
                    break;
                }
            }
        }
    }
}
