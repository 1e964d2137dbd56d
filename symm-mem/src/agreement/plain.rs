//! Vote on the plain registration (`ncclCommRegister`) of segments without windows: on all members, or on none.
//!
//! NCCL chooses its transport on each rank separately, and a call hangs if only one side is registered. So every
//! member registers, posts its outcome, and keeps the registration only if all members succeeded. Meanwhile no member
//! enqueues anything, because all are in a commit.

use super::{
    length::Next,
    machine::{Conclusion, Ending, Input},
    poison::Poison,
    vote::{DecisionRound, Step},
    wire::{Message, wire_enum},
};

/// The outcome of the registration on one rank.
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

impl Message for Attempt {
    const PROTOCOL: crate::agreement::wire::Protocol = crate::agreement::PROTOCOL;
    const KIND: u8 = 13;
}

/// The decision of all members on their registrations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plain {
    /// They keep it.
    Registered {},
    /// They undo it.
    Undone {
        /// The rank that could not register, the lowest if there are several.
        rank: u32,
        /// The cause of the failure.
        cause: String,
    },
    /// The group is dead: a member is gone.
    Poison {
        /// The reason.
        poison: Poison,
    },
}
wire_enum!(Plain { 0 => Registered {}, 1 => Undone { rank, cause }, 2 => Poison { poison } });

impl Message for Plain {
    const PROTOCOL: crate::agreement::wire::Protocol = crate::agreement::PROTOCOL;
    const KIND: u8 = 14;
}

/// Computes the decision from the members' posts. The result does not depend on their order.
fn judge(members: &[u32], posted: &[Option<Vec<u8>>]) -> Plain {
    let mut attempts: Vec<(u32, Option<Attempt>)> = Vec::new();
    for (rank, bytes) in members.iter().zip(posted) {
        let attempt = bytes.as_deref().map(|bytes| {
            Attempt::from_bytes(bytes).unwrap_or_else(|error| Attempt::Failed { cause: error.to_string() })
        });
        attempts.push((*rank, attempt));
    }
    attempts.sort_by_key(|(rank, _)| *rank);
    let missing: Vec<u32> =
        attempts.iter().filter(|(_, attempt)| attempt.is_none()).map(|(rank, _)| *rank).collect();
    if !missing.is_empty() {
        return Plain::Poison { poison: Poison::MembersLost { missing, blocked: Vec::new() } };
    }
    let failed = attempts.into_iter().find_map(|(rank, attempt)| match attempt {
        Some(Attempt::Failed { cause }) => Some(Plain::Undone { rank, cause }),
        _ => None,
    });
    failed.unwrap_or(Plain::Registered {})
}

/// One member's part in the vote.
#[derive(Debug)]
pub struct PlainVote {
    members: Vec<u32>,
    vote: DecisionRound,
}

impl PlainVote {
    pub(super) fn new(members: Vec<u32>, vote: DecisionRound) -> Self {
        Self { members, vote }
    }

    /// Processes an input and returns the next step. A [`Plain::Poison`] ends as [`Ending::Poisoned`].
    pub fn step(&mut self, input: Input) -> Next<Plain> {
        let result = if input == Input::StoreFailed {
            Err(Ending::StoreFailed { in_doubt: true })
        } else {
            match self.vote.step(input) {
                Step::Ask(ask) => return Next::Ask(ask),
                Step::Propose { posted, .. } => {
                    return Next::Ask(self.vote.propose(judge(&self.members, &posted).to_bytes()));
                }
                Step::Stands(value) => match Plain::from_bytes(&value) {
                    Ok(Plain::Poison { poison }) => Err(Ending::Poisoned(poison)),
                    Ok(plain) => Ok(plain),
                    Err(source) => Err(Ending::Unreadable { source }),
                },
                Step::Unasked => Err(Ending::OutOfStep),
            }
        };
        // The keys are removed with those of the commit.
        Next::Done(Conclusion { result, all_arrived: true, keys: Vec::new() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_silent_outweighs_who_failed_and_one_failure_undoes_all() {
        let done = Some(Attempt::Done {}.to_bytes());
        let failed = |cause: &str| Some(Attempt::Failed { cause: cause.to_owned() }.to_bytes());
        let members = [2, 0, 1];
        assert_eq!(judge(&members, &[done.clone(), done.clone(), done.clone()]), Plain::Registered {});
        let undone = judge(&members, &[failed("two"), done.clone(), failed("one")]);
        assert_eq!(undone, Plain::Undone { rank: 1, cause: "one".to_owned() });
        let Plain::Poison { poison } = judge(&members, &[None, failed("zero"), done]) else {
            panic!("2 is silent")
        };
        assert_eq!(poison, Poison::MembersLost { missing: vec![2], blocked: Vec::new() });
    }
}
