//! The record that a rank posts when it joins, and its form in the store.

use std::fmt::Write as _;

use bootstrap::wire::{Malformed, Reader, Wire, wire_enum, wire_struct};
use cuda_driver::sys;
use nccl_sys::Version;

use super::{Disagreement, Member, Uuid, Witnesses};

/// A rank's record when it joins: its description, and its settings that must be equal on all ranks, as names with
/// values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::group) struct Joining {
    member: Member,
    settings: Vec<(String, String)>,
    /// The number of the new group, if this is rank 0.
    number: Option<u64>,
}
wire_struct!(Joining { member, settings, number });

impl Joining {
    pub(in crate::group) fn new(member: Member) -> Self {
        Self { member, settings: Vec::new(), number: None }
    }

    /// Gives the new group its number.
    pub(in crate::group) fn numbered(self, number: Option<u64>) -> Self {
        Self { number, ..self }
    }

    /// Adds a setting, with its value as users read it.
    pub(in crate::group) fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.settings.push((name.to_owned(), value.to_string()));
        self
    }

    /// Compares the settings of all ranks, whose records are in the order of the ranks. Returns the members and the group's
    /// number.
    pub(super) fn read(records: &[Self]) -> Result<(Vec<Member>, u64), Disagreement> {
        let wrong = |rank, problem: String| Disagreement::Record { rank, problem };
        for (rank, own) in records.iter().enumerate() {
            if own.member.rank != rank {
                return Err(wrong(rank, format!("it is of rank {}", own.member.rank)));
            }
            own.compare(rank, &records[0])?;
        }
        let number = records.first().and_then(|first| first.number);
        let number = number.ok_or_else(|| wrong(0, "it gives the group no number".into()))?;
        Ok((records.iter().map(|record| record.member.clone()).collect(), number))
    }

    /// Compares the settings of `rank` with those of rank 0.
    fn compare(&self, rank: usize, first: &Self) -> Result<(), Disagreement> {
        if self.settings.len() != first.settings.len() {
            let (count, other_count) = (self.settings.len(), first.settings.len());
            let problem = format!("it has {count} settings, that of rank 0 has {other_count}");
            return Err(Disagreement::Record { rank, problem });
        }
        let differs = self.settings.iter().zip(&first.settings).find(|(found, wanted)| found != wanted);
        match differs {
            None => Ok(()),
            Some(((setting, value), (_, other_value))) => Err(Disagreement::Setting {
                setting: setting.clone(),
                rank,
                value: value.clone(),
                other: 0,
                other_value: other_value.clone(),
            }),
        }
    }
}

wire_enum!(Witnesses { 0 => Kernel {}, 1 => Store {} });

impl Wire for Member {
    fn write(&self, out: &mut Vec<u8>) {
        let Self { rank, world_size, host, process, device, nccl, driver, .. } = self;
        (*rank, *world_size).write(out);
        (*host, *process).write(out);
        device.write(out);
        (nccl_sys::version_code(*nccl).cast_unsigned(), sys::version_code(*driver).cast_unsigned())
            .write(out);
        (self.checked, self.witnesses).write(out);
        (self.window_enable, self.cumem_enable).write(out);
        self.registration.write(out);
        self.sees.write(out);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let ((rank, world_size), (host, process)) = Wire::read(from)?;
        let device = Uuid::read(from)?;
        let (nccl, driver): (u32, u32) = Wire::read(from)?;
        let (nccl, driver): (Version, Version) =
            (nccl_sys::version_from_code(nccl.cast_signed()), sys::version_from_code(driver.cast_signed()));
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

pub(super) fn hex(bytes: &Uuid) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::registration::Stance;
    use proptest::prelude::*;

    fn member() -> impl Strategy<Value = Member> {
        let sees = prop::collection::vec((any::<Uuid>(), any::<bool>()), 0..4);
        let stances = [Stance::Wanted, Stance::NotAsked, Stance::Release, Stance::CudaMemcpy];
        let stance = prop::sample::select(stances.to_vec());
        let parts = any::<(usize, u64, u32, Uuid, bool, bool, bool, bool)>();
        (parts, sees, stance).prop_map(move |(parts, sees, registration)| Member {
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
        let joining = Joining::new(Member::example(rank, 0)).numbered(Some(7));
        joining.with("first", first).with("second", second)
    }

    proptest! {
        #[test]
        fn records_survive_the_store(member in member(), name in "[a-z ]{0,9}", value in any::<String>()) {
            let joining = Joining::new(member).with(&name, value);
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
            match (Joining::read(&records), differs) {
                (Ok((members, 7)), None) => prop_assert_eq!(members.len(), 4),
                (Err(error), Some((name, value))) => prop_assert_eq!(error, Disagreement::Setting {
                    setting: name.into(), rank, value: value.to_string(), other: 0, other_value: "0".into(),
                }),
                (found, wanted) => prop_assert!(false, "{:?} for {:?}", found, wanted),
            }
        }
    }

    #[test]
    fn a_record_of_another_rank_or_with_other_settings_or_without_a_number_is_refused() {
        let problem = |records: &[Joining]| Joining::read(records).unwrap_err().to_string();
        assert!(problem(&[record(0, 0, 0), record(2, 0, 0)]).contains("it is of rank 2"));
        let fewer = Joining::new(Member::example(1, 0));
        assert!(problem(&[record(0, 0, 0), fewer]).contains("it has 0 settings, that of rank 0 has 2"));
        assert!(problem(&[record(0, 0, 0).numbered(None)]).contains("no number"));
    }
}
