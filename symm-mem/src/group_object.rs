//! [`GroupObject`] makes an [agreement](bootstrap::agreement) of ranks stop waiting for other ranks once a group whose
//! members take part has ended.

use std::{any::Any, sync::Arc};

use bootstrap::agreement::{self, Gone, Object};
use process_group::{
    comm::CommError,
    group::{GroupError, GroupErrorKind, HealthHandle},
    store::Store,
};

use crate::agreement::ending::gone;

/// The [`Object`] of an agreement about one or more groups. Through it, the agreement learns that one of the groups has
/// ended.
pub(crate) struct GroupObject<C, H> {
    /// This rank, as a rank of the job. It is reported as the rank that ended the group if the group's error names
    /// none.
    pub(crate) rank: u32,
    /// The store of the agreement.
    pub(crate) store: Arc<dyn Store>,
    /// Returns an error once one of the groups has ended. The agreement then stops waiting. If
    /// [`ignores`](Self::ignores) is true for the error, this closure itself must return `Ok`, because `GroupObject`
    /// applies `ignores` only to the reports of health monitors.
    pub(crate) check: C,
    /// Returns the handles of the groups' health monitors, which watch for the end of a group. A group need not have a
    /// monitor. If a group with a monitor ends, the monitor ends the agreement's current wait at once, unless `ignores`
    /// returns true for the error. The end of a group without a monitor is noticed at the next call of `check`, after
    /// at most 0.5 s.
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
