//! Growing: a communicator of another's ranks and of new ranks behind them.

use std::{ffi::c_int, fmt, ptr, sync::Arc};

use nccl_sys::{Feature, ncclUniqueId};

use super::{
    CommError, Communicator, Result, UniqueId,
    call::{call, unwritten},
    call_guard::Kind,
    check::ArgumentError,
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

    /// Makes the unique id for one growth of this communicator, on one of its ranks. All ranks must be about to
    /// [grow](Self::grow_from) it, because NCCL makes no second id before the first is used.
    pub(crate) fn growth_id(&self, deadline: Deadline) -> Result<UniqueId> {
        const CALL: &str = "ncclCommGetUniqueId";
        let call = (CALL, Kind::Child);
        Serving::begin(&self.shared, &self.service, call, "the unique id of NCCL".into(), |shared| {
            let mut raw = ncclUniqueId { internal: [0; UniqueId::BYTES] };
            // SAFETY: the communicator is alive while this call is inside; writes an id, to a local.
            unsafe { call!(&shared.nccl, shared.name(), ncclCommGetUniqueId(shared.raw(), &mut raw)) }?;
            if raw.internal.iter().all(|byte| *byte == 0) {
                return Err(unwritten(shared.nccl.api(), CALL, shared.name(), "unique id"));
            }
            Ok(UniqueId::from_raw(raw))
        })
        .finish(deadline)
    }

    /// Makes this prepared communicator of all ranks of `parent` and of new ranks behind them. Collective. The new
    /// ranks have no parent, and give the id. The rank of the parent that made the id gives it too.
    ///
    /// # Errors
    /// Those of NCCL and of `go_on`. This communicator can then only be aborted or dropped, and the parent only
    /// aborted, because NCCL uses its connections.
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

/// Runs on the service thread of the new communicator, inside its guard.
fn grow(
    shared: &Shared,
    parent: Option<&Arc<Shared>>,
    id: Option<&UniqueId>,
    deadline: Deadline,
) -> Result<()> {
    let begun = Begun::now(&shared.context);
    let _entry = parent.map(|it| it.guard.enter(CALL, Kind::Child, Some(deadline))).transpose()?;
    let (size, raw) = (shared.place.size, parent.map_or(ptr::null_mut(), |parent| parent.raw()));
    let number = |n: usize| {
        let no_rank =
            |_| ArgumentError::NoSuchRank { call: CALL, role: "rank", rank: n, size: i32::MAX as usize };
        c_int::try_from(n).map_err(no_rank)
    };
    // The ranks of the parent keep their places.
    let place = if parent.is_some() { -1 } else { number(shared.place.rank)? };
    let size = number(size)?;
    let id = id.map(UniqueId::raw);
    let id = id.as_ref().map_or(ptr::null(), ptr::from_ref);
    let (out, mut settings) = (shared.out_parameter(), shared.config.raw());
    // SAFETY: the parent is alive while this call is inside. The cell lives in `shared`, which lives as long as the
    // communicator. The id and the settings outlive the call, and the strings of these lie in `shared`.
    unsafe { call!(&shared.nccl, shared.name(), ncclCommGrow(raw, size, id, place, out, &mut settings)) }?;
    if shared.raw().is_null() {
        return Err(unwritten(shared.nccl.api(), CALL, shared.name(), "communicator"));
    }
    // Set once: a communicator is made once.
    let _ = shared.making.set(begun.done(&shared.context, Origin::Grow));
    Ok(())
}
