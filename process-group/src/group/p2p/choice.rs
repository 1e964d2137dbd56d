//! What the two ends of a pair choose under [`Auto`](super::P2pPolicy::Auto).
//!
//! Whether the group is connected is not seen at one moment by both ends: one may be back from the first collective
//! when the other is still in it. So neither goes by what it sees alone. Each says what it saw before its first message
//! with the other, in a meeting of the two; both decide from both words; and what is decided holds for all messages of
//! the pair, so that no later message can be on either side of a change.

/// What one end saw at its first message with the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct View {
    /// Whether the group was connected.
    pub(super) connected: bool,
}

impl View {
    pub(super) fn encode(self) -> &'static [u8] {
        if self.connected { b"connected" } else { b"lazy" }
    }

    /// What stands in the store; a word that nobody says means not connected, to both.
    pub(super) fn decode(card: &[u8]) -> Self {
        Self { connected: card == b"connected" }
    }
}

/// Where a pair's messages go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Choice {
    Group,
    Pair,
}

/// The pair's choice: a function of what both said, whoever is asked.
pub(super) fn decide(views: &[View]) -> Choice {
    if views.iter().all(|view| view.connected) { Choice::Group } else { Choice::Pair }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each end has its own word first in one order and last in the other; what stands in the store may be no word.
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
