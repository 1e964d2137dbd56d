//! In one agreement on a [plan](super::Plan) or on [regions](super::Regions): exports the allocations that this rank
//! shares, and opens (maps) those of its peers.

use std::sync::Arc;

use cuda_driver::Context;
use process_group::store::Deadline;

use super::{
    handles::Open,
    memory::MemorySpan,
    protocol::{ExchangeRecord, SharedAllocation, missing},
};
use crate::sharing::{self, Offer, OpeningOutcome, Party};

/// Exports the allocations that contain `pieces`, each allocation once, even if it contains several pieces. Returns two
/// values: the [`Offer`], and the exports for this rank's [record](ExchangeRecord), which is its message to the other
/// members. The offer has a listener, from which peers request file descriptors. Peers can open the allocations until
/// the offer is dropped. The error is the reason of the failure.
pub(super) fn export<'a>(
    context: &Context,
    pieces: impl IntoIterator<Item = &'a MemorySpan>,
) -> Result<(Offer, Vec<SharedAllocation>), String> {
    let (mut offer, mut exports) = (Offer::new()?, Vec::<SharedAllocation>::new());
    for piece in pieces {
        if exports.iter().all(|export| export.id != piece.id) {
            let shared = offer.export_later(piece.shareable(context)?)?;
            exports.push(SharedAllocation { id: piece.id, shared });
        }
    }
    Ok((offer, exports))
}

/// Sends the other members the file descriptors that they need, and opens the peers' memory that this rank accesses and
/// does not have open yet. Returns the newly opened allocations. `own` is the index of this rank in `records`. On
/// failure, returns the outcome that this rank reports to the other members.
pub(super) fn open(
    context: &Context,
    offer: &Offer,
    own: usize,
    records: &[ExchangeRecord],
    deadline: Deadline,
) -> Result<Open, OpeningOutcome> {
    let parties: Vec<Party<'_>> = records
        .iter()
        .map(|ExchangeRecord { rank, site, exports, .. }| {
            let exports = exports.iter().map(|export| &export.shared).collect();
            Party { rank: *rank, site, exports }
        })
        .collect();
    let wanted = |from: usize, to: usize| missing(&records[from], &records[to]);
    let name = |record: usize, export: usize| records[record].exports[export].id.to_string();
    let opened = sharing::open(context, offer, own, &parties, wanted, name, deadline)?;
    let entry = |((record, export), imported): ((usize, usize), _)| {
        let record = &records[record];
        ((record.rank, record.exports[export].id), Arc::new(imported))
    };
    Ok(opened.into_iter().map(entry).collect())
}
