//! Checks of a run.

use std::collections::BTreeMap;

use crate::agreement::{
    Agreed, Capability, Divergence, Ending, FLOORS, NoWindows, OperationKind, Poison, Refusal,
};

use super::{
    Run,
    rank::Ended,
    scenario::{DEADLINE, Scenario, Trouble},
};

/// Number of results with each name. Each member's result of a commit counts.
pub(super) type Tally = BTreeMap<&'static str, u64>;

/// A commit: its results on the members, and the scenario that explains them.
struct Told<'a> {
    ended: &'a [&'a Ended],
    scenario: &'a Scenario,
    members: &'a [u32],
    /// True for the second commit of the group, which has a longer deadline than the first.
    last: bool,
    /// The index of the first allocation request for which the culprit's device had no memory.
    lacking: Option<u64>,
    /// Prefix of failure messages.
    at: String,
}

pub(super) fn check(seed: u64, run: &Run, tally: &mut Tally) {
    let Scenario { trouble, culprit, .. } = run.scenario;
    let lacking = run.ended.iter().find_map(|it| it.lacking);
    let mut commits: BTreeMap<(u64, u64), Vec<&Ended>> = BTreeMap::new();
    for ended in &run.ended {
        commits.entry((ended.round, ended.group)).or_default().push(ended);
        *tally.entry(name(ended)).or_default() += 1;
    }
    let mut poisoned: Vec<u64> = Vec::new();
    for ((round, group), ended) in &commits {
        let (first, members) = (ended[0], &ended[0].members);
        let at =
            format!("seed {seed}, {trouble:?} on rank {culprit}, group {group} {members:?}, round {round}");
        // A dead rank has no result. Neither has a rank that learns of the death before it begins.
        let is_bereft = matches!(trouble, Trouble::Killed(_)) && members.contains(&culprit);
        let expected = members.iter().filter(|rank| trouble != Trouble::Absent || **rank != culprit).count();
        assert!(is_bereft || ended.len() == expected, "{at}: {ended:#?}");
        for it in ended {
            assert_eq!(it.said, first.said, "{at}: ranks {} and {} differ", first.rank, it.rank);
            assert!(it.ended - it.begun <= it.deadline + FLOORS, "{at}: rank {} is late: {it:?}", it.rank);
            assert_ne!(it.right, Some(false), "{at}: rank {} finds something else", it.rank);
            assert!(is_bereft || it.right == first.right, "{at}: {ended:#?}");
        }
        let told = Told { ended, scenario: &run.scenario, members, last: *round > 0, lacking, at };
        told.check_commit(&first.said, poisoned.contains(group));
        if matches!(first.said, Err(Ending::Poisoned(_))) {
            poisoned.push(*group);
        }
    }
    let most = match trouble {
        Trouble::RegistrationFails(_) | Trouble::RegistrationSlow(..) => usize::from(run.struck > 0),
        Trouble::Killed(_) => 1,
        _ => 0,
    };
    poisoned.dedup();
    assert!(poisoned.len() <= most, "seed {seed}, {trouble:?}: groups {poisoned:?} are poisoned");
    if matches!(trouble, Trouble::RegistrationFails(_)) {
        assert_eq!(poisoned.len() as u64, run.struck, "seed {seed}, {trouble:?}");
    }
}

impl Told<'_> {
    /// Returns whether the culprit is a member.
    fn is_affected(&self) -> bool {
        self.members.contains(&self.scenario.culprit)
    }

    /// Returns whether the culprit and another rank are members, so that they can differ.
    fn is_parted(&self) -> bool {
        self.is_affected() && self.members.len() > 1
    }

    /// Checks that the scenario explains the result of a commit. An error that only the culprit can cause must name the
    /// culprit.
    fn check_commit(&self, result: &Result<Agreed, Ending>, was_poisoned: bool) {
        let Self { scenario, members, lacking, at, .. } = self;
        let Scenario { trouble, culprit, extra_at, .. } = **scenario;
        let refusal = match result {
            Ok(agreed) => {
                let alone = (members.len() == 1).then_some(NoWindows::SingleMember {});
                assert!(agreed.segments == 0 || agreed.without == alone, "{at}: {agreed:?}");
                assert!(!was_poisoned, "{at}: the group rose from the dead");
                agreed.pending.as_ref()
            }
            Err(Ending::Refused(refusal)) => Some(refusal),
            Err(Ending::Poisoned(poison)) => return self.check_poison(poison, was_poisoned),
            Err(other) => panic!("{at}: {other:?} is no agreed result"),
        };
        let differs =
            matches!(trouble, Trouble::Extra(_) | Trouble::OtherRelease | Trouble::OtherEnvironment)
                || lacking.is_some();
        let Some(refusal) = refusal else {
            assert!(!differs || !self.is_parted(), "{at}: the difference was not found");
            assert!(trouble != Trouble::Absent || !self.is_affected(), "{at}: agreed without rank {culprit}");
            return;
        };
        let text = refusal.to_string();
        match refusal {
            Refusal::SegmentCountMismatch { .. }
            | Refusal::SegmentShapeMismatch { .. }
            | Refusal::AllocationDiverged { .. } => {
                assert!(self.is_parted(), "{at}: {text}");
                let Some(Divergence::At { sequence, operations, .. }) = refusal.divergence() else {
                    panic!("{at}: the first allocation that differs was not found: {text}");
                };
                let side = operations.entries.iter().find(|side| side.ranks == [culprit]);
                let operation = side.and_then(|side| side.value.as_ref());
                match trouble {
                    Trouble::Extra(bytes) => {
                        assert_eq!(*sequence, extra_at as u64, "{at}: {text}");
                        assert_eq!(operation.map(|it| it.bytes), Some(bytes), "{at}: {text}");
                    }
                    _ => {
                        assert_eq!(Some(*sequence), *lacking, "{at}: {text}");
                        assert_eq!(operation.map(|it| it.kind), Some(OperationKind::Refuse), "{at}: {text}");
                    }
                }
            }
            Refusal::CapabilityMismatch { what, values } => {
                let differs = match what {
                    Capability::Library => Trouble::OtherRelease,
                    Capability::Windows => Trouble::OtherEnvironment,
                };
                assert!(trouble == differs && self.is_parted(), "{at}: {text}");
                assert!(values.entries.iter().any(|side| side.ranks == [culprit]), "{at}: {text}");
            }
            Refusal::MemberLost { rank, .. } => {
                assert!(matches!(trouble, Trouble::Killed(_)), "{at}: {text}");
                self.check_lost(&[*rank], &text);
            }
            Refusal::SyncTimeout { missing, .. } => {
                self.check_missing(missing.iter().map(|absentee| absentee.rank).collect(), &text);
            }
            other => panic!("{at}: {other}"),
        }
    }

    fn check_poison(&self, poison: &Poison, was_poisoned: bool) {
        let Self { ended, scenario: Scenario { trouble, .. }, members, at, .. } = self;
        assert!(members.len() > 1, "{at}: {poison}");
        match poison {
            Poison::RegistrationFailed { rank, .. } => {
                assert!(matches!(trouble, Trouble::RegistrationFails(_)), "{at}: {poison}");
                let refused = ended.iter().find(|it| it.refused).map(|it| it.rank);
                assert!(was_poisoned || refused == Some(*rank), "{at}: {poison}, but {refused:?}");
                // The verdict frees blocked ranks from the library, long before their own deadline.
                let all_here = ended.iter().map(|it| it.begun).max().unwrap_or_default();
                let freed = ended.iter().all(|it| it.ended < all_here + DEADLINE / 8);
                assert!(was_poisoned || freed, "{at}: {ended:#?}");
            }
            Poison::MembersLost { missing, .. } if matches!(trouble, Trouble::Killed(_)) => {
                self.check_lost(missing, &poison.to_string());
            }
            // A slow registration is no reason for poison: it ends before the time limit of the registration.
            other => panic!("{at}: {other}"),
        }
    }

    /// Checks that the culprit is one of the `missing` ranks. Other members may be missing too, because a rank that
    /// knows of the death stops waiting for outcomes.
    fn check_lost(&self, missing: &[u32], text: &str) {
        let Self { scenario: Scenario { culprit, .. }, members, at, .. } = self;
        assert!(missing.contains(culprit), "{at}: {text}");
        assert!(missing.iter().all(|rank| members.contains(rank)), "{at}: {text}");
    }

    /// Checks that there is a reason for the missing ranks. In the last commit only a killed culprit, or a rank that
    /// knew of the death, may be missing.
    fn check_missing(&self, missing: Vec<u32>, text: &str) {
        let Self { scenario: Scenario { trouble, culprit, .. }, members, last, at, .. } = self;
        assert!(missing.iter().all(|rank| members.contains(rank)), "{at}: {text}");
        match trouble {
            // The dead rank is missing, or a rank that knew of the death and did not begin.
            Trouble::Killed(_) => {
                let began = |rank: &u32| self.ended.iter().any(|it| it.rank == *rank);
                assert!(self.is_affected() && !missing.iter().any(began), "{at}: {text}");
                return;
            }
            Trouble::Absent if self.is_affected() => assert_eq!(missing, [*culprit], "{at}: {text}"),
            // A rank that waited for the culprit in another group may arrive too late in this one.
            Trouble::Absent | Trouble::Late(_) | Trouble::Swapped | Trouble::RegistrationSlow(..) => {}
            _ => panic!("{at}: {text}"),
        }
        assert!(!last, "{at}: the last commit fails: {text}");
    }
}

fn name(ended: &Ended) -> &'static str {
    match &ended.said {
        Ok(agreed) if agreed.pending.is_some() => "prefix",
        Ok(agreed) if agreed.without.is_some() => "without windows",
        Ok(_) if ended.right.is_some() => "committed and summed",
        Ok(_) => "committed",
        Err(Ending::Refused(refusal)) => refusal.name(),
        Err(Ending::Poisoned(poison)) => poison.name(),
        Err(_) => "store failed",
    }
}
