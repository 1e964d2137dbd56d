//! Registration of single pools, on all members or on none.

use std::iter;

use caching_alloc::core::Pool;

use super::{
    GroupError, Member, NotRegistered, ProcessGroup, RegistrationSupport, Result, meeting::follow_up,
    registered::Registered, registration::decide,
};
use crate::{comm::refuse_inside_group, error_text, memory, registration::Enlistment, store::Deadline};

impl ProcessGroup {
    /// Registers the present and later segments of `pool` with the group's communicator, and with its
    /// [lanes](super::P2pPolicy::Lanes), on all members or on none. Other pools of the allocator are not
    /// registered. Collective: every member calls it with a pool of its own, whose buffers the members use
    /// together, and no other thread of the process uses the group meanwhile. A lazy group is connected. The
    /// pool may be made after the group, and needs no
    /// [`SegmentRegistrar`](crate::registration::SegmentRegistrar), nor [`Builder::registration`](super::Builder::registration).
    ///
    /// The communicators of [pairs](super::P2pPolicy), and groups that are split from this one, are not
    /// included. Blocks that the pool [borrows](caching_alloc::core::PoolSettings::borrows) are not either: they
    /// are memory of the default pool. If a later segment cannot be registered, the group ends on all members
    /// with [`GroupError::MemberFailed`]. The pool stays registered until
    /// [`deregister_pool`](Self::deregister_pool), or the end of the group. The group keeps the allocator alive
    /// as long, but not the pool's segments.
    ///
    /// # Errors
    /// - [`GroupError::NotRegistered`] with the rank that cannot register its pool and the reason; the same on
    ///   every member. Its pool may have other memory than those of the others, or memory that cannot be
    ///   registered, or be registered already.
    /// - Those of [`connect`](Self::connect); [`GroupError::Joined`]. [`GroupError::Comm`] for a suspended group.
    #[doc(alias = "register_mem_pool")]
    pub fn register_pool(&self, pool: &Pool, deadline: Deadline) -> Result<()> {
        const CALL: &str = "register_pool";
        self.agrees(CALL)?;
        refuse_inside_group(CALL)?;
        self.refuse_suspended(CALL)?;
        let is_connected = self.is_connected();
        self.connect(deadline)?;
        let deadline = if is_connected { deadline } else { follow_up(deadline) };
        let meeting = self.meeting("the registration of a pool", "pool");
        let Some(registered) = self.registered.get() else { return self.not_registered(NotRegistered::Lazy) };
        let outcome = self.enlist(&meeting, self.enlistment(registered, pool), deadline)?;
        let enlistment = outcome.or_else(|reason| self.not_registered(reason))?;
        registered.pools().push(enlistment);
        // Buffers that were seen before are in registered memory now.
        memory::renew();
        Ok(())
    }

    /// Deregisters a pool from the group's communicators, after the work that the members have enqueued is done.
    /// Collective, like [`register_pool`](Self::register_pool).
    ///
    /// # Errors
    /// - [`GroupError::NotRegistered`] for a pool that was not registered, and [`GroupError::Comm`] for a suspended
    ///   group. Nothing has changed.
    /// - [`GroupError::WorkTimeout`], and [`GroupError::Absent`] with the members that did not come. The pool
    ///   stays registered.
    /// - [`GroupError::MemberFailed`] if a member could not deregister a segment. The group has ended.
    ///
    /// # Safety
    /// No captured graph that uses the pool's memory in operations of the group is launched afterwards.
    #[doc(alias = "deregister_mem_pool")]
    pub unsafe fn deregister_pool(&self, pool: &Pool, deadline: Deadline) -> Result<()> {
        const CALL: &str = "deregister_pool";
        self.agrees(CALL)?;
        refuse_inside_group(CALL)?;
        self.refuse_suspended(CALL)?;
        let known = self.registered.get().filter(|known| known.pools().iter().any(|one| one.follows(pool)));
        let Some(registered) = known else {
            return self.not_registered(NotRegistered::UnknownPool { pool: pool.name().to_owned() });
        };
        let meeting = self.meeting("the deregistration of a pool", "pool");
        self.quiesce(deadline)?;
        // A member's work may still use the memory of another one.
        meeting.gather((), deadline)?;
        let mut pools = registered.pools();
        let at = pools.iter().position(|enlistment| enlistment.follows(pool));
        let enlistment = at.map(|at| pools.swap_remove(at));
        drop(pools);
        let left = enlistment.map_or(Ok(()), |enlistment| enlistment.leave());
        memory::renew();
        if let Err(error) = left {
            let problem = "memory that all members deregister is still registered there";
            self.counter.health.fail(format!("{problem}: {}", error_text(&error)));
        }
        self.counter.health.check()
    }

    /// Prepares the registration of a pool. The error is this rank's problem.
    fn enlistment(&self, registered: &Registered, pool: &Pool) -> Result<Enlistment, String> {
        let me = &self.members[self.rank];
        decide(&[Member { registration: RegistrationSupport::here(true, self.nccl()), ..me.clone() }])
            .map_err(|reason| error_text(&reason))?;
        if registered.has(pool) {
            return Err(format!(
                "its pool {:?} is registered already, by register_pool or by a SegmentRegistrar",
                pool.name()
            ));
        }
        let communicators: Vec<_> = iter::once(&self.communicator).chain(self.messages.lanes()).collect();
        Enlistment::of_pool(&communicators, pool).map_err(|error| error_text(&error))
    }

    fn not_registered<T>(&self, source: NotRegistered) -> Result<T> {
        Err(GroupError::NotRegistered { group: self.name.to_string(), source })
    }
}
