//! Registration of a group's memory: on all of its members, or on none.
//!
//! Each rank's record says if the rank wants registration, and if it can register. If all want it and can,
//! every rank registers its segments with the communicators that were just made. The ranks then meet once
//! more, each with its registered classes or its error. All of them reach the same outcome from that.

#[cfg(feature = "registration")]
use {self::vote::Ballot, crate::error_text, crate::registration::Enlistment};

use super::{
    Builder, GroupSettings, Member, NotRegistered, ProcessGroup, RegistrationSupport, Result,
    meeting::{Meeting, follow_up},
    registered::Registered,
};
use crate::{comm::Communicator, store::Deadline};

/// Decides from the members' records.
pub(super) fn decide(members: &[Member]) -> Result<(), NotRegistered> {
    if members.iter().all(|member| member.registration == RegistrationSupport::NotAsked) {
        return Err(NotRegistered::NotAsked);
    }
    let unable = members.iter().filter(|member| member.registration != RegistrationSupport::Wanted);
    let Some(member) = unable.min_by_key(|member| member.rank) else { return Ok(()) };
    let rank = member.rank;
    Err(match member.registration {
        RegistrationSupport::NotBuilt => NotRegistered::NotBuilt { rank },
        RegistrationSupport::Release => NotRegistered::Release { rank, release: member.nccl },
        RegistrationSupport::LocalRegister => {
            NotRegistered::Environment { rank, setting: "NCCL_LOCAL_REGISTER=0" }
        }
        RegistrationSupport::CudaMemcpy => {
            NotRegistered::Environment { rank, setting: "NCCL_P2P_USE_CUDA_MEMCPY=1" }
        }
        RegistrationSupport::NotAsked | RegistrationSupport::Wanted => NotRegistered::NotAskedOf { rank },
    })
}

impl Builder {
    /// Registers the segments of the allocators that this process follows with the group's communicator, with
    /// the communicators of its [messages](super::P2pPolicy), and with those of groups that are split from it
    /// (default: off, unless `NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK`, or
    /// `TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK`, is 1). The members agree: either all register, or
    /// none does, and [`ProcessGroup::registration`] returns the reason. Attach allocators before the group
    /// is made; see the module `registration`.
    pub fn registration(mut self, wanted: bool) -> Self {
        self.registration = Some(wanted);
        self
    }

    /// Checks that the buffers given to the group are memory of its device; see
    /// [`GroupSettings::check_buffers`] (default: on).
    pub fn check_buffers(self, check: bool) -> Self {
        self.settings(GroupSettings::new().check_buffers(check))
    }
}

impl ProcessGroup {
    /// Returns `Ok` if the memory of this process's allocators is registered with the group's communicator,
    /// and with its [lanes](super::P2pPolicy::Lanes). The answer is the same on every member, from when those
    /// were made. The communicators of pairs have their own answers in
    /// [`P2pReport::not_registered`](super::P2pReport::not_registered).
    ///
    /// # Errors
    /// The reason why not, with the rank that causes it.
    pub fn registration(&self) -> Result<(), NotRegistered> {
        self.registered.get().map_or(Err(NotRegistered::Lazy), |registered| registered.outcome.clone())
    }

    /// Agrees with `all`, the ranks that made these communicators, on registration with them. Collective if
    /// all members of the group want it.
    pub(super) fn agree_on_registration(
        &self,
        all: &Meeting<'_>,
        communicators: &[&Communicator],
        deadline: Deadline,
    ) -> Result<Registered> {
        match decide(&self.members) {
            Err(reason) => Ok(Registered::not(reason)),
            Ok(()) => self.register(all, communicators, follow_up(deadline)),
        }
    }

    #[cfg(not(feature = "registration"))]
    fn register(&self, _: &Meeting<'_>, _: &[&Communicator], _: Deadline) -> Result<Registered> {
        Ok(Registered::not(NotRegistered::NotBuilt { rank: self.global_rank() }))
    }

    #[cfg(feature = "registration")]
    fn register(
        &self,
        all: &Meeting<'_>,
        communicators: &[&Communicator],
        deadline: Deadline,
    ) -> Result<Registered> {
        let enlistment = Ok(Enlistment::new(communicators));
        let meeting = all.part("the registration of memory", "registration");
        Ok(match self.enlist(&meeting, enlistment, deadline)? {
            Err(reason) => Registered::not(reason),
            Ok(enlistment) => Registered {
                outcome: Ok(()),
                registrars: enlistment.registrars(),
                _enlistment: Some(enlistment),
                pools: Default::default(),
            },
        })
    }

    /// Registers the enlistment's segments, if the members of the meeting can register theirs. `enlistment` may
    /// be this rank's problem.
    #[cfg(feature = "registration")]
    pub(super) fn enlist(
        &self,
        meeting: &Meeting<'_>,
        enlistment: Result<Enlistment, String>,
        deadline: Deadline,
    ) -> Result<Result<Enlistment, NotRegistered>> {
        let classes = enlistment.as_ref().map(Enlistment::classes).unwrap_or_default();
        let served = enlistment.and_then(|enlistment| match enlistment.serve(deadline) {
            Ok(()) => Ok(enlistment),
            Err(error) => Err(error_text(&error)),
        });
        let ballot = Ballot { classes, problem: served.as_ref().err().cloned() };
        let counted = vote::count(&meeting.gather(ballot, deadline)?);
        let enlistment = match (counted, served) {
            (Ok(()), Ok(enlistment)) => enlistment,
            (Err(reason), _) => return Ok(Err(reason)),
            (_, Err(problem)) => return Ok(Err(NotRegistered::Failed { rank: self.global_rank(), problem })),
        };
        let health = std::sync::Arc::downgrade(&self.counter.health);
        enlistment.rely(move |reason| {
            if let Some(health) = health.upgrade() {
                health.fail(format!(
                    "memory that all members have registered is not registered there: {reason}"
                ));
            }
        });
        Ok(Ok(enlistment))
    }
}

#[cfg(feature = "registration")]
mod vote {
    use bootstrap::wire::{wire_enum, wire_struct};

    use crate::group::NotRegistered;
    use crate::{memory::Unregistrable, registration::MemoryClass};

    /// The result that a rank brings to the meeting.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(super) struct Ballot {
        pub(super) classes: Vec<MemoryClass>,
        pub(super) problem: Option<String>,
    }

    wire_enum!(MemoryClass { 0 => Registrable {}, 1 => NotExportable {}, 2 => Remappable {} });
    wire_struct!(Ballot { classes, problem });

    impl Ballot {
        fn describe(&self) -> String {
            let name = |class: &MemoryClass| match class {
                MemoryClass::Registrable => "registrable memory",
                MemoryClass::NotExportable => "memory that cannot be exported",
                MemoryClass::Remappable => "re-mappable memory",
            };
            self.classes.iter().map(name).collect::<Vec<_>>().join(", ")
        }
    }

    /// Returns the outcome of all ballots, each with its rank of the job.
    pub(super) fn count(ballots: &[(u32, Ballot)]) -> Result<(), NotRegistered> {
        let mut ballots: Vec<_> = ballots.iter().map(|(rank, ballot)| (*rank as usize, ballot)).collect();
        ballots.sort_by_key(|(rank, _)| *rank);
        let Some((first_rank, first)) = ballots.first() else { return Err(NotRegistered::NotAsked) };
        for (rank, ballot) in &ballots {
            let (rank, other) = (*rank, *first_rank);
            if let Some(problem) = ballot.problem.clone() {
                return Err(NotRegistered::Failed { rank, problem });
            }
            if ballot.classes.is_empty() {
                return Err(NotRegistered::NoAllocator { rank });
            }
            if ballot.classes != first.classes {
                let (found, other_found) = (ballot.describe(), first.describe());
                return Err(NotRegistered::Allocators { rank, found, other, other_found });
            }
        }
        match first.classes.first() {
            _ if first.classes.contains(&MemoryClass::Registrable) => Ok(()),
            Some(MemoryClass::Remappable) => {
                Err(NotRegistered::Unregistrable { reason: Unregistrable::Remappable })
            }
            _ => Err(NotRegistered::Unregistrable { reason: Unregistrable::NotExportable }),
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use proptest::prelude::*;

        fn ballot() -> impl Strategy<Value = Ballot> {
            let class = prop::sample::select(vec![
                MemoryClass::Registrable,
                MemoryClass::NotExportable,
                MemoryClass::Remappable,
            ]);
            let problem = prop::option::weighted(0.2, "[ -~]{1,20}");
            (prop::collection::vec(class, 0..3), problem)
                .prop_map(|(classes, problem)| Ballot { classes, problem })
        }

        proptest! {
            #[test]
            fn memory_is_registered_only_where_all_have_the_same_and_nothing_failed(
                ballots in prop::collection::vec(ballot(), 1..5),
            ) {
                let good = ballots.iter().all(|ballot| {
                    ballot.problem.is_none()
                        && ballot.classes == ballots[0].classes
                        && ballot.classes.contains(&MemoryClass::Registrable)
                });
                let mut records: Vec<_> = (10..).zip(ballots).collect();
                let counted = count(&records);
                prop_assert_eq!(counted.is_ok(), good);
                // In any order.
                records.reverse();
                prop_assert_eq!(count(&records), counted);
            }
        }
    }
}
