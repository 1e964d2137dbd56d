//! Properties of the binary form and of the decisions.

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
    wire::{Malformed, Message},
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
            .prop_map(|ranks| Readiness::Poisoned { poison: Poison::RegistrationBlocked { ranks } }),
    ]
}

fn capabilities() -> impl Strategy<Value = Capabilities> {
    let windows = prop_oneof![
        8 => Just(WindowSupport::Available),
        1 => Just(WindowSupport::Unavailable { reason: "2.28.3".to_owned() }),
    ];
    (select(vec![22809u32, 22809, 22809, 23007]), windows)
        .prop_map(|(library, windows)| Capabilities { library, windows })
}

/// Draws a record of rank 0. Each field has few values, so two drawn records are often equal in a field.
fn record() -> impl Strategy<Value = Record> {
    let identity = (select(vec![0u64, 0, 0, 0, 0, 1]), select(vec![7u64, 7, 7, 7, 7, 8]));
    let wishes = (select(vec![Policy::Strict, Policy::Prefix]), 1u64..100, option::of(0u64..1 << 22));
    let segments = vec((select(vec![1u64 << 20, 1 << 20, 1 << 21]), log_point()), 0..4);
    let messages = btree_map(0u32..4, (0u64..2, 0u64..2, proptest::bool::weighted(0.2)), 0..3);
    let enqueued = btree_map(0u64..3, (0u64..2, messages), 0..3);
    (
        identity,
        wishes,
        readiness(),
        capabilities(),
        (log_point(), log_point(), log_point()),
        segments,
        enqueued,
    )
        .prop_map(|(identity, wishes, readiness, capabilities, logs, segments, enqueued)| {
            let ((epoch, uid), (policy, deadline_ms, address_space_left)) = (identity, wishes);
            let segments = (0..).zip(segments);
            Record {
                pool: PoolId { domain: 1, generation: 1, instance: 1, pool: 0 },
                group: GroupId { uid, epoch },
                round: 0,
                rank: 0,
                members: RankList(vec![2, 0, 1]),
                domain: RankList((0..8).collect()),
                policy,
                deadline_ms,
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
            }
        })
}

/// The numbers of messages sent and received, and whether graphs captured any, by peer.
type Drawn = BTreeMap<u32, (u64, u64, bool)>;

fn enqueued_on((uid, (collectives, messages)): (u64, (u64, Drawn))) -> Enqueued {
    let with = |(peer, (sent, received, captured))| MessageCounts { peer, sent, received, captured };
    let messages = messages.into_iter().map(with).collect();
    Enqueued { group: GroupId { uid, epoch: 0 }, collectives, messages }
}

/// The records of a group. They are mostly alike, since independent records would differ in everything.
fn records() -> impl Strategy<Value = Vec<Record>> {
    (record(), vec((record(), 0u32..12), 1..6)).prop_map(|(model, others)| {
        (0..)
            .zip(others)
            .map(|(rank, (other, field))| {
                let mut record = Record { rank, ..model.clone() };
                match field {
                    0 => record.segments = other.segments,
                    1 => record.log = other.log,
                    2 => record.committed = other.committed,
                    3 => record.enqueued = other.enqueued,
                    4 => record.readiness = other.readiness,
                    5 => record.capabilities = other.capabilities,
                    6 => record.group = other.group,
                    7 => record.address_space_left = other.address_space_left,
                    8 => record.policy = other.policy,
                    9 => record.segments.truncate(1),
                    _ => {}
                }
                record
            })
            .collect()
    })
}

/// The work enqueued by both ranks, for the groups that they share.
fn shared<'a>(own: &'a Record, other: &'a Record) -> impl Iterator<Item = (&'a Enqueued, &'a Enqueued)> {
    let of = |group| other.enqueued.iter().find(move |it| it.group == group);
    own.enqueued.iter().filter_map(move |mine| Some((mine, of(mine.group)?)))
}

fn permuted<T: Clone + std::fmt::Debug + 'static>(
    values: impl Strategy<Value = Vec<T>>,
) -> impl Strategy<Value = (Vec<T>, Vec<T>)> {
    values.prop_flat_map(|values| (Just(values.clone()), Just(values).prop_shuffle()))
}

fn outcome() -> impl Strategy<Value = Outcome> {
    prop_oneof![
        4 => Just(Outcome::Registered),
        2 => Just(Outcome::Unsupported { reason: "no".to_owned() }),
        1 => Just(Outcome::Blocked),
        1 => option::of(0u32..3).prop_map(|ordinal| Outcome::Failed { ordinal, cause: "x".to_owned() }),
    ]
}

fn outcomes() -> impl Strategy<Value = Vec<(u32, Option<Outcome>)>> {
    vec(option::weighted(0.9, outcome()), 1..6).prop_map(|outcomes| (0..).zip(outcomes).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// The decision is a function of the set of records.
    #[test]
    fn every_order_of_records_gives_the_same_decision((records, shuffled) in permuted(records())) {
        let decision = decide(&records);
        prop_assert_eq!(decision.encode(), decide(&shuffled).encode());
        prop_assert_eq!(Decision::decode(&decision.encode()), Ok(decision));
    }

    #[test]
    fn every_order_of_outcomes_gives_the_same_verdict((outcomes, shuffled) in permuted(outcomes())) {
        let judged = verdict(&outcomes);
        prop_assert_eq!(&judged, &verdict(&shuffled));
        prop_assert_eq!(Verdict::from_bytes(&judged.to_bytes()), Ok(judged));
    }

    /// If a commit is decided, every member has the committed segments with the same history, every member is ready,
    /// and no collective or message is half-enqueued.
    #[test]
    fn only_common_segments_are_committed(records in records()) {
        if let Decision::Commit { segments, pending, .. } = decide(&records) {
            let first = &records[0].segments[..segments as usize];
            for record in &records {
                prop_assert_eq!(&record.segments[..segments as usize], first);
                match &record.readiness {
                    // The failure concerns a segment that is left out.
                    Readiness::Failed { ordinal: Some(failed), .. } if record.policy == Policy::Prefix => {
                        prop_assert!(first.iter().all(|segment| segment.ordinal != *failed));
                    }
                    readiness => prop_assert_eq!(readiness, &Readiness::Ready),
                }
                prop_assert_eq!(record.committed, records[0].committed);
                if record.policy == Policy::Strict {
                    prop_assert_eq!(record.segments.len(), segments as usize);
                    prop_assert_eq!(record.log, records[0].log);
                    prop_assert_eq!(&pending, &None);
                }
            }
            for (own, other) in records.iter().flat_map(|own| records.iter().map(move |other| (own, other))) {
                for (mine, theirs) in shared(own, other) {
                    prop_assert_eq!(mine.collectives, theirs.collectives);
                    let with = |of: &Enqueued, peer| of.messages.iter().find(|it| it.peer == peer).copied();
                    let (out, back) = (with(mine, other.rank), with(theirs, own.rank));
                    if ![out, back].iter().flatten().any(|it| it.captured) {
                        prop_assert_eq!(out.map_or(0, |it| it.sent), back.map_or(0, |it| it.received));
                    }
                }
            }
        }
    }

    #[test]
    fn records_survive_their_binary_form(record in record()) {
        prop_assert_eq!(Record::decode(&record.encode()), Ok(record));
    }

    /// Damaged bytes are rejected, or decode to another record that encodes to the same bytes.
    #[test]
    fn damaged_records_do_no_harm(
        record in record(),
        damage in vec((any::<proptest::sample::Index>(), any::<u8>()), 1..4),
        cut in any::<proptest::sample::Index>(),
    ) {
        let mut bytes = record.encode();
        prop_assert!(Record::decode(&bytes[..cut.index(bytes.len())]).is_err());
        for (at, value) in damage {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Ok(other) = Record::decode(&bytes) {
            prop_assert_eq!(other.encode(), bytes);
        }
    }

    /// For each kind of message, the bytes are rejected, or the decoded message encodes to the same bytes.
    #[test]
    fn garbage_is_refused(garbage in prop_oneof![vec(any::<u8>(), 0..200), vec(0u8..3, 0..40)], kind in 0u8..16) {
        let _ = Record::decode(&garbage);
        let message = [b"SY".as_slice(), &PROTOCOL_VERSION.to_le_bytes(), &[kind], &garbage].concat();
        let mut kinds = 0;
        kinds += is_strict::<Record>(&message, kind)?;
        kinds += is_strict::<MeetingId>(&message, kind)?;
        kinds += is_strict::<Decision>(&message, kind)?;
        kinds += is_strict::<Outcome>(&message, kind)?;
        kinds += is_strict::<Verdict>(&message, kind)?;
        kinds += is_strict::<search::Hashes>(&message, kind)?;
        kinds += is_strict::<search::Finding>(&message, kind)?;
        kinds += is_strict::<search::Recalled>(&message, kind)?;
        kinds += is_strict::<length::Need>(&message, kind)?;
        kinds += is_strict::<RetirementRecord>(&message, kind)?;
        kinds += is_strict::<Release>(&message, kind)?;
        kinds += is_strict::<retire::Judged>(&message, kind)?;
        prop_assert_eq!(kinds, u32::from((1..=12).contains(&kind)));
    }
}

/// Checks that the decoder accepts only the canonical form. Returns 1 if the message has the kind of `M`, otherwise
/// 0.
fn is_strict<M: Message>(message: &[u8], kind: u8) -> Result<u32, TestCaseError> {
    match M::from_bytes(message) {
        Ok(read) => prop_assert_eq!(read.to_bytes(), message),
        Err(
            Malformed::Short { .. }
            | Malformed::Tag { .. }
            | Malformed::Text { .. }
            | Malformed::Ranks { .. }
            | Malformed::Trailing { .. },
        ) => {}
        Err(Malformed::Kind { wanted, found }) => {
            prop_assert_eq!((wanted, found), (M::KIND, kind));
            return Ok(0);
        }
        Err(other) => return Err(TestCaseError::fail(other.to_string())),
    }
    Ok(1)
}

#[test]
fn other_versions_are_refused() {
    let kind = MeetingKind::Commit { group: GroupId { uid: 1, epoch: 0 } };
    let pool = PoolId { domain: 1, generation: 1, instance: 1, pool: 0 };
    let mut bytes = MeetingId { pool, kind, round: 0, members: vec![0, 1] }.to_bytes();
    bytes[2] += 1;
    let found = PROTOCOL_VERSION + 1;
    assert_eq!(MeetingId::from_bytes(&bytes), Err(Malformed::Version { found, spoken: PROTOCOL_VERSION }));
    assert!(matches!(Record::decode(b""), Err(Malformed::NotAMessage { .. })));
    let length = u32::MAX.to_le_bytes();
    let lie = [b"SY".as_slice(), &PROTOCOL_VERSION.to_le_bytes(), &[6], &length].concat();
    assert!(matches!(search::Hashes::from_bytes(&lie), Err(Malformed::Short { .. })));
}

#[test]
fn segments_are_joined_where_they_follow_on_all_ranks() {
    let follow = |mut record: Record, at: &[usize]| {
        at.iter().for_each(|at| record.segments[*at].flags = Segment::FOLLOWS);
        record
    };
    let three = [(32, 1), (32, 2), (32, 3)];
    let records = [follow(plain(0, &three), &[1, 2]), follow(plain(1, &three), &[0, 2])];
    let Decision::Commit { segments: 3, joined, pending: None, .. } = decide(&records) else {
        panic!("the segments are the same, however they lie")
    };
    assert_eq!(joined, [2]);
}

#[test]
fn lists_of_ranks_are_compared() {
    let records = |change: fn(&mut Record)| {
        let mut records = [0, 1, 2].map(|rank| plain(rank, &[(32, 1)]));
        change(&mut records[1]);
        decide(&records)
    };
    let lists = |decision: Decision| match refusal(decision) {
        Refusal::MembersMismatch { what, lists } => (what, lists.minority(), lists.entries[1].value.clone()),
        other => panic!("{other}"),
    };
    let (less, other) = (RankList(vec![0, 1]), RankList(vec![0, 2, 1]));
    let found = lists(records(|record| record.domain = RankList(vec![0, 1])));
    assert_eq!(found, (Membership::Domain, vec![1], less));
    let found = lists(records(|record| record.members = RankList(vec![0, 2, 1])));
    assert_eq!(found, (Membership::Group, vec![1], other));
    let text = refusal(records(|record| record.domain = RankList(vec![0, 1]))).to_string();
    assert!(text.contains("domain (ranks 0, 2: ranks 0-2; rank 1: ranks 0, 1)"), "{text}");
    let Decision::Commit { members, .. } = records(|_| {}) else { panic!("they are alike") };
    assert_eq!(members, RankList(vec![0, 1, 2]));
}

fn plain(rank: u32, segments: &[(u64, u64)]) -> Record {
    Record {
        pool: PoolId { domain: 1, generation: 1, instance: 1, pool: 0 },
        group: GroupId { uid: 3, epoch: 0 },
        round: 0,
        rank,
        members: RankList(vec![0, 1, 2]),
        domain: RankList(vec![0, 1, 2]),
        policy: Policy::Strict,
        deadline_ms: 1000,
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
    }
}

fn refusal(decision: Decision) -> Refusal {
    match decision {
        Decision::Refuse { refusal, .. } => refusal,
        other => panic!("{other:?}"),
    }
}

/// Rank 0 sends `sent[0]` messages to rank 1, which sends `sent[1]` to rank 2. Rank 1 has received `received[0]`
/// messages and rank 2 `received[1]`.
fn pipeline(sent: [u64; 2], received: [u64; 2]) -> Vec<Record> {
    let with = |peer, sent, received| MessageCounts { peer, sent, received, captured: false };
    let messages = [
        vec![with(1, sent[0], 0)],
        vec![with(0, 0, received[0]), with(2, sent[1], 0)],
        vec![with(1, 0, received[1])],
    ];
    let group = GroupId { uid: 3, epoch: 0 };
    let enqueued = messages.into_iter().map(|messages| vec![Enqueued { group, collectives: 4, messages }]);
    (0..).zip(enqueued).map(|(rank, enqueued)| Record { enqueued, ..plain(rank, &[(64, 1)]) }).collect()
}

#[test]
fn a_message_enqueued_at_one_end_only_is_outstanding() {
    let group = GroupId { uid: 3, epoch: 0 };
    let commits = |records: &[Record]| matches!(decide(records), Decision::Commit { segments: 1, .. });
    assert!(commits(&pipeline([5, 2], [5, 2])), "the ends of a pipeline have fewer messages");
    let records = pipeline([5, 2], [5, 3]);
    let outstanding = Refusal::MessagesOutstanding { group, from: 1, to: 2, sent: 2, received: 3 };
    assert_eq!(refusal(decide(&records)), outstanding);
    let records = pipeline([1, 2], [0, 3]);
    let first = Refusal::MessagesOutstanding { group, from: 0, to: 1, sent: 1, received: 0 };
    assert_eq!(refusal(decide(&records)), first);
    // Only one end knows of the messages.
    let mut deaf = pipeline([0, 2], [0, 2]);
    deaf[2].enqueued[0].messages.clear();
    assert!(matches!(
        refusal(decide(&deaf)),
        Refusal::MessagesOutstanding { from: 1, to: 2, received: 0, .. }
    ));
    // Rank 2 takes no part.
    assert!(commits(&pipeline([5, 2], [5, 3])[..2]));
    // The number of messages in graph launches is unknown.
    let mut captured = pipeline([5, 2], [5, 3]);
    captured[2].enqueued[0].messages[0].captured = true;
    assert!(commits(&captured));
    captured[2].enqueued[0].collectives += 1;
    assert!(matches!(refusal(decide(&captured)), Refusal::CollectivesOutstanding { .. }));
}

#[test]
fn an_extra_segment_is_named_with_rank_ordinal_and_both_values() {
    let agree = [(64, 1), (64, 2)];
    let records =
        [plain(0, &agree), plain(1, &agree), plain(2, &[(64, 1), (64, 2), (32, 3)]), plain(3, &agree)];
    let refusal = refusal(decide(&records));
    let Refusal::SegmentCountMismatch { ordinal: 2, common: 2, counts, shapes, .. } = &refusal else {
        panic!("{refusal}")
    };
    assert_eq!(counts.minority(), [2]);
    assert_eq!(shapes.entries[1].value, Some(Shape { bytes: 32, flags: 0 }));
    let text = refusal.to_string();
    for part in ["ordinal 2", "rank 2: 3", "ranks 0, 1, 3: 2", "rank 2: 32 bytes", "no segment"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
}

#[test]
fn equal_sizes_after_different_histories_are_no_agreement() {
    // Both have a second segment of 64 bytes, but rank 2 came to it by another allocation.
    let refusal = refusal(decide(&[plain(0, &[(64, 1), (64, 2)]), plain(2, &[(64, 1), (64, 9), (64, 2)])]));
    assert!(matches!(refusal, Refusal::AllocationDiverged { ordinal: Some(1), common: 1, .. }), "{refusal}");
}

#[test]
fn prefix_commits_what_is_common_and_reports_the_rest() {
    let mut records = [plain(0, &[(64, 1)]), plain(1, &[(64, 1), (32, 2)])];
    records.iter_mut().for_each(|record| record.policy = Policy::Prefix);
    let Decision::Commit { segments: 1, without: None, pending: Some(pending), search, .. } =
        decide(&records)
    else {
        panic!("{:?}", decide(&records))
    };
    assert_eq!(pending.name(), "SegmentCountMismatch");
    assert_eq!(search, Some(Range { low: 0, high: 1 }));
}

#[test]
fn what_prefix_leaves_out_need_not_become_a_window() {
    let mut records = [plain(0, &[(64, 1)]), plain(1, &[(64, 1), (32, 2)])];
    let failed = |ordinal| Readiness::Failed { ordinal: Some(ordinal), cause: "it is a window".to_owned() };
    records[1].readiness = failed(1);
    for policy in [Policy::Prefix, Policy::Strict] {
        records.iter_mut().for_each(|record| record.policy = policy);
        let commits = matches!(decide(&records), Decision::Commit { segments: 1, .. });
        assert_eq!(commits, policy == Policy::Prefix, "{:?}", decide(&records));
    }
    records.iter_mut().for_each(|record| record.policy = Policy::Prefix);
    records[1].readiness = failed(0);
    let refusal = refusal(decide(&records));
    assert!(matches!(refusal, Refusal::PeerPrepareFailed { rank: 1, ordinal: Some(0), .. }), "{refusal}");
}

#[test]
fn a_failure_outweighs_silence_and_silence_what_waits_for_it() {
    let failed = Outcome::Failed { ordinal: Some(1), cause: "2".to_owned() };
    let poison = |outcomes: &[(u32, Option<Outcome>)]| match verdict(outcomes) {
        Verdict::Poison { poison } => poison,
        other => panic!("{other:?}"),
    };
    let all = [(0, Some(Outcome::Blocked)), (1, None), (2, Some(failed))];
    assert!(matches!(poison(&all), Poison::RegistrationFailed { rank: 2, .. }));
    assert_eq!(poison(&all[..2]), Poison::MembersLost { missing: vec![1], blocked: vec![0] });
    assert_eq!(poison(&all[..1]), Poison::RegistrationBlocked { ranks: vec![0] });
    let unsupported = Outcome::Unsupported { reason: "no".to_owned() };
    let mixed = poison(&[(0, Some(Outcome::Registered)), (1, Some(unsupported))]);
    assert!(matches!(mixed, Poison::WindowsUnsupported { .. }));
}

#[test]
fn only_the_member_that_ended_the_group_is_blamed() {
    let failed = |cause: &str| Some(Outcome::Failed { ordinal: None, cause: cause.to_owned() });
    let poison = |outcomes: &[(u32, Option<Outcome>)]| match verdict(outcomes) {
        Verdict::Poison { poison } => poison,
        other => panic!("{other:?}"),
    };
    let ended = Some(Outcome::Ended { rank: 2 });
    // Rank 1 has not reported yet, and is not lost. Rank 3 has failed since its peers are gone.
    let mut all = [(0, ended), (1, None), (2, None), (3, failed("remote")), (4, Some(Outcome::Blocked))];
    assert_eq!(poison(&all), Poison::MembersLost { missing: vec![2], blocked: vec![4] });
    // A failure of that member tells more.
    all[2].1 = failed("2");
    let cause = "2".to_owned();
    assert_eq!(poison(&all), Poison::RegistrationFailed { rank: 2, ordinal: None, cause });
}

#[test]
fn a_group_of_one_needs_no_window() {
    let decision = decide(&[plain(5, &[(64, 1)])]);
    let Decision::Commit { segments: 1, without: Some(NoWindows::SingleMember {}), .. } = decision else {
        panic!("{decision:?}")
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
