//! Several commits in one call.

use std::{thread, time::Instant};

use process_group::comm::Group;

use super::SymmetricPool;
use crate::{
    agreement::{GroupId, PoolId},
    error::Error,
    membership::{CommitOptions, CommitReport, SymmetricGroup},
};

/// Returns the order in which to run `commits`, as indices into them: sorted by rank, then by group, then by pool.
pub fn in_order(commits: &[(u32, GroupId, PoolId)]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..commits.len()).collect();
    order.sort_by_key(|index| commits[*index]);
    order
}

/// Runs several commits: each pair in `commits` is one [commit](SymmetricPool::commit) of that pool for that group. Use
/// this function if a rank is in several groups, or if a thread runs several ranks.
///
/// Each commit belongs to the rank for which its pool was made ([`Domain::rank`](crate::Domain::rank)). The commits of
/// one rank run one after the other, in ascending order of the group ids and, for the same group, of the pool ids. The
/// commits of different ranks run in parallel, on threads that end before this function returns. A failed commit does
/// not prevent the other commits. Returns one result for each commit, in the order of `commits`.
///
/// The deadline applies to the whole call: each commit gets the time that remains after the earlier commits of its
/// rank. If no time remains for a commit that the rank cannot [skip](SymmetricPool::commit), the commit is refused at
/// once on all members, with [`Refusal::PeerPrepareFailed`](crate::Refusal::PeerPrepareFailed). Its group is not
/// poisoned, so a later commit can succeed.
///
/// # Errors
/// Those of [`SymmetricPool::commit`], for each commit.
#[must_use = "each result may be an error"]
pub fn commit_all(
    commits: &[(&SymmetricPool, &dyn SymmetricGroup)],
    options: CommitOptions,
) -> Vec<Result<CommitReport, Error>> {
    let keys: Vec<(u32, GroupId, PoolId)> =
        commits.iter().map(|(pool, group)| (pool.domain().rank(), group.id(), pool.id())).collect();
    let order = in_order(&keys);
    let ranks: Vec<&[usize]> = order
        .chunk_by(|one, other| commits[*one].0.domain().rank() == commits[*other].0.domain().rank())
        .collect();
    let (has_open_group, begun) = (Group::is_open(), Instant::now());
    let of_rank = |indices: &[usize]| -> Vec<(usize, Result<CommitReport, Error>)> {
        let commit = |index: usize| {
            let (pool, group) = commits[index];
            let left = options.deadline.saturating_sub(begun.elapsed());
            (index, pool.memberships().commit(group, options.deadline(left), has_open_group))
        };
        indices.iter().copied().map(commit).collect()
    };
    let mut results = match ranks.as_slice() {
        [] => Vec::new(),
        [only] => of_rank(only),
        several => thread::scope(|scope| {
            let threads: Vec<_> = several.iter().map(|indices| scope.spawn(|| of_rank(indices))).collect();
            // A panic in a commit is resumed in the caller.
            threads
                .into_iter()
                .flat_map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect()
        }),
    };
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}
