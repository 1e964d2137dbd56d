//! Registration of a group's memory, on all members or on none.
//!
//! Each rank's record states whether the rank wants registration, and whether it can register. If all ranks
//! want to and can, every rank registers its segments with the communicators that were just made. The ranks
//! then make one more agreement, to which each contributes its memory classes or its error. From these
//! contributions, all ranks compute the same result.

#[cfg(feature = "registration")]
use {self::decision::RegistrationRecord, crate::error_text, crate::registration::Enlistment};

use super::{
    Builder, GroupSettings, KindResult, Member, NotRegistered, ProcessGroup, RegistrationSupport, Result,
    meeting::{Meeting, follow_up},
    registered::Registered,
};
use crate::{comm::Communicator, store::Deadline};

/// Returns `Ok` if, by the members' records, all members want registration and can register.
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
    /// Enables registration: the segments of the allocators to which this process has attached a
    /// `SegmentRegistrar` are registered with the group's communicator, with the communicators of its
    /// [messages](super::P2pPolicy), and with those of groups that are split from it (default: off, unless
    /// the [environment](super::Environment) switches it on). The members agree: either all register, or
    /// none does, and then [`ProcessGroup::registration`] returns the reason. Attach the registrar before
    /// the group is made; see the module `registration`.
    pub fn registration(mut self, wanted: bool) -> Self {
        self.registration = Some(wanted);
        self
    }

    /// Checks that the buffers passed to the group are memory of the group's device (default: on). See
    /// [`GroupSettings::check_buffers`].
    pub fn check_buffers(self, check: bool) -> Self {
        self.settings(GroupSettings::new().check_buffers(check))
    }
}

impl ProcessGroup {
    /// Returns `Ok` if the memory of this process's allocators is registered with the group's communicator,
    /// and with its [lanes](super::P2pPolicy::Lanes). The answer is fixed when these communicators are made,
    /// and is the same on every member. The communicators of pairs have their own answers in
    /// [`P2pReport::not_registered`](super::P2pReport::not_registered).
    ///
    /// # Errors
    /// The reason why the memory is not registered, with the rank that is the cause, if there is one.
    pub fn registration(&self) -> Result<(), NotRegistered> {
        self.registered.get().map_or(Err(NotRegistered::Lazy), |registered| registered.outcome.clone())
    }

    /// Registers memory with `communicators` on all ranks that made them, or on none. `all` is the agreement
    /// of these ranks. Collective among them if all members of the group want registration and can register.
    pub(super) fn agree_on_registration(
        &self,
        all: &Meeting<'_>,
        communicators: &[&Communicator],
        deadline: Deadline,
    ) -> KindResult<Registered> {
        match decide(&self.members) {
            Err(reason) => Ok(Registered::not(reason)),
            Ok(()) => self.register(all, communicators, follow_up(deadline)),
        }
    }

    #[cfg(not(feature = "registration"))]
    fn register(&self, _: &Meeting<'_>, _: &[&Communicator], _: Deadline) -> KindResult<Registered> {
        Ok(Registered::not(NotRegistered::NotBuilt { rank: self.global_rank() }))
    }

    #[cfg(feature = "registration")]
    fn register(
        &self,
        all: &Meeting<'_>,
        communicators: &[&Communicator],
        deadline: Deadline,
    ) -> KindResult<Registered> {
        let enlistment = Ok(Enlistment::new(communicators));
        let meeting = all.part("the registration of memory", "registration");
        Ok(match self.enlist(&meeting, enlistment, deadline)? {
            Err(reason) => Registered::not(reason),
            Ok(enlistment) => Registered {
                outcome: Ok(()),
                registrars: enlistment.registrars(),
                enlistment: Some(enlistment),
                pools: Default::default(),
            },
        })
    }

    /// Registers the segments of `enlistment`, if all members of the meeting can register theirs.
    /// `enlistment` is an error text if this rank cannot register.
    #[cfg(feature = "registration")]
    pub(super) fn enlist(
        &self,
        meeting: &Meeting<'_>,
        enlistment: Result<Enlistment, String>,
        deadline: Deadline,
    ) -> KindResult<Result<Enlistment, NotRegistered>> {
        let classes = enlistment.as_ref().map(Enlistment::classes).unwrap_or_default();
        let served = enlistment.and_then(|enlistment| match enlistment.serve(deadline) {
            Ok(()) => Ok(enlistment),
            Err(error) => Err(error_text(&error)),
        });
        let record = RegistrationRecord { classes, problem: served.as_ref().err().cloned() };
        let concluded = decision::conclude(&meeting.gather(record, deadline)?);
        let enlistment = match (concluded, served) {
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
mod decision {
    use bootstrap::wire::{wire_enum, wire_struct};

    use crate::group::NotRegistered;
    use crate::{memory::Unregistrable, registration::MemoryClass};

    /// The contribution of one rank to the agreement.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(super) struct RegistrationRecord {
        pub(super) classes: Vec<MemoryClass>,
        pub(super) problem: Option<String>,
    }

    wire_enum!(MemoryClass { 0 => Registrable {}, 1 => NotExportable {}, 2 => Remappable {} });
    wire_struct!(RegistrationRecord { classes, problem });

    impl RegistrationRecord {
        fn describe(&self) -> String {
            let name = |class: &MemoryClass| match class {
                MemoryClass::Registrable => "registrable memory",
                MemoryClass::NotExportable => "memory that cannot be exported",
                MemoryClass::Remappable => "re-mappable memory",
            };
            self.classes.iter().map(name).collect::<Vec<_>>().join(", ")
        }
    }

    /// Returns the common result for the records of all members, each with the member's rank in the job.
    pub(super) fn conclude(records: &[(u32, RegistrationRecord)]) -> Result<(), NotRegistered> {
        let mut records: Vec<_> = records.iter().map(|(rank, record)| (*rank as usize, record)).collect();
        records.sort_by_key(|(rank, _)| *rank);
        let Some((first_rank, first)) = records.first() else { return Err(NotRegistered::NotAsked) };
        for (rank, record) in &records {
            let (rank, other) = (*rank, *first_rank);
            if let Some(problem) = record.problem.clone() {
                return Err(NotRegistered::Failed { rank, problem });
            }
            if record.classes.is_empty() {
                return Err(NotRegistered::NoAllocator { rank });
            }
            if record.classes != first.classes {
                let (found, other_found) = (record.describe(), first.describe());
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

        fn record() -> impl Strategy<Value = RegistrationRecord> {
            let class = prop::sample::select(vec![
                MemoryClass::Registrable,
                MemoryClass::NotExportable,
                MemoryClass::Remappable,
            ]);
            let problem = prop::option::weighted(0.2, "[ -~]{1,20}");
            (prop::collection::vec(class, 0..3), problem)
                .prop_map(|(classes, problem)| RegistrationRecord { classes, problem })
        }

        proptest! {
            #[test]
            fn memory_is_registered_only_where_all_have_the_same_and_nothing_failed(
                records in prop::collection::vec(record(), 1..5),
            ) {
                let good = records.iter().all(|record| {
                    record.problem.is_none()
                        && record.classes == records[0].classes
                        && record.classes.contains(&MemoryClass::Registrable)
                });
                let mut records: Vec<_> = (10..).zip(records).collect();
                let concluded = conclude(&records);
                prop_assert_eq!(concluded.is_ok(), good);
                // The result does not depend on the order of the records.
                records.reverse();
                prop_assert_eq!(conclude(&records), concluded);
            }
        }
    }
}
