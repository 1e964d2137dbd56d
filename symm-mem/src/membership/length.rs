//! Agreement on the length of an [allocation](crate::SymmetricPool::allocate_agreed): the ranks need blocks of
//! different lengths, and agree on the longest.

use std::{convert::Infallible, time::Duration};

use bootstrap::agreement::{self, Failed, remove_left};

use super::memberships::Memberships;
use crate::{
    agreement::{LengthProtocol, Start, ending::store_error, length_ending},
    error_kind::ErrorKind,
};

impl Memberships {
    /// Returns the largest number of bytes that any rank of the pool's [domain](crate::Domain) needs. This rank needs
    /// `bytes` bytes, and waits for the others for at most `deadline`.
    pub(crate) fn agree_on_length(&self, bytes: u64, deadline: Duration) -> Result<u64, ErrorKind> {
        let Start { member, record } = self.begin_length(bytes, deadline);
        let (store, act) =
            (&**self.domain().store(), |plan: &Infallible, _, _: &dyn Fn() -> bool| match *plan {});
        let agreed = agreement::run::<LengthProtocol>(store, member.clone(), record, act, || Ok(()));
        let left = self.meetings().end(&member, agreed.is_ok());
        left.iter().for_each(|place| remove_left(store, place));
        agreed.map_err(|mut failed: Box<Failed<_>>| {
            let error = store_error(&mut failed, &member);
            let ending = length_ending(failed.ending, &member);
            ErrorKind::of_ending(ending, ErrorKind::Refused, error, Vec::new())
        })
    }

    /// Counts the next agreement on a length. Returns the arguments with which this rank takes part in it.
    pub fn begin_length(&self, bytes: u64, deadline: Duration) -> Start<LengthProtocol> {
        let round = self.meetings().lengths.count();
        let domain = self.domain();
        Start::length(self.id(), round, domain.rank(), domain.ranks().to_vec(), bytes, deadline)
    }
}
