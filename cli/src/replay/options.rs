//! The policy and the memory of a replay.

use std::fmt;

use serde::Serialize;

/// Reuse of free memory that fits no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Policy {
    /// Segments keep their addresses; unused segments are released to the driver
    Fixed,
    /// Free pages are mapped again at the address that needs them
    Remap,
}

impl fmt::Display for Policy {
    /// Writes the option that selects the policy.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fixed => "--policy fixed",
            Self::Remap => "--policy remap",
        })
    }
}

/// The memory that the allocator manages in a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Backend {
    /// No memory: bytes are only counted, and work ends at once
    Host,
    /// The first GPU. Work ends later, so reuse and reserved memory depend on its timing
    Cuda,
    /// An embedded device in host memory, with work that ends later, as on a GPU
    Sim,
}
