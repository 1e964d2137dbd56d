//! Registration of single pools, on all members or on none.

use std::iter;

use caching_alloc::core::Pool;

use super::{
    GroupErrorKind, KindResult, Member, NotRegistered, ProcessGroup, RegistrationSupport, Result,
    meeting::follow_up, registered::Registered, registration::decide,
};
use crate::{comm::refuse_inside_group, error_text, memory, registration::Enlistment, store::Deadline};

const REGISTER: &str = "register_pool";
const DEREGISTER: &str = "deregister_pool";

impl ProcessGroup {
    /// Registers the segments of `pool`, including later ones, with the group's communicator and with its
    /// [lanes](super::P2pPolicy::Lanes), on all members or on none. Other pools of the allocator are not
    /// registered. Collective: every member passes a pool of its own. In an operation, either all members
    /// pass buffers of these pools, or none does. No other thread of the process may use the group during the
    /// call. A lazy group is connected first. The pool may be made after the group. Neither a
    /// [`SegmentRegistrar`](crate::registration::SegmentRegistrar) nor
    /// [`Builder::registration`](super::Builder::registration) is needed.
    ///
    /// The pool is not registered with communicators of [pairs](super::P2pPolicy), nor with groups that are
    /// split from this one. Blocks that the pool [borrows](caching_alloc::core::PoolSettings::borrows) are
    /// not registered, because they are memory of the default pool. If a later segment cannot be registered,
    /// the group ends on all members with [`GroupErrorKind::MemberFailed`]. The pool stays registered until
    /// [`deregister_pool`](Self::deregister_pool) or the end of the group. Until then the group keeps the
    /// allocator alive, but not the pool's segments.
    ///
    /// # Errors
    /// - [`GroupErrorKind::NotRegistered`] with the rank that cannot register its pool, and the reason. All
    ///   members get the same error. Possible reasons are that the rank's pool has another kind of memory
    ///   than the pools of the other ranks, that its memory cannot be registered, or that the pool is
    ///   registered already.
    /// - Those of [`connect`](Self::connect); [`GroupErrorKind::Joined`]. [`GroupErrorKind::Comm`] for a suspended
    ///   group.
    #[doc(alias = "register_mem_pool")]
    pub fn register_pool(&self, pool: &Pool, deadline: Deadline) -> Result<()> {
        self.in_call(REGISTER, self.register_pool_by(pool, deadline))
    }

    fn register_pool_by(&self, pool: &Pool, deadline: Deadline) -> KindResult<()> {
        self.agrees()?;
        refuse_inside_group(REGISTER)?;
        self.refuse_suspended(REGISTER)?;
        let is_connected = self.is_connected();
        self.connect_by(deadline)?;
        let deadline = if is_connected { deadline } else { follow_up(deadline) };
        let meeting = self.meeting("the registration of a pool", "pool");
        let Some(registered) = self.registered.get() else { return not_registered(NotRegistered::Lazy) };
        let outcome = self.enlist(&meeting, self.enlistment(registered, pool), deadline)?;
        let enlistment = outcome.or_else(not_registered)?;
        registered.pools().push(enlistment);
        // Cached lookups of the pool's buffers are stale: the memory is registered now.
        memory::renew();
        Ok(())
    }

    /// Waits until the work that all members have enqueued is done, and then deregisters the pool from the
    /// group's communicators. Collective, like [`register_pool`](Self::register_pool).
    ///
    /// # Errors
    /// - [`GroupErrorKind::NotRegistered`] for a pool that was not registered, and [`GroupErrorKind::Comm`] for a
    ///   suspended group. Nothing has changed.
    /// - [`GroupErrorKind::WorkTimeout`] if work of this member is not done, and [`GroupErrorKind::Absent`] with the
    ///   members that did not come. In both cases the pool stays registered.
    /// - [`GroupErrorKind::MemberFailed`] if a member could not deregister a segment. The group has ended.
    ///
    /// # Safety
    /// No captured graph that uses the pool's memory in operations of the group is launched afterwards.
    #[doc(alias = "deregister_mem_pool")]
    pub unsafe fn deregister_pool(&self, pool: &Pool, deadline: Deadline) -> Result<()> {
        self.in_call(DEREGISTER, self.deregister_pool_by(pool, deadline))
    }

    fn deregister_pool_by(&self, pool: &Pool, deadline: Deadline) -> Result<()> {
        self.agrees()?;
        refuse_inside_group(DEREGISTER)?;
        self.refuse_suspended(DEREGISTER)?;
        let known = self.registered.get().filter(|known| known.pools().iter().any(|one| one.follows(pool)));
        let Some(registered) = known else {
            return Ok(not_registered(NotRegistered::UnknownPool { pool: pool.name().to_owned() })?);
        };
        let meeting = self.meeting("the deregistration of a pool", "pool");
        self.quiesce(deadline)?;
        // Work of other members may still use this rank's memory.
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
        Ok(self.counter.health.check()?)
    }

    /// Prepares the registration of a pool on this rank. The error text says why this rank cannot register
    /// the pool.
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
}

fn not_registered<T>(source: NotRegistered) -> KindResult<T> {
    Err(GroupErrorKind::NotRegistered { source })
}
