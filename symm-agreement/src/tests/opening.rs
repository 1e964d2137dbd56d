//! Tests of two steps of a commit: the decision whether members *open* (map) each other's memory, and the verdict on
//! the outcomes of opening it. In its record, each member *offers* its new segments and its signal pad, the memory by
//! which the others signal to it.

use bootstrap::agreement::{Protocol, Report};

use super::*;
use memory_sharing::{Export, Handle, Site};

/// The length of each segment, and of the memory that a rank shares for it.
const BYTES: u64 = 64;

fn export(handle: Handle) -> Export {
    Export { bytes: BYTES, handle, token: 1 }
}

/// Returns the offer of a rank that runs on host `host` in a process of its own: `segments` segments and, if `pad` is
/// true, a signal pad. Other ranks open all of them by the same `handle`.
fn offered(rank: u32, host: u64, handle: &Handle, pad: bool, segments: usize) -> PeerOffer {
    let memory = OfferedMemory {
        site: Site { host, ..Site::simulated(rank) },
        next: 0,
        pad: pad.then(|| export(handle.clone())),
        segments: vec![export(handle.clone()); segments],
    };
    PeerOffer::Offered { memory }
}

fn handle() -> impl Strategy<Value = Handle> {
    let legacy = Handle::Legacy { handle: vec![0; 64] };
    let fabric = |descriptor| Handle::Virtual { descriptor, fabric: Some(vec![0; 64]) };
    let kind = "host".to_owned();
    let foreign = Handle::Foreign { kind, descriptor: true, handle: None };
    let all = [
        Handle::DESCRIPTOR,
        Handle::DESCRIPTOR,
        Handle::NONE,
        legacy,
        fabric(false),
        fabric(true),
        foreign,
        Handle::Host,
    ];
    select(all.to_vec())
}

pub(crate) fn offer() -> impl Strategy<Value = PeerOffer> {
    let whole = (0u32..3, 1u64..3, handle(), any::<bool>(), 0usize..4);
    prop_oneof![
        1 => Just(PeerOffer::Missing { cause: "no".to_owned() }),
        4 => whole.prop_map(|(rank, host, handle, pad, segments)| offered(rank, host, &handle, pad, segments)),
    ]
}

/// Returns the decision on opening each other's memory, for a commit of two segments by ranks with these offers.
fn decided(offers: Vec<PeerOffer>) -> PeerMappings {
    let record = |(rank, peers): (u32, PeerOffer)| {
        let (rank, record) = plain(rank, &[(BYTES, 7), (BYTES, 8)]);
        (rank, CommitRecord { peers, ..record })
    };
    let records: Vec<_> = (0..).zip(offers).map(record).collect();
    committed(decide(&records)).expect("the segments are the same on all ranks").peers
}

proptest! {
    /// Members open each other's memory if and only if each of them can open the memory of every other.
    #[test]
    fn all_members_open_or_none(hosts in vec((1u64..3, handle()), 2..5)) {
        let offers = (0..).zip(&hosts).map(|(rank, (host, handle))| offered(rank, *host, handle, true, 2));
        let can = |from: &(u64, Handle), to: &(u64, Handle)| match &from.1 {
            Handle::Legacy { .. } | Handle::Host => from.0 == to.0,
            Handle::Virtual { descriptor, fabric: handle } | Handle::Foreign { descriptor, handle, .. } => {
                handle.is_some() || (*descriptor && from.0 == to.0)
            }
        };
        let pairs = |(at, from)| hosts.iter().enumerate().all(|(other, to)| at == other || can(from, to));
        let all_can = hosts.iter().enumerate().all(pairs);
        match decided(offers.collect()) {
            PeerMappings::Offered { members } => {
                prop_assert!(all_can);
                prop_assert_eq!(members.len(), hosts.len());
            }
            PeerMappings::Unmapped { reason: Unmapped::NoHandle { rank, peer, .. } } => {
                prop_assert!(!can(&hosts[rank as usize], &hosts[peer as usize]), "{:?}", hosts);
            }
            other => prop_assert!(false, "{:?}", other),
        }
    }

    /// The segments are committed, whether or not the members can open each other's memory. The memory counts as opened
    /// if and only if every member reports that it has mapped the memory of all others.
    #[test]
    fn a_failure_to_open_does_not_undo_a_commit(kinds in vec(0u8..5, 1..6), turn in 0usize..6) {
        let report = |kind: &u8| match kind {
            0 => Report::Outcome(CommitOutcome::Opened(memory_sharing::OpeningOutcome::Mapped)),
            1 => Report::Outcome(CommitOutcome::Opened(memory_sharing::OpeningOutcome::Failed { cause: "x".into() })),
            2 => Report::Outcome(CommitOutcome::Opened(memory_sharing::OpeningOutcome::Alone { gone: vec![0] })),
            3 => Report::Outcome(CommitOutcome::Opened(memory_sharing::OpeningOutcome::Alone { gone: Vec::new() })),
            _ => Report::Late,
        };
        let plan = CommitPlan::Open(agreed());
        let mut reports: Vec<_> = (0..).zip(kinds.iter().map(report)).collect();
        let judged = CommitProtocol::judge(&plan, &reports);
        let turn = turn % reports.len();
        reports.rotate_left(turn);
        prop_assert_eq!(&judged, &CommitProtocol::judge(&plan, &reports));
        let CommitDecision::Agreed { agreed: Agreed { segments: 1, peers, .. } } = judged else {
            panic!("{judged:?}")
        };
        match peers {
            PeerMappings::Opened {} => prop_assert!(kinds.iter().all(|kind| *kind == 0)),
            PeerMappings::Unmapped { reason: Unmapped::Failed { rank, .. } } => {
                prop_assert!((rank as usize) < kinds.len(), "rank {}", rank);
                prop_assert!(kinds.iter().any(|kind| *kind != 0));
            }
            other => prop_assert!(false, "{:?}", other),
        }
    }
}

#[test]
fn a_member_that_opened_nothing_and_knows_no_culprit_is_named_itself() {
    let opened = |outcome| Report::Outcome(CommitOutcome::Opened(outcome));
    let alone = |gone| opened(memory_sharing::OpeningOutcome::Alone { gone });
    let reason = |others: [Report<CommitOutcome>; 2]| {
        let [second, third] = others;
        let reports = [(0, opened(memory_sharing::OpeningOutcome::Mapped)), (1, second), (2, third)];
        match CommitProtocol::judge(&CommitPlan::Open(agreed()), &reports) {
            CommitDecision::Agreed { agreed: Agreed { peers: PeerMappings::Unmapped { reason }, .. } } => {
                reason.to_string()
            }
            other => panic!("{other:?}"),
        }
    };
    let text = reason([alone(vec![]), alone(vec![])]);
    assert!(text.contains("rank 1") && text.contains("it got no answer"), "{text}");
    let text = reason([alone(vec![2]), Report::Late]);
    assert!(text.contains("rank 2") && text.contains("it did not answer"), "{text}");
}

#[test]
fn the_rank_that_prevents_the_mapping_is_named() {
    let all = || -> Vec<_> { (0..3).map(|rank| offered(rank, 1, &Handle::DESCRIPTOR, true, 2)).collect() };
    let unmapped = |offers| match decided(offers) {
        PeerMappings::Unmapped { reason } => reason.to_string(),
        other => panic!("{other:?}"),
    };
    assert!(matches!(decided(all()), PeerMappings::Offered { members } if members.len() == 3));
    let with = |offer| {
        let mut offers = all();
        offers[1] = offer;
        unmapped(offers)
    };
    let text = with(PeerOffer::Missing { cause: "map_peers is false".to_owned() });
    assert_eq!(text, "rank 1 shares too little memory: map_peers is false");
    let text = with(offered(1, 1, &Handle::DESCRIPTOR, false, 2));
    assert!(text.starts_with("rank 1 shares too little memory: only some members"), "{text}");
    let text = with(offered(1, 1, &Handle::DESCRIPTOR, true, 1));
    assert!(text.starts_with("rank 1 shares too little memory: it does not share all"), "{text}");
    let mut offers = all();
    let PeerOffer::Offered { memory } = &mut offers[1] else { panic!("it is offered") };
    memory.segments[1].bytes -= 1;
    let text = unmapped(offers);
    assert_eq!(text, "rank 1 shares too little memory: it shares 63 bytes of segment 1 of 64 bytes");
    let mut offers = all();
    let PeerOffer::Offered { memory } = &mut offers[2] else { panic!("it is offered") };
    memory.site.unreachable.push(Site::simulated(0).device);
    assert_eq!(unmapped(offers), "the device of rank 2 cannot access that of rank 0");
    assert!(matches!(decided(all()[..1].to_vec()), PeerMappings::Offered { members } if members.len() == 1));
}

#[test]
fn memory_is_opened_after_the_registration_and_also_without_windows() {
    let records = |windows: WindowSupport| {
        let record = |rank| {
            let (rank, record) = plain(rank, &[(BYTES, 7)]);
            let capabilities = Capabilities { windows: windows.clone(), ..record.capabilities };
            (
                rank,
                CommitRecord {
                    peers: offered(rank, 1, &Handle::DESCRIPTOR, true, 1),
                    capabilities,
                    ..record
                },
            )
        };
        [record(0), record(1)]
    };
    let CommitDecision::Act { plan: CommitPlan::Register(agreed) } =
        decide(&records(WindowSupport::Available))
    else {
        panic!("windows come first")
    };
    let registered = [(0, Some(RegistrationOutcome::Registered)), (1, Some(RegistrationOutcome::Registered))];
    let opens =
        |decision: &CommitDecision| matches!(decision, CommitDecision::Act { plan: CommitPlan::Open { .. } });
    assert!(opens(&judge_registrations(&agreed, &registered)));
    let unsupported = RegistrationOutcome::Unsupported { reason: "no".to_owned() };
    assert!(opens(&judge_registrations(&agreed, &[(0, Some(unsupported.clone())), (1, Some(unsupported))])));
    assert!(opens(&decide(&records(WindowSupport::Unavailable { reason: "2.18".to_owned() }))));
}
