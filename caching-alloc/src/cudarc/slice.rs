//! Blocks as slices of cudarc.

use std::fmt;
use std::mem::{self, ManuallyDrop};
use std::ops::{Deref, RangeBounds};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use ::cudarc::driver::sys::CUdeviceptr;
use ::cudarc::driver::{
    CudaSlice, CudaStream, CudaViewMut, DevicePtr, DevicePtrMut, DeviceSlice, LaunchArgs, PushKernelArg,
    SyncOnDrop,
};

use super::CudarcError;
use crate::core::{Block, UNIT};
use crate::driver::DriverEvents;

/// A block as typed memory of cudarc, made by [`Adopted`](super::Adopted). Dropping it frees the block on its stream.
///
/// It can be passed wherever cudarc takes a [`DevicePtr`] or [`DevicePtrMut`], and as a kernel's argument. It
/// dereferences to a [`CudaSlice`], for reading and for [`CudaView`](::cudarc::driver::CudaView)s, and makes
/// [`CudaViewMut`]s.
///
/// cudarc cannot make a view from a pointer. So this type holds a `CudaSlice` over the block
/// ([`CudaStream::upgrade_device_ptr`]), which it [leaks](CudaSlice::leak) instead of dropping it. It never gives that
/// slice out by value or by `&mut`, since a caller could then move it out, and free the memory by dropping it.
pub struct BlockSlice<T> {
    // The first field, because fields are dropped in order. Dropping this one makes the block's stream wait for the
    // uses that cudarc has recorded on other streams. The block must be freed on its stream after that wait.
    lent: Lent<T>,
    block: Block,
    events: Arc<DriverEvents>,
}

/// A slice over memory that cudarc does not own. Dropping this value leaks the slice, so cudarc does not free the
/// memory.
struct Lent<T>(ManuallyDrop<CudaSlice<T>>);

impl<T> Drop for Lent<T> {
    fn drop(&mut self) {
        // SAFETY: the field is not used after this drop.
        unsafe { ManuallyDrop::take(&mut self.0) }.leak();
    }
}

impl<T> BlockSlice<T> {
    pub(super) fn new(
        block: Block,
        stream: &Arc<CudaStream>,
        events: Arc<DriverEvents>,
        len: usize,
    ) -> Result<Self, CudarcError> {
        let (size, bytes, align) = (size_of::<T>(), block.bytes(), align_of::<T>());
        if align as u64 > UNIT {
            return Err(CudarcError::Alignment { align });
        }
        if len.checked_mul(size).is_none_or(|wanted| wanted as u64 > bytes) {
            return Err(CudarcError::TooLong { len, size, bytes });
        }
        // Without this check, an error that an earlier call left in the context would make `upgrade_device_ptr` panic.
        stream.context().check_err()?;
        let address = block.address();
        // SAFETY: the block stays allocated while the slice is used, and has enough bytes, as checked above. The caller
        // of `Adopted::slice` promises that the elements are valid or written before they are read.
        let upgrade = || unsafe { stream.upgrade_device_ptr::<T>(address, len) };
        let slice = catch_unwind(AssertUnwindSafe(upgrade))
            .map_err(|payload| CudarcError::of_panic(payload.as_ref()))?;
        let mut slice = Self { lent: Lent(ManuallyDrop::new(slice)), block, events };
        // Records a write on the block's stream. Earlier uses of the memory are ordered with that stream only, so the
        // first use on another stream must wait for this event.
        drop(slice.device_ptr_mut(stream));
        Ok(slice)
    }

    /// Returns the block.
    #[must_use]
    pub fn block(&self) -> &Block {
        &self.block
    }

    /// Returns the block. The block's stream waits, on the device, for the uses by other streams that cudarc has
    /// recorded.
    #[must_use]
    pub fn into_block(self) -> Block {
        self.block
    }

    /// Returns a mutable view of all elements.
    pub fn as_view_mut(&mut self) -> CudaViewMut<'_, T> {
        self.lent.0.as_view_mut()
    }

    /// Returns a mutable view of the elements in `bounds`; `None` if `bounds` exceed the slice.
    pub fn try_slice_mut(&mut self, bounds: impl RangeBounds<usize>) -> Option<CudaViewMut<'_, T>> {
        self.lent.0.try_slice_mut(bounds)
    }

    /// Returns mutable views of the elements before index `mid` and of those from `mid` on; `None` if there are fewer
    /// than `mid` elements.
    pub fn try_split_at_mut(&mut self, mid: usize) -> Option<(CudaViewMut<'_, T>, CudaViewMut<'_, T>)> {
        self.lent.0.try_split_at_mut(mid)
    }
}

/// Records with the allocator that work enqueued on `stream` uses a block of stream `own`. Returns the guard that
/// cudarc drops after enqueuing the work: `guard`, or one that synchronises `stream`.
fn used_on<'a>(
    (own, block, events): (&CudaStream, &Block, &DriverEvents),
    stream: &'a CudaStream,
    guard: SyncOnDrop<'a>,
) -> SyncOnDrop<'a> {
    if stream == own {
        return guard;
    }
    if stream.context() != own.context() {
        // An event can be recorded only on a stream of its own context, so the host waits for the work instead.
        mem::forget(guard);
        return SyncOnDrop::sync_stream(stream);
    }
    // A stream that is not registered is ordered by cudarc's events alone: the block's stream waits for them when the
    // slice is dropped. The same holds if `record_stream` fails.
    if let Some(number) = events.number_of(stream.cu_stream().cast()) {
        let _ = block.record_stream(number);
    }
    guard
}

impl<T> Deref for BlockSlice<T> {
    type Target = CudaSlice<T>;

    fn deref(&self) -> &CudaSlice<T> {
        &self.lent.0
    }
}

impl<T> DeviceSlice<T> for BlockSlice<T> {
    fn len(&self) -> usize {
        self.lent.0.len()
    }

    fn stream(&self) -> &Arc<CudaStream> {
        self.lent.0.stream()
    }
}

impl<T> DevicePtr<T> for BlockSlice<T> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        let (address, guard) = self.lent.0.device_ptr(stream);
        (address, used_on((self.stream(), &self.block, &self.events), stream, guard))
    }
}

impl<T> DevicePtrMut<T> for BlockSlice<T> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        let Self { lent, block, events } = self;
        let own = lent.0.stream().clone();
        let (address, guard) = lent.0.device_ptr_mut(stream);
        (address, used_on((&own, block, events), stream, guard))
    }
}

// SAFETY: the argument is passed on as a `CudaSlice`, for which cudarc ensures the contract.
unsafe impl<'a, 'b: 'a, T> PushKernelArg<&'b BlockSlice<T>> for LaunchArgs<'a> {
    fn arg(&mut self, arg: &'b BlockSlice<T>) -> &mut Self {
        self.arg(&*arg.lent.0)
    }
}

// SAFETY: as above. Of the `&mut CudaSlice`, cudarc keeps only the address and the events.
unsafe impl<'a, 'b: 'a, T> PushKernelArg<&'b mut BlockSlice<T>> for LaunchArgs<'a> {
    fn arg(&mut self, arg: &'b mut BlockSlice<T>) -> &mut Self {
        self.arg(&mut *arg.lent.0)
    }
}

impl<T> fmt::Debug for BlockSlice<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockSlice").field("len", &self.len()).field("block", &self.block).finish()
    }
}
