//! Random choices of a seed: the number of ranks, their allocations, the fault, and the time of messages.

use std::time::Duration;

use crate::agreement::{Capabilities, WindowSupport};
use gpu_sim::{Action, Injection};

use crate::simulation::Random;

const MIB: u64 = 1 << 20;

/// Deadline of the first commit of each group.
pub(super) const DEADLINE: Duration = Duration::from_secs(1);
/// Deadline of the second commits: enough for a rank that has waited for absent ranks in all of its other groups.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);

/// The fault of a scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trouble {
    None,
    /// The culprit makes an extra allocation of this many bytes. A large one adds a segment that the others do not
    /// have. A small one may only add a block to an existing segment.
    Extra(u64),
    /// The culprit's device has only this many bytes left for the culprit's pool.
    Exhausted(u64),
    /// The culprit arrives this much later at its first commit.
    Late(Duration),
    /// The culprit takes part in no commit.
    Absent,
    /// The registration call with this number, counted over all ranks from 1, fails.
    RegistrationFails(u64),
    /// The registration call with this number, counted over all ranks from 1, is delayed by this time.
    RegistrationSlow(u64, Duration),
    /// In the first round of commits, the culprit visits its groups in the opposite order.
    Swapped,
    /// The culprit has another release of the library.
    OtherRelease,
    /// The culprit's environment forbids windows.
    OtherEnvironment,
    /// The culprit dies at the step with this number, counted from 1 over all of its commits.
    Killed(u64),
}

#[derive(Debug, Clone)]
pub(super) struct Scenario {
    pub(super) size: u32,
    pub(super) trouble: Trouble,
    pub(super) culprit: u32,
    /// The allocations of every rank, in bytes.
    pub(super) blocks: Vec<u64>,
    /// Index of the allocation before which the culprit makes the extra one. If the index is the number of allocations,
    /// the culprit makes the extra one last.
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
        let trouble = match random.below(12) {
            0 => Trouble::None,
            // These sizes differ from all sizes of the common blocks.
            1 => Trouble::Extra(*random.pick(&[20 * MIB, MIB / 2])),
            2 => Trouble::Late(share(random, 32)),
            3 => Trouble::Absent,
            4 => Trouble::RegistrationFails(1 + random.below(12)),
            // The delay is at most the time that a member of a commit waits for the others. So the rank's service
            // actor, which makes the delayed call, is free again in time for the commit of the rank's next group.
            5 => Trouble::RegistrationSlow(1 + random.below(12), share(random, 7)),
            6 => Trouble::Swapped,
            7 => Trouble::Exhausted(2 * MIB * random.below(10)),
            8 => Trouble::OtherRelease,
            9 => Trouble::OtherEnvironment,
            // Small numbers kill the rank in a first commit (`Policy::Strict`, `DEADLINE`), and large ones in a later
            // meeting (`PATIENCE`).
            _ => {
                let scale = *random.pick(&[13, 13, 60, 200]);
                Trouble::Killed(1 + random.below(scale))
            }
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

    /// Returns the fault to inject into the library, if there is one.
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

    /// Returns the allocations of `rank`, in bytes.
    pub(super) fn requests(&self, rank: u32) -> Vec<u64> {
        let mut requests = self.blocks.clone();
        if let Trouble::Extra(bytes) = self.trouble
            && rank == self.culprit
        {
            requests.insert(self.extra_at, bytes);
        }
        requests
    }

    /// Returns the library's capabilities on `rank`.
    pub(super) fn capabilities(&self, rank: u32) -> Capabilities {
        let (library, windows) = (22809, WindowSupport::Available);
        match self.trouble {
            Trouble::OtherRelease if rank == self.culprit => Capabilities { library: 22907, windows },
            Trouble::OtherEnvironment if rank == self.culprit => {
                let reason = "NCCL_CUMEM_ENABLE=0 forbids windows".to_owned();
                Capabilities { library, windows: WindowSupport::Unavailable { reason } }
            }
            _ => Capabilities { library, windows },
        }
    }

    /// Returns the bytes of `rank`'s device that are left for its pool, or `None` if nothing is taken from the device.
    pub(super) fn left(&self, rank: u32) -> Option<u64> {
        match self.trouble {
            Trouble::Exhausted(left) if rank == self.culprit => Some(left),
            _ => None,
        }
    }
}
