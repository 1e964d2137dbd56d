//! The events that end a group on all of its members.

use std::{sync::Arc, time::Duration};

use bootstrap::wire::{Unsent, wire_enum};

use super::evidence::{Divergence, MessageDifference};
use crate::{messages::message, peers::Loss, record::Progress};

/// An event that ends a group, or, for `Suspect`, makes its members compare their calls. Ranks are ranks in
/// the job. Groups are identified by their ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// A rank is lost. Ends every group of which that rank is a member.
    Lost { rank: usize, loss: Loss },
    /// A member has dropped or aborted the group while others may wait for that member. Or a member has destroyed the
    /// group after fewer collectives and marked graph launches than another member.
    Left {
        group: String,
        rank: usize,
        /// `dropped`, `aborted` or `destroyed`.
        how: String,
        /// Number of collectives that the rank had called, plus the graph launches that it had marked. A member with
        /// more waits for that rank in vain.
        steps: u64,
        /// The members to wake. Not stored, so only the rank that reports the trouble knows them: the rank that left,
        /// or, for `destroyed`, another member.
        members: Unsent<Arc<[usize]>>,
    },
    /// A member had a failure that makes the group unusable.
    Failed { group: String, rank: usize, reason: String },
    /// An operation of a member was not complete in time.
    Overdue {
        group: String,
        rank: usize,
        operation: String,
        sequence: u64,
        waited: Duration,
        /// The members' progress, which shows the ranks that have not joined.
        progress: Progress,
    },
    /// The hashes of two members' calls up to collective `number` differ. Does not end the group: all members
    /// then write their call histories.
    Suspect { group: String, number: u64, ranks: [usize; 2] },
    /// Members made different calls.
    Diverged { group: String, divergence: Divergence },
    /// The two ends of a message differ.
    MessagesDiffer { group: String, difference: MessageDifference },
}

impl Trouble {
    /// The value of `how` in [`Left`](Self::Left) for a member that has destroyed the group.
    pub(crate) const DESTROYED: &str = "destroyed";

    /// Returns the id of the group that the trouble concerns. `None` for a loss, which concerns all groups of
    /// the lost rank.
    pub(crate) fn group(&self) -> Option<&str> {
        match self {
            Self::Lost { .. } => None,
            Self::Left { group, .. }
            | Self::Failed { group, .. }
            | Self::Overdue { group, .. }
            | Self::Suspect { group, .. }
            | Self::Diverged { group, .. }
            | Self::MessagesDiffer { group, .. } => Some(group),
        }
    }

    /// Returns the rank in the job to which the trouble is attributed, if there is one.
    pub(crate) fn culprit(&self) -> Option<usize> {
        match self {
            Self::Lost { rank, .. }
            | Self::Left { rank, .. }
            | Self::Failed { rank, .. }
            | Self::Overdue { rank, .. } => Some(*rank),
            // One of two ranks has caused the trouble, but it is not known which.
            Self::Suspect { .. } | Self::MessagesDiffer { .. } => None,
            Self::Diverged { divergence, .. } => divergence.ranks.first().copied(),
        }
    }

    /// Returns the store key that the first reporting rank claims. Only that rank wakes the others.
    pub(super) fn claim(&self) -> String {
        let kind = match self {
            Self::Lost { rank, .. } => return format!("claims/lost/{rank}"),
            Self::Left { .. } => "left",
            Self::Failed { .. } => "failed",
            Self::Overdue { .. } => "overdue",
            Self::Suspect { .. } => "suspect",
            Self::Diverged { .. } => "diverged",
            Self::MessagesDiffer { .. } => "message",
        };
        format!("claims/{kind}/{}", self.group().unwrap_or_default())
    }

    /// Returns true if this trouble adds nothing to `other`, which is in the log already.
    pub(super) fn is_covered_by(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Lost { rank, .. }, Self::Lost { rank: other, .. }) => rank == other,
            (Self::Suspect { group, .. }, other) => other.group() == Some(group),
            (_, Self::Lost { .. } | Self::Suspect { .. }) => false,
            (own, other) => own.group().is_some() && own.group() == other.group(),
        }
    }
}

wire_enum!(Trouble {
    0 => Lost { rank, loss },
    1 => Left { group, rank, how, steps, members },
    2 => Failed { group, rank, reason },
    3 => Overdue { group, rank, operation, sequence, waited, progress },
    4 => Suspect { group, number, ranks },
    5 => Diverged { group, divergence },
    6 => MessagesDiffer { group, difference },
});
message!(Trouble, TROUBLE);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        record::{LastCall, MemberProgress},
        watch::DivergentCall,
    };
    use bootstrap::wire::Message;
    use proptest::prelude::*;

    fn trouble() -> impl Strategy<Value = Trouble> {
        let word = || "[ -~é]{0,12}";
        let time = || any::<u32>().prop_map(|us| Duration::from_micros(us.into()));
        let last = (any::<[u64; 3]>(), prop::option::of("[a-z]{1,9}"), any::<bool>(), time(), word());
        let last = last.prop_map(|(counts, operation, is_completed, age, site)| LastCall {
            collectives: counts[0],
            messages: counts[1],
            graph_launches: counts[2],
            operation,
            is_completed,
            age,
            site,
        });
        let member =
            (any::<usize>(), prop::option::of(last)).prop_map(|(rank, last)| MemberProgress { rank, last });
        let progress = (word(), prop::collection::vec(member, 0..4))
            .prop_map(|(group, members)| Progress { group, members });
        let call = (any::<usize>(), word(), word()).prop_map(|(rank, call, site)| DivergentCall {
            rank,
            call,
            site,
        });
        let divergence = (
            any::<[u64; 2]>(),
            prop::collection::vec(any::<usize>(), 0..4),
            prop::collection::vec(call, 0..4),
        )
            .prop_map(|([after, by], ranks, calls)| Divergence { ranks, after, by, calls });
        prop_oneof![
            any::<usize>().prop_map(|rank| Trouble::Lost { rank, loss: Loss::Died }),
            (any::<usize>(), time())
                .prop_map(|(rank, time)| Trouble::Lost { rank, loss: Loss::Silent(time) }),
            (word(), any::<usize>(), word(), any::<u64>()).prop_map(|(group, rank, how, steps)| {
                Trouble::Left { group, rank, how, steps, members: Unsent::default() }
            }),
            (word(), any::<usize>(), word()).prop_map(|(group, rank, reason)| Trouble::Failed {
                group,
                rank,
                reason
            }),
            (word(), any::<usize>(), word(), any::<u64>(), time(), progress).prop_map(
                |(group, rank, operation, sequence, waited, progress)| Trouble::Overdue {
                    group,
                    rank,
                    operation,
                    sequence,
                    waited,
                    progress
                }
            ),
            (word(), any::<u64>(), any::<[usize; 2]>()).prop_map(|(group, number, ranks)| Trouble::Suspect {
                group,
                number,
                ranks
            }),
            (word(), divergence).prop_map(|(group, divergence)| Trouble::Diverged { group, divergence }),
            (word(), any::<[usize; 2]>(), any::<u64>(), word(), word()).prop_map(
                |(group, [from, to], number, sent, received)| Trouble::MessagesDiffer {
                    group,
                    difference: MessageDifference { from, to, number, sent, received },
                }
            ),
        ]
    }

    proptest! {
        #[test]
        fn troubles_round_trip(trouble in trouble()) {
            prop_assert_eq!(Trouble::from_bytes(&trouble.to_bytes()), Ok(trouble));
        }
    }
}
