//! Collective calls of the host: every rank of a communicator makes the same ones in the same order.

use super::comm::Comm;
use super::error::{Failure, Result};
use super::shm::{CARD_WORDS, Plane, RankMessage};

/// The kind of call; the first word of its cards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Split = 1,
    /// A window over memory that is not mapped yet.
    WindowNew,
    /// A window over memory that has a mapping already.
    WindowKnown,
    /// A window that failed before the ranks met (strict mode).
    WindowFailed,
    /// The end of a window's registration.
    WindowEnd,
    /// The first one-sided operation of a rank.
    OneSided,
    /// A further physical segment of a window.
    WindowMore,
    Suspend,
    Resume,
    Grow,
}

impl Call {
    fn name(word: u64) -> &'static str {
        match word {
            1 => "ncclCommSplit",
            2 => "ncclCommWindowRegister of new memory",
            3 => "ncclCommWindowRegister of memory that has a window",
            4 => "ncclCommWindowRegister, failing",
            5 => "the end of ncclCommWindowRegister",
            6 => "its first one-sided operation",
            7 => "ncclCommWindowRegister of a further segment",
            8 => "ncclCommSuspend",
            9 => "ncclCommResume",
            10 => "ncclCommGrow",
            _ => "an unknown call",
        }
    }
}

/// A card of a call.
pub(crate) fn card(call: Call) -> RankMessage {
    let mut card = [0; CARD_WORDS];
    card[0] = call as u64;
    card
}

/// Exchanges a card with all ranks. Fails (strict) or hangs (faithful) if another rank makes a different call.
pub(crate) fn exchange(comm: &Comm, card: &RankMessage) -> Result<Vec<RankMessage>> {
    let name = Call::name(card[0]);
    let cards = comm.exchange(Plane::Host, name, card)?;
    if cards.iter().all(|other| other[0] == card[0]) {
        return Ok(cards);
    }
    let calls: Vec<String> = cards
        .iter()
        .enumerate()
        .map(|(rank, card)| format!("rank {rank}: {}", Call::name(card[0])))
        .collect();
    let text = format!("the ranks of {comm} are in different calls: {}", calls.join(", "));
    if comm.strict {
        return Err(Failure::usage(text));
    }
    Err(comm.hang(Plane::Host, &text).into())
}
