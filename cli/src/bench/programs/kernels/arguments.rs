//! The arguments of the program.

use crate::bench::programs::support::Result;

/// Word before the arguments of a rank that rank 0 has started.
pub(super) const MEMBER: &str = "member";

pub(super) struct Arguments {
    pub(super) ranks: usize,
    /// The length of each round.
    pub(super) rounds: Vec<usize>,
    /// Rank of this process, and the address of rank 0's store.
    pub(super) member: Option<(usize, String)>,
    pub(super) in_turn: bool,
}

impl Arguments {
    pub(super) fn read() -> Result<Self> {
        let all: Vec<String> =
            std::env::args().skip_while(|argument| argument != "kernels").skip(1).collect();
        let (ranks, rounds) = all.first().zip(all.get(1)).ok_or("expected RANKS and BYTES[,BYTES]...")?;
        let rounds = rounds.split(',').map(str::parse).collect::<Result<_, _>>()?;
        let member = match all.get(2..5) {
            Some([word, rank, address]) if word == MEMBER => Some((rank.parse()?, address.clone())),
            _ => None,
        };
        let in_turn = all.iter().any(|argument| argument == "in-turn");
        Ok(Self { ranks: ranks.parse()?, rounds, member, in_turn })
    }
}
