//! A rank whose release speaks another version of the protocol.

use super::{trouble::Trouble, world::World};
use crate::agreement::{Input, Output, Split};

impl World {
    pub(super) fn speaks_otherwise(&self, rank: u32) -> bool {
        self.scenario.trouble == Trouble::OtherProtocol && self.scenario.is_culprit(rank)
    }

    /// Whether the culprit, and it alone, was found to speak another version of the protocol, as it does.
    pub(super) fn speaks_otherwise_alone(&self, versions: &Split<u16>) -> bool {
        self.scenario.trouble == Trouble::OtherProtocol
            && versions.sides.len() == 2
            && versions.sides.iter().any(|side| side.ranks == [self.scenario.culprit])
    }
}

/// Moves a message to a release so many versions on. What every release reads stays as it is.
fn shift(message: &mut [u8], by: i16) {
    if let [b'S', b'Y', low, high, ..] = message {
        let version = u16::from_le_bytes([*low, *high]);
        if version != u16::MAX {
            [*low, *high] = version.wrapping_add_signed(by).to_le_bytes();
        }
    }
}

/// A request as a rank makes it whose release is one version on.
pub(super) fn of_other_version(mut request: Output) -> Output {
    if let Output::Set { value, .. } | Output::Propose { value, .. } = &mut request {
        shift(value, 1);
    }
    request
}

/// An answer as that rank reads it, for which its own version is the right one.
pub(super) fn to_other_version(mut input: Input) -> Input {
    match &mut input {
        Input::Stands(value) => shift(value, -1),
        Input::Values(values) => values.iter_mut().flatten().for_each(|value| shift(value, -1)),
        _ => {}
    }
    input
}
