//! The inputs and outputs of the state machine of an agreement. The module docs of `agreement` define the
//! [terms](super#terms).

use std::{any::Any, time::Duration};

use super::{
    failure::Failure,
    protocol::Protocol,
    vote::{Answer, Gone, Request},
};
use crate::wire::Malformed;

/// A member of an agreement.
///
/// A rank may take part in several agreements at a time, on several threads. It is part of a circular wait only if none
/// of these agreements can complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The name of the agreement, which is also the prefix of its keys. Use each name once: build it from the name of
    /// the object and the number of agreements on the object so far. If the name contains the generation, members of
    /// different generations do not meet, and get [`Failure::Absent`] in place of [`Failure::Generations`].
    pub name: String,
    /// The rank of this member in the job, one of `members`.
    pub rank: u32,
    /// All members, as ranks of the job, in the same order on every member.
    pub members: Vec<u32>,
    /// The generation of the object: how many times this rank has created it.
    pub generation: u64,
    /// The longest time, from the start of the agreement, that this member waits for the records of the others. The
    /// longest patience among the members determines the time limits of actions and of the waits for outcomes.
    pub patience: Duration,
    /// While the member is in doubt, it repeats requests that fail with a temporary error until this time, counted from
    /// the start of the agreement, has passed, and for at least 5 s after the first error. `None`: until `patience` has
    /// passed. If a time is given, the wait for the other members after a failure or refusal (see [`run`](super::run))
    /// ends by then.
    pub deadline: Option<Duration>,
}

/// The object that an agreement is about, as [`run`](super::run) needs it. A closure `Fn() -> Result<(), Gone>` is also
/// an object: it is called for [`check`](Self::check).
pub trait Object {
    /// Returns an error once the object has ended on this rank.
    ///
    /// # Errors
    /// [`Gone`]: the rank that ended the object, and its reason.
    fn check(&self) -> Result<(), Gone>;

    /// Called before this member waits until `key` has a value. [`run`](super::run) holds the returned value during the
    /// wait. If the object ends in this time, it should call [`end_wait`](super::end_wait) for the key, on another
    /// thread. Otherwise the wait ends when `check` is called again, after at most 0.5 s.
    fn begin_wait(&self, key: &str) -> Option<Box<dyn Any>> {
        let _ = key;
        None
    }
}

impl<F: Fn() -> Result<(), Gone>> Object for F {
    fn check(&self) -> Result<(), Gone> {
        self()
    }
}

/// An input to the state machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input<P: Protocol> {
    /// The answer to [`Output::Store`].
    Store(Answer),
    /// The outcome of [`Output::Act`].
    Acted(P::Outcome),
}

/// An output of the state machine: a request to the caller of [`Agreement::step`](super::Agreement::step), or the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output<P: Protocol> {
    /// A request to the store. The answer is [`Input::Store`].
    Store(Request),
    /// A request to execute the action with this plan. The answer is [`Input::Acted`].
    Act {
        /// The plan.
        plan: P::Plan,
        /// The deadline of the action, on the clock of [`Agreement::step`](super::Agreement::step).
        until: Duration,
        /// The key of the verdict. While this member acts, the key normally has no value. If it has one, the verdict
        /// does not depend on this member's outcome, and the member may stop its action. Possible reasons: another
        /// member has posted a final outcome, the wait of another member for outcomes has timed out, a rank has
        /// [left](super::leave), or the object has ended on another member.
        verdict: String,
    },
    /// The agreement has ended.
    Done(Conclusion<P>),
}

/// The end of an agreement on this member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conclusion<P: Protocol> {
    /// The agreed value, or the reason why there is none.
    pub result: Result<P::Agreed, Ending<P>>,
    /// The keys of the agreement, for removal, if this member has seen that all members have acknowledged the result;
    /// otherwise empty. Remove the keys in this order. If the first key does not exist, stop, because another member
    /// removes them.
    pub read: Vec<String>,
    /// The keys of the other members, if `result` is [`Ending::Failed`] or [`Ending::Refused`] and no action was begun;
    /// otherwise empty. Also empty if this member's list differs and a decision, not a failure, was already stored.
    ///
    /// The others cannot read the result if this process hosts the store and exits. So wait for a few seconds, until
    /// every member whose record exists has acknowledged the result.
    pub awaited: Vec<Awaited>,
    /// True if this member was asked to act. If it was, and there is no agreed value, this member has to undo its part
    /// of the action.
    pub has_acted: bool,
    /// The other members and their result, if this member's list differs from theirs and their decision key already
    /// held an agreed value, a refusal, or a failure for another reason. Otherwise `None`, also if their decision asks
    /// for an action, even if the action has ended.
    pub others: Option<OtherMembers<P::Agreed>>,
}

/// The members of an agreement that has ended without this rank, because this rank has a different member list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherMembers<A> {
    /// Their member list: the one that was stored first.
    pub members: Vec<u32>,
    /// The agreed value. `None` if the agreement was refused or has failed.
    pub agreed: Option<A>,
}

/// The keys that show whether another member has yet to read the result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Awaited {
    /// The key of the member's record. It exists from the post of the record until the keys of the agreement are
    /// removed.
    pub record: String,
    /// The key of the member's acknowledgement. It exists from the time at which the member has read the result until
    /// the keys of the agreement are removed.
    pub read: String,
}

/// The reason why an agreement has ended without an agreed value on this member.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ending<P: Protocol> {
    /// [`Protocol::decide`] or [`Protocol::judge`] has found a reason not to agree. All members that read the result
    /// get the same reason.
    Refused(P::Refusal),
    /// The agreement has failed. All members that read the result get the same failure, with two exceptions: if this
    /// member has found [`Failure::Taken`] or [`Failure::Members`] after another result was stored, the others have
    /// that result.
    Failed(Failure),
    /// The store failed before this member posted its record, or rejected the record. So the other members cannot act
    /// on the record. [`run`](super::run) also returns this if the agreement cannot begin, for example because of an
    /// invalid [`Member`].
    StoreFailed,
    /// The store failed after this member had begun to post its record, and before the member had read the result. Or
    /// the store rejected the member's outcome. The others may have acted, so the object must be treated as failed.
    InDoubt,
    /// The member list, decision or verdict in the store cannot be read: another program, or another release of this
    /// one, has written it. The object must be treated as failed.
    Unreadable(Malformed),
    /// The caller passed an input that does not answer the last output. The object must be treated as failed.
    OutOfStep,
}
