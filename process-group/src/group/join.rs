//! The first agreement of the ranks of a job.

use std::{sync::Arc, time::Duration};

use bootstrap::agreement::{Failure, PlainProtocol};

use super::{
    Disagreement, GroupErrorKind, KindResult, Member, Result,
    form::Readiness,
    health::GroupHealth,
    meeting::{Meeting, different_lists},
    member::{self, Joining},
};
use crate::{
    messages,
    peers::Peers,
    store::{Deadline, PrefixStore},
};

/// The protocol of the first agreement of a job's ranks. Each rank publishes a [`Joining`] record.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Join;

impl PlainProtocol for Join {
    const PROTOCOL: bootstrap::wire::Protocol = messages::PROTOCOL;
    type Record = Joining;
    /// The records of all ranks. Every rank computes the same result from them, with [`member::agree`].
    type Agreed = Vec<Joining>;
    type Refusal = Vec<Joining>;

    fn conclude(records: &[(u32, Joining)]) -> Result<Vec<Joining>, Vec<Joining>> {
        let records: Vec<Joining> = records.iter().map(|(_, record)| record.clone()).collect();
        if member::agree(&records).is_ok() { Ok(records) } else { Err(records) }
    }
}

/// Meets all ranks of a job, each with its record, and returns the members and the group's number. `health` is that of
/// the group that grows, if any. The end of that group ends the wait.
pub(super) fn join(
    health: Option<&Arc<GroupHealth>>,
    job: &PrefixStore,
    rank: usize,
    ranks: &[usize],
    record: Joining,
    deadline: Deadline,
) -> KindResult<(Vec<Member>, u64)> {
    let (what, name) = ("the start of the group", "join".into());
    let meeting = Meeting { health, is_larger: health.is_some(), job, what, name, rank, ranks };
    let agreed = match meeting.decide::<Join>(record, deadline) {
        Ok(Ok(records) | Err(records)) => member::agree(&records),
        Err(error) => Err(disagreement(&error).ok_or(error)?),
    };
    agreed.map_err(|source| GroupErrorKind::Disagreement { source })
}

/// Connects the processes of each host for a group that grows. All ranks succeed, or all get the same error: a new rank
/// may die after [`join`], before other processes can notice that.
pub(super) fn meet_grown_peers(
    health: Option<&Arc<GroupHealth>>,
    job: &PrefixStore,
    (rank, ranks): (usize, &[usize]),
    members: &[Member],
    heartbeat: Duration,
    deadline: Deadline,
) -> KindResult<Peers> {
    let (what, name) = ("the connection of the processes of a host", "join/peers".into());
    let meeting = Meeting { health, is_larger: health.is_some(), job, what, name, rank, ranks };
    meeting.make(Readiness::ready(), deadline, |_, until, _| {
        Ok(Peers::meet(job, rank, members, heartbeat, until)?)
    })
}

/// Converts an error of the agreement to a disagreement, if it reports different lists of ranks or an unreadable
/// record.
fn disagreement(error: &GroupErrorKind) -> Option<Disagreement> {
    if let Some([(rank, list), (other, other_list)]) = different_lists(error) {
        let (size, other_size) = (list.len(), other_list.len());
        return Some(Disagreement::WorldSize { rank, size, other, other_size });
    }
    let GroupErrorKind::NotAgreed { source, .. } = error else { return None };
    let Failure::Unreadable { rank, cause } = &**source else { return None };
    Some(Disagreement::Record { rank: *rank as usize, problem: cause.clone() })
}
