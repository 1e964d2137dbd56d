//! The encoding of records, decisions, outcomes and verdicts; see the [terms](super#terms).

use std::time::Duration;

use super::{
    failure::{Failure, Spoken},
    protocol::{Decision, Protocol},
};
use crate::wire::{self, Malformed, Message, Reader, Wire, wire_struct};

/// A posted record with its header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Posted<R> {
    /// The version of the messages that all kinds of agreements share ([`COMMON`](super::place::COMMON)). It is the
    /// first field, so that [`spoken`] can read it in records of every protocol and version.
    pub(super) agreement: u16,
    /// A random number that differs in each call of [`run`](super::run). It makes the records of two processes with the
    /// same rank differ, so that the second post is answered with [`Answer::Taken`](super::Answer::Taken).
    pub(super) nonce: u64,
    pub(super) generation: u64,
    pub(super) patience: Duration,
    pub(super) record: R,
}
wire_struct!(Posted<R> { agreement, nonce, generation, patience, record });

/// A decision, and the patience from which the time limits of actions and outcomes follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Decided<D> {
    /// The longest patience among the members.
    pub(super) patience: Duration,
    pub(super) decision: D,
}
wire_struct!(Decided<D> { patience, decision });

// The message kinds of a protocol.
pub(super) const RECORD: u8 = 0;
pub(super) const DECISION: u8 = 1;
pub(super) const OUTCOME: u8 = 2;
pub(super) const VERDICT: u8 = 3;

pub(super) fn message<P: Protocol>(kind: u8, value: &impl Wire) -> Vec<u8> {
    wire::to_message(P::PROTOCOL, kind, value)
}

pub(super) fn read<P: Protocol, V: Wire>(kind: u8, bytes: &[u8]) -> Result<V, Malformed> {
    wire::from_message(P::PROTOCOL, kind, bytes)
}

/// Encodes a failure that takes the place of a decision or verdict. Its encoding is the same for all protocols.
pub(super) fn sealed_failure(failure: Failure) -> Vec<u8> {
    failure.to_bytes()
}

/// Encodes the failure of an agreement because the record or outcome of `rank` cannot be read.
pub(super) fn unreadable(rank: u32, malformed: &Malformed) -> Vec<u8> {
    sealed_failure(Failure::Unreadable { rank, cause: malformed.to_string() })
}

/// Reads a failure that takes the place of a decision or verdict. Returns `None` if `bytes` is no failure, or one of
/// another version of [`COMMON`](super::place::COMMON).
pub(super) fn told_failure(bytes: &[u8]) -> Option<Failure> {
    Failure::from_bytes(bytes).ok()
}

/// Returns true if `bytes` is a decision or verdict that asks for an action. Returns false for every other value, and
/// for one that cannot be read. If `is_decision` is true, `bytes` is the value of a decision key, otherwise that of a
/// verdict key.
pub(super) fn asks_for_action<P: Protocol>(bytes: &[u8], is_decision: bool) -> bool {
    matches!(read_decided::<P>(bytes, is_decision), Ok((_, Decision::Act { .. })))
}

/// Reads a decision with its patience, or a verdict, which has none. For `is_decision`, see [`asks_for_action`].
pub(super) fn read_decided<P: Protocol>(
    bytes: &[u8],
    is_decision: bool,
) -> Result<(Option<Duration>, Decision<P>), Malformed> {
    if !is_decision {
        return Ok((None, read::<P, _>(VERDICT, bytes)?));
    }
    let Decided { patience, decision } = read::<P, _>(DECISION, bytes)?;
    Ok((Some(patience), decision))
}

/// Encodes a refusal as the value of a [decision key](super::Place::decision_key). A rank that cannot take part proposes
/// it there, so that the members do not wait for this rank. See also [`leave`](super::leave).
#[must_use]
pub fn refusal<P: Protocol>(refusal: P::Refusal) -> Vec<u8> {
    let decision = Decision::<P>::Refused { refusal };
    message::<P>(DECISION, &Decided { patience: Duration::ZERO, decision })
}

/// Reads the value of a [decision key](super::Place::decision_key): the decision, or the failure in its place. Returns
/// `None` if the value cannot be read.
#[must_use]
pub fn read_decision<P: Protocol>(stored: &[u8]) -> Option<Result<Decision<P>, Failure>> {
    told_failure(stored).map(Err).or_else(|| Some(Ok(read_decided::<P>(stored, true).ok()?.1)))
}

/// Reads the value of the key of a verdict: the verdict, or the failure in its place. Returns `None` if the value cannot
/// be read.
#[must_use]
pub fn read_verdict<P: Protocol>(stored: &[u8]) -> Option<Result<Decision<P>, Failure>> {
    told_failure(stored).map(Err).or_else(|| Some(Ok(read_decided::<P>(stored, false).ok()?.1)))
}

/// Reads the protocol and the versions at the start of a posted record. Returns `None` if the record is too short.
pub(super) fn spoken(bytes: &[u8]) -> Option<Spoken> {
    let mut reader = Reader::new(bytes);
    let magic = <[u8; 2]>::read(&mut reader).ok()?;
    let (version, _kind) = <(u16, u8)>::read(&mut reader).ok()?;
    Some(Spoken { magic, version, agreement: u16::read(&mut reader).ok()? })
}
