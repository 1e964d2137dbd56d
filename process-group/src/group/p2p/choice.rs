//! The choice between communicators that the two ends of a pair make under [`Auto`](super::P2pPolicy::Auto).
//!
//! The two ends do not see the group become connected at one moment: one may have returned from the first
//! collective while the other is still in it. Neither may therefore decide by its own view alone. Before
//! their first message both publish their view in a meeting of the two, and both decide from the two views.
//! The decision holds for all messages of the pair, so a later change cannot separate the two ends of a
//! message.

/// The view of one end at its first message with the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct View {
    /// True if the group was connected.
    pub(super) connected: bool,
}

impl View {
    pub(super) fn encode(self) -> &'static [u8] {
        if self.connected { b"connected" } else { b"lazy" }
    }

    /// Decodes the text in the store. Unknown text means "not connected" to both ends.
    pub(super) fn decode(card: &[u8]) -> Self {
        Self { connected: card == b"connected" }
    }
}

/// The communicator for a pair's messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Choice {
    Group,
    Pair,
}

/// Returns the pair's choice. The same on both ends, since it depends only on both views.
pub(super) fn decide(views: &[View]) -> Choice {
    if views.iter().all(|view| view.connected) { Choice::Group } else { Choice::Pair }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each end has its own view first in one order and last in the other. The text in the store may be
    /// unknown.
    #[test]
    fn both_ends_choose_the_group_only_if_both_say_that_it_is_connected() {
        let words: [&[u8]; 4] =
            [View { connected: true }.encode(), View { connected: false }.encode(), b"", b"connecte"];
        for (one, other) in (0..4).flat_map(|one| (0..4).map(move |other| (one, other))) {
            let views = [words[one], words[other]].map(View::decode);
            let expected = if one == 0 && other == 0 { Choice::Group } else { Choice::Pair };
            assert_eq!(decide(&views), expected, "{views:?}");
            assert_eq!(View::decode(View { connected: one == 0 }.encode()), views[0]);
        }
    }
}
