//! Collectives on buffers of a length, their inputs and their expected results.

use std::fmt;

use half::bf16;
use symm_mem::kernels::Algorithm;

/// Bytes of an element, a bf16.
pub(super) const ELEMENT: usize = 2;

/// The collectives of symm-mem, with the names of their rows.
pub(in crate::bench) const COLLECTIVES: [(&str, Collective); 5] = [
    ("all-reduce, one-shot", Collective::AllReduce(Algorithm::OneShot)),
    ("all-reduce, two-shot", Collective::AllReduce(Algorithm::TwoShot)),
    ("reduce-scatter", Collective::ReduceScatter),
    ("all-gather", Collective::AllGather),
    ("all-to-all", Collective::AllToAll),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::bench) enum Collective {
    AllReduce(Algorithm),
    ReduceScatter,
    AllGather,
    AllToAll,
}

impl Collective {
    /// Returns the name under which a library with one algorithm has its figures.
    pub(in crate::bench) const fn family(self) -> &'static str {
        match self {
            Self::AllReduce(_) => "all-reduce",
            Self::ReduceScatter => "reduce-scatter",
            Self::AllGather => "all-gather",
            Self::AllToAll => "all-to-all",
        }
    }
}

/// Ways of launching.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::bench) enum Mode {
    /// One by one.
    Eager,
    /// Together, from a captured graph.
    Graph,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::Eager { "eager" } else { "graph" })
    }
}

/// Returns the name of a case in the lines of the programs.
pub(in crate::bench) fn case_name(collective: &str, bytes: usize, mode: Mode) -> String {
    format!("{collective}|{bytes}|{mode}")
}

/// A collective on buffers of some length.
#[derive(Clone, Copy)]
pub(super) struct Case {
    pub(super) collective: Collective,
    /// Number of elements of each rank, or for each rank.
    pub(super) elements: usize,
}

impl Case {
    /// Returns the case whose longer one of a rank's input and its result has this length. `None` if it has no
    /// elements.
    pub(super) fn of(collective: Collective, bytes: usize, world: usize) -> Option<Self> {
        let parts = if matches!(collective, Collective::AllReduce(_)) { 1 } else { world };
        let elements = bytes / ELEMENT / parts;
        (elements > 0).then_some(Self { collective, elements })
    }

    /// Returns the number of elements of a rank's result.
    pub(super) fn result_elements(self, world: usize) -> usize {
        match self.collective {
            Collective::AllReduce(_) | Collective::ReduceScatter => self.elements,
            Collective::AllGather | Collective::AllToAll => self.elements * world,
        }
    }

    /// Compares every element of `rank`'s result with the expected one.
    pub(super) fn compare(self, rank: usize, world: usize, result: &[u16]) -> Result<(), String> {
        for (from, part) in result.chunks(self.elements).enumerate() {
            let sum = |index| bf16::from_f32((0..world).map(|peer| input(peer, index).to_f32()).sum());
            let expected = |index: usize| match self.collective {
                Collective::AllReduce(_) => sum(index),
                Collective::ReduceScatter => sum(rank * self.elements + index),
                Collective::AllGather => input(from, index),
                Collective::AllToAll => input(from, rank * self.elements + index),
            };
            // The inputs repeat, and therefore the results do.
            let expected: [u16; PERIOD] = std::array::from_fn(|index| expected(index).to_bits());
            let wrong = part.chunks(PERIOD).position(|found| *found != expected[..found.len()]);
            if let Some(at) = wrong.map(|chunk| chunk * PERIOD) {
                let found = &part[at..part.len().min(at + PERIOD)];
                return Err(format!(
                    "wrong result on rank {rank} from element {} on: {found:#06x?}, expected {expected:#06x?}",
                    from * self.elements + at
                ));
            }
        }
        Ok(())
    }
}

/// The inputs repeat after so many elements.
const PERIOD: usize = 13;

/// The input of `rank` at `index`: a small integer, so that sums over all ranks are exact.
pub(super) fn input(rank: usize, index: usize) -> bf16 {
    bf16::from_f32(((index % PERIOD) + rank) as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_element_is_found_wherever_it_is() {
        for (_, collective) in COLLECTIVES {
            let case = Case::of(collective, 64, 2).unwrap();
            // The definition of the collectives, element by element.
            let result = |index: usize| {
                let (from, within) = (index / case.elements, index % case.elements);
                let sum = |index| input(0, index).to_f32() + input(1, index).to_f32();
                match collective {
                    Collective::AllReduce(_) => bf16::from_f32(sum(index)),
                    Collective::ReduceScatter => bf16::from_f32(sum(case.elements + index)),
                    Collective::AllGather => input(from, within),
                    Collective::AllToAll => input(from, case.elements + within),
                }
            };
            let right: Vec<u16> = (0..case.result_elements(2)).map(|index| result(index).to_bits()).collect();
            case.compare(1, 2, &right).unwrap();
            for index in 0..right.len() {
                let mut wrong = right.clone();
                wrong[index] ^= 1;
                let error = case.compare(1, 2, &wrong).unwrap_err();
                assert!(error.contains("wrong result on rank 1"), "{error}");
            }
        }
    }
}
