//! The record that a rank publishes when it joins, and the record's encoding in the store.

use bootstrap::wire::{Malformed, Reader, Wire, wire_enum, wire_struct};
use cuda_driver::sys;

use super::{Disagreement, Member, Uuid, Witnesses};

/// The record that a rank publishes when it joins: the rank's description, and the names and values of those settings
/// that must be equal on all ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::group) struct Joining {
    pub(super) member: Member,
    settings: Vec<(String, String)>,
    /// Number of the new group. Only the first rank's number is used.
    pub(super) number: u64,
}
wire_struct!(Joining { member, settings, number });

impl Joining {
    pub(in crate::group) fn new(member: Member, number: u64) -> Self {
        Self { member, settings: Vec::new(), number }
    }

    /// Adds a setting, with its value as error messages print it.
    pub(in crate::group) fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.settings.push((name.to_owned(), value.to_string()));
        self
    }

    /// Compares this rank's settings with those of another rank, and returns the first difference as an error.
    pub(super) fn compare(&self, other: &Self) -> Result<(), Disagreement> {
        let differs = self.settings.iter().zip(&other.settings).find(|(found, wanted)| found != wanted);
        let Some(((setting, value), (_, other_value))) = differs.map(|(a, b)| (a.clone(), b.clone())) else {
            return Ok(());
        };
        let (rank, other) = (self.member.rank, other.member.rank);
        Err(Disagreement::Setting { setting, rank, value, other, other_value })
    }
}

wire_enum!(Witnesses { 0 => Kernel {}, 1 => Store {} });

impl Wire for Member {
    fn write(&self, out: &mut Vec<u8>) {
        let versions = [nccl_sys::version_code(self.nccl), sys::version_code(self.driver)];
        ((self.rank, self.world_size), (self.host, self.process)).write(out);
        (self.device, versions.map(i32::cast_unsigned)).write(out);
        ((self.checked, self.witnesses), (self.window_enable, self.cumem_enable)).write(out);
        self.registration.write(out);
        self.sees.write(out);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let ((rank, world_size), (host, process)) = Wire::read(from)?;
        let (device, [nccl, driver]) = <(Uuid, [u32; 2])>::read(from)?;
        let nccl = nccl_sys::version_from_code(nccl.cast_signed());
        let driver = sys::version_from_code(driver.cast_signed());
        let ((checked, witnesses), (window_enable, cumem_enable)) = Wire::read(from)?;
        let (registration, sees) = Wire::read(from)?;
        Ok(Self {
            rank,
            world_size,
            host,
            process,
            device,
            nccl,
            driver,
            checked,
            witnesses,
            window_enable,
            cumem_enable,
            registration,
            sees,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::{member::RegistrationSupport, member::agree};
    use proptest::prelude::*;

    fn member() -> impl Strategy<Value = Member> {
        let sees = prop::collection::vec((any::<Uuid>(), any::<bool>()), 0..4);
        let stances = [
            RegistrationSupport::Wanted,
            RegistrationSupport::NotAsked,
            RegistrationSupport::Release,
            RegistrationSupport::CudaMemcpy,
        ];
        let support = prop::sample::select(stances.to_vec());
        let parts = any::<(usize, u64, u32, Uuid, bool, bool, bool, bool)>();
        (parts, sees, support).prop_map(move |(parts, sees, registration)| Member {
            world_size: parts.0,
            host: parts.1,
            process: parts.2,
            device: parts.3,
            window_enable: parts.4,
            cumem_enable: parts.5,
            checked: parts.6,
            witnesses: if parts.7 { Witnesses::Store } else { Witnesses::Kernel },
            registration,
            sees,
            ..Member::example(3, 0)
        })
    }

    fn record(rank: usize, first: u8, second: u8) -> Joining {
        Joining::new(Member::example(rank, 0), 7).with("first", first).with("second", second)
    }

    proptest! {
        #[test]
        fn records_round_trip(member in member(), name in "[a-z ]{0,9}", value in any::<String>()) {
            let joining = Joining::new(member, 7).with(&name, value);
            let mut bytes = Vec::new();
            joining.write(&mut bytes);
            prop_assert_eq!(<Joining as Wire>::read(&mut Reader::new(&bytes)), Ok(joining));
        }

        #[test]
        fn the_first_setting_that_differs_is_named_with_both_values(
            first in 0u8..2, second in 0u8..2, rank in 1usize..4,
        ) {
            let mut records: Vec<_> = (0..4).map(|rank| record(rank, 0, 0)).collect();
            records[rank] = record(rank, first, second);
            let differs = [("first", first), ("second", second)].into_iter().find(|(_, value)| *value != 0);
            match (agree(&records), differs) {
                (Ok((members, 7)), None) => prop_assert_eq!(members.len(), 4),
                (Err(error), Some((name, value))) => prop_assert_eq!(error, Disagreement::Setting {
                    setting: name.into(), rank, value: value.to_string(), other: 0, other_value: "0".into(),
                }),
                (found, wanted) => prop_assert!(false, "{:?} for {:?}", found, wanted),
            }
        }
    }
}
