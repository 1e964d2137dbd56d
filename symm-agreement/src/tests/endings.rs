//! Tests of whole agreements about pools, and of the conversions of their endings. An ending is the reason why an
//! agreement has no result on a member: [`Common`] is its form in `bootstrap`, and [`Ending`] its form in this crate.
//!
//! In a commit, the members may first *search* for the first operation that differs between their allocation logs. A
//! member is *in doubt* if it does not know the result, and the other members may have acted on its record.

use std::time::Duration;

use bootstrap::agreement::{Agreement, Ending as Common, Failure, Member, Protocol, Report};

use super::super::*;
use super::{agreed, drive::drive, pipeline, plain, refusal};

#[test]
fn a_search_that_a_rank_leaves_ends_without_the_difference() {
    let records = [plain(0, &[(64, 1)]), plain(1, &[(64, 2)])];
    let CommitDecision::Act { plan: plan @ CommitPlan::Hashes { .. } } = decide(&records) else {
        panic!("{:?}", decide(&records))
    };
    let answer = CommitOutcome::hashes(Range { low: 0, high: 1 }, Some);
    let reports = [(0, Report::Outcome(answer)), (1, Report::Late)];
    let refusal = refusal(CommitProtocol::judge(&plan, &reports));
    assert_eq!(refusal.divergence(), Some(&Divergence::NotFound {}));
}

/// Runs a commit of two ranks whose allocation logs differ after 1000 of 2000 operations. Each action of rank 0 takes 2
/// s. Returns the plan (the data) of each action of rank 0, the time at which the action began, and the deadline of the
/// action.
fn searched() -> Vec<(CommitPlan, Duration, Duration)> {
    let machine = |rank: u32| {
        let (_, record) = plain(rank, &[(64, 1)]);
        let log = LogPoint { length: 2000, hash: rank.into() };
        let member = Member { rank, ..member() };
        Agreement::<CommitProtocol>::new(member, CommitRecord { policy: Policy::Prefix, log, ..record }, 0)
            .unwrap()
    };
    let mut plans = Vec::new();
    let act = |rank: u32, plan: CommitPlan, until, now: &mut Duration| {
        if rank == 0 {
            plans.push((plan.clone(), *now, until));
            *now += Duration::from_secs(2);
        }
        let hash = |length| Some(if length <= 1000 { length } else { length + u64::from(rank) });
        match plan {
            CommitPlan::Hashes { range, .. } => CommitOutcome::hashes(range, hash),
            CommitPlan::Recall { sequence, .. } => CommitOutcome::recalled(sequence, 2000, |_| None),
            CommitPlan::Register { .. } => CommitOutcome::Registered(RegistrationOutcome::Registered),
            CommitPlan::Open { .. } => CommitOutcome::Opened(memory_sharing::OpeningOutcome::Mapped),
        }
    };
    drive([0, 1].map(machine).into(), 0, None, act);
    plans
}

/// All steps of a search have one common deadline, that of a single action. The registration after the search has a
/// deadline of its own.
#[test]
fn the_steps_of_a_search_share_their_limits() {
    let plans = searched();
    let Some(((CommitPlan::Register { .. }, begun, until), search)) = plans.split_last() else {
        panic!("{plans:?}")
    };
    assert!(search.len() > 2, "{plans:?}");
    assert!(search.iter().all(|(.., until)| *until == ACTION_FLOOR), "{plans:?}");
    assert_eq!(*until, *begun + ACTION_FLOOR);
}

/// A rank that loses the store in a commit does not learn what the others do next, and is in doubt, because they may
/// have registered windows. Exception: a rank that loses the store during a search is not in doubt if the members have
/// already decided to refuse the commit, because nothing is registered after that search. If all members agree on a
/// failure, no member is in doubt.
#[test]
fn only_a_search_after_a_refusal_leaves_no_doubt() {
    let CommitDecision::Act { plan: refused } = decide(&[plain(0, &[(64, 1)]), plain(1, &[(64, 2)])]) else {
        panic!("the logs differ")
    };
    let CommitPlan::Hashes { range, .. } = refused.clone() else { panic!("{refused:?}") };
    let member = member();
    let doubt = |plan: Option<&CommitPlan>| commit_ending(Common::InDoubt, &member, plan);
    assert_eq!(doubt(Some(&refused)), Ending::StoreFailed { in_doubt: false });
    let commits = CommitPlan::Hashes { range, after: After::Commit(agreed()) };
    for plan in [None, Some(&commits), Some(&CommitPlan::Register(agreed()))] {
        assert_eq!(doubt(plan), Ending::StoreFailed { in_doubt: true }, "{plan:?}");
    }
    let left = Failure::Left { rank: 1, cause: "it is gone".to_owned() };
    let ended = |plan| commit_ending(Common::Failed(left.clone()), &member, plan);
    let lost = Refusal::MemberLost { rank: 1, cause: "it is gone".to_owned() };
    assert_eq!(ended(None), Ending::Refused(lost.clone()));
    assert_eq!(ended(Some(&refused)), Ending::Refused(lost.clone()));
    // The search ended with this failure instead of the plan to register, so no member has registered anything.
    assert_eq!(ended(Some(&commits)), Ending::Refused(lost));
    let poison = Poison::MembersLost { missing: vec![1], blocked: Vec::new() };
    assert_eq!(ended(Some(&CommitPlan::Register(agreed()))), Ending::Poisoned(poison));
}

#[test]
fn an_outcome_that_cannot_be_read_is_no_loss_of_a_member() {
    let failure = Failure::Unreadable { rank: 1, cause: "too short".to_owned() };
    let poison = || Poison::OutcomeUnreadable { rank: 1, cause: "too short".to_owned() };
    let ending =
        commit_ending(Common::Failed(failure.clone()), &member(), Some(&CommitPlan::Register(agreed())));
    assert_eq!(ending, Ending::Poisoned(poison()));
    assert!(ending.is_agreed());
    assert_eq!(plain_ending(Common::Failed(failure.clone())), Ending::Poisoned(poison()));
    let retired = retirement_ending(Common::Failed(failure), &member(), Some(&RetirePlan::Deregister {}));
    assert_eq!(retired, Ok(Retired::Poisoned { poison: poison(), culprits: vec![1], over: Vec::new() }));
}

fn member() -> Member {
    Member {
        name: "symm/1.1/0/3.0/0".to_owned(),
        rank: 0,
        members: vec![0, 1],
        generation: 0,
        patience: Duration::ZERO,
        deadline: None,
    }
}

/// Two processes run as rank 0, and one of them gets the failure [`Failure::Taken`]. The other members may have acted
/// on the record of the other process, so the process with the failure is in doubt.
#[test]
fn a_rank_that_another_process_has_taken_is_in_doubt() {
    let taken = |rank| Failure::Taken { rank };
    let (member, doubt) = (member(), Ending::StoreFailed { in_doubt: true });
    assert_eq!(commit_ending(Common::Failed(taken(0)), &member, None), doubt);
    let retired = retirement_ending(Common::Failed(taken(0)), &member, None);
    assert_eq!(retired, Err(doubt.clone()));
    assert_eq!(length_ending(Common::Failed(taken(0)), &member), doubt);
    assert!(doubt.doubt(0, None).is_some() && !doubt.is_agreed());
    // Another process runs as rank 1. Rank 0 is not in doubt: the members have agreed on this failure instead of a
    // plan, so none has registered anything.
    let other = commit_ending(Common::Failed(taken(1)), &member, None);
    assert!(matches!(other, Ending::Refused(Refusal::PeerPrepareFailed { rank: 1, .. })), "{other:?}");
}

/// The user's deadline becomes [`Member::deadline`]: until then, a member in doubt repeats failed requests to the
/// store. The member's [patience](Member::patience), its wait for the records of the others, ends earlier.
#[test]
fn agreements_of_a_pool_have_the_deadline_of_the_user() {
    let pool = PoolId { domain: 1, generation: 1, instance: 1, pool: 0 };
    let deadline = Duration::from_secs(600);
    let member = Start::length(pool, 0, 0, vec![0, 1], 64, deadline).member;
    assert!(member.deadline == Some(deadline) && member.patience < deadline, "{member:?}");
    let record = RetirementRecord {
        readiness: Readiness::Ready,
        enqueued: Vec::new(),
        log: LogPoint::default(),
        groups: Vec::new(),
        segments: Vec::new(),
    };
    let member = Start::retirement(pool, 0, 0, vec![0, 1], record, deadline).member;
    assert!(member.deadline == Some(deadline) && member.patience < deadline, "{member:?}");
}

/// If members have different member lists, the agreement is refused. The refusal of a commit says that the lists of the
/// group's members differ. The refusal of a retirement or an agreement on a length says that the lists of the domain's
/// ranks differ.
#[test]
fn different_member_lists_name_the_group_or_the_domain() {
    let lists = || ValuesByRank::of([(0, vec![0, 1]), (1, vec![0, 1, 2])]);
    let failed = || Failure::Members { lists: lists() };
    let refused = |what| Ending::Refused(Refusal::MembersMismatch { what, lists: lists().map(RankList) });
    let commit = commit_ending(Common::Failed(failed()), &member(), None);
    assert_eq!(commit, refused(MemberList::Group));
    for name in ["symm/1.1/0/retire/0", "symm/1.1/0/length/0"] {
        let member = Member { name: name.to_owned(), ..member() };
        let retired = retirement_ending(Common::Failed(failed()), &member, None);
        assert_eq!(retired, Err(refused(MemberList::Domain)));
        assert_eq!(length_ending(Common::Failed(failed()), &member), refused(MemberList::Domain));
    }
}

/// Each commit of a group has a name of its own, however the one before it ended. So a member that is late finds the
/// decision of the commit that it takes part in, and not of another one.
#[test]
fn no_two_commits_of_a_group_have_one_name() {
    let (_, record) = plain(0, &[(64, 1)]);
    let pool = PoolId { domain: 1, generation: 1, instance: 1, pool: 0 };
    let doubt = Ending::StoreFailed { in_doubt: true };
    let refused = Ending::Refused(refusal(decide(&pipeline([1, 0], [0, 0]))));
    for ended in [Ok(agreed()), Err(refused), Err(doubt)] {
        let mut log = GroupLog::new(pool, GroupId { uid: 3, epoch: 0 }, 0, vec![0, 1]);
        let mut names = Vec::new();
        for _ in 0..3 {
            let (start, _) = log.begin(record.clone(), Duration::from_secs(1));
            log.conclude(&ended, &[]);
            names.push(start.member.name);
        }
        log.skip();
        names.push(log.begin(record.clone(), Duration::from_secs(1)).0.member.name);
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 4, "after {ended:?}");
    }
}
