//! The benchmark programs. Each runs in a process of its own: `lockstep bench` starts it, gives it its turns and reads
//! the lines that it prints.

mod alloc;
mod collectives;
pub(super) mod kernels;
pub(super) mod messages;
mod pool;
mod support;
mod symm;

use anyhow::{Result, anyhow};

#[derive(clap::Args)]
pub(super) struct Options {
    /// The program
    #[arg(value_enum)]
    program: Program,
    /// Its arguments: the number of ranks, and `in-turn` to wait for a line before each round
    #[arg(trailing_var_arg = true, value_name = "ARGUMENT")]
    _arguments: Vec<String>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
pub(super) enum Program {
    Alloc,
    Collectives,
    Kernels,
    Messages,
    Pool,
    Symm,
}

impl Program {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Alloc => "alloc",
            Self::Collectives => "collectives",
            Self::Kernels => "kernels",
            Self::Messages => "messages",
            Self::Pool => "pool",
            Self::Symm => "symm",
        }
    }

    /// The number of rounds, after the opening one of `Collectives`, `Kernels` and `Symm`. Those of `Kernels` are of each
    /// length.
    pub(super) fn rounds(self) -> usize {
        match self {
            Self::Alloc => alloc::rounds(),
            Self::Collectives => collectives::ROUNDS,
            Self::Kernels => kernels::ROUNDS,
            Self::Messages => messages::ROUNDS,
            Self::Pool => pool::PARTS,
            Self::Symm => symm::ROUNDS,
        }
    }
}

/// Runs one program in this process, which reads its own arguments.
pub(super) fn run(options: &Options) -> Result<()> {
    let program = match options.program {
        Program::Alloc => alloc::run,
        Program::Collectives => collectives::run,
        Program::Kernels => kernels::run,
        Program::Messages => messages::run,
        Program::Pool => pool::run,
        Program::Symm => symm::run,
    };
    program().map_err(|error| anyhow!("{error}"))
}
