//! The first meeting of the ranks of a job.

use std::sync::Arc;

use super::{Disagreement, GroupError, Member, Result, member, process_group::explain};
use crate::store::{Deadline, PrefixStore, Store, StoreError, give_up, rendezvous};

const MEETING: &str = "join";
/// The first rank to come, and its world size.
const SIZE: &str = "size";
/// Two ranks with different world sizes.
const SIZES: &str = "sizes";

/// Meets all ranks of a job, each with its record, and returns the records.
pub(super) fn join(
    group: &str,
    store: &PrefixStore,
    rank: usize,
    size: usize,
    record: &[u8],
    deadline: Deadline,
) -> Result<Arc<[Member]>> {
    let disagree = |source| GroupError::Disagreement { group: group.to_owned(), source };
    // A rank with another size waits for other ranks, and would never arrive.
    let first = store.compare_set(SIZE, b"", format!("{rank} {size}").as_bytes())?;
    if let Some([other, other_size]) = numbers(&first).filter(|[_, other_size]| *other_size != size) {
        store.set(SIZES, format!("{rank} {size} {other} {other_size}").as_bytes())?;
        give_up(store, MEETING, rank)?;
        return Err(disagree(Disagreement::WorldSize { rank, size, other, other_size }));
    }
    let cards = rendezvous(store, MEETING, rank, size, record, deadline).map_err(|error| {
        let is_over = matches!(error, StoreError::GivenUp { .. });
        let sizes = is_over.then(|| store.get(SIZES, deadline).ok()).flatten();
        match sizes.as_deref().and_then(numbers) {
            Some([rank, size, other, other_size]) => {
                disagree(Disagreement::WorldSize { rank, size, other, other_size })
            }
            None => explain(group, &(0..size).collect::<Vec<_>>(), error, "the start of the group"),
        }
    })?;
    Ok(member::agree(&cards).map_err(disagree)?.into())
}

/// Parses this many numbers between spaces.
fn numbers<const N: usize>(text: &[u8]) -> Option<[usize; N]> {
    let numbers = std::str::from_utf8(text).ok()?.split(' ').map(str::parse).collect::<Result<Vec<_>, _>>();
    numbers.ok()?.try_into().ok()
}
