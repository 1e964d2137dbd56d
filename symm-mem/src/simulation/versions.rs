//! A rank whose release uses another version of the protocol.

use bootstrap::agreement::{Answer, Request};

use super::{requests::StoreRequest, trouble::Trouble, world::World};
use crate::agreement::ValuesByRank;

impl World {
    pub(super) fn speaks_otherwise(&self, rank: u32) -> bool {
        self.scenario.trouble == Trouble::OtherProtocol && self.scenario.is_culprit(rank)
    }

    /// Returns true if the trouble is [`Trouble::OtherProtocol`], and `versions` contains two versions, one of which
    /// only the culprit uses.
    pub(super) fn speaks_otherwise_alone(&self, versions: &ValuesByRank<u16>) -> bool {
        self.scenario.trouble == Trouble::OtherProtocol
            && versions.entries.len() == 2
            && versions.entries.iter().any(|side| side.ranks == [self.scenario.culprit])
    }
}

/// Adds `by` to the version of a message that begins with this crate's magic bytes. Other messages, such as those that
/// are common to all agreements, are not changed.
fn shift(message: &mut [u8], by: i16) {
    if let [b'S', b'Y', low, high, ..] = message {
        [*low, *high] = u16::from_le_bytes([*low, *high]).wrapping_add_signed(by).to_le_bytes();
    }
}

/// Converts a request of this release to the request of a release whose protocol version is one higher.
pub(super) fn of_other_version(mut request: StoreRequest) -> StoreRequest {
    use StoreRequest::{Agreement, Set};
    if let Set { value, .. } | Agreement(Request::Post { value, .. } | Request::Propose { value, .. }) =
        &mut request
    {
        shift(value, 1);
    }
    request
}

/// Converts an answer of the store for a rank whose protocol version is one higher: subtracts 1 from the versions of
/// the messages. The rank runs the code of this release, which checks for this release's version. So the rank accepts
/// messages of the higher version, and rejects the messages of the other ranks.
pub(super) fn to_other_version(mut answer: Answer) -> Answer {
    match &mut answer {
        Answer::Result(value) => shift(value, -1),
        Answer::Values(values) => values.iter_mut().flatten().for_each(|value| shift(value, -1)),
        _ => {}
    }
    answer
}
