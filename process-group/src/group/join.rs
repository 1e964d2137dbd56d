//! The first agreement of the ranks of a job.

use bootstrap::{
    agreement::{Failure, PlainProtocol, ValuesByRank},
    wire::wire_struct,
};

use super::{
    Disagreement, GroupError, Member, Result,
    meeting::Meeting,
    member::{self, Joining},
};
use crate::{
    messages,
    store::{Deadline, PrefixStore},
};

/// The agreement of the ranks of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Join;

/// The members of a new group, and its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Joined {
    pub(super) members: Vec<Member>,
    pub(super) uid: u64,
}
wire_struct!(Joined { members, uid });

impl PlainProtocol for Join {
    const PROTOCOL: bootstrap::wire::Protocol = messages::PROTOCOL;
    type Record = Joining;
    type Agreed = Joined;
    /// The records. Each rank finds the same difference between them.
    type Refusal = Vec<Joining>;

    fn conclude(records: &[(u32, Joining)]) -> Result<Joined, Vec<Joining>> {
        let records: Vec<Joining> = records.iter().map(|(_, record)| record.clone()).collect();
        member::agree(&records).map(|(members, uid)| Joined { members, uid }).map_err(|_| records)
    }
}

/// Meets all ranks of a job, each with its record, and returns the members and the group's number.
pub(super) fn join(
    group: &str,
    job: &PrefixStore,
    rank: usize,
    ranks: &[usize],
    record: Joining,
    deadline: Deadline,
) -> Result<Joined> {
    let meeting =
        Meeting { vigil: None, job, group, what: "the start of the group", name: "join".into(), rank, ranks };
    let source = match meeting.decide::<Join>(record, deadline) {
        Ok(Ok(joined)) => return Ok(joined),
        Ok(Err(records)) => match member::agree(&records) {
            Ok((members, uid)) => return Ok(Joined { members, uid }),
            Err(disagreement) => disagreement,
        },
        Err(error) => disagreement(&error).ok_or(error)?,
    };
    Err(GroupError::Disagreement { group: group.to_owned(), source })
}

/// Returns the disagreement that an error of the agreement stands for.
fn disagreement(error: &GroupError) -> Option<Disagreement> {
    let GroupError::NotAgreed { source, .. } = error else { return None };
    match &**source {
        Failure::Members { lists: ValuesByRank { entries } } => match &entries[..] {
            [one, two] => Some(Disagreement::WorldSize {
                rank: *one.ranks.first()? as usize,
                size: one.value.len(),
                other: *two.ranks.first()? as usize,
                other_size: two.value.len(),
            }),
            _ => None,
        },
        Failure::Unreadable { rank, cause } => {
            Some(Disagreement::Record { rank: *rank as usize, problem: cause.clone() })
        }
        _ => None,
    }
}
