//! [`GroupObject`]: ends the wait of an agreement for other ranks when one of its groups ends.

use std::{any::Any, sync::Arc};

use bootstrap::agreement::{self, Gone, Object};
use process_group::{
    comm::CommError,
    group::{GroupError, GroupErrorKind, HealthHandle},
    store::Store,
};

use crate::agreement::ending::gone;

/// The [`Object`] of an agreement about one or more groups: it reports the end of these groups to the agreement.
pub(crate) struct GroupObject<C, H> {
    /// This rank's number in the agreement.
    pub(crate) rank: u32,
    /// The store of the agreement.
    pub(crate) store: Arc<dyn Store>,
    /// Returns an error once one of the groups has ended, unless `ignores` returns true for the error.
    pub(crate) check: C,
    /// Returns handles on the health monitors of those groups that have one. If a group with a handle ends, the
    /// agreement's current wait ends at once. If a group without a handle ends, the wait ends at the next call of
    /// `check`.
    pub(crate) health: H,
    /// Returns true if the agreement goes on waiting although this error has ended a group.
    pub(crate) ignores: fn(&GroupError) -> bool,
}

impl<C, H, I> Object for GroupObject<C, H>
where
    C: Fn() -> Result<(), GroupError>,
    H: Fn() -> I,
    I: IntoIterator<Item = HealthHandle>,
{
    fn check(&self) -> Result<(), Gone> {
        (self.check)().map_err(|ended| gone(self.rank, &ended))
    }

    fn begin_wait(&self, key: &str) -> Option<Box<dyn Any>> {
        let listen = |health: HealthHandle| {
            let (rank, store, key, ignores) = (self.rank, self.store.clone(), key.to_owned(), self.ignores);
            health.listen_for_end(move |ended| {
                if !ignores(ended) {
                    // If this store request fails, the wait ends at the next call of `check`.
                    let _ = agreement::end_wait(&*store, &key, gone(rank, ended));
                }
            })
        };
        Some(Box::new((self.health)().into_iter().filter_map(listen).collect::<Vec<_>>()))
    }
}

/// Returns true if a group has ended because this rank has aborted or dropped it.
pub(crate) fn is_closed(ended: &GroupError) -> bool {
    matches!(ended.kind(), GroupErrorKind::Comm(CommError::Closed { .. }))
}
