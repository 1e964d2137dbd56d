//! Tests of the binary form of the messages, and of the decision and the verdict of a commit. In a commit, each member
//! posts a *record*. The *decision* follows from the records of all members. If it is to register segments as windows,
//! each member posts the *outcome* of its registration. The *verdict* follows from all outcomes.

mod drive;
mod endings;
mod opening;
mod retirements;

use std::collections::BTreeMap;

use proptest::{
    collection::{btree_map, vec},
    option,
    prelude::*,
    sample::select,
};

use super::{
    ValuesByRank,
    poison::*,
    record::*,
    refusal::*,
    wire::{Malformed, Reader, Wire},
    *,
};

fn log_point() -> impl Strategy<Value = LogPoint> {
    (0u64..4, 0u64..3).prop_map(|(length, hash)| LogPoint { length, hash })
}

fn readiness() -> impl Strategy<Value = Readiness> {
    prop_oneof![
        12 => Just(Readiness::Ready),
        1 => Just(Readiness::Capturing),
        1 => Just(Readiness::GroupOpen),
        1 => (option::of(0u32..3), "[a-zß]{0,5}")
            .prop_map(|(ordinal, cause)| Readiness::Failed { ordinal, cause }),
        1 => vec(0u32..9, 1..3)
            .prop_map(|ranks| Readiness::Poisoned(Poison::RegistrationBlocked { ranks })),
    ]
}

fn capabilities() -> impl Strategy<Value = Capabilities> {
    let windows = prop_oneof![
        8 => Just(WindowSupport::Available),
        1 => Just(WindowSupport::Unavailable { reason: "2.28.3".to_owned() }),
        1 => Just(WindowSupport::NotRequested),
    ];
    (select(vec![22809u32, 22809, 22809, 23007]), windows)
        .prop_map(|(library, windows)| Capabilities { library, windows })
}

/// Draws a record. Each field has few values, so two drawn records are often equal in a field.
fn record() -> impl Strategy<Value = CommitRecord> {
    let wishes = (select(vec![Policy::Strict, Policy::Prefix]), option::of(0u64..1 << 22));
    let segments = vec((select(vec![1u64 << 20, 1 << 20, 1 << 21]), log_point()), 0..4);
    let wishes = (wishes, opening::offer());
    let messages = btree_map(0u32..4, (0u64..2, 0u64..2, proptest::bool::weighted(0.2)), 0..3);
    let enqueued = btree_map(0u64..3, (0u64..2, messages), 0..3);
    (wishes, readiness(), capabilities(), (log_point(), log_point(), log_point()), segments, enqueued)
        .prop_map(|(wishes, readiness, capabilities, logs, segments, enqueued)| {
            let ((policy, address_space_left), peers) = wishes;
            let segments = (0..).zip(segments);
            CommitRecord {
                domain: RankList((0..8).collect()),
                policy,
                readiness,
                capabilities,
                enqueued: enqueued.into_iter().map(enqueued_on).collect(),
                address_space_left,
                committed: logs.0,
                log: logs.1,
                log_since: logs.2.length,
                segments: segments
                    .map(|(ordinal, (bytes, log))| Segment { ordinal, bytes, flags: 0, log })
                    .collect(),
                peers,
            }
        })
}

/// By peer: the numbers of messages sent and received, and whether graphs have captured any of them.
type Drawn = BTreeMap<u32, (u64, u64, bool)>;

fn enqueued_on((uid, (collectives, messages)): (u64, (u64, Drawn))) -> Enqueued {
    let with = |(peer, (sent, received, captured))| MessageCounts { peer, sent, received, captured };
    let messages = messages.into_iter().map(with).collect();
    Enqueued { group: GroupId { uid, epoch: 0 }, collectives, messages }
}

/// Draws the records of a group. Each record is a copy of one model with at most one field changed, because independent
/// records would differ in almost every field.
fn records() -> impl Strategy<Value = Vec<(u32, CommitRecord)>> {
    (record(), vec((record(), 0u32..13), 1..6)).prop_map(|(model, others)| {
        (0..)
            .zip(others)
            .map(|(rank, (other, field))| {
                let mut record = model.clone();
                match field {
                    0 => record.segments = other.segments,
                    1 => record.log = other.log,
                    2 => record.committed = other.committed,
                    3 => record.enqueued = other.enqueued,
                    4 => record.readiness = other.readiness,
                    5 => record.capabilities = other.capabilities,
                    6 => record.domain.0.truncate(4),
                    7 => record.address_space_left = other.address_space_left,
                    8 => record.policy = other.policy,
                    9 => record.segments.truncate(1),
                    10 => record.peers = other.peers,
                    _ => {}
                }
                (rank, record)
            })
            .collect()
    })
}

/// Returns the counts of both ranks' enqueued work, for each group for which both records have an entry.
fn shared<'a>(
    own: &'a CommitRecord,
    other: &'a CommitRecord,
) -> impl Iterator<Item = (&'a Enqueued, &'a Enqueued)> {
    let of = |group| other.enqueued.iter().find(move |it| it.group == group);
    own.enqueued.iter().filter_map(move |mine| Some((mine, of(mine.group)?)))
}

fn permuted<T: Clone + std::fmt::Debug + 'static>(
    values: impl Strategy<Value = Vec<T>>,
) -> impl Strategy<Value = (Vec<T>, Vec<T>)> {
    values.prop_flat_map(|values| (Just(values.clone()), Just(values).prop_shuffle()))
}

fn outcome() -> impl Strategy<Value = RegistrationOutcome> {
    prop_oneof![
        4 => Just(RegistrationOutcome::Registered),
        2 => Just(RegistrationOutcome::Unsupported { reason: "no".to_owned() }),
        1 => Just(RegistrationOutcome::Blocked),
        1 => option::of(0u32..3).prop_map(|ordinal| RegistrationOutcome::Failed { ordinal, cause: "x".to_owned() }),
    ]
}

fn outcomes() -> impl Strategy<Value = Vec<(u32, Option<RegistrationOutcome>)>> {
    vec(option::weighted(0.9, outcome()), 1..6).prop_map(|outcomes| (0..).zip(outcomes).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn every_order_of_records_gives_the_same_decision((records, shuffled) in permuted(records())) {
        let decision = decide(&records);
        prop_assert_eq!(&decision, &decide(&shuffled));
        prop_assert_eq!(read(&bytes(&decision)), Ok(decision));
    }

    #[test]
    fn every_order_of_outcomes_gives_the_same_verdict((outcomes, shuffled) in permuted(outcomes())) {
        let judged = judge_registrations(&agreed(), &outcomes);
        prop_assert_eq!(&judged, &judge_registrations(&agreed(), &shuffled));
        prop_assert_eq!(read(&bytes(&judged)), Ok(judged));
    }

    /// If the members decide to commit:
    /// - Every member has the committed segments, with equal sizes and flags. At the creation of each segment, the
    ///   allocation logs of the members were equal.
    /// - The members have enqueued equal numbers of collectives, and of matching sends and receives. Messages that
    ///   graphs have captured are not compared.
    /// - Every member is ready ([`Readiness`]). With [`Policy::Prefix`], a member may have reported that it cannot
    ///   register a segment, if the commit leaves out this segment.
    #[test]
    fn only_common_segments_are_committed(records in records()) {
        if let Some(Agreed { segments, pending, .. }) = committed(decide(&records)) {
            let first = &records[0].1.segments[..segments as usize];
            for (_, record) in &records {
                prop_assert_eq!(&record.segments[..segments as usize], first);
                match &record.readiness {
                    Readiness::Failed { ordinal: Some(failed), .. } if record.policy == Policy::Prefix => {
                        prop_assert!(first.iter().all(|segment| segment.ordinal != *failed));
                    }
                    readiness => prop_assert_eq!(readiness, &Readiness::Ready),
                }
                prop_assert_eq!(record.committed, records[0].1.committed);
                if record.policy == Policy::Strict {
                    prop_assert_eq!(record.segments.len(), segments as usize);
                    prop_assert_eq!(record.log, records[0].1.log);
                    prop_assert_eq!(&pending, &None);
                }
            }
            for (own, other) in records.iter().flat_map(|own| records.iter().map(move |other| (own, other))) {
                for (mine, theirs) in shared(&own.1, &other.1) {
                    prop_assert_eq!(mine.collectives, theirs.collectives);
                    let with = |of: &Enqueued, peer| of.messages.iter().find(|it| it.peer == peer).copied();
                    let (out, back) = (with(mine, other.0), with(theirs, own.0));
                    if ![out, back].iter().flatten().any(|it| it.captured) {
                        prop_assert_eq!(out.map_or(0, |it| it.sent), back.map_or(0, |it| it.received));
                    }
                }
            }
        }
    }

    #[test]
    fn records_survive_their_binary_form(record in record()) {
        prop_assert_eq!(read(&bytes(&record)), Ok(record));
    }

    /// A truncated record is rejected. Damaged bytes are rejected, or decode to a record that encodes to the same
    /// bytes.
    #[test]
    fn damaged_records_do_no_harm(
        record in record(),
        damage in vec((any::<proptest::sample::Index>(), any::<u8>()), 1..4),
        cut in any::<proptest::sample::Index>(),
    ) {
        let mut damaged = bytes(&record);
        prop_assert!(read::<CommitRecord>(&damaged[..cut.index(damaged.len())]).is_err());
        for (at, value) in damage {
            let at = at.index(damaged.len());
            damaged[at] = value;
        }
        if let Ok(other) = read::<CommitRecord>(&damaged) {
            prop_assert_eq!(bytes(&other), damaged);
        }
    }

    /// For each message type, random bytes are rejected, or the decoded value encodes to the same bytes.
    #[test]
    fn garbage_is_refused(garbage in prop_oneof![vec(any::<u8>(), 0..200), vec(0u8..3, 0..40)]) {
        is_strict::<CommitRecord>(&garbage)?;
        is_strict::<CommitDecision>(&garbage)?;
        is_strict::<CommitOutcome>(&garbage)?;
        is_strict::<RetirementRecord>(&garbage)?;
        is_strict::<RetireOutcome>(&garbage)?;
        is_strict::<Retired>(&garbage)?;
        is_strict::<Refusal>(&garbage)?;
    }
}

pub(crate) fn bytes(value: &impl Wire) -> Vec<u8> {
    let mut bytes = Vec::new();
    value.write(&mut bytes);
    bytes
}

pub(crate) fn read<V: Wire>(bytes: &[u8]) -> Result<V, Malformed> {
    let mut reader = Reader::new(bytes);
    let value = V::read(&mut reader)?;
    if reader.left() == 0 { Ok(value) } else { Err(Malformed::Trailing { left: reader.left() }) }
}

/// Checks that bytes which decode to a `V` are the encoding of the decoded value, so each value has only one binary
/// form.
fn is_strict<V: Wire>(garbage: &[u8]) -> Result<(), TestCaseError> {
    if let Ok(value) = read::<V>(garbage) {
        prop_assert_eq!(bytes(&value), garbage);
    }
    Ok(())
}

/// Compares the binary forms of a record (by length and hash) and of a decision with those of the current
/// [`PROTOCOL_VERSION`]. If a form changes, the version must change too, because ranks with another release would
/// decode the messages wrongly.
#[test]
fn the_form_of_a_record_and_of_a_decision_is_that_of_this_version() {
    let record = bytes(&plain(1, &[(64, 7)]).1);
    let hash = record.iter().fold(0u64, |hash, byte| hash::chain(hash, [u64::from(*byte)]));
    assert_eq!((PROTOCOL_VERSION, record.len(), hash), (14, 109, 82_412_561_143_617_442));
    let decision = bytes(&decide(&[plain(0, &[(64, 7)]), plain(1, &[(64, 7)])]));
    let unmapped = [&[2, 1, 0, 0, 0, 0, 4, 0, 0, 0][..], b"none"].concat();
    let expected = [&[0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0][..], &unmapped].concat();
    assert_eq!(decision, expected, "to register 1 segment, joined with none, which rank 0 does not share");
}

/// Returns the [`Agreed`] in a decision to commit. The decision may first ask for a search for the first difference
/// between the members' allocation logs. Returns `None` for a decision not to commit.
fn committed(decision: CommitDecision) -> Option<Agreed> {
    match decision {
        CommitDecision::Agreed { agreed } => Some(agreed),
        CommitDecision::Act { plan: CommitPlan::Register(agreed) | CommitPlan::Open(agreed) } => Some(agreed),
        CommitDecision::Act { plan: CommitPlan::Hashes { after: After::Commit(agreed), .. } } => Some(agreed),
        _ => None,
    }
}

fn agreed() -> Agreed {
    let peers = PeerMappings::Unmapped { reason: Unmapped::NothingNew {} };
    Agreed { segments: 1, joined: Vec::new(), without: None, pending: None, peers }
}

#[test]
fn segments_are_joined_where_they_follow_on_all_ranks() {
    let follow = |mut record: (u32, CommitRecord), at: &[usize]| {
        at.iter().for_each(|at| record.1.segments[*at].flags = Segment::FOLLOWS);
        record
    };
    let three = [(32, 1), (32, 2), (32, 3)];
    let records = [follow(plain(0, &three), &[1, 2]), follow(plain(1, &three), &[0, 2])];
    let Some(Agreed { segments: 3, joined, pending: None, .. }) = committed(decide(&records)) else {
        panic!("the segments are the same, however they lie")
    };
    assert_eq!(joined, [2]);
}

#[test]
fn lists_of_ranks_are_compared() {
    let records = |change: fn(&mut CommitRecord)| {
        let mut records = [0, 1, 2].map(|rank| plain(rank, &[(32, 1)]));
        change(&mut records[1].1);
        decide(&records)
    };
    let lists = |decision: CommitDecision| match refusal(decision) {
        Refusal::MembersMismatch { what, lists } => (what, lists.minority(), lists.entries[1].value.clone()),
        other => panic!("{other}"),
    };
    let less = RankList(vec![0, 1]);
    let found = lists(records(|record| record.domain = RankList(vec![0, 1])));
    assert_eq!(found, (MemberList::Domain, vec![1], less));
    let text = refusal(records(|record| record.domain = RankList(vec![0, 1]))).to_string();
    assert!(text.contains("domain (ranks 0, 2: ranks 0-2; rank 1: ranks 0, 1)"), "{text}");
    assert!(committed(records(|_| {})).is_some(), "they are alike");
}

fn plain(rank: u32, segments: &[(u64, u64)]) -> (u32, CommitRecord) {
    let record = CommitRecord {
        domain: RankList(vec![0, 1, 2]),
        policy: Policy::Strict,
        readiness: Readiness::Ready,
        capabilities: Capabilities { library: 22809, windows: WindowSupport::Available },
        enqueued: Vec::new(),
        address_space_left: None,
        committed: LogPoint::default(),
        log: LogPoint { length: segments.len() as u64, hash: segments.iter().map(|(_, hash)| hash).sum() },
        log_since: 0,
        segments: (0..)
            .zip(segments)
            .map(|(ordinal, &(bytes, hash))| {
                let log = LogPoint { length: u64::from(ordinal) + 1, hash };
                Segment { ordinal, bytes, flags: 0, log }
            })
            .collect(),
        peers: PeerOffer::Missing { cause: "none".to_owned() },
    };
    (rank, record)
}

fn refusal(decision: CommitDecision) -> Refusal {
    match decision {
        CommitDecision::Refused { refusal: Rejection::Refused(refusal) }
        | CommitDecision::Act { plan: CommitPlan::Hashes { after: After::Refuse(refusal), .. } } => refusal,
        other => panic!("{other:?}"),
    }
}

/// Returns the records of three ranks. Rank 0 has enqueued `sent[0]` sends to rank 1, which has enqueued `received[0]`
/// receives. Rank 1 has enqueued `sent[1]` sends to rank 2, which has enqueued `received[1]` receives.
fn pipeline(sent: [u64; 2], received: [u64; 2]) -> Vec<(u32, CommitRecord)> {
    let with = |peer, sent, received| MessageCounts { peer, sent, received, captured: false };
    let messages = [
        vec![with(1, sent[0], 0)],
        vec![with(0, 0, received[0]), with(2, sent[1], 0)],
        vec![with(1, 0, received[1])],
    ];
    let group = GroupId { uid: 3, epoch: 0 };
    let enqueued = messages.into_iter().map(|messages| vec![Enqueued { group, collectives: 4, messages }]);
    let record = |(rank, enqueued)| (rank, CommitRecord { enqueued, ..plain(rank, &[(64, 1)]).1 });
    (0..).zip(enqueued).map(record).collect()
}

#[test]
fn a_message_enqueued_at_one_end_only_is_outstanding() {
    let group = GroupId { uid: 3, epoch: 0 };
    let commits =
        |records: &[(u32, CommitRecord)]| committed(decide(records)).is_some_and(|it| it.segments == 1);
    assert!(commits(&pipeline([5, 2], [5, 2])), "the ends of a pipeline have fewer messages");
    let records = pipeline([5, 2], [5, 3]);
    let outstanding = Refusal::MessagesOutstanding { group, from: 1, to: 2, sent: 2, received: 3 };
    assert_eq!(refusal(decide(&records)), outstanding);
    let records = pipeline([1, 2], [0, 3]);
    let first = Refusal::MessagesOutstanding { group, from: 0, to: 1, sent: 1, received: 0 };
    assert_eq!(refusal(decide(&records)), first);
    // A record without counts for a peer means 0 messages. Here, rank 2 has no counts for rank 1.
    let mut deaf = pipeline([0, 2], [0, 2]);
    deaf[2].1.enqueued[0].messages.clear();
    assert!(matches!(
        refusal(decide(&deaf)),
        Refusal::MessagesOutstanding { from: 1, to: 2, received: 0, .. }
    ));
    // Without the record of rank 2, the messages between ranks 1 and 2 are not compared.
    assert!(commits(&pipeline([5, 2], [5, 3])[..2]));
    // Captured messages are not compared, because the number of graph launches is unknown.
    let mut captured = pipeline([5, 2], [5, 3]);
    captured[2].1.enqueued[0].messages[0].captured = true;
    assert!(commits(&captured));
    captured[2].1.enqueued[0].collectives += 1;
    assert!(matches!(refusal(decide(&captured)), Refusal::CollectivesOutstanding { .. }));
}

#[test]
fn equal_sizes_after_different_histories_are_no_agreement() {
    // The second segments have equal sizes, but the allocation logs differ at them. The refusal names the second
    // segment, and not the third one, which only rank 2 has.
    let refusal = refusal(decide(&[plain(0, &[(64, 1), (64, 2)]), plain(2, &[(64, 1), (64, 9), (64, 2)])]));
    assert!(matches!(refusal, Refusal::AllocationDiverged { ordinal: Some(1), common: 1, .. }), "{refusal}");
}

#[test]
fn prefix_commits_what_is_common_and_reports_the_rest() {
    let mut records = [plain(0, &[(64, 1)]), plain(1, &[(64, 1), (32, 2)])];
    records.iter_mut().for_each(|(_, record)| record.policy = Policy::Prefix);
    let CommitDecision::Act { plan: CommitPlan::Hashes { range, after: After::Commit(agreed) } } =
        decide(&records)
    else {
        panic!("{:?}", decide(&records))
    };
    assert_eq!((agreed.segments, agreed.without), (1, None));
    assert_eq!(agreed.pending.map(|pending| pending.name()), Some("SegmentCountMismatch"));
    assert_eq!(range, Range { low: 0, high: 1 });
}

#[test]
fn what_prefix_leaves_out_need_not_become_a_window() {
    let mut records = [plain(0, &[(64, 1)]), plain(1, &[(64, 1), (32, 2)])];
    let failed = |ordinal| Readiness::Failed { ordinal: Some(ordinal), cause: "it is a window".to_owned() };
    records[1].1.readiness = failed(1);
    for policy in [Policy::Prefix, Policy::Strict] {
        records.iter_mut().for_each(|(_, record)| record.policy = policy);
        let commits = committed(decide(&records)).is_some_and(|it| it.segments == 1);
        assert_eq!(commits, policy == Policy::Prefix, "{:?}", decide(&records));
    }
    records.iter_mut().for_each(|(_, record)| record.policy = Policy::Prefix);
    records[1].1.readiness = failed(0);
    let refusal = refusal(decide(&records));
    assert!(matches!(refusal, Refusal::PeerPrepareFailed { rank: 1, ordinal: Some(0), .. }), "{refusal}");
}

#[test]
fn a_failure_outweighs_silence_and_silence_what_waits_for_it() {
    let failed = RegistrationOutcome::Failed { ordinal: Some(1), cause: "2".to_owned() };
    let poison =
        |outcomes: &[(u32, Option<RegistrationOutcome>)]| match judge_registrations(&agreed(), outcomes) {
            CommitDecision::Refused { refusal: Rejection::Poisoned(poison) } => poison,
            other => panic!("{other:?}"),
        };
    let all = [(0, Some(RegistrationOutcome::Blocked)), (1, None), (2, Some(failed))];
    assert!(matches!(poison(&all), Poison::RegistrationFailed { rank: 2, .. }));
    let lost = poison(&all[..2]);
    assert_eq!(lost, Poison::MembersLost { missing: vec![1], blocked: vec![0] });
    let text = "MembersLost: rank 1 did not report after the decision; the library did not return on rank 0";
    assert_eq!(lost.to_string(), text);
    let blocked = Poison::MembersLost { missing: Vec::new(), blocked: vec![0, 2] };
    assert_eq!(blocked.to_string(), "MembersLost: the library did not return on ranks 0, 2");
    assert_eq!(poison(&all[..1]), Poison::RegistrationBlocked { ranks: vec![0] });
    let unsupported = RegistrationOutcome::Unsupported { reason: "no".to_owned() };
    let mixed = poison(&[(0, Some(RegistrationOutcome::Registered)), (1, Some(unsupported.clone()))]);
    assert!(matches!(mixed, Poison::WindowsUnsupported { .. }));
    // On rank 1, the registration returned without windows. On rank 0, it did not return in time.
    let alone = poison(&[(0, Some(RegistrationOutcome::Blocked)), (1, Some(unsupported))]);
    assert_eq!(
        alone.to_string(),
        "WindowsUnsupported: rank 1 got no windows: no; registration did not return on rank 0 in time"
    );
}

#[test]
fn only_the_member_that_ended_the_group_is_blamed() {
    let failed = |cause: &str| Some(RegistrationOutcome::Failed { ordinal: None, cause: cause.to_owned() });
    let poison =
        |outcomes: &[(u32, Option<RegistrationOutcome>)]| match judge_registrations(&agreed(), outcomes) {
            CommitDecision::Refused { refusal: Rejection::Poisoned(poison) } => poison,
            other => panic!("{other:?}"),
        };
    let ended = Some(RegistrationOutcome::Ended { rank: 2 });
    // Rank 0 reports that the group has ended because rank 2 was lost. Rank 3 has failed for the same reason. Rank 1
    // has not reported yet, but is not lost.
    let mut all =
        [(0, ended), (1, None), (2, None), (3, failed("remote")), (4, Some(RegistrationOutcome::Blocked))];
    assert_eq!(poison(&all), Poison::MembersLost { missing: vec![2], blocked: vec![4] });
    // If rank 2 itself reports a failure, the poison names that failure.
    all[2].1 = failed("2");
    let cause = "2".to_owned();
    assert_eq!(poison(&all), Poison::RegistrationFailed { rank: 2, ordinal: None, cause });
}

/// For windows, NCCL reserves address space on every member: as much as the largest device of all members has memory.
/// A member knows only its own device, so it posts too small an amount of free address space if its device is smaller.
/// The decision compares the size of the new windows with the greatest posted amount.
#[test]
fn the_largest_device_determines_the_address_space() {
    let of = |left: [Option<u64>; 3]| {
        let with = |(rank, left)| {
            let (rank, record) = plain(rank, &[(4 << 20, 7), (2 << 20, 8)]);
            (rank, CommitRecord { address_space_left: left, ..record })
        };
        decide(&Vec::from_iter((0..).zip(left).map(with)))
    };
    let is_registered = |left| matches!(of(left), CommitDecision::Act { plan: CommitPlan::Register { .. } });
    assert!(is_registered([Some(5 << 20), Some(6 << 20), None]));
    assert!(is_registered([None; 3]));
    let exhausted = |rank| Refusal::AddressSpaceExhausted { rank, needed: 6 << 20, left: 5 << 20 };
    assert_eq!(refusal(of([Some(4 << 20), Some(5 << 20), Some(5 << 20)])), exhausted(1));
    assert_eq!(refusal(of([None, None, Some(5 << 20)])), exhausted(2));
}

#[test]
fn a_group_of_one_needs_no_window() {
    let decision = decide(&[plain(5, &[(64, 1)])]);
    let Some(Agreed { segments: 1, without: Some(NoWindows::SingleMember {}), .. }) = committed(decision)
    else {
        panic!("it needs no peer")
    };
}

#[test]
fn texts_of_nothing_do_not_fail() {
    let empty = Refusal::CollectivesOutstanding {
        group: GroupId { uid: 1, epoch: 0 },
        collectives: ValuesByRank { entries: Vec::new() },
    };
    assert!(!empty.to_string().is_empty());
    assert!(
        !Refusal::SyncTimeout { missing: Vec::new(), waited_ms: 0, circle: Vec::new() }
            .to_string()
            .is_empty()
    );
}
