//! Lists of ranks and their binary form, and values by rank.

use std::fmt;

use super::{
    Ranks, ValuesByRank,
    wire::{Malformed, Reader, Wire},
};

/// Converts a rank of the job to `u32`. No job has more than `u32::MAX` ranks.
pub fn rank_of(rank: usize) -> u32 {
    u32::try_from(rank).unwrap_or(u32::MAX)
}

/// Applies `value` to the record of each rank. Returns the results by rank.
pub(crate) fn split<R, V: PartialEq>(records: &[(u32, &R)], value: impl Fn(&R) -> V) -> ValuesByRank<V> {
    ValuesByRank::of(records.iter().map(|(rank, record)| (*rank, value(record))))
}

/// A list of ranks in any order. Lists in different orders are unequal. The binary form consists of runs of consecutive
/// ranks. So the list of all ranks of a job takes only a few bytes in a message.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RankList(pub Vec<u32>);

impl RankList {
    /// The maximum number of ranks in a list, larger than any job. It limits the memory that decoding of invalid bytes
    /// can take.
    const MOST: u32 = 1 << 20;

    /// Returns the runs of consecutive ranks. Each run is a pair of its first rank and its number of ranks.
    fn runs(&self) -> Vec<(u32, u32)> {
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for &rank in &self.0 {
            match runs.last_mut() {
                Some((first, count)) if first.checked_add(*count) == Some(rank) => *count += 1,
                _ => runs.push((rank, 1)),
            }
        }
        runs
    }
}

impl Wire for RankList {
    fn write(&self, out: &mut Vec<u8>) {
        self.runs().write(out);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let at = from.position();
        let mut ranks: Vec<u32> = Vec::new();
        for (first, count) in Vec::<(u32, u32)>::read(from)? {
            let all = (ranks.len() as u64).saturating_add(count.into());
            // Each list has exactly one valid binary form, so a run that continues the previous one is rejected.
            let goes_on = ranks.last().is_some_and(|last| last.checked_add(1) == Some(first));
            match first.checked_add(count) {
                Some(end) if count > 0 && all <= Self::MOST.into() && !goes_on => ranks.extend(first..end),
                _ => return Err(Malformed::Ranks { at, most: Self::MOST }),
            }
        }
        Ok(Self(ranks))
    }
}

impl From<&[u32]> for RankList {
    fn from(ranks: &[u32]) -> Self {
        Self(ranks.to_vec())
    }
}

impl fmt::Display for RankList {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ranks(&self.0).fmt(out)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tests::{bytes, read};

    proptest! {
        #[test]
        fn a_list_is_read_as_it_was_written(ranks in prop::collection::vec(0u32..6, 0..20)) {
            let list = RankList(ranks);
            prop_assert_eq!(read(&bytes(&list)), Ok(list));
        }
    }

    #[test]
    fn a_list_has_one_form_and_a_bound() {
        let read = |runs: &[(u32, u32)]| {
            let mut bytes = (runs.len() as u32).to_le_bytes().to_vec();
            for (first, count) in runs {
                bytes.extend([first.to_le_bytes(), count.to_le_bytes()].concat());
            }
            RankList::read(&mut Reader::new(&bytes))
        };
        assert_eq!(read(&[(4, 2), (0, 1)]), Ok(RankList(vec![4, 5, 0])));
        let most = RankList::MOST;
        assert_eq!(read(&[(0, most)]).map(|list| list.0.len() as u32), Ok(most));
        for runs in
            [&[(0, 1), (1, 1)][..], &[(0, 0)], &[(0, most + 1)], &[(0, most), (0, 1)], &[(u32::MAX, 1)]]
        {
            assert!(matches!(read(runs), Err(Malformed::Ranks { at: 0, .. })), "{runs:?}");
        }
        assert!(matches!(RankList::read(&mut Reader::new(&[255; 4])), Err(Malformed::Short { .. })));
    }
}
