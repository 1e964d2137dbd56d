//! What ends a group on all of its members, and how they tell each other: as text, in the store.

use std::{sync::Arc, time::Duration};

use super::evidence::Divergence;
use crate::{
    group::{GroupError, MessageDifference},
    peers::Loss,
    record::{Progress, plain},
};

/// Something that ends a group. Ranks are ranks of the job, groups are known by their ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// A rank is gone: every group that it is a member of is over.
    Lost { rank: usize, loss: Loss },
    /// A member has let go of the group while others may wait for it.
    Left {
        group: String,
        rank: usize,
        /// Dropped or aborted.
        how: String,
        /// How many collectives it had called: a member that has called more waits for it in vain.
        collectives: u64,
        /// The members, who are woken. Known to the rank that left only: it is not encoded.
        members: Arc<[usize]>,
    },
    /// A member met something that leaves the group useless.
    Failed { group: String, rank: usize, reason: String },
    /// Work of a member was not done in time.
    Overdue {
        group: String,
        rank: usize,
        operation: String,
        sequence: u64,
        waited: Duration,
        /// Who has not joined.
        progress: Progress,
    },
    /// Two members' calls up to this number differ: all testify.
    Suspect { group: String, number: u64, ranks: [usize; 2] },
    /// Members called different things.
    Diverged { group: String, divergence: Divergence },
    /// The two ends of a message did.
    MessagesDiffer { group: String, difference: MessageDifference },
}

/// The next field, as a number or whatever else it should be.
pub(super) fn parse<'a, T: std::str::FromStr>(fields: &mut impl Iterator<Item = &'a str>) -> Option<T> {
    fields.next()?.parse().ok()
}

impl Trouble {
    /// The group that it is about; a loss is about all that have the rank.
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

    /// The rank of the job that it is about, if it is one.
    pub(crate) fn culprit(&self) -> Option<usize> {
        match self {
            Self::Lost { rank, .. }
            | Self::Left { rank, .. }
            | Self::Failed { rank, .. }
            | Self::Overdue { rank, .. } => Some(*rank),
            // One of the two, and nobody knows which.
            Self::Suspect { .. } | Self::MessagesDiffer { .. } => None,
            Self::Diverged { divergence, .. } => divergence.ranks.first().copied(),
        }
    }

    /// What a group of this name that it ends tells its callers.
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

    /// Where the first rank that tells of it says so: that rank alone wakes the others.
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

    /// Whether it says no more than `other` does, which stands already.
    pub(super) fn is_covered_by(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Lost { rank, .. }, Self::Lost { rank: other, .. }) => rank == other,
            (Self::Suspect { group, .. }, other) => other.group() == Some(group),
            (_, Self::Lost { .. } | Self::Suspect { .. }) => false,
            (own, other) => own.group().is_some() && own.group() == other.group(),
        }
    }

    /// As text: a line of fields between tabs, and more lines where there are lists.
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

    /// From such text.
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
            // Another kind; fields that are no text; a first line that is cut within its numbers.
            prop_assert_eq!(Trouble::decode(&other), None);
            prop_assert_eq!(Trouble::decode(&[kind.as_bytes(), b"\t\xff", &bytes].concat()), None);
            prop_assert_eq!(Trouble::decode(&text.as_bytes()[..cut.index(kind.len() + 1)]), None);
        }
    }
}
