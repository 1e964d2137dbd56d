//! Growing a communicator: makes a new one that contains the ranks of an existing communicator, followed by new ranks.

use std::{fmt, ptr, sync::Arc};

use nccl_sys::{Feature, ncclUniqueId};

use super::{
    CommError, Communicator, Result, UniqueId,
    argument::rank_and_size,
    call::{call, unwritten},
    call_guard::Kind,
    making::{Begun, Origin},
    open_group,
    shared::{Serving, Shared},
};
use crate::store::Deadline;

const CALL: &str = "ncclCommGrow";

impl Communicator {
    /// Checks that this communicator can grow.
    pub(crate) fn check_growth(&self) -> Result<()> {
        open_group::refuse_inside(CALL)?;
        self.shared.refuse_adopted(CALL)?;
        self.nccl().api().require(Feature::GROW)?;
        self.check()
    }

    /// Makes the unique id for one growth of this communicator. Called on one of its ranks. All ranks must then
    /// [grow](Self::grow_from) the communicator, because NCCL makes no second id before the first is used.
    pub(crate) fn growth_id(&self, deadline: Deadline) -> Result<UniqueId> {
        const CALL: &str = "ncclCommGetUniqueId";
        let call = (CALL, Kind::Child);
        Serving::begin(&self.shared, &self.service, call, "the unique id of NCCL".into(), |shared| {
            let mut raw = ncclUniqueId { internal: [0; UniqueId::BYTES] };
            // SAFETY: the call guard keeps the communicator alive during the call. NCCL writes the id to the local
            // `raw`.
            unsafe { call!(&shared.nccl, shared.name(), ncclCommGetUniqueId(shared.raw(), &mut raw)) }?;
            if raw.internal.iter().all(|byte| *byte == 0) {
                return Err(unwritten(shared.nccl.api(), CALL, shared.name(), "unique id"));
            }
            Ok(UniqueId::from_raw(raw))
        })
        .finish(deadline)
    }

    /// Initialises this prepared communicator with all ranks of `parent`, followed by the new ranks. Collective. New
    /// ranks pass `parent: None` and the id. Ranks of the parent pass `parent`. The rank of the parent that made the id
    /// also passes the id, the others pass `None`. `go_on` is called from time to time during the wait; if it returns
    /// an error, the wait ends.
    ///
    /// # Errors
    /// Those of NCCL and of `go_on`. Afterwards this communicator can only be aborted or dropped. The parent can only
    /// be aborted, because NCCL may have used its connections.
    pub(crate) fn grow_from<E: From<CommError> + fmt::Display>(
        &self,
        parent: Option<&Self>,
        id: Option<UniqueId>,
        deadline: Deadline,
        go_on: impl FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        let waiting_for = format!("all {} ranks to grow", self.size());
        let of = parent.map(|parent| parent.shared.clone());
        let grown =
            Serving::begin(&self.shared, &self.service, (CALL, Kind::Making), waiting_for, move |shared| {
                grow(shared, of.as_ref(), id.as_ref(), deadline)
                    .inspect_err(|error| shared.guard.poison(&error.to_string()))?;
                shared.guard.open();
                Ok(())
            })
            .finish_while(deadline, go_on);
        grown.inspect_err(|error| {
            if let Some(parent) = parent {
                parent.give_up(&error.to_string());
            }
        })
    }
}

/// Calls `ncclCommGrow`. Runs on the service thread of the new communicator, while the call holds that communicator's
/// guard.
fn grow(
    shared: &Shared,
    parent: Option<&Arc<Shared>>,
    id: Option<&UniqueId>,
    deadline: Deadline,
) -> Result<()> {
    let begun = Begun::now(&shared.context);
    let _entry = parent.map(|it| it.guard.enter(CALL, Kind::Child, Some(deadline))).transpose()?;
    let raw = parent.map_or(ptr::null_mut(), |parent| parent.raw());
    let (rank, size) = rank_and_size(CALL, shared.place.rank, shared.place.size)?;
    // For NCCL, -1 means that the ranks of the parent keep their numbers.
    let place = if parent.is_some() { -1 } else { rank };
    let id = id.map(UniqueId::raw);
    let id = id.as_ref().map_or(ptr::null(), ptr::from_ref);
    let (out, mut settings) = (shared.out_parameter(), shared.config.raw());
    // SAFETY: the parent's call guard keeps the parent alive. `out` points to the handle in `shared`, which lives as
    // long as the communicator. `id` and `settings` outlive the call. The strings that `settings` points to are in
    // `shared`.
    unsafe { call!(&shared.nccl, shared.name(), ncclCommGrow(raw, size, id, place, out, &mut settings)) }?;
    if shared.raw().is_null() {
        return Err(unwritten(shared.nccl.api(), CALL, shared.name(), "communicator"));
    }
    // Never set before: a communicator is made once.
    let _ = shared.making.set(begun.done(&shared.context, Origin::Grow));
    Ok(())
}
