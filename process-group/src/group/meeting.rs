//! Agreements among the members of a group. A failed agreement becomes an error of the group.
//!
//! All agreements of a job use the same part of the store. Circular waits, in which ranks wait for each other in
//! agreements of different groups, can therefore be detected. When a group ends, all waits in its agreements end.

use std::{
    any::Any,
    collections::BTreeMap,
    convert::Infallible,
    marker::PhantomData,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bootstrap::{
    agreement::{self, Ending, Failed, Failure, Gone, Object, OtherMembers, PlainProtocol, Protocol},
    wire::Wire,
};

use super::{GroupErrorKind, KindResult, Result, end_listener::EndCall, health::GroupHealth};
use crate::{
    error_text, messages,
    store::{Deadline, PrefixStore, StoreError},
};

/// An agreement among ranks of the job.
#[derive(Clone)]
pub(super) struct Meeting<'a> {
    /// Health of the group whose members agree. `None` while the group does not exist yet.
    pub(super) health: Option<&'a Arc<GroupHealth>>,
    /// True if the group of `health` grows by this agreement. The ranks of the agreement are then those of the grown
    /// group's job, in which a member's rank is its rank in the group of `health`.
    pub(super) is_larger: bool,
    /// The part of the store that the groups of a job share.
    pub(super) job: &'a PrefixStore,
    /// The subject of the agreement as error messages name it, for example `the barrier`.
    pub(super) what: &'static str,
    /// The agreement's name in the store. Each name is used once.
    pub(super) name: String,
    /// This process's rank of the job.
    pub(super) rank: usize,
    /// The members of the agreement, as ranks of the job.
    pub(super) ranks: &'a [usize],
}

impl Meeting<'_> {
    /// Returns another agreement of the same ranks. Its name in the store is this agreement's name followed by `name`.
    pub(super) fn part(&self, what: &'static str, name: &str) -> Self {
        Self { what, name: format!("{}/{name}", self.name), ..self.clone() }
    }

    /// Takes part in the agreement with this rank's `record`. Returns `Ok(Ok(..))` with the agreed value, or
    /// `Ok(Err(..))` with the refusal. `deadline` limits the wait for the other members. For `act` see
    /// [`agreement::run`].
    ///
    /// # Errors
    /// [`GroupErrorKind::Absent`], [`GroupErrorKind::NotAgreed`], [`GroupErrorKind::Store`], or the error that ended
    /// the group. If the other members may have agreed and this rank cannot find out, the group ends with
    /// [`GroupErrorKind::MemberFailed`].
    pub(super) fn run<P: Protocol>(
        &self,
        record: P::Record,
        deadline: Deadline,
        act: impl FnMut(&P::Plan, Deadline, &dyn Fn() -> bool) -> P::Outcome,
    ) -> KindResult<Result<P::Agreed, P::Refusal>> {
        self.run_beside::<P>(record, deadline, act, &mut None)
    }

    /// Like [`run`](Self::run). If the agreement of members with another list had ended before this member came, also
    /// stores these members in `others`.
    fn run_beside<P: Protocol>(
        &self,
        record: P::Record,
        deadline: Deadline,
        act: impl FnMut(&P::Plan, Deadline, &dyn Fn() -> bool) -> P::Outcome,
        others: &mut Option<OtherMembers<P::Agreed>>,
    ) -> KindResult<Result<P::Agreed, P::Refusal>> {
        let member = agreement::Member {
            name: self.name.clone(),
            rank: id(self.rank),
            members: self.ranks.iter().copied().map(id).collect(),
            generation: 0,
            patience: deadline.remaining(),
            deadline: None,
        };
        let run = || match agreement::run::<P>(self.job, member, record, act, self) {
            Ok(agreed) => Ok(Ok(agreed)),
            Err(mut failed) => {
                *others = failed.others.take();
                self.failed(*failed, deadline)
            }
        };
        match self.health {
            Some(health) => health.attend(run),
            None => run(),
        }
    }

    /// Like [`run`](Self::run), for an agreement without an action.
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    pub(super) fn decide<P: PlainProtocol>(
        &self,
        record: P::Record,
        deadline: Deadline,
    ) -> KindResult<Result<P::Agreed, P::Refusal>> {
        self.run::<P>(record, deadline, |plan, _, _| match *plan {})
    }

    /// Like [`decide`](Self::decide). If the agreement of members with another list had ended before this member came,
    /// also stores these members in `others`.
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    pub(super) fn decide_beside<P: PlainProtocol>(
        &self,
        record: P::Record,
        deadline: Deadline,
        others: &mut Option<OtherMembers<P::Agreed>>,
    ) -> KindResult<Result<P::Agreed, P::Refusal>> {
        self.run_beside::<P>(record, deadline, |plan, _, _| match *plan {}, others)
    }

    /// Gathers the records of all members. Returns each record with its member's rank of the job. Records should be
    /// small, because every member reads all of them.
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    pub(super) fn gather<R: Wire + 'static>(
        &self,
        record: R,
        deadline: Deadline,
    ) -> KindResult<Vec<(u32, R)>> {
        let Ok(records) = self.decide::<Gather<R>>(record, deadline)?;
        Ok(records)
    }

    /// Converts the ending of an unsuccessful agreement. A refusal becomes `Ok(Err(..))`, every other ending an error.
    fn failed<P: Protocol, T>(
        &self,
        failed: Failed<P>,
        deadline: Deadline,
    ) -> KindResult<Result<T, P::Refusal>> {
        let Failed { ending, store, .. } = failed;
        let (meeting, at) = (self.what, self.name.clone());
        Err(match ending {
            Ending::Refused(refusal) => return Ok(Err(refusal)),
            Ending::Failed(Failure::Absent { missing, circle, .. }) if circle.is_empty() => {
                self.absent(missing.into_iter().map(|absentee| absentee.rank).collect(), deadline)
            }
            Ending::Failed(Failure::Taken { rank }) => {
                StoreError::RankTaken { rank: rank as usize, at }.into()
            }
            Ending::Failed(Failure::Left { rank, cause }) => self.given_up(rank as usize, cause),
            Ending::Failed(failure) => GroupErrorKind::NotAgreed { meeting, source: Box::new(failure) },
            other => {
                let unusable = || {
                    let problem = "does another program use its keys?";
                    StoreError::Argument(format!("the agreement {at:?}: {other:?}; {problem}"))
                };
                let error = store.unwrap_or_else(unusable).into();
                if matches!(other, Ending::StoreFailed) { error } else { self.in_doubt(error) }
            }
        })
    }

    /// Ends the group because this rank cannot do its part of an agreement that the other members may have reached.
    /// Returns the error that ended the group.
    fn in_doubt(&self, error: GroupErrorKind) -> GroupErrorKind {
        let Some(health) = self.health else { return error };
        // If another member has ended the group, its reason is the cause of `error`.
        let error = health.cause(error);
        if !health.is_over() {
            health.fail(format!("in doubt about {}: {}", self.what, error_text(&error)));
        }
        health.reason(error)
    }

    /// Returns the error for members that did not come to the agreement. `ranks` are their ranks of the job.
    pub(super) fn absent(&self, ranks: Vec<u32>, deadline: Deadline) -> GroupErrorKind {
        GroupErrorKind::Absent {
            ranks: ranks.into_iter().map(|rank| rank as usize).collect(),
            size: self.ranks.len(),
            meeting: self.what,
            waited: deadline.waited(),
        }
    }

    /// Returns the error for a member that has left the group. `rank` is its rank of the job, `cause` the reason that
    /// it published.
    pub(super) fn given_up(&self, rank: usize, cause: String) -> GroupErrorKind {
        StoreError::GivenUp { rank, at: self.name.clone(), cause }.into()
    }
}

/// The group of `health`.
impl Object for &Meeting<'_> {
    fn check(&self) -> Result<(), Gone> {
        self.health.and_then(|health| health.gone(self.is_larger)).map_or(Ok(()), Err)
    }

    fn begin_wait(&self, key: &str) -> Option<Box<dyn Any>> {
        let (store, key, is_larger) = (self.job.clone(), key.to_owned(), self.is_larger);
        let reader = move |health: &GroupHealth| {
            let (store, key, gone) = (store.clone(), key.clone(), health.gone(is_larger)?);
            // If the request fails, the wait ends when it next checks the group.
            let end = move || drop(agreement::end_wait(&store, &key, gone.clone()));
            Some(Arc::new(end) as EndCall)
        };
        Some(Box::new(self.health?.end_listeners.add(reader)))
    }
}

/// If an agreement failed because its members had different member lists, returns two such members with their lists.
/// All ranks are ranks of the job.
pub(super) fn different_lists(error: &GroupErrorKind) -> Option<[(usize, &[u32]); 2]> {
    let GroupErrorKind::NotAgreed { source, .. } = error else { return None };
    let Failure::Members { lists } = &**source else { return None };
    let [one, other] = &lists.entries[..] else { return None };
    Some([(*one.ranks.first()? as usize, &one.value), (*other.ranks.first()? as usize, &other.value)])
}

/// Numbers the agreements of a group, separately for each kind.
#[derive(Debug, Default)]
pub(super) struct Attempts(Mutex<BTreeMap<String, u64>>);

impl Attempts {
    /// Returns the name of the next agreement of this kind. Failed agreements are counted too, so all members use the
    /// same name for the next attempt.
    pub(super) fn next(&self, kind: &str) -> String {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(kind.to_owned()).or_default();
        *count += 1;
        format!("{kind}/{}", *count - 1)
    }
}

/// The minimum time for an agreement that follows another step of the same call.
const FOLLOW_UP: Duration = Duration::from_secs(10);

/// Returns the deadline for an agreement that follows another step of the same call: `deadline`, the deadline of the
/// call, but at least `FOLLOW_UP` from now.
///
/// The earlier step has a time limit of its own and may have outlasted the call's deadline. Without the minimum,
/// members that arrive a moment later would be reported as absent.
pub(super) fn follow_up(deadline: Deadline) -> Deadline {
    if deadline.remaining() < FOLLOW_UP { Deadline::after(FOLLOW_UP) } else { deadline }
}

/// Converts a rank to the type that agreements use.
pub(super) fn id(rank: usize) -> u32 {
    u32::try_from(rank).unwrap_or(u32::MAX)
}

/// The protocol that gives every member the records of all members.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Gather<R>(PhantomData<R>);

impl<R: Wire + 'static> PlainProtocol for Gather<R> {
    const PROTOCOL: bootstrap::wire::Protocol = messages::PROTOCOL;
    type Record = R;
    type Agreed = Vec<(u32, R)>;
    type Refusal = Infallible;

    fn conclude(records: &[(u32, R)]) -> Result<Vec<(u32, R)>, Infallible> {
        Ok(records.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_follow_up_has_time_although_the_deadline_has_passed() {
        assert!(follow_up(Deadline::now()).remaining() > FOLLOW_UP / 2);
        let long = Deadline::after(FOLLOW_UP * 2);
        assert_eq!(follow_up(long), long);
    }
}
