//! Makes communicators with the help of the store: on all of their ranks, or on none.
//!
//! NCCL's own calls wait forever for a missing rank, and do not report that another rank has failed. The ranks
//! therefore agree before they call NCCL that all are ready. If ranks are missing, the error of this step names them.
//! After the calls, the ranks agree on the results. No rank uses the communicator before all ranks have made it.

use bootstrap::{
    agreement::{self, Decision, Protocol, Report},
    wire::wire_enum,
};

use super::{
    GroupErrorKind, KindResult, ProcessGroup, Result,
    meeting::{Meeting, id},
};
use crate::{
    comm::{CommError, Communicator, UniqueId},
    error_text, messages,
    peers::PeerError,
    store::{Deadline, PrefixStore},
};

/// The agreement for making a communicator: on the ranks' readiness, then on the results of their calls.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Making;

/// A rank's readiness to call NCCL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Readiness {
    /// The rank can take part. If the call needs a unique id, the first rank passes it here.
    Ready { unique_id: Option<Vec<u8>> },
    /// The rank cannot take part.
    Refused { problem: String },
}
impl Readiness {
    /// Returns `Ready` without a unique id.
    pub(super) fn ready() -> Self {
        Self::Ready { unique_id: None }
    }
}

wire_enum!(Readiness { 0 => Ready { unique_id }, 1 => Refused { problem } });

/// The result of the NCCL call, or of another step, on one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Outcome {
    Made,
    Failed {
        problem: String,
    },
    /// The deadline has passed, perhaps because another rank did not call.
    TimedOut {
        problem: String,
    },
    /// This rank has stopped, because its group has ended or because another rank has failed.
    Ended,
}
wire_enum!(Outcome { 0 => Made {}, 1 => Failed { problem }, 2 => TimedOut { problem }, 3 => Ended {} });

/// The reason why the communicator was made on no rank. Ranks are ranks of the job.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Unmade {
    Failed {
        rank: u32,
        problem: String,
    },
    /// These ranks have not returned from the call in time.
    Late {
        ranks: Vec<u32>,
    },
    /// This rank has stopped, because its group has ended or because another rank has failed.
    Ended {
        rank: u32,
    },
}
wire_enum!(Unmade { 0 => Failed { rank, problem }, 1 => Late { ranks }, 2 => Ended { rank } });

impl Protocol for Making {
    const PROTOCOL: bootstrap::wire::Protocol = messages::PROTOCOL;
    type Record = Readiness;
    /// The unique id, if the call needs one.
    type Plan = Option<Vec<u8>>;
    type Outcome = Outcome;
    type Agreed = ();
    type Refusal = Unmade;

    fn decide(records: &[(u32, Readiness)]) -> Decision<Self> {
        let mut plan = None;
        for (rank, readiness) in records {
            match readiness.clone() {
                Readiness::Refused { problem } => {
                    return Decision::Refused { refusal: Unmade::Failed { rank: *rank, problem } };
                }
                Readiness::Ready { unique_id } => plan = plan.or(unique_id),
            }
        }
        Decision::Act { plan }
    }

    fn is_final(outcome: &Outcome) -> bool {
        matches!(outcome, Outcome::Failed { .. } | Outcome::Ended)
    }

    /// Returns the reason that explains the others, in this order: a rank that failed, a rank that stopped because of a
    /// failure, the ranks that are late, a rank that timed out while it waited for a late rank.
    fn judge(_: &Option<Vec<u8>>, reports: &[(u32, Report<Outcome>)]) -> Decision<Self> {
        let failed = |rank: &u32, problem: &String| Unmade::Failed { rank: *rank, problem: problem.clone() };
        let late = reports.iter().filter(|(_, report)| *report == Report::Late).map(|(rank, _)| *rank);
        let late: Vec<u32> = late.collect();
        let refusals = reports.iter().filter_map(|(rank, report)| match report {
            Report::Outcome(Outcome::Failed { problem }) => Some((0, failed(rank, problem))),
            Report::Outcome(Outcome::Ended) => Some((1, Unmade::Ended { rank: *rank })),
            Report::Late => Some((2, Unmade::Late { ranks: late.clone() })),
            Report::Outcome(Outcome::TimedOut { problem }) => Some((3, failed(rank, problem))),
            Report::Outcome(Outcome::Made) | Report::Pending => None,
        });
        match refusals.min_by_key(|(order, _)| *order) {
            Some((_, refusal)) => Decision::Refused { refusal },
            None => Decision::Agreed { agreed: () },
        }
    }
}

impl ProcessGroup {
    /// Makes the prepared communicator `made`, together with the ranks of `all`.
    ///
    /// # Errors
    /// After [`GroupErrorKind::Absent`] for a rank that did not come, and after [`GroupErrorKind::Unmade`] because
    /// another rank could not prepare its communicator, nothing has changed. After an error of the NCCL calls or of a
    /// later step the communicator is poisoned: [`GroupErrorKind::Comm`] for a failure on this rank,
    /// [`GroupErrorKind::Unmade`] for a failure on another rank, [`GroupErrorKind::Absent`] for a rank that has not
    /// returned from NCCL in time, [`GroupErrorKind::Lost`], [`GroupErrorKind::Store`].
    pub(super) fn form(&self, all: &Meeting<'_>, made: &Communicator, deadline: Deadline) -> KindResult<()> {
        // The first rank makes the unique id for all ranks.
        let is_first = all.rank == all.ranks[0];
        let unique_id = match is_first.then(|| made.nccl().unique_id()).transpose() {
            Ok(id) => id.map(|id| id.as_bytes().to_vec()),
            Err(error) => return Err(all.refuse(error.into(), deadline)),
        };
        let mut has_acted = false;
        let formed = all.make(Readiness::Ready { unique_id }, deadline, |unique_id, until, go_on| {
            has_acted = true;
            let unique_id = UniqueId::try_from(unique_id)?;
            made.join(&unique_id, until, go_on).or_else(|error| match error {
                GroupErrorKind::Comm(error) => self.counter.health.explain_making(Err(error)),
                error => Err(error),
            })?;
            self.announce(made)
        });
        formed.inspect_err(|error| {
            if has_acted {
                made.give_up(&error_text(error));
            }
        })
    }

    /// Runs the step `work`, which succeeds on all ranks or on none. `work` gets its deadline and a function that it
    /// calls from time to time while it waits. An error of that function ends the wait.
    pub(super) fn make_together<T>(
        &self,
        all: &Meeting<'_>,
        deadline: Deadline,
        mut work: impl FnMut(Deadline, &mut dyn FnMut() -> KindResult<()>) -> KindResult<T>,
    ) -> KindResult<T> {
        all.make(Readiness::ready(), deadline, |_, until, go_on| work(until, go_on))
    }

    /// Calls the group's followers with a communicator that is made, before the communicator is used.
    pub(super) fn announce(&self, communicator: &Communicator) -> KindResult<()> {
        Ok(self.followers.iter().try_for_each(|follower| follower(communicator))?)
    }
}

impl Meeting<'_> {
    /// Runs the step `work`, which succeeds on all ranks or on none. `work` gets the first rank's unique id, which is
    /// empty if the first rank passed none.
    pub(super) fn make<T>(
        &self,
        readiness: Readiness,
        deadline: Deadline,
        mut work: impl FnMut(&[u8], Deadline, &mut dyn FnMut() -> KindResult<()>) -> KindResult<T>,
    ) -> KindResult<T> {
        let check = || self.health.map_or(Ok(()), |health| health.check());
        let cause = |error| match self.health {
            Some(health) => health.cause(error),
            None => error,
        };
        let (mut made, mut own) = (None, None);
        let act = |unique_id: &Option<Vec<u8>>, until: Deadline, has_failed: &dyn Fn() -> bool| {
            let mut is_stopped = false;
            let mut go_on = || {
                check()?;
                is_stopped = has_failed();
                if is_stopped { Err(self.ended(self.rank)) } else { Ok(()) }
            };
            match work(unique_id.as_deref().unwrap_or_default(), until, &mut go_on) {
                Ok(done) => {
                    made = Some(done);
                    Outcome::Made
                }
                // This rank's error is a consequence of the group's end or of another rank's failure. The verdict
                // reports the cause.
                Err(_) if is_stopped || has_failed() => Outcome::Ended,
                Err(error) => {
                    let problem = error_text(&error);
                    let is_late = is_timeout(&error);
                    own = Some(error);
                    match is_late {
                        // The other ranks are notified of the end of the group separately.
                        _ if self.health.is_some_and(|health| health.is_over()) => Outcome::Ended,
                        true => Outcome::TimedOut { problem },
                        false => Outcome::Failed { problem },
                    }
                }
            }
        };
        let agreed = self.run::<Making>(readiness, deadline, act);
        match (agreed, made, own) {
            (Ok(Ok(())), Some(made), _) => Ok(made),
            // The verdict names the late ranks, for which this rank has waited.
            (Ok(Err(Unmade::Late { ranks })), _, own) if own.as_ref().is_none_or(is_timeout) => {
                Err(cause(self.absent(ranks, deadline)))
            }
            (_, _, Some(own)) => Err(own),
            (Ok(Err(Unmade::Failed { rank, problem })), ..) => {
                Err(cause(self.unmade(rank as usize, problem)))
            }
            (Ok(Err(Unmade::Ended { rank })), ..) => Err(cause(self.ended(rank as usize))),
            (Err(error), ..) => Err(error),
            (Ok(_), ..) => Err(self.unmade(self.rank, "it has made nothing".into())),
        }
    }

    /// Notifies the other ranks that this rank cannot take part. Returns `error`.
    pub(super) fn refuse(&self, error: GroupErrorKind, deadline: Deadline) -> GroupErrorKind {
        let refused = Readiness::Refused { problem: error_text(&error) };
        // An error of this agreement is ignored: the other ranks report missing ranks.
        let _ = self.run::<Making>(refused, deadline, |_, _, _| Outcome::Ended);
        error
    }

    /// Returns the error for a rank of the job on which the group has ended.
    fn ended(&self, rank: usize) -> GroupErrorKind {
        self.given_up(rank, "the group has ended there".into())
    }

    /// Returns the error for a rank of the job that could not take part.
    pub(super) fn unmade(&self, rank: usize, problem: String) -> GroupErrorKind {
        GroupErrorKind::Unmade { what: self.what, rank, problem }
    }
}

/// Returns true if another rank, which has not reported yet, may be the cause of this rank's error.
fn is_timeout(error: &GroupErrorKind) -> bool {
    match error {
        GroupErrorKind::Comm(CommError::DeadlineExceeded { .. }) => true,
        // A rank that waits for a late rank does not answer other ranks. These then get an error of this kind.
        GroupErrorKind::Peers(error) => !matches!(error, PeerError::Folder { .. }),
        _ => false,
    }
}

/// Notifies the members of a group that is being made that `rank` of the job will not take part in making the
/// communicator. `path` is the prefix of the group's keys. Errors of the store are ignored.
pub(super) fn stay_away(job: &PrefixStore, path: &str, rank: usize) {
    let _ = agreement::leave::<Making>(job, &format!("{path}connect/0"), id(rank), "it could not begin");
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{collection::vec, prelude::*};

    fn outcome() -> impl Strategy<Value = Report<Outcome>> {
        let problem = || "[a-z]{1,4}";
        prop_oneof![
            4 => Just(Report::Outcome(Outcome::Made)),
            1 => problem().prop_map(|problem| Report::Outcome(Outcome::Failed { problem })),
            1 => problem().prop_map(|problem| Report::Outcome(Outcome::TimedOut { problem })),
            1 => Just(Report::Outcome(Outcome::Ended)),
            1 => Just(Report::Late),
        ]
    }

    proptest! {
        /// The agreement succeeds only if every rank has made the communicator. Otherwise the verdict names a rank that
        /// has not.
        #[test]
        fn all_have_made_it_or_one_that_has_not_is_named(outcomes in vec(outcome(), 1..6)) {
            let reports: Vec<_> = (10..).zip(outcomes).collect();
            let of = |rank: u32| reports.iter().find(|(other, _)| *other == rank).map(|(_, report)| report);
            let is_made = |report: &Report<Outcome>| *report == Report::Outcome(Outcome::Made);
            match Making::judge(&None, &reports) {
                Decision::Agreed { agreed: () } => prop_assert!(reports.iter().all(|(_, report)| is_made(report))),
                Decision::Refused { refusal: Unmade::Failed { rank, problem } } => {
                    let timed_out = Report::Outcome(Outcome::TimedOut { problem: problem.clone() });
                    let failed = Report::Outcome(Outcome::Failed { problem });
                    // The verdict does not name a rank that timed out while it waited for a late rank.
                    let is_late = reports.iter().any(|(_, report)| *report == Report::Late);
                    prop_assert!(of(rank) == Some(&failed) || (!is_late && of(rank) == Some(&timed_out)));
                }
                Decision::Refused { refusal: Unmade::Ended { rank } } => {
                    prop_assert_eq!(of(rank), Some(&Report::Outcome(Outcome::Ended)));
                }
                Decision::Refused { refusal: Unmade::Late { ranks } } => {
                    prop_assert!(!ranks.is_empty() && ranks.iter().all(|rank| of(*rank) == Some(&Report::Late)));
                }
                Decision::Act { .. } => prop_assert!(false, "there is one action"),
            }
        }

        /// A final outcome of one rank fails the agreement while the other ranks have not reported yet.
        #[test]
        fn a_final_outcome_fails_it(outcomes in vec(outcome(), 1..6)) {
            let reports = outcomes.into_iter().map(|report| match report {
                Report::Outcome(outcome) if Making::is_final(&outcome) => Report::Outcome(outcome),
                _ => Report::Pending,
            });
            let reports: Vec<_> = (0..).zip(reports).collect();
            let has_final = reports.iter().any(|(_, report)| *report != Report::Pending);
            let is_failed = matches!(Making::judge(&None, &reports), Decision::Refused { .. });
            prop_assert_eq!(is_failed, has_final);
        }

        #[test]
        fn the_call_gets_the_unique_id_unless_a_rank_refuses(refused in vec(any::<bool>(), 1..6)) {
            let readiness = |(rank, refuses): (u32, &bool)| match refuses {
                true => (rank, Readiness::Refused { problem: rank.to_string() }),
                false => (rank, Readiness::Ready { unique_id: (rank == 0).then(|| vec![1, 2]) }),
            };
            let records: Vec<_> = (0..).zip(&refused).map(readiness).collect();
            let expected = match (0..).zip(&refused).find(|(_, refuses)| **refuses) {
                Some((rank, _)) => {
                    let refusal = Unmade::Failed { rank, problem: rank.to_string() };
                    Decision::Refused { refusal }
                }
                None => Decision::Act { plan: Some(vec![1, 2]) },
            };
            prop_assert_eq!(Making::decide(&records), expected);
        }
    }
}
