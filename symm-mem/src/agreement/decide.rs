//! The decisions, as pure functions of the members' messages.
//!
//! A decision is computed only by a member that has all messages or whose wait has timed out. All members follow the
//! decision stored first. Decisions depend on the set of records and not on their order, so the error is the same
//! whichever member computes it.

use process_group::group::GroupId;

use super::{
    ValuesByRank,
    poison::{NoWindows, Poison},
    ranks::RankList,
    record::{Enqueued, Policy, Readiness, Record, Segment, WindowSupport},
    refusal::{Capability, Identity, Membership, Refusal, Shape},
    search::Range,
    wire::{Malformed, Message, wire_enum},
};

/// The decision that all members follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// The first `segments` of the new segments are committed for the group.
    Commit {
        /// The members that decided. The decision is valid for these members only.
        members: RankList,
        /// The number of segments.
        segments: u32,
        /// The ordinals of those that share a window with the segment before them, ascending.
        joined: Vec<u32>,
        /// `None` if the segments get windows, otherwise the reason why not.
        without: Option<NoWindows>,
        /// The difference because of which segments were left out ([`Policy::Prefix`]).
        pending: Option<Refusal>,
        /// The range in which to search for the first difference, before the registration.
        search: Option<Range>,
        /// The longest deadline among the members, in milliseconds. It sets the budgets of the later phases.
        deadline_ms: u64,
    },
    /// Nothing is registered.
    Refuse {
        /// The reason.
        refusal: Refusal,
        /// The range in which to search for the first difference.
        search: Option<Range>,
        /// The longest deadline among the members, in milliseconds. It sets the budgets of the later phases.
        deadline_ms: u64,
    },
    /// The group is dead.
    Poison {
        /// The reason for it.
        poison: Poison,
    },
    /// The segments that all ranks named are retired.
    Retire {
        /// The ranks that decided. The decision is valid for these ranks only.
        members: RankList,
        /// The longest deadline among the members, in milliseconds. It sets the budgets of the later phases.
        deadline_ms: u64,
    },
    /// All ranks allocate this length.
    Reserve {
        /// The ranks that decided. The decision is valid for these ranks only.
        members: RankList,
        /// The greatest requested length, in bytes.
        bytes: u64,
    },
}
wire_enum!(Decision {
    0 => Commit { members, segments, joined, without, pending, search, deadline_ms },
    1 => Refuse { refusal, search, deadline_ms },
    2 => Poison { poison },
    3 => Retire { members, deadline_ms },
    4 => Reserve { members, bytes },
});

impl Message for Decision {
    const PROTOCOL: crate::agreement::wire::Protocol = crate::agreement::PROTOCOL;
    const KIND: u8 = 3;
}

impl Decision {
    /// A refusal without a search.
    pub(crate) fn refuse(refusal: Refusal) -> Self {
        Self::Refuse { refusal, search: None, deadline_ms: 0 }
    }

    /// Returns true if the decision was made from the records of all members.
    pub(super) fn is_of_all(&self) -> bool {
        let Self::Refuse { refusal, .. } = self else { return true };
        !matches!(
            refusal,
            Refusal::SyncTimeout { .. }
                | Refusal::GenerationMismatch { .. }
                | Refusal::EpochMismatch { .. }
                | Refusal::MembersMismatch { .. }
                | Refusal::VersionMismatch { .. }
                | Refusal::RecordUnreadable { .. }
                // A rank that cannot take part refuses without waiting for the others.
                | Refusal::PeerPrepareFailed { .. }
        )
    }

    /// Returns the ranks that decided, if the decision is to do something.
    pub(super) fn members(&self) -> Option<&RankList> {
        match self {
            Self::Commit { members, .. } | Self::Retire { members, .. } | Self::Reserve { members, .. } => {
                Some(members)
            }
            Self::Refuse { .. } | Self::Poison { .. } => None,
        }
    }

    /// Encodes the decision.
    pub fn encode(&self) -> Vec<u8> {
        self.to_bytes()
    }

    /// Decodes a decision.
    ///
    /// # Errors
    /// [`Malformed`] for all bytes that [`encode`](Self::encode) of this protocol version does not produce.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        Self::from_bytes(bytes)
    }
}

/// Decides from the records of all members. The result does not depend on the order of the records.
///
/// The checks, in this order: an earlier poisoning; equal identity, policy and capabilities of the commit on all
/// ranks; the log of committed segments; the readiness of every rank; half-enqueued collectives and messages; the new
/// segments with their histories; the address space.
pub fn decide(records: &[Record]) -> Decision {
    let mut sorted: Vec<&Record> = records.iter().collect();
    sorted.sort_by_key(|record| record.rank);
    let records = sorted.as_slice();
    let deadline_ms = records.iter().map(|record| record.deadline_ms).max().unwrap_or(0);

    if let Some(poison) = poisoned(records) {
        return Decision::Poison { poison };
    }
    if let Some(refusal) = misaddressed(records).or_else(|| incapable(records)) {
        return Decision::Refuse { refusal, search: None, deadline_ms };
    }
    let committed = split(records, |record| record.committed);
    if !committed.is_unanimous() {
        return Decision::Poison { poison: Poison::CommittedLogDiverged { logs: committed } };
    }
    let policy = records.first().map(|record| record.policy).unwrap_or_default();
    let common = common_segments(records);
    if let Some(refusal) = unready(records, policy, common).or_else(|| outstanding(records)) {
        return Decision::Refuse { refusal, search: None, deadline_ms };
    }

    let difference = difference(records, common);
    let search = difference.as_ref().and_then(|_| Range::of_difference(records));
    let pending = match (policy, difference) {
        (Policy::Strict, Some(refusal)) => return Decision::Refuse { refusal, search, deadline_ms },
        (_, difference) => difference,
    };
    let without = without_windows(records);
    let segments = records.first().map_or(&[][..], |record| &record.segments[..common]);
    if without.is_none()
        && let Some(refusal) = exhausted(records, segments)
    {
        return Decision::Refuse { refusal, search: None, deadline_ms };
    }
    let joined = joined(records, common);
    let members = records.first().map(|record| record.members.clone()).unwrap_or_default();
    Decision::Commit { members, segments: common as u32, joined, without, pending, search, deadline_ms }
}

fn split<V: PartialEq>(records: &[&Record], value: impl Fn(&Record) -> V) -> ValuesByRank<V> {
    ValuesByRank::of(records.iter().map(|record| (record.rank, value(record))))
}

fn poisoned(records: &[&Record]) -> Option<Poison> {
    records.iter().find_map(|record| match &record.readiness {
        Readiness::Poisoned { poison } => Some(poison.clone()),
        _ => None,
    })
}

fn misaddressed(records: &[&Record]) -> Option<Refusal> {
    type Field = fn(&Record) -> u64;
    let identities: [(Identity, Field); 5] = [
        (Identity::Domain, |record| record.pool.domain),
        (Identity::Generation, |record| record.pool.generation),
        (Identity::Pool, |record| record.pool.pool.into()),
        (Identity::Group, |record| record.group.uid),
        (Identity::Round, |record| record.round),
    ];
    let epochs = split(records, |record| record.group.epoch);
    if !epochs.is_unanimous() {
        return Some(Refusal::EpochMismatch { epochs });
    }
    let lists = |list: fn(&Record) -> &RankList| records.iter().map(move |it| (it.rank, list(it)));
    let differs = unlike(Membership::Group, lists(|record| &record.members))
        .or_else(|| unlike(Membership::Domain, lists(|record| &record.domain)));
    if differs.is_some() {
        return differs;
    }
    for (what, value) in identities {
        let values = split(records, value);
        if !values.is_unanimous() {
            return Some(Refusal::IdentityMismatch { what, values });
        }
    }
    let policies = split(records, |record| record.policy);
    (!policies.is_unanimous()).then_some(Refusal::PolicyMismatch { policies })
}

/// Returns a refusal if ranks have different lists of participants.
pub(super) fn unlike<'a>(
    what: Membership,
    lists: impl Iterator<Item = (u32, &'a RankList)>,
) -> Option<Refusal> {
    let lists = ValuesByRank::of(lists);
    (!lists.is_unanimous()).then(|| Refusal::MembersMismatch { what, lists: lists.map(Clone::clone) })
}

fn incapable(records: &[&Record]) -> Option<Refusal> {
    let libraries = split(records, |record| record.capabilities.library.to_string());
    if !libraries.is_unanimous() {
        return Some(Refusal::CapabilityMismatch { what: Capability::Library, values: libraries });
    }
    // Ranks may lack windows for different reasons. The check only compares if they have windows.
    let lacking = |record: &Record| record.capabilities.windows != WindowSupport::Available;
    if split(records, lacking).is_unanimous() {
        return None;
    }
    let values = split(records, |record| match &record.capabilities.windows {
        WindowSupport::Available => "available".to_owned(),
        WindowSupport::Unavailable { reason } => format!("unavailable ({reason})"),
    });
    Some(Refusal::CapabilityMismatch { what: Capability::Windows, values })
}

fn unready(records: &[&Record], policy: Policy, common: usize) -> Option<Refusal> {
    let is_in_question = |record: &Record| match record.readiness {
        // A segment that is left out need not become a window.
        Readiness::Failed { ordinal: Some(ordinal), .. } if policy == Policy::Prefix => {
            record.segments.iter().take(common).any(|segment| segment.ordinal == ordinal)
        }
        _ => true,
    };
    let records = records.iter().filter(|record| is_in_question(record));
    not_ready(records.map(|record| (record.rank, &record.readiness)))
}

/// Returns the refusal if some of the `ranks`, ascending, cannot take part now.
pub(super) fn not_ready<'a>(ranks: impl Iterator<Item = (u32, &'a Readiness)> + Clone) -> Option<Refusal> {
    let failed = ranks.clone().find_map(|(rank, readiness)| match readiness {
        Readiness::Failed { ordinal, cause } => {
            Some(Refusal::PeerPrepareFailed { rank, ordinal: *ordinal, cause: cause.clone() })
        }
        _ => None,
    });
    let ranks_that = |wanted: Readiness| -> Vec<u32> {
        ranks.clone().filter(|(_, readiness)| **readiness == wanted).map(|(rank, _)| rank).collect()
    };
    failed
        .or_else(|| {
            let ranks = ranks_that(Readiness::Capturing);
            (!ranks.is_empty()).then_some(Refusal::CommitDuringCapture { ranks })
        })
        .or_else(|| {
            let ranks = ranks_that(Readiness::GroupOpen);
            (!ranks.is_empty()).then_some(Refusal::CommitInsideGroup { ranks })
        })
}

fn outstanding(records: &[&Record]) -> Option<Refusal> {
    half_enqueued(records.iter().map(|record| (record.rank, record.enqueued.as_slice())))
}

/// Returns a refusal if a collective, or an end of a message, was enqueued by some ranks of a shared group and not by
/// others.
pub(super) fn half_enqueued<'a>(
    ranks: impl Iterator<Item = (u32, &'a [Enqueued])> + Clone,
) -> Option<Refusal> {
    let mut groups: Vec<GroupId> =
        ranks.clone().flat_map(|(_, enqueued)| enqueued).map(|enqueued| enqueued.group).collect();
    groups.sort_unstable();
    groups.dedup();
    groups.into_iter().find_map(|group| {
        let of_group = |(rank, enqueued): (u32, &'a [Enqueued])| {
            Some((rank, enqueued.iter().find(|enqueued| enqueued.group == group)?))
        };
        let ranks: Vec<(u32, &Enqueued)> = ranks.clone().filter_map(of_group).collect();
        let collectives =
            ValuesByRank::of(ranks.iter().map(|(rank, enqueued)| (*rank, enqueued.collectives)));
        match collectives.is_unanimous() {
            true => half_exchanged(group, &ranks),
            false => Some(Refusal::CollectivesOutstanding { group, collectives }),
        }
    })
}

/// Finds the first two of `ranks`, ascending, that differ in the number of messages sent from one to the other.
/// Messages with ranks that do not take part are skipped, because the counts of these ranks are unknown.
fn half_exchanged(group: GroupId, ranks: &[(u32, &Enqueued)]) -> Option<Refusal> {
    let ends = ranks.iter().flat_map(|(rank, enqueued)| enqueued.messages.iter().map(|own| (*rank, own)));
    ends.filter(|(_, own)| !own.captured).find_map(|(rank, own)| {
        let at = ranks.binary_search_by_key(&own.peer, |(rank, _)| *rank).ok()?;
        let others = &ranks[at].1.messages;
        let other = others.binary_search_by_key(&rank, |other| other.peer).ok().map(|at| others[at]);
        let (sent, received) = match other {
            Some(other) if other.captured => return None,
            Some(other) => (other.sent, other.received),
            None => (0, 0),
        };
        let outstanding = |from, to, sent, received| {
            (sent != received).then_some(Refusal::MessagesOutstanding { group, from, to, sent, received })
        };
        outstanding(rank, own.peer, own.sent, received)
            .or_else(|| outstanding(own.peer, rank, sent, own.received))
    })
}

/// The number of new segments, from the first, that all records have in common.
fn common_segments(records: &[&Record]) -> usize {
    let Some((first, others)) = records.split_first() else { return 0 };
    let same = |(at, segment): (usize, &Segment)| {
        let alone = segment.alone();
        others.iter().all(|record| record.segments.get(at).is_some_and(|other| other.alone() == alone))
    };
    first.segments.iter().enumerate().take_while(|entry| same(*entry)).count()
}

/// The ordinals of the `common` new segments that follow the previous segment on all ranks.
fn joined(records: &[&Record], common: usize) -> Vec<u32> {
    let Some((first, _)) = records.split_first() else { return Vec::new() };
    let follows = |at: usize| records.iter().all(|it| it.segments.get(at).is_some_and(Segment::follows));
    (1..common).filter(|at| follows(*at)).map(|at| first.segments[at].ordinal).collect()
}

/// Returns the difference between the records after the `common` new segments.
fn difference(records: &[&Record], common: usize) -> Option<Refusal> {
    let at = split(records, |record| record.segments.get(common).map(|segment| segment.alone()));
    let common_count = common as u32;
    if at.is_unanimous() {
        // No rank has a segment here, so the lists are equal. The logs may still differ after the last segment.
        let logs = split(records, |record| record.log);
        return (!logs.is_unanimous()).then_some(Refusal::AllocationDiverged {
            ordinal: None,
            common: common_count,
            logs,
            divergence: None,
        });
    }
    let ordinal = at.entries.iter().filter_map(|side| Some(side.value?.ordinal)).min().unwrap_or(0);
    let here = |record: &Record| {
        record.segments.get(common).map(|segment| segment.alone()).filter(|it| it.ordinal == ordinal)
    };
    let shape = |segment: Segment| Shape { bytes: segment.bytes, flags: segment.flags };
    let present: Option<Vec<(u32, Segment)>> =
        records.iter().map(|record| Some((record.rank, here(record)?))).collect();
    Some(match present {
        None => Refusal::SegmentCountMismatch {
            ordinal,
            common: common_count,
            counts: split(records, |record| record.segments.len() as u32),
            shapes: split(records, |record| here(record).map(shape)),
            divergence: None,
        },
        Some(segments) => {
            let shapes = ValuesByRank::of(segments.iter().map(|(rank, segment)| (*rank, shape(*segment))));
            if shapes.is_unanimous() {
                let logs = ValuesByRank::of(segments.iter().map(|(rank, segment)| (*rank, segment.log)));
                Refusal::AllocationDiverged {
                    ordinal: Some(ordinal),
                    common: common_count,
                    logs,
                    divergence: None,
                }
            } else {
                Refusal::SegmentShapeMismatch { ordinal, common: common_count, shapes, divergence: None }
            }
        }
    })
}

fn without_windows(records: &[&Record]) -> Option<NoWindows> {
    if records.len() <= 1 {
        return Some(NoWindows::SingleMember {});
    }
    records.iter().find_map(|record| match &record.capabilities.windows {
        WindowSupport::Available => None,
        WindowSupport::Unavailable { reason } => Some(NoWindows::Unsupported { reason: reason.clone() }),
    })
}

fn exhausted(records: &[&Record], segments: &[Segment]) -> Option<Refusal> {
    let needed = segments.iter().fold(0u64, |sum, segment| sum.saturating_add(segment.bytes));
    let (left, rank) =
        records.iter().filter_map(|record| Some((record.address_space_left?, record.rank))).min()?;
    (left < needed).then_some(Refusal::AddressSpaceExhausted { rank, needed, left })
}

/// The outcome of the registration on one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// All windows are registered.
    Registered,
    /// The library reported that it has no windows for this group. No window was registered.
    Unsupported {
        /// The reason; the same text on every rank in the same situation.
        reason: String,
    },
    /// A call failed.
    Failed {
        /// The segment, if known.
        ordinal: Option<u32>,
        /// The error of the library.
        cause: String,
    },
    /// The call did not return in time.
    Blocked,
    /// The call failed because another member had ended the group.
    Ended {
        /// That member.
        rank: u32,
    },
}
wire_enum!(Outcome {
    0 => Registered {},
    1 => Unsupported { reason },
    2 => Failed { ordinal, cause },
    3 => Blocked {},
    4 => Ended { rank },
});

impl Message for Outcome {
    const PROTOCOL: crate::agreement::wire::Protocol = crate::agreement::PROTOCOL;
    const KIND: u8 = 4;
}

/// The common result of the members' outcomes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// All members have all windows.
    Registered,
    /// No member has a window.
    Without {
        /// The reason.
        reason: NoWindows,
    },
    /// The group is dead.
    Poison {
        /// The reason.
        poison: Poison,
    },
}
wire_enum!(Verdict { 0 => Registered {}, 1 => Without { reason }, 2 => Poison { poison } });

impl Message for Verdict {
    const PROTOCOL: crate::agreement::wire::Protocol = crate::agreement::PROTOCOL;
    const KIND: u8 = 5;
}

impl Verdict {
    /// Decodes a verdict, as stored in the store.
    ///
    /// # Errors
    /// [`Malformed`] for all bytes that are not a verdict of this protocol version.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        Self::from_bytes(bytes)
    }
}

/// Computes the verdict from the outcomes of all members (rank, and its outcome if it posted one). The result does
/// not depend on their order.
///
/// A failure takes precedence over a missing outcome. A missing outcome takes precedence over a blocked registration,
/// which may only have waited for the missing rank. If a member reports that another one ended the group, only that
/// one is blamed: the end aborts the communicators of all members, so the registrations of the others fail too.
pub fn verdict(outcomes: &[(u32, Option<Outcome>)]) -> Verdict {
    let mut outcomes: Vec<&(u32, Option<Outcome>)> = outcomes.iter().collect();
    outcomes.sort_by_key(|(rank, _)| *rank);
    let ranks_that = |is: fn(&Option<Outcome>) -> bool| -> Vec<u32> {
        outcomes.iter().filter(|(_, outcome)| is(outcome)).map(|(rank, _)| *rank).collect()
    };

    let ended = outcomes.iter().find_map(|(_, outcome)| match outcome {
        Some(Outcome::Ended { rank }) => Some(*rank),
        _ => None,
    });
    let failure = outcomes.iter().find_map(|(rank, outcome)| match outcome {
        Some(Outcome::Failed { ordinal, cause }) if ended.is_none_or(|it| it == *rank) => {
            Some(Poison::RegistrationFailed { rank: *rank, ordinal: *ordinal, cause: cause.clone() })
        }
        _ => None,
    });
    if let Some(poison) = failure {
        return Verdict::Poison { poison };
    }
    let missing = ended.map_or_else(|| ranks_that(Option::is_none), |rank| vec![rank]);
    let blocked = ranks_that(|outcome| *outcome == Some(Outcome::Blocked));
    if !missing.is_empty() {
        return Verdict::Poison { poison: Poison::MembersLost { missing, blocked } };
    }
    if !blocked.is_empty() {
        return Verdict::Poison { poison: Poison::RegistrationBlocked { ranks: blocked } };
    }
    let reason = outcomes.iter().find_map(|(_, outcome)| match outcome {
        Some(Outcome::Unsupported { reason }) => Some(reason.clone()),
        _ => None,
    });
    let with = ranks_that(|outcome| *outcome == Some(Outcome::Registered));
    match reason {
        None => Verdict::Registered,
        Some(reason) if with.is_empty() => Verdict::Without { reason: NoWindows::Unsupported { reason } },
        Some(reason) => {
            let without = ranks_that(|outcome| matches!(outcome, Some(Outcome::Unsupported { .. })));
            Verdict::Poison { poison: Poison::WindowsUnsupported { with, without, reason } }
        }
    }
}
