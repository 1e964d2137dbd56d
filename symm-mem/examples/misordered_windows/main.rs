//! The mistake that symmetric memory is known for: two groups, one pool of segments, registered by the ranks in different
//! orders. With NCCL alone it hangs, fails, or gives wrong sums; a [`SymmetricPool`](symm_mem::SymmetricPool) refuses it
//! with an error that names the ranks, on every rank, and then does it right.
//!
//! ```text
//! cargo build -p lockstep-symm-mem --features twins --example misordered_windows
//! target/debug/examples/misordered_windows [RANKS]
//! target/debug/examples/misordered_windows --embedded [RANKS]
//! ```
//!
//! There are 2 ranks, or 4, a process each, started by this program; `NCCL_SYS_LIBRARY` chooses the NCCL. With `--embedded`
//! no GPU is needed: the ranks' devices are embedded ones that hang where the real library hangs.
//!
//! | file | subject |
//! |---|---|
//! | `bare` | a rank that calls NCCL by itself |
//! | `ours` | a rank that uses a pool |
//! | `ranks` | processes that may hang |

mod bare;
mod ours;
mod ranks;
#[path = "../support/mod.rs"]
mod support;

use std::process::ExitCode;

use ranks::End;
use support::{EMBEDDED, Result, as_rank, exit_code};

/// What the ranks do in another order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mistake {
    /// The groups: one rank begins with the one, another with the other.
    Groups,
    /// Two segments of one size.
    Segments,
    /// Two segments of different sizes.
    Sizes,
}

impl Mistake {
    const ALL: [(&'static str, Self); 3] =
        [("groups", Self::Groups), ("segments", Self::Segments), ("sizes", Self::Sizes)];

    const fn words(self) -> &'static str {
        match self {
            Self::Groups => "the groups in another order",
            Self::Segments => "two segments of one size in another order",
            Self::Sizes => "two segments of different sizes in another order",
        }
    }

    /// Bytes of the two segments.
    const fn sizes(self) -> [usize; 2] {
        match self {
            Self::Sizes => [4 << 20, 6 << 20],
            Self::Groups | Self::Segments => [4 << 20, 4 << 20],
        }
    }

    /// The order in which a rank of `ranks` takes its two groups. With four ranks each waits for another in a circle.
    const fn groups(self, rank: usize, ranks: usize) -> [usize; 2] {
        match self {
            Self::Groups if rank == 0 || (ranks == 4 && rank == 3) => [1, 0],
            _ => [0, 1],
        }
    }

    /// The order in which a rank takes the segments.
    const fn segments(self, rank: usize) -> [usize; 2] {
        match self {
            Self::Segments | Self::Sizes if rank % 2 == 1 => [1, 0],
            _ => [0, 1],
        }
    }
}

/// The members of a rank's two groups: of two ranks both twice, of four the pairs of a square.
fn members(rank: usize, ranks: usize) -> [[usize; 2]; 2] {
    match ranks {
        2 => [[0, 1], [0, 1]],
        _ => [[rank / 2 * 2, rank / 2 * 2 + 1], [rank % 2, rank % 2 + 2]],
    }
}

/// What rank `rank` writes into a segment, and the sum of it over some ranks.
fn value(segment: usize, rank: usize) -> f32 {
    (10 * segment + rank + 1) as f32
}

fn sum(segment: usize, ranks: &[usize]) -> f32 {
    ranks.iter().map(|rank| value(segment, *rank)).sum()
}

/// The part in which a rank makes all of the mistakes, with a pool.
const OURS: &str = "ours";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let embedded = arguments.iter().any(|argument| argument == EMBEDDED);
    let ran = match arguments.iter().find_map(|argument| argument.strip_prefix(ranks::PART)) {
        Some(part) => {
            ranks::follow();
            rank(part, embedded)
        }
        None => all(&arguments, embedded),
    };
    exit_code(ran)
}

fn rank(part: &str, embedded: bool) -> Result<()> {
    as_rank(
        embedded,
        |machine| machine.faithful().start(),
        |builder| {
            // Of checked groups, for what a commit cannot see.
            let world = builder.checked(true).build()?;
            match Mistake::ALL.iter().find(|(name, _)| *name == part) {
                Some((_, mistake)) => bare::attempt(&world, *mistake),
                None => ours::show(world),
            }
        },
    )
}

/// Starts the ranks of every part, and says what came of it.
fn all(arguments: &[String], embedded: bool) -> Result<()> {
    let ranks = match arguments.iter().find(|argument| *argument != EMBEDDED) {
        None => 2,
        Some(number) => number.parse().ok().filter(|ranks| [2, 4].contains(ranks)).ok_or_else(|| {
            format!("unknown argument {number:?}; there are {EMBEDDED} and a number of ranks, 2 or 4")
        })?,
    };
    for (name, mistake) in Mistake::ALL {
        println!("NCCL alone, {}:", mistake.words());
        let told = ranks::run(name, ranks, embedded)?;
        if !told.iter().any(ranks::Told::is_wrong) {
            return Err("that neither hung, nor failed, nor gave wrong sums: the failure is not shown".into());
        }
    }
    println!("with a pool, the same:");
    match ranks::run(OURS, ranks, embedded)?.iter().position(|told| told.end != End::Well) {
        None => Ok(()),
        Some(rank) => Err(format!("rank {rank} did not end well").into()),
    }
}
