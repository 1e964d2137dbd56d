//! End-to-end tests of the crate, through its public interface.

#[path = "../../../dynload/tests/end_to_end/description.rs"]
mod description;
mod real;
mod resolution;

#[test]
fn the_description_is_consistent() {
    use cuda_driver_sys::{Feature, Table, version_code, version_from_code};
    description::check::<Table>(Feature::summary, version_code, version_from_code);
    assert_eq!(version_from_code(12040), cuda_driver_sys::Version::new(12, 4, 0));
    assert_eq!(version_from_code(-1), cuda_driver_sys::Version::default());
}
