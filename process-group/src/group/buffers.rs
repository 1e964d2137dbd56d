//! The group's methods that report the registration of its operations' buffers, and that compare the buffers'
//! positions in windows.

use std::sync::Arc;

use super::{
    OperationBuffers, ProcessGroup, RegistrationReport, RegistrationStatus, SymmetricPlaces, places_changed,
};
use crate::operation::Primitive;

impl ProcessGroup {
    /// Returns, for each operation, how many of its buffers were registered and how many were not, by reason.
    /// Counts the calls since the group was made. Empty if the group does not check buffers.
    #[must_use]
    pub fn registration_report(&self) -> RegistrationReport {
        let policy = self.registration();
        let one = |primitive: Primitive| {
            let seen =
                RegistrationStatus::ALL.map(|status| (status, self.buffer_cache.seen(primitive, status)));
            let registered = self.buffer_cache.seen(primitive, RegistrationStatus::Registered);
            let unregistered: Vec<_> =
                seen.into_iter().filter(|(status, n)| *n > 0 && status.reason().is_some()).collect();
            let found = registered > 0 || !unregistered.is_empty();
            found.then(|| OperationBuffers {
                operation: primitive.operation().name(),
                registered,
                unregistered,
            })
        };
        RegistrationReport { operations: Primitive::ALL.into_iter().filter_map(one).collect(), policy }
    }

    /// Makes the members compare buffer positions in `places`, for the buffers that NCCL requires at the same
    /// offset of the same window on every rank. Positions in [windows](SymmetricPlaces::window) are part of
    /// each call's hash, so a difference ends the group with
    /// [`CollectiveDiverged`](super::GroupErrorKind::CollectiveDiverged). In [checked
    /// mode](super::Builder::checked) all [positions](SymmetricPlaces::locate) are compared before each
    /// launch. Every member must call `compare_places` at the same point of the program, once for each
    /// `places` value.
    pub fn compare_places(&self, places: Arc<dyn SymmetricPlaces>) {
        if self.buffer_cache.places.add(places) {
            places_changed();
        }
    }
}
