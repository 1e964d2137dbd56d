//! Runs the agreement of a commit over a store, on the caller's thread.

use bootstrap::agreement::{self, Object, verdict_key};
use process_group::store::{Deadline, Store, StoreError};

use crate::{
    agreement::{
        Agreed, Answer, CommitProtocol, Ending, Operation, Outcome, Plan, Start, commit_ending,
        ending::store_error,
    },
    sharing,
};

/// The functions of this rank that the agreement calls.
pub(super) trait Local {
    /// Returns the hash of the first `length` operations of the allocation log, or `None` if the log no longer has it.
    fn hash_at(&self, length: u64) -> Option<u64>;

    /// Returns operation number `sequence` of the allocation log, counted from 0. Returns `None` if the log does not
    /// have it.
    fn operation(&self, sequence: u64) -> Option<Operation>;

    /// Registers the agreed segments as windows, and returns the outcome. Gives up at the deadline. Under the store key
    /// `verdict_key`, the members store their verdict: the agreed judgement of all members' outcomes. Also gives up
    /// once the store has there a verdict that poisons the group, or a failure of the agreement. In these two cases the
    /// registration can no longer succeed.
    fn register(&mut self, agreed: &Agreed, deadline: Deadline, verdict_key: String) -> Outcome;

    /// Opens the memory that the members offer in `agreed`, and returns the outcome. Gives up at the deadline.
    fn open(&mut self, agreed: &Agreed, deadline: Deadline) -> sharing::Outcome;
}

/// Runs this rank's part in a commit. Returns the result, and the store's error if the store failed. Through `object`,
/// the agreement learns that the group has ended, and then ends too.
pub(super) fn run(
    start: Start<CommitProtocol>,
    store: &dyn Store,
    object: impl Object,
    local: &mut impl Local,
) -> (Result<Agreed, Ending>, Option<StoreError>) {
    let Start { member, record } = start;
    let (length, mut actions, mut last) = (record.log.length, 0, None);
    let act = |plan: &Plan, deadline: Deadline, _: &dyn Fn() -> bool| {
        let verdict_key = verdict_key(&member.name, actions);
        actions += 1;
        last = Some(plan.clone());
        match plan {
            Plan::Register(agreed) => Answer::Registered(local.register(agreed, deadline, verdict_key)),
            Plan::Open(agreed) => Answer::Opened(local.open(agreed, deadline)),
            Plan::Hashes { range, .. } => Answer::hashes(*range, |length| local.hash_at(length)),
            Plan::Recall { sequence, .. } => {
                Answer::recalled(*sequence, length, |sequence| local.operation(sequence))
            }
        }
    };
    match agreement::run::<CommitProtocol>(store, member.clone(), record, act, object) {
        Ok(agreed) => (Ok(agreed), None),
        Err(mut failed) => {
            let error = store_error(&mut failed, &member);
            (Err(commit_ending(failed.ending, &member, last.as_ref())), error)
        }
    }
}
