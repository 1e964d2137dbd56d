//! Ranks grouped by the values that they hold. Failures report differing values in this form.

use crate::{Ranks, wire::wire_struct};

/// The ranks that hold one value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry<V> {
    /// The value.
    pub value: V,
    /// The ranks that hold it, ascending.
    pub ranks: Vec<u32>,
}
wire_struct!(Entry<V> { value, ranks });

/// The values that ranks hold, each with its ranks. The value that most ranks hold comes first. If two values have
/// equally many ranks, the value of the lowest rank comes first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValuesByRank<V> {
    /// The entries. No two have the same value.
    pub entries: Vec<Entry<V>>,
}
wire_struct!(ValuesByRank<V> { entries });

impl<V: PartialEq> ValuesByRank<V> {
    /// Groups ranks by their values. If no rank occurs twice, the result does not depend on the order of `holders`.
    pub fn of(holders: impl IntoIterator<Item = (u32, V)>) -> Self {
        let mut entries: Vec<Entry<V>> = Vec::new();
        for (rank, value) in holders {
            match entries.iter_mut().find(|entry| entry.value == value) {
                Some(entry) => entry.ranks.push(rank),
                None => entries.push(Entry { value, ranks: vec![rank] }),
            }
        }
        for entry in &mut entries {
            entry.ranks.sort_unstable();
        }
        entries.sort_by_key(|entry| (std::cmp::Reverse(entry.ranks.len()), entry.ranks.first().copied()));
        Self { entries }
    }

    /// Converts the values. `to` must map different values to different values, so that the entries stay distinct.
    pub fn map<W>(self, to: impl Fn(V) -> W) -> ValuesByRank<W> {
        let entry = |Entry { value, ranks }| Entry { value: to(value), ranks };
        ValuesByRank { entries: self.entries.into_iter().map(entry).collect() }
    }

    /// Returns true if all ranks hold the same value, or there are no ranks.
    #[must_use]
    pub fn is_unanimous(&self) -> bool {
        self.entries.len() <= 1
    }

    /// Returns the ranks outside the first entry, ascending. If most ranks hold the intended value, these are the ranks
    /// with another value.
    #[must_use]
    pub fn minority(&self) -> Vec<u32> {
        let mut ranks: Vec<u32> =
            self.entries.iter().skip(1).flat_map(|entry| entry.ranks.iter().copied()).collect();
        ranks.sort_unstable();
        ranks
    }

    /// Formats the entries, such as `ranks 0, 1: VALUE; rank 2: VALUE`. `say` formats a value.
    #[must_use]
    pub fn describe(&self, say: impl Fn(&V) -> String) -> String {
        let parts: Vec<String> = self
            .entries
            .iter()
            .map(|entry| format!("{}: {}", Ranks(&entry.ranks), say(&entry.value)))
            .collect();
        parts.join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_majority_comes_first() {
        let split = ValuesByRank::of([(2, "b"), (3, "a"), (0, "a"), (1, "a")]);
        assert_eq!(split.entries[0], Entry { value: "a", ranks: vec![0, 1, 3] });
        assert_eq!(split.minority(), [2]);
        let tie = ValuesByRank::of([(3, 1), (1, 2)]);
        assert_eq!(tie.entries[0].ranks, [1]);
        assert!(ValuesByRank::of([(0, 7), (1, 7)]).is_unanimous());
    }
}
