//! End-to-end tests of the crate, through its public interface.

mod config;
#[path = "../../../dynload/tests/end_to_end/description.rs"]
mod description;
#[path = "../../../dynload/tests/end_to_end/fake.rs"]
mod fake;
mod missing;
mod python;

#[test]
fn the_description_is_consistent() {
    use nccl_sys::{Feature, Table, version_code, version_from_code};
    description::check::<Table>(Feature::summary, version_code, version_from_code);
    assert_eq!(version_from_code(2804), nccl_sys::Version::new(2, 8, 4));
    assert_eq!(version_from_code(-1), nccl_sys::Version::default());
}
