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
    use proptest::prelude::*;

    /// One end, as a program that first has its turn of the collective at some step.
    #[derive(Default)]
    struct End {
        connected: bool,
        chosen: Option<Choice>,
        /// What it says in the meeting that it waits in.
        waiting: Option<View>,
        /// Where each of its messages went.
        went: Vec<Choice>,
        attempts: usize,
    }

    /// What happens next.
    #[derive(Debug, Clone, Copy)]
    enum Step {
        /// An end is back from the first collective.
        Connected(usize),
        /// An end calls send or receive, if it does not wait.
        Message(usize),
        /// The deadline of an end that waits passes.
        TimeOut(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            1 => (0usize..2).prop_map(Step::Connected),
            6 => (0usize..2).prop_map(Step::Message),
            2 => (0usize..2).prop_map(Step::TimeOut),
        ];
        prop::collection::vec(step, 0..60)
    }

    proptest! {
        /// Ends that call, wait, give up and see the collective end in any order: the n-th message of the one goes where
        /// the n-th of the other goes.
        #[test]
        fn two_ends_never_choose_apart(steps in steps()) {
            let mut ends = [End::default(), End::default()];
            // Attempts whose outcome is that somebody was absent.
            let mut failed: Vec<usize> = Vec::new();
            for step in steps {
                match step {
                    Step::Connected(end) => ends[end].connected = true,
                    Step::TimeOut(end) => {
                        if ends[end].waiting.take().is_some() {
                            failed.push(ends[end].attempts - 1);
                        }
                    }
                    Step::Message(end) => {
                        let connected = ends[end].connected;
                        let this = &mut ends[end];
                        if this.waiting.is_some() {
                            continue;
                        }
                        if let Some(choice) = this.chosen {
                            this.went.push(choice);
                            continue;
                        }
                        let attempt = this.attempts;
                        this.attempts += 1;
                        if failed.contains(&attempt) {
                            continue;
                        }
                        this.waiting = Some(View { connected });
                        // The meeting is complete when both are at the same attempt.
                        let [a, b] = &mut ends;
                        if a.attempts == b.attempts && let (Some(one), Some(two)) = (a.waiting, b.waiting) {
                            let views = [one, two].map(|view| View::decode(view.encode()));
                            for end in [a, b] {
                                end.waiting = None;
                                end.chosen = Some(decide(&views));
                                end.went.push(decide(&views));
                            }
                        }
                    }
                }
                let [a, b] = &ends;
                prop_assert!(a.went.iter().zip(&b.went).all(|(a, b)| a == b), "{:?} {:?}", a.went, b.went);
            }
        }
    }
}
