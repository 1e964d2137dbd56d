//! Formats lists of ranks.

use std::fmt;

/// Formats ascending ranks for messages: `no rank`, `rank 2`, `ranks 0-3, 7`.
#[derive(Debug, Clone, Copy)]
pub struct Ranks<'a, R = u32>(pub &'a [R]);

impl<R: Copy + TryInto<u64>> fmt::Display for Ranks<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.len() {
            0 => f.write_str("no rank"),
            1 => write!(f, "rank {}", Ranges(self.0)),
            _ => write!(f, "ranks {}", Ranges(self.0)),
        }
    }
}

/// Formats ascending numbers, such as `0-3, 7`. A run of two numbers is not shortened: `0, 1`. An empty slice becomes
/// an empty string.
#[derive(Debug, Clone, Copy)]
pub struct Ranges<'a, R = u32>(pub &'a [R]);

impl<R: Copy + TryInto<u64>> fmt::Display for Ranges<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |rank: &R| (*rank).try_into().unwrap_or(u64::MAX);
        let mut separator = "";
        for run in self.0.chunk_by(|one, next| number(one).checked_add(1) == Some(number(next))) {
            f.write_str(separator)?;
            match run {
                [] => {}
                [one] => write!(f, "{}", number(one))?,
                [one, two] => write!(f, "{}, {}", number(one), number(two))?,
                [first, .., last] => write!(f, "{}-{}", number(first), number(last))?,
            }
            separator = ", ";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_read_as_ranges() {
        assert_eq!(Ranks::<u32>(&[]).to_string(), "no rank");
        assert_eq!(Ranks(&[2_usize]).to_string(), "rank 2");
        assert_eq!(Ranks(&[0, 1, 3, 4, 5, u32::MAX]).to_string(), "ranks 0, 1, 3-5, 4294967295");
    }
}
