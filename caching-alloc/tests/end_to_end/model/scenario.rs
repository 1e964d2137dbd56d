//! Scenarios: settings and steps for a run.

use std::fmt;

use caching_alloc::core::{Fraction, Reuse, Rounding, Settings};
use proptest::prelude::*;

use super::super::common::{MIB, tight};
use super::machine::Machine;
use super::step::Step;

/// Limit on the steps of a scenario. Long scenarios reach more states, short ones shrink faster.
const STEPS: usize = 2000;
/// Steps between two calls of [`Machine::check_whole`].
const STRIDE: usize = 128;

#[derive(Clone)]
pub(crate) struct Scenario {
    pub(super) settings: Settings,
    pub(super) capacity: u64,
    pub(super) lends: bool,
    pub(super) borrows: bool,
    pub(super) steps: Vec<Step>,
}

impl fmt::Debug for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { settings, capacity, lends, borrows, steps } = self;
        writeln!(f, "{settings:?}\ncapacity {capacity}, lends {lends}, borrows {borrows}, steps:")?;
        steps.iter().try_for_each(|step| writeln!(f, "  {step:?}"))
    }
}

impl Scenario {
    /// Runs the scenario. Returns the number of operations. Panics if allocator and model differ.
    pub(crate) fn run(&self) -> u64 {
        let mut machine = Machine::new(self);
        let mut operations = 0;
        for (at, step) in self.steps.iter().enumerate() {
            operations += u64::from(machine.apply(*step));
            if at % STRIDE == STRIDE - 1 {
                machine.check_whole();
            }
        }
        machine.finish();
        operations
    }
}

pub(super) fn scenario() -> impl Strategy<Value = Scenario> {
    let reuse = prop_oneof![Just(Reuse::OwnStream), Just(Reuse::HostSeen), Just(Reuse::DeviceWait)];
    let max_split = prop::option::of(MIB..8 * MIB);
    let rounding = (0..4u32).prop_map(|power| Rounding::divisions(1 << power).unwrap());
    // From ample to scarce.
    let memory_limit = prop::option::of((20..64u64).prop_map(|mib| mib * MIB));
    let capacity = prop_oneof![Just(1u64 << 40), (16..64u64).prop_map(|mib| mib * MIB)];
    let ring = prop_oneof![Just(1usize), Just(16), Just(1 << 10)];
    let settings = (reuse, any::<bool>(), max_split, rounding, memory_limit, ring).prop_map(
        |(reuse, replace_idle, max_split, rounding, memory_limit, structural_entries)| Settings {
            reuse,
            replace_idle,
            max_split,
            max_unsplit_waste: 2 * MIB,
            rounding,
            memory_limit,
            collect_above: Fraction::new(0.5),
            ring_entries: 16,
            structural_entries,
            ..tight()
        },
    );
    let steps = prop::collection::vec(any::<u64>().prop_map(Step::of), 1..STEPS);
    (settings, capacity, any::<(bool, bool)>(), steps).prop_map(
        |(settings, capacity, (lends, borrows), steps)| Scenario {
            settings,
            capacity,
            lends,
            borrows,
            steps,
        },
    )
}
