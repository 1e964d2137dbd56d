//! Memory that captured graphs keep in place.
//!
//! A graph uses the captured addresses at each launch, long after the calls. An owner of memory (such as an allocator)
//! that could reuse the memory between capture and launch implements [`GraphMemory`] and [registers](register) itself.
//! Groups and communicators report the ranges of their captured operations to all owners. Crates that depend on this
//! one report their ranges with [`note`].
//!
//! If no stream captures, or no owner is registered, no owner is called and no lock is taken.

use std::sync::{
    Arc, PoisonError, RwLock, Weak,
    atomic::{AtomicBool, Ordering},
};

use cuda_driver::{DevicePtr, Stream, graph::CaptureStatus};

/// An owner of memory that may have to stay in place for a captured graph.
pub trait GraphMemory: Send + Sync {
    /// Called when `stream` captures work that uses `bytes` bytes at `address`. This owner must keep its part of the
    /// range in place as long as the graph exists. It ignores memory of other owners. The caller keeps the memory
    /// allocated until this method returns.
    ///
    /// # Errors
    /// The driver's error if a query about the capture fails. The memory is not kept in place then.
    fn used_by_graph(&self, address: DevicePtr, bytes: u64, stream: &Stream) -> cuda_driver::Result<()>;
}

static OWNERS: RwLock<Vec<Weak<dyn GraphMemory>>> = RwLock::new(Vec::new());
/// False until the first owner is registered. Lets [`note`] return early.
static ANY: AtomicBool = AtomicBool::new(false);

/// Registers `owner`. Its [`used_by_graph`](GraphMemory::used_by_graph) is called for captured work until the owner
/// is dropped.
pub fn register(owner: Weak<dyn GraphMemory>) {
    let mut owners = OWNERS.write().unwrap_or_else(PoisonError::into_inner);
    owners.retain(|owner| owner.strong_count() > 0);
    owners.push(owner);
    ANY.store(true, Ordering::Release);
}

/// If `stream` is being captured, notifies all owners that the stream's next work uses `ranges` (start address and
/// length in bytes). Call this function before the work is enqueued.
///
/// # Errors
/// As for [`Stream::capture_status`], and those of an owner.
pub fn note(stream: &Stream, ranges: impl IntoIterator<Item = (DevicePtr, u64)>) -> cuda_driver::Result<()> {
    match ANY.load(Ordering::Acquire) && stream.capture_status()? != CaptureStatus::None {
        true => note_captured(stream, ranges),
        false => Ok(()),
    }
}

/// Like [`note`], for a stream that is known to be captured.
#[cold]
pub(crate) fn note_captured(
    stream: &Stream,
    ranges: impl IntoIterator<Item = (DevicePtr, u64)>,
) -> cuda_driver::Result<()> {
    let owners: Vec<Arc<dyn GraphMemory>> = {
        let owners = OWNERS.read().unwrap_or_else(PoisonError::into_inner);
        owners.iter().filter_map(Weak::upgrade).collect()
    };
    for (address, bytes) in ranges.into_iter().filter(|(_, bytes)| *bytes > 0) {
        owners.iter().try_for_each(|owner| owner.used_by_graph(address, bytes, stream))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        comm::{DataType, Op, Place, ReduceOp},
        operation::Primitive,
    };

    const SEND: DevicePtr = DevicePtr(0x1000);
    const RECEIVE: DevicePtr = DevicePtr(0x9000);
    const FACTOR: DevicePtr = DevicePtr(0x100);

    #[test]
    fn every_operation_names_all_memory_that_it_uses() {
        let place = Place { rank: 1, size: 4, release: nccl_sys::Version::new(2, 30, 7) };
        // Bytes sent and received: first on the rank that the operation names, then on another rank.
        for (primitive, named, other) in [
            (Primitive::AllReduce, [40, 40], [40, 40]),
            (Primitive::Broadcast, [40, 40], [0, 40]),
            (Primitive::Reduce, [40, 40], [40, 0]),
            (Primitive::AllGather, [40, 160], [40, 160]),
            (Primitive::ReduceScatter, [160, 40], [160, 40]),
            (Primitive::AllToAll, [160, 160], [160, 160]),
            (Primitive::Gather, [40, 160], [40, 0]),
            (Primitive::Scatter, [160, 40], [0, 40]),
            (Primitive::Send, [40, 0], [40, 0]),
            (Primitive::Recv, [0, 40], [0, 40]),
            (Primitive::PutSignal, [40, 40], [40, 40]),
            (Primitive::Signal, [0, 0], [0, 0]),
            (Primitive::WaitSignals, [0, 0], [0, 0]),
        ] {
            for (rank, [send, receive]) in [(1, named), (2, other)] {
                let op = Op::new(primitive, SEND, RECEIVE, 10, DataType::F32).with(rank);
                let mut wanted = vec![(SEND, send), (RECEIVE, receive)];
                wanted.retain(|(_, bytes)| *bytes > 0);
                assert_eq!(op.memory(&place).collect::<Vec<_>>(), wanted, "{primitive:?} of rank {rank}");
            }
        }
        // An in-place buffer is named once, and the factor too.
        let op = Op::new(Primitive::AllReduce, SEND, SEND, 10, DataType::F64);
        let op = op.reduced_by(ReduceOp::PreMulSumAt(FACTOR));
        assert_eq!(op.memory(&place).collect::<Vec<_>>(), [(SEND, 80), (FACTOR, 8)]);
    }
}
