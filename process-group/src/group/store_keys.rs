//! The keys of groups in a user's store, and progress queries from outside a job.

use std::sync::Arc;

use super::{ProcessGroup, Result, error::CallContext, process_group::SharedStore};
use crate::{
    record::{self, Progress},
    store::{Deadline, PrefixStore},
};

/// The store key under which a group publishes its number.
pub(super) const NUMBER: &str = "number";

/// The prefix of the keys of all groups in a user's store.
pub(super) const FOLDER: &str = "process-group";

/// Returns a group's name for errors and dumps. The result contains an epoch other than 0, which tells groups of one
/// name apart, such as an old group and the group grown from it.
pub(super) fn name_of_epoch(name: &str, epoch: u64) -> String {
    if epoch == 0 { name.to_owned() } else { format!("{name}@{epoch}") }
}

/// Returns the part of `root` for the group with this name and epoch. `root` is the part of the user's store below
/// [`FOLDER`].
pub(super) fn own_part(root: &PrefixStore, name: &str, epoch: u64) -> PrefixStore {
    PrefixStore::new(&format!("{name}/{epoch}"), Arc::new(root.clone()))
}

impl ProcessGroup {
    /// Asks all ranks of a job for their progress, from outside the job. `store`, `name` and `epoch` are the store,
    /// name and epoch of the job's first group. The result has an entry for each group that an answer contains: that
    /// group, and the groups split or shrunk from it, in the order in which the groups were made. A rank that has not
    /// answered by the deadline is listed without an answer. If no rank has answered, the result is empty. Two seconds
    /// are enough for ranks that can answer.
    ///
    /// # Errors
    /// [`GroupErrorKind::Store`](super::GroupErrorKind::Store) if the store fails, or with a time-out if the job does
    /// not exist.
    pub fn observe(store: SharedStore, name: &str, epoch: u64, deadline: Deadline) -> Result<Vec<Progress>> {
        let asked = record::ask(own_part(&PrefixStore::new(FOLDER, store), name, epoch), deadline);
        asked
            .map_err(|error| CallContext::of_call(&name_of_epoch(name, epoch).into(), "observe").error(error))
    }
}
