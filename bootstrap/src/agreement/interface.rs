//! The inputs and outputs of the state machine of an agreement.

use std::time::Duration;

use super::{
    failure::Failure,
    protocol::Protocol,
    vote::{Answer, Request},
};
use crate::wire::Malformed;

/// A member of an agreement.
///
/// A rank may take part in several agreements at a time, on several threads. It is part of a circular wait only if
/// none of these agreements can complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The name of the agreement, which is the prefix of its keys. Use a name only once: build it from the name of the
    /// object that the agreement is about, the object's generation, and the number of the call.
    pub name: String,
    /// The rank of this member in the job, one of `members`.
    pub rank: u32,
    /// All members, as ranks of the job, in the same order on every member.
    pub members: Vec<u32>,
    /// The generation of the object that the agreement is about: how many times this rank has created the object.
    pub generation: u64,
    /// The longest time, from the start of the agreement, that this member waits for the records of the others. It also
    /// limits the retries of failed requests, except that they go on for at least 5 s. The limits of actions and
    /// outcomes follow from the longest patience among the members.
    pub patience: Duration,
}

/// An input to the state machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input<P: Protocol> {
    /// The answer to [`Output::Store`].
    Store(Answer),
    /// The outcome of [`Output::Act`].
    Acted(P::Outcome),
}

/// An output of the state machine: a request to its driver, or the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output<P: Protocol> {
    /// A request to the store. The answer is [`Input::Store`].
    Store(Request),
    /// A request to execute the plan. The answer is [`Input::Acted`].
    Act {
        /// The plan.
        plan: P::Plan,
        /// The deadline of the action, on the clock of [`Agreement::step`](super::Agreement::step).
        until: Duration,
        /// The key of the verdict. If this key has a value while this member still acts, the verdict no longer depends
        /// on this member's outcome, and the member may stop its action. Possible causes: a final outcome of another
        /// member, a timeout, or a member that has left.
        verdict: String,
    },
    /// The agreement has ended.
    Done(Conclusion<P>),
}

/// The end of an agreement on this member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conclusion<P: Protocol> {
    /// The result, or the reason why there is none.
    pub result: Result<P::Agreed, Ending<P>>,
    /// The keys to remove, because every member has acknowledged the result. Remove them in this order. If the first
    /// key does not exist, stop: another member removes them. Empty on a member that does not see all acknowledgements.
    pub read: Vec<String>,
    /// The keys of the other members, if `result` is [`Ending::Failed`] or [`Ending::Refused`] before an action;
    /// otherwise empty. Also empty if this member's list differs and the others had decided already. The driver should
    /// wait briefly until the members that have posted a record acknowledge the result. If this process hosts the store
    /// and exits before that, they cannot read the reason.
    pub awaited: Vec<Awaited>,
    /// True if this member was asked to act. If there is no result, this member has to undo its part of the action.
    pub has_acted: bool,
    /// The other members, if `result` is [`Ending::Failed`], their list differs, and their agreement had ended before
    /// this member came. `None` if the difference of the lists has ended their agreement.
    pub others: Option<OtherMembers<P::Agreed>>,
}

/// Members of an agreement that has ended without a member that has another list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherMembers<A> {
    /// The member list of the first member that came.
    pub members: Vec<u32>,
    /// The result. `None` if there is none: the agreement was refused or has failed.
    pub agreed: Option<A>,
}

/// The keys of a member that may have to read the result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Awaited {
    /// The key of the member's record. It exists once the member has posted its record. It is removed after all members
    /// have read the result.
    pub record: String,
    /// The key of the member's acknowledgement. It exists once the member has read the result, until the keys are
    /// removed.
    pub read: String,
}

/// The reason why an agreement has no result on this member.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ending<P: Protocol> {
    /// [`Protocol::decide`] or [`Protocol::judge`] has found a reason why nothing is agreed. All members that read the
    /// result get the same reason.
    Refused(P::Refusal),
    /// The agreement has failed. All members that read a result get the same failure, with two exceptions: after
    /// [`Failure::Taken`] or [`Failure::Members`], the others may have another result, which was stored before this
    /// failure.
    Failed(Failure),
    /// The store failed before this member posted its record, or rejected the record. So the other members cannot act
    /// on the record. [`run`](super::run) also returns this if the agreement cannot begin, for example because of an
    /// invalid [`Member`].
    StoreFailed,
    /// The store failed while or after this member posted its record, and before it read the result. Or the store
    /// rejected its outcome. The others may have acted, so the object must be treated as failed.
    InDoubt,
    /// The member list, decision or verdict in the store cannot be read: another program, or another release of this
    /// one, has written it. The object must be treated as failed.
    Unreadable(Malformed),
    /// The driver passed an input that does not answer the last output. The object must be treated as failed.
    OutOfStep,
}
