//! What a seed chooses: how many ranks there are, what they allocate, and what goes wrong.

use std::time::Duration;

use gpu_sim::{Action, Injection};

use crate::simulation::Random;

const MIB: u64 = 1 << 20;

/// What a commit is given at first.
pub(super) const DEADLINE: Duration = Duration::from_secs(1);
/// What it is given afterwards: enough for a rank that has waited for the absent in all its other groups.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trouble {
    None,
    /// The culprit allocates a segment that the others do not have.
    ExtraSegment,
    /// The culprit comes so much later.
    Late(Duration),
    /// The culprit does not commit.
    Absent,
    /// The registration of this number fails on whichever rank makes it.
    RegistrationFails(u64),
    /// The registration of this number takes so long.
    RegistrationSlow(u64, Duration),
    /// The culprit commits its groups in the opposite order.
    Swapped,
}

#[derive(Debug, Clone)]
pub(super) struct Scenario {
    pub(super) size: u32,
    pub(super) trouble: Trouble,
    pub(super) culprit: u32,
    /// What every rank allocates, in bytes.
    pub(super) blocks: Vec<u64>,
    /// Before which of them the culprit allocates its extra segment.
    pub(super) extra_at: usize,
    /// The longest time of a message, in µs.
    pub(super) slowest: u64,
}

impl Scenario {
    pub(super) fn draw(random: &mut Random) -> Self {
        let size = 2 + random.below(3) as u32;
        let blocks: Vec<u64> = (0..1 + random.below(4))
            .map(|_| match random.one_in(2) {
                true => 4096 * (1 + random.below(100)),
                false => MIB * (1 + random.below(9)),
            })
            .collect();
        let share = |random: &mut Random, sixteenths| DEADLINE / 16 * (random.below(sixteenths) as u32);
        let trouble = match random.below(7) {
            0 => Trouble::None,
            1 => Trouble::ExtraSegment,
            2 => Trouble::Late(share(random, 32)),
            3 => Trouble::Absent,
            4 => Trouble::RegistrationFails(1 + random.below(12)),
            // Less than a member waits for another: then the service actor is free for the rank's next group in time.
            5 => Trouble::RegistrationSlow(1 + random.below(12), share(random, 7)),
            _ => Trouble::Swapped,
        };
        Self {
            size,
            trouble,
            culprit: random.below(size.into()) as u32,
            extra_at: random.below(blocks.len() as u64 + 1) as usize,
            blocks,
            slowest: *random.pick(&[5, 100, 1000]),
        }
    }

    /// What is done to the library.
    pub(super) fn injection(&self) -> Option<Injection> {
        const CALL: &str = "ncclCommWindowRegister";
        match self.trouble {
            Trouble::RegistrationFails(number) => Some(
                Injection::new(CALL, Action::Fail(nccl_sys::ncclResult_t::ncclUnhandledCudaError.0))
                    .nth(number),
            ),
            Trouble::RegistrationSlow(number, time) => {
                Some(Injection::new(CALL, Action::Delay(time)).nth(number))
            }
            _ => None,
        }
    }

    /// What `rank` allocates.
    pub(super) fn requests(&self, rank: u32) -> Vec<u64> {
        let mut requests = self.blocks.clone();
        if self.trouble == Trouble::ExtraSegment && rank == self.culprit {
            requests.insert(self.extra_at, 20 * MIB);
        }
        requests
    }
}
