//! Twenty seconds of threads that share one processor: the kernel preempts them anywhere. `cargo xtask soak alloc` runs
//! the same for longer, on every processor too.

use std::time::Duration;

use super::stress::Stress;

const ON_ONE_CORE: Stress = Stress { threads: 2, cores: 1, length: Duration::from_secs(10), seed: 1 };

#[test]
fn two_threads_on_one_core_never_get_the_same_block() {
    assert!(ON_ONE_CORE.one_length() > 0);
}

#[test]
fn threads_on_one_core_own_what_they_are_given() {
    assert!(Stress { threads: 4, ..ON_ONE_CORE }.everything() > 0);
}
