//! The protocol version of the culprit (the rank that the trouble concerns) under [`Trouble::OtherProtocol`]. It is one
//! higher than that of the other ranks, as if the culprit ran another release of this crate.

use bootstrap::agreement::{Answer, Request};
use symm_agreement::ValuesByRank;

use crate::{requests::StoreRequest, trouble::Trouble, world::World};

impl World {
    /// Returns true if `rank` uses another protocol version than the other ranks.
    pub(crate) fn speaks_otherwise(&self, rank: u32) -> bool {
        self.scenario.trouble_of(rank) == Trouble::OtherProtocol
    }

    /// Returns true if `versions`, the protocol versions in a refusal, are those of [`Trouble::OtherProtocol`]: there
    /// are two versions, and the culprit alone uses one of them.
    pub(crate) fn speaks_otherwise_alone(&self, versions: &ValuesByRank<u16>) -> bool {
        self.scenario.trouble == Trouble::OtherProtocol
            && versions.entries.len() == 2
            && versions.entries.iter().any(|side| side.ranks == [self.scenario.culprit])
    }
}

/// Adds `by` to the protocol version of a message that begins with this crate's magic bytes. Leaves other messages as
/// they are, for example those of `bootstrap`, which are common to all agreements.
fn shift(message: &mut [u8], by: i16) {
    if let [b'S', b'Y', low, high, ..] = message {
        [*low, *high] = u16::from_le_bytes([*low, *high]).wrapping_add_signed(by).to_le_bytes();
    }
}

/// Converts a request of this release to the request of a release whose protocol version is one higher.
pub(crate) fn of_other_version(mut request: StoreRequest) -> StoreRequest {
    use StoreRequest::{Agreement, Set};
    if let Set { value, .. } | Agreement(Request::Post { value, .. } | Request::Propose { value, .. }) =
        &mut request
    {
        shift(value, 1);
    }
    request
}

/// Converts an answer of the store for a rank whose protocol version is one higher: subtracts 1 from the versions of
/// the messages. The rank runs the code of this release, which accepts only this release's version. After the
/// subtraction, this code accepts messages of the higher version, such as the rank's own, and rejects the messages of
/// the other ranks.
pub(crate) fn to_other_version(mut answer: Answer) -> Answer {
    match &mut answer {
        Answer::Result(value) => shift(value, -1),
        Answer::Values(values) => values.iter_mut().flatten().for_each(|value| shift(value, -1)),
        _ => {}
    }
    answer
}
