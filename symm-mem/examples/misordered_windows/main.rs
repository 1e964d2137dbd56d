//! The best-known mistake with symmetric memory: two groups share a pool of segments, and the ranks register them in
//! different orders. With NCCL alone, the program hangs, fails, or computes wrong sums. A
//! [`SymmetricPool`](symm_mem::SymmetricPool) refuses it on every rank, with an error naming the ranks, and then the
//! example does it correctly.
//!
//! ```text
//! cargo build -p lockstep-symm-mem --features twins --example misordered_windows
//! target/debug/examples/misordered_windows [RANKS]
//! target/debug/examples/misordered_windows --embedded [RANKS]
//! ```
//!
//! There are 2 or 4 ranks; this program starts a process for each. `NCCL_SYS_LIBRARY` chooses the NCCL. With
//! `--embedded` no GPU is needed: the ranks use embedded devices, which hang where the real library hangs.
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

/// The part that ranks do in different orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mistake {
    /// The groups: one rank begins with the first, another with the second.
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

    /// The order in which a rank takes its two groups. With four ranks, they wait for each other in a circle.
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

/// The members of a rank's two groups: with two ranks both groups have both, with four they are the pairs of a
/// square.
fn members(rank: usize, ranks: usize) -> [[usize; 2]; 2] {
    match ranks {
        2 => [[0, 1], [0, 1]],
        _ => [[rank / 2 * 2, rank / 2 * 2 + 1], [rank % 2, rank % 2 + 2]],
    }
}

/// Value that rank `rank` writes into a segment, and its sum over some ranks.
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
            // A checked group also finds mistakes that a commit cannot see.
            let world = builder.checked(true).build()?;
            match Mistake::ALL.iter().find(|(name, _)| *name == part) {
                Some((_, mistake)) => bare::attempt(&world, *mistake),
                None => ours::show(world),
            }
        },
    )
}

/// Starts the ranks of every part, and prints the results.
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
