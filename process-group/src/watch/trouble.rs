//! The events that end a group on all of its members, and their text form in the store.

use std::{sync::Arc, time::Duration};

use super::evidence::Divergence;
use crate::{
    group::{GroupError, MessageDifference},
    peers::Loss,
    record::{Progress, plain},
};

/// An event that ends a group. Ranks are ranks in the job. Groups are identified by their ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// A rank is gone. Every group of which it is a member has ended.
    Lost { rank: usize, loss: Loss },
    /// A member has dropped or aborted the group while others may wait for it.
    Left {
        group: String,
        rank: usize,
        /// `dropped` or `aborted`.
        how: String,
        /// Number of collectives that it had called. A member that has called more waits for it in vain.
        collectives: u64,
        /// The members to wake. Known only to the rank that left, and not encoded.
        members: Arc<[usize]>,
    },
    /// A member had a failure that makes the group unusable.
    Failed { group: String, rank: usize, reason: String },
    /// Work of a member was not done in time.
    Overdue {
        group: String,
        rank: usize,
        operation: String,
        sequence: u64,
        waited: Duration,
        /// The members' progress, which shows the ranks that have not joined.
        progress: Progress,
    },
    /// Two members' calls up to this number differ. All members write their call histories.
    Suspect { group: String, number: u64, ranks: [usize; 2] },
    /// Members made different calls.
    Diverged { group: String, divergence: Divergence },
    /// The two ends of a message differ.
    MessagesDiffer { group: String, difference: MessageDifference },
}

/// Parses the next field.
pub(super) fn parse<'a, T: std::str::FromStr>(fields: &mut impl Iterator<Item = &'a str>) -> Option<T> {
    fields.next()?.parse().ok()
}

impl Trouble {
    /// Returns the group that it is about; `None` for a loss, which concerns all groups with the rank.
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

    /// Returns the rank in the job that it is about, if there is one.
    pub(crate) fn culprit(&self) -> Option<usize> {
        match self {
            Self::Lost { rank, .. }
            | Self::Left { rank, .. }
            | Self::Failed { rank, .. }
            | Self::Overdue { rank, .. } => Some(*rank),
            // One of the two ranks, but it is unknown which.
            Self::Suspect { .. } | Self::MessagesDiffer { .. } => None,
            Self::Diverged { divergence, .. } => divergence.ranks.first().copied(),
        }
    }

    /// Returns the error for callers of the group with this name.
    #[cold]
    pub(crate) fn error(&self, group: &str) -> GroupError {
        let group = group.to_owned();
        match self.clone() {
            Self::Lost { rank, loss } => GroupError::Lost { group, rank, loss },
            Self::Left { rank, how, .. } => GroupError::Left { group, rank, how },
            Self::Failed { rank, reason, .. } => GroupError::MemberFailed { group, rank, reason },
            Self::Overdue { rank, operation, sequence, waited, progress, .. } => {
                GroupError::Overdue { group, rank, operation, sequence, waited, progress: Box::new(progress) }
            }
            Self::Diverged { divergence, .. } => {
                GroupError::CollectiveDiverged { group, divergence: Box::new(divergence) }
            }
            Self::MessagesDiffer { difference, .. } => {
                GroupError::MessagesDiffer { group, difference: Box::new(difference) }
            }
            Self::Suspect { ranks: [rank, other], number, .. } => {
                let reason = format!("its calls up to collective {number} differ from those of rank {other}");
                GroupError::MemberFailed { group, rank, reason }
            }
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

    /// Returns true if it adds nothing to `other`, which is in the log already.
    pub(super) fn is_covered_by(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Lost { rank, .. }, Self::Lost { rank: other, .. }) => rank == other,
            (Self::Suspect { group, .. }, other) => other.group() == Some(group),
            (_, Self::Lost { .. } | Self::Suspect { .. }) => false,
            (own, other) => own.group().is_some() && own.group() == other.group(),
        }
    }

    /// Encodes as text: a line of fields between tabs, and more lines for lists.
    pub(super) fn encode(&self) -> String {
        match self {
            Self::Lost { rank, loss: Loss::Silent(time) } => format!("silent\t{rank}\t{}", time.as_micros()),
            Self::Lost { rank, .. } => format!("died\t{rank}"),
            Self::Left { group, rank, how, collectives, .. } => {
                format!("left\t{}\t{rank}\t{}\t{collectives}", plain(group), plain(how))
            }
            Self::Failed { group, rank, reason } => {
                format!("failed\t{}\t{rank}\t{}", plain(group), plain(reason))
            }
            Self::Overdue { group, rank, operation, sequence, waited, progress } => format!(
                "overdue\t{}\t{rank}\t{}\t{sequence}\t{}\n{}",
                plain(group),
                plain(operation),
                waited.as_micros(),
                progress.encode(),
            ),
            Self::Suspect { group, number, ranks: [one, other] } => {
                format!("suspect\t{}\t{number}\t{one}\t{other}", plain(group))
            }
            Self::Diverged { group, divergence } => {
                format!("diverged\t{}\n{}", plain(group), divergence.encode())
            }
            Self::MessagesDiffer { group, difference } => {
                let MessageDifference { from, to, number, sent, received } = difference;
                let (group, sent, received) = (plain(group), plain(sent), plain(received));
                format!("message\t{group}\t{from}\t{to}\t{number}\t{sent}\t{received}")
            }
        }
    }

    /// Decodes such text.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let (head, rest) = text.split_once('\n').unwrap_or((text, ""));
        let mut fields = head.split('\t');
        let kind = fields.next()?;
        let fields = &mut fields;
        Some(match kind {
            "died" => Self::Lost { rank: parse(fields)?, loss: Loss::Died },
            "silent" => {
                Self::Lost { rank: parse(fields)?, loss: Loss::Silent(Duration::from_micros(parse(fields)?)) }
            }
            "left" => Self::Left {
                group: parse(fields)?,
                rank: parse(fields)?,
                how: parse(fields)?,
                collectives: parse(fields)?,
                members: Arc::default(),
            },
            "failed" => Self::Failed { group: parse(fields)?, rank: parse(fields)?, reason: parse(fields)? },
            "overdue" => Self::Overdue {
                group: parse(fields)?,
                rank: parse(fields)?,
                operation: parse(fields)?,
                sequence: parse(fields)?,
                waited: Duration::from_micros(parse(fields)?),
                progress: Progress::decode(rest)?,
            },
            "suspect" => Self::Suspect {
                group: parse(fields)?,
                number: parse(fields)?,
                ranks: [parse(fields)?, parse(fields)?],
            },
            "diverged" => Self::Diverged { group: parse(fields)?, divergence: Divergence::decode(rest)? },
            "message" => Self::MessagesDiffer {
                group: parse(fields)?,
                difference: MessageDifference {
                    from: parse(fields)?,
                    to: parse(fields)?,
                    number: parse(fields)?,
                    sent: parse(fields)?,
                    received: parse(fields)?,
                },
            },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        record::{LastCall, MemberProgress},
        watch::DivergentCall,
    };
    use proptest::prelude::*;

    fn trouble() -> impl Strategy<Value = Trouble> {
        let word = || "[ -~é]{0,12}";
        let time = || any::<u32>().prop_map(|us| Duration::from_micros(us.into()));
        let last = (any::<[u64; 2]>(), prop::option::of("[a-z]{1,9}"), any::<bool>(), time(), word());
        let last = last.prop_map(|([collectives, messages], operation, is_completed, age, site)| LastCall {
            collectives,
            messages,
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
            (word(), any::<usize>(), word(), any::<u64>()).prop_map(|(group, rank, how, collectives)| {
                Trouble::Left { group, rank, how, collectives, members: Arc::default() }
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
        fn troubles_survive_the_store(trouble in trouble()) {
            prop_assert_eq!(Trouble::decode(trouble.encode().as_bytes()), Some(trouble));
        }

        #[test]
        fn what_is_no_trouble_is_passed_over(
            trouble in trouble(), bytes in prop::collection::vec(any::<u8>(), 0..100), cut in any::<prop::sample::Index>(),
        ) {
            let text = trouble.encode();
            let kind = text.split('\t').next().unwrap();
            let other = [b"x", text.as_bytes()].concat();
            // A different kind; fields that are not text; a first line that is cut within its numbers.
            prop_assert_eq!(Trouble::decode(&other), None);
            prop_assert_eq!(Trouble::decode(&[kind.as_bytes(), b"\t\xff", &bytes].concat()), None);
            prop_assert_eq!(Trouble::decode(&text.as_bytes()[..cut.index(kind.len() + 1)]), None);
        }
    }
}
