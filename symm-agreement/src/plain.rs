//! The agreement on the plain registration (`ncclCommRegister`) of segments that have no NCCL windows: all members of a
//! group register them, or none does. The agreement follows a commit of these segments.
//!
//! Each rank chooses the transport of an NCCL call by itself. If a buffer is registered on only some ranks, the ranks
//! choose different transports, and the call hangs. So every member registers, posts its outcome, and keeps the
//! registration only if all members succeeded. No collective uses a registration before the members have agreed on it:
//! `SymmetricPool::commit` requires that no thread enqueues collectives on the new segments during the commit.

use std::convert::Infallible;

use bootstrap::agreement::{self, PlainProtocol};

use super::{
    PROTOCOL,
    ending::Ending,
    wire::{self, wire_enum},
};

/// The outcome of the plain registration on one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attempt {
    /// All segments are registered.
    Done {},
    /// No segment is registered.
    Failed {
        /// A description of the failure.
        cause: String,
    },
}
wire_enum!(Attempt { 0 => Done {}, 1 => Failed { cause } });

/// The agreed decision on the registrations of all members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plain {
    /// The members keep their registrations.
    Registered {},
    /// The members undo their registrations.
    Undone {
        /// The rank whose registration failed, the lowest if there are several.
        rank: u32,
        /// The cause of the failure.
        cause: String,
    },
}
wire_enum!(Plain { 0 => Registered {}, 1 => Undone { rank, cause } });

/// The agreement on a plain registration. Each member registers its segments before the agreement starts, and posts its
/// [`Attempt`] as its record (its message in the agreement). So the decision on the records is already the result. (The
/// name [`PlainProtocol`] means that no work of the members follows the decision, and is unrelated to plain
/// registration.)
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegistrationProtocol;

impl PlainProtocol for RegistrationProtocol {
    const PROTOCOL: wire::Protocol = PROTOCOL;

    type Record = Attempt;
    type Agreed = Plain;
    type Refusal = Infallible;

    fn conclude(attempts: &[(u32, Attempt)]) -> Result<Plain, Infallible> {
        let failed = attempts.iter().filter_map(|(rank, attempt)| match attempt {
            Attempt::Failed { cause } => Some((*rank, cause)),
            Attempt::Done {} => None,
        });
        Ok(match failed.min_by_key(|(rank, _)| *rank) {
            Some((rank, cause)) => Plain::Undone { rank, cause: cause.clone() },
            None => Plain::Registered {},
        })
    }
}

/// Converts the ending of the agreement (the reason why it has no result on a member) from the form of
/// [`bootstrap::agreement`] to an [`Ending`]. A failure of the agreement [poisons](super::Poison) the group, because
/// some members are lost or the states of their registrations are unknown. A member that loses the store is always in
/// doubt: it has registered its segments before the agreement, and cannot find out whether the others keep their
/// registrations.
pub fn ending(ending: agreement::Ending<RegistrationProtocol>) -> Ending {
    match ending {
        agreement::Ending::Failed(failure) => Ending::Poisoned(failure.into()),
        agreement::Ending::StoreFailed | agreement::Ending::InDoubt => Ending::StoreFailed { in_doubt: true },
        agreement::Ending::Unreadable(source) => Ending::Unreadable { source },
        _ => Ending::OutOfStep,
    }
}

#[cfg(test)]
mod tests {
    use bootstrap::agreement::{Absentee, Failure};

    use super::*;
    use crate::poison::Poison;

    #[test]
    fn one_failure_undoes_all_and_silence_poisons() {
        let failed = |cause: &str| Attempt::Failed { cause: cause.to_owned() };
        let conclude = |attempts: &[(u32, Attempt)]| {
            let Ok(plain) = RegistrationProtocol::conclude(attempts);
            plain
        };
        let done = Attempt::Done {};
        assert_eq!(
            conclude(&[(2, done.clone()), (0, done.clone()), (1, done.clone())]),
            Plain::Registered {}
        );
        let undone = conclude(&[(2, failed("two")), (0, done), (1, failed("one"))]);
        assert_eq!(undone, Plain::Undone { rank: 1, cause: "one".to_owned() });
        let missing = vec![Absentee { rank: 2, elsewhere: Vec::new() }];
        let absent = Failure::Absent { missing, by: 0, waited_ms: 1, circle: Vec::new() };
        let poison = Poison::MembersLost { missing: vec![2], blocked: Vec::new() };
        assert_eq!(ending(agreement::Ending::Failed(absent)), Ending::Poisoned(poison));
    }
}
