//! The choice between communicators that the two ends of a pair make under [`Auto`](super::P2pPolicy::Auto).
//!
//! The two ends do not see the group become connected at one moment: one may have returned from the first
//! collective while the other is still in it. Neither may therefore decide by its own view alone. Before
//! their first message the two agree, by both views.
//! The decision holds for all messages of the pair, so a later change cannot separate the two ends of a
//! message.

use std::convert::Infallible;

use bootstrap::{
    agreement::PlainProtocol,
    wire::{wire_enum, wire_struct},
};

use crate::messages;

/// The view of one end at its first message with the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct View {
    /// True if the group was connected.
    pub(super) connected: bool,
}

wire_struct!(View { connected });

/// The communicator for a pair's messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Choice {
    Group,
    Pair,
}

wire_enum!(Choice { 0 => Group {}, 1 => Pair {} });

/// The agreement of the two ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RouteChoice;

impl PlainProtocol for RouteChoice {
    const PROTOCOL: bootstrap::wire::Protocol = messages::PROTOCOL;
    type Record = View;
    type Agreed = Choice;
    type Refusal = Infallible;

    fn conclude(views: &[(u32, View)]) -> Result<Choice, Infallible> {
        Ok(if views.iter().all(|(_, view)| view.connected) { Choice::Group } else { Choice::Pair })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each end has its own view first in one order and last in the other.
    #[test]
    fn both_ends_choose_the_group_only_if_both_say_that_it_is_connected() {
        for (one, other) in [(false, false), (false, true), (true, false), (true, true)] {
            let views = [(0, View { connected: one }), (1, View { connected: other })];
            let expected = if one && other { Choice::Group } else { Choice::Pair };
            assert_eq!(RouteChoice::conclude(&views), Ok(expected), "{views:?}");
        }
    }
}
