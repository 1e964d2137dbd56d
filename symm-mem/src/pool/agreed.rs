//! Agreed allocations: every rank needs another length, and all agree on one.

use std::{convert::Infallible, time::Duration};

use bootstrap::agreement::{self, Failed, Member, Place, remove_left};
use caching_alloc::core::symmetric::SymmetricError;
use process_group::store::StoreError;

use super::{SymmetricBlock, SymmetricPool};
use crate::agreement::{
    Ending, LengthProtocol, Malformed, MeetingId, MeetingKind, PoolId, Refusal, Start, ending::store_error,
    length_ending,
};

/// Error of an agreed allocation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgreedError {
    /// The ranks did not agree. The same value on all of them; nothing was allocated on any.
    #[error("agreed allocation in {pool} refused on all ranks: {refusal}")]
    Refused {
        /// The pool.
        pool: PoolId,
        /// Why.
        refusal: Refusal,
    },
    /// The ranks agreed, but this one has no room. Others may have allocated; the next commit reports the difference
    /// to all.
    #[error("the ranks agreed on {bytes} bytes in {pool}")]
    Allocation {
        /// The pool.
        pool: PoolId,
        /// The agreed length in bytes.
        bytes: u64,
        /// The reason why there is no room.
        source: SymmetricError,
    },
    /// The store failed. The others report this rank as missing, or have allocated without it; the next commit
    /// reports the difference to all.
    #[error("agreed allocation in {pool} could not reach the store")]
    Store {
        /// The pool.
        pool: PoolId,
        /// Error of the store.
        source: StoreError,
    },
    /// The value in the store is not a decision.
    #[error(
        "what stands in the store for {pool} cannot be read; check that no other program writes under its keys"
    )]
    Unreadable {
        /// The pool.
        pool: PoolId,
        /// The reason why it cannot be read.
        source: Malformed,
    },
    /// The state machine was driven in the wrong order: a bug of this crate.
    #[error("an agreed allocation in {pool} was driven out of step; this is a bug of symm-mem")]
    OutOfStep {
        /// The pool.
        pool: PoolId,
    },
}

impl SymmetricPool {
    /// Allocates a block as long as the longest that any rank of the domain needs; this rank needs `bytes`. For sizes
    /// that differ between ranks, such as the tokens that each rank got: the placement is the same everywhere, with
    /// room for all.
    ///
    /// Collective over the whole domain, within `deadline`: every rank calls it at the same point of the program,
    /// also a rank that needs nothing (0 bytes). The agreed length is [`bytes`](SymmetricBlock::bytes) of the block.
    /// If no rank needs anything, that is an error of the allocation, on all.
    ///
    /// # Errors
    /// [`AgreedError`]; [`AgreedError::Refused`] with [`Refusal::SyncTimeout`] if a rank does not come.
    #[track_caller]
    pub fn allocate_agreed(&self, bytes: u64, deadline: Duration) -> Result<SymmetricBlock, AgreedError> {
        let agreed = self.agree_on_length(bytes, deadline)?;
        self.allocate(agreed).map_err(|source| AgreedError::Allocation {
            pool: self.id(),
            bytes: agreed,
            source,
        })
    }

    fn agree_on_length(&self, bytes: u64, deadline: Duration) -> Result<u64, AgreedError> {
        let pool = self.id();
        let Start { member, record } = self.begin_length(bytes, deadline);
        let (store, act) =
            (self.domain().store(), |plan: &Infallible, _, _: &dyn Fn() -> bool| match *plan {});
        let agreed = agreement::run::<LengthProtocol>(store, member.clone(), record, act, || Ok(()));
        self.end_round(&member, agreed.is_ok()).iter().for_each(|place| remove_left(store, place));
        let ended = |mut failed: Box<Failed<_>>| {
            let error = store_error(&mut failed, &member);
            (length_ending(failed.ending, &member), error)
        };
        agreed.map_err(|failed| match ended(failed) {
            (Ending::Refused(refusal), _) => AgreedError::Refused { pool, refusal },
            (Ending::StoreFailed { .. }, Some(source)) => AgreedError::Store { pool, source },
            (Ending::Unreadable { source }, _) => AgreedError::Unreadable { pool, source },
            _ => AgreedError::OutOfStep { pool },
        })
    }

    /// Records the end of a retirement or an agreement on a length, in which this rank was `member`. If `has_met` is true,
    /// all members have taken part. Returns the places of earlier ones whose keys this rank removes from the store.
    pub(crate) fn end_round(&self, member: &Member, has_met: bool) -> Vec<Place> {
        let Some(meeting) = MeetingId::named(&member.name) else { return Vec::new() };
        let mut meetings = self.meetings();
        let rounds = match meeting.kind {
            MeetingKind::Retire {} => &mut meetings.retirements,
            MeetingKind::Length {} => &mut meetings.lengths,
            MeetingKind::Commit { .. } => return Vec::new(),
        };
        if has_met {
            rounds.meet(meeting.round);
        }
        rounds.leave(meeting.round);
        let place = |round| {
            let name = MeetingId { round, ..meeting }.name();
            Place { name, members: member.members.clone() }
        };
        rounds.take_left().into_iter().map(place).collect()
    }

    /// Begins the next agreement on a length. This rank needs `bytes`.
    pub(crate) fn begin_length(&self, bytes: u64, deadline: Duration) -> Start<LengthProtocol> {
        let round = self.meetings().lengths.count();
        let domain = self.domain();
        Start::length(self.id(), round, domain.rank(), domain.ranks().to_vec(), bytes, deadline)
    }
}
