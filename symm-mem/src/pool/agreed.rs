//! Agreed allocations: the ranks need blocks of different lengths, and agree on the longest.

use std::{convert::Infallible, time::Duration};

use bootstrap::agreement::{self, Failed, Member, Place, remove_left};

use super::{SymmetricBlock, SymmetricPool};
use crate::{
    agreement::{LengthProtocol, MeetingId, MeetingKind, Start, ending::store_error, length_ending},
    error::{CallContext, Error},
    error_kind::ErrorKind,
};

impl SymmetricPool {
    /// Allocates a block of the largest size that any rank of the domain needs. This rank needs `bytes` bytes. Use this
    /// method if the needed sizes differ between ranks, for example with the number of tokens that each rank got. The
    /// block has the same placement on every rank, and is large enough for every rank.
    ///
    /// Collective over the whole domain: every rank calls it at the same point of the program, including a rank that
    /// needs 0 bytes. This rank waits for the others for at most `deadline`. [`SymmetricBlock::bytes`] returns the
    /// agreed length. If all ranks need 0 bytes, all of them get [`ErrorKind::AgreedAllocation`].
    ///
    /// # Errors
    /// [`ErrorKind::Refused`]: with [`SyncTimeout`](crate::Refusal::SyncTimeout) if a rank does not make this call in
    /// time, or with another reason if the ranks do not agree. [`ErrorKind::AgreedAllocation`] if this rank cannot
    /// allocate the agreed length. [`ErrorKind::Store`], [`ErrorKind::Unreadable`] or [`ErrorKind::OutOfStep`] if this
    /// rank could not learn the agreed length.
    #[track_caller]
    pub fn allocate_agreed(&self, bytes: u64, deadline: Duration) -> Result<SymmetricBlock, Error> {
        let call = CallContext::of_pool("agreed allocation", self.id());
        let bytes = self.agree_on_length(bytes, deadline).map_err(|kind| call.error(kind))?;
        self.allocate(bytes).map_err(|source| call.error(ErrorKind::AgreedAllocation { bytes, source }))
    }

    fn agree_on_length(&self, bytes: u64, deadline: Duration) -> Result<u64, ErrorKind> {
        let Start { member, record } = self.begin_length(bytes, deadline);
        let (store, act) =
            (&**self.domain().store(), |plan: &Infallible, _, _: &dyn Fn() -> bool| match *plan {});
        let agreed = agreement::run::<LengthProtocol>(store, member.clone(), record, act, || Ok(()));
        self.end_round(&member, agreed.is_ok()).iter().for_each(|place| remove_left(store, place));
        agreed.map_err(|mut failed: Box<Failed<_>>| {
            let error = store_error(&mut failed, &member);
            ErrorKind::of_ending(length_ending(failed.ending, &member), error, Vec::new())
        })
    }

    /// Records the end of a retirement or of an agreement on a length, in which this rank was `member`. `has_met` tells
    /// whether all members have taken part. Returns the earlier agreements of the same kind whose keys the caller must
    /// remove from the store. For a commit, does nothing and returns an empty list.
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

    /// Begins the next agreement on a length. This rank needs `bytes` bytes.
    pub(crate) fn begin_length(&self, bytes: u64, deadline: Duration) -> Start<LengthProtocol> {
        let round = self.meetings().lengths.count();
        let domain = self.domain();
        Start::length(self.id(), round, domain.rank(), domain.ranks().to_vec(), bytes, deadline)
    }
}
