//! Values grouped by the ranks that hold them. Every disagreement is reported in this form.

use std::fmt;

use super::wire::wire_struct;

/// The ranks that hold one value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Side<V> {
    /// The value.
    pub value: V,
    /// The ranks that hold it, ascending.
    pub ranks: Vec<u32>,
}
wire_struct!(Side<V> { value, ranks });

/// The values that ranks hold, each with its ranks. The value that most ranks hold comes first; ties are ordered by
/// lowest rank. The result does not depend on the order of the input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Split<V> {
    /// The sides. No two have the same value.
    pub sides: Vec<Side<V>>,
}
wire_struct!(Split<V> { sides });

impl<V: PartialEq> Split<V> {
    /// Groups ranks by their values.
    pub fn of(holders: impl IntoIterator<Item = (u32, V)>) -> Self {
        let mut sides: Vec<Side<V>> = Vec::new();
        for (rank, value) in holders {
            match sides.iter_mut().find(|side| side.value == value) {
                Some(side) => side.ranks.push(rank),
                None => sides.push(Side { value, ranks: vec![rank] }),
            }
        }
        for side in &mut sides {
            side.ranks.sort_unstable();
        }
        sides.sort_by_key(|side| (std::cmp::Reverse(side.ranks.len()), side.ranks.first().copied()));
        Self { sides }
    }

    /// Converts the values. Values that were different must stay different.
    pub(crate) fn map<W>(self, to: impl Fn(V) -> W) -> Split<W> {
        let side = |Side { value, ranks }| Side { value: to(value), ranks };
        Split { sides: self.sides.into_iter().map(side).collect() }
    }

    /// Returns true if all ranks hold the same value, or there are no ranks.
    pub fn is_unanimous(&self) -> bool {
        self.sides.len() <= 1
    }

    /// The ranks outside the largest side, ascending. If a majority holds the intended value, these ranks differ from
    /// it.
    pub fn minority(&self) -> Vec<u32> {
        let mut ranks: Vec<u32> =
            self.sides.iter().skip(1).flat_map(|side| side.ranks.iter().copied()).collect();
        ranks.sort_unstable();
        ranks
    }

    /// Formats every side, with `say` as the text of a value.
    pub(crate) fn describe(&self, say: impl Fn(&V) -> String) -> String {
        let parts: Vec<String> =
            self.sides.iter().map(|side| format!("{}: {}", Ranks(&side.ranks), say(&side.value))).collect();
        parts.join("; ")
    }
}

/// Formats ranks for a reader: `rank 2`, `ranks 0-3, 7`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ranks<'a>(pub(crate) &'a [u32]);

impl fmt::Display for Ranks<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self.0.len() {
            0 => "no rank",
            1 => "rank ",
            _ => "ranks ",
        })?;
        let mut rest = self.0;
        let mut separator = "";
        while let Some(&first) = rest.first() {
            let run = rest
                .iter()
                .zip(0u64..)
                .take_while(|(rank, offset)| u64::from(**rank) == u64::from(first) + offset)
                .count();
            match run {
                1 => write!(out, "{separator}{first}")?,
                2 => write!(out, "{separator}{first}, {}", rest[1])?,
                _ => write!(out, "{separator}{first}-{}", rest[run - 1])?,
            }
            separator = ", ";
            rest = &rest[run..];
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_majority_comes_first() {
        let split = Split::of([(2, "b"), (3, "a"), (0, "a"), (1, "a")]);
        assert_eq!(split.sides[0], Side { value: "a", ranks: vec![0, 1, 3] });
        assert_eq!(split.minority(), [2]);
        let tie = Split::of([(3, 1), (1, 2)]);
        assert_eq!(tie.sides[0].ranks, [1]);
        assert!(Split::of([(0, 7), (1, 7)]).is_unanimous());
    }

    #[test]
    fn ranks_read_as_ranges() {
        assert_eq!(Ranks(&[]).to_string(), "no rank");
        assert_eq!(Ranks(&[2]).to_string(), "rank 2");
        assert_eq!(Ranks(&[0, 1, 3, 4, 5, u32::MAX]).to_string(), "ranks 0, 1, 3-5, 4294967295");
    }
}
