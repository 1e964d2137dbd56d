//! [`GroupObject`]: when a group ends, ends the waits for other ranks in an agreement about the group.

use std::{any::Any, sync::Arc};

use bootstrap::agreement::{self, Gone, Object};
use process_group::{
    comm::CommError,
    group::{GroupError, GroupErrorKind, HealthHandle},
    store::Store,
};

use crate::agreement::ending::gone;

/// The [`Object`] of an agreement about one or more groups: the value through which the agreement learns that one of
/// these groups has ended.
pub(crate) struct GroupObject<C, H> {
    /// This rank, by its number in the agreement.
    pub(crate) rank: u32,
    /// The store of the agreement.
    pub(crate) store: Arc<dyn Store>,
    /// Returns an error once one of the groups has ended, unless `ignores` returns true for the error.
    pub(crate) check: C,
    /// Returns the health monitors' handles, for those groups that have a health monitor. If such a group ends, the
    /// agreement's current wait ends at once. If another group ends, the wait ends at the next call of `check`.
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
