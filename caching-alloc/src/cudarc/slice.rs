//! A block as a slice of cudarc.

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
/// lends a [`CudaSlice`] for reading (and so [`CudaView`](::cudarc::driver::CudaView)s), and
/// [`CudaViewMut`]s. cudarc cannot make a view of a pointer, so this holds a `CudaSlice` over the block
/// ([`CudaStream::upgrade_device_ptr`]), which is never dropped but [leaked](CudaSlice::leak). That slice is
/// never given out by value or `&mut`, since code that moves it out could free it.
pub struct BlockSlice<T> {
    // The first field, so that the stream waits for other streams' uses before the block is freed on it.
    lent: Lent<T>,
    block: Block,
    events: Arc<DriverEvents>,
}

/// A slice over memory that cudarc does not own.
struct Lent<T>(ManuallyDrop<CudaSlice<T>>);

impl<T> Drop for Lent<T> {
    fn drop(&mut self) {
        // SAFETY: nobody uses it after its drop.
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
        // An error that an earlier call left in the context would otherwise cause a panic in this call.
        stream.context().check_err()?;
        let address = block.address();
        // SAFETY: the block is allocated as long as the slice is used, and long enough; `Adopted::slice` asked its
        // caller for the elements.
        let upgrade = || unsafe { stream.upgrade_device_ptr::<T>(address, len) };
        let slice = catch_unwind(AssertUnwindSafe(upgrade))
            .map_err(|payload| CudarcError::of_panic(payload.as_ref()))?;
        let mut slice = Self { lent: Lent(ManuallyDrop::new(slice)), block, events };
        // The memory is free in the order of its own stream only, so the first use by others must come after
        // this.
        drop(slice.device_ptr_mut(stream));
        Ok(slice)
    }

    /// The block.
    #[must_use]
    pub fn block(&self) -> &Block {
        &self.block
    }

    /// Returns the block; on the device, its stream waits for the uses by other streams.
    #[must_use]
    pub fn into_block(self) -> Block {
        self.block
    }

    /// A mutable view of all of it.
    pub fn as_view_mut(&mut self) -> CudaViewMut<'_, T> {
        self.lent.0.as_view_mut()
    }

    /// A mutable view of some elements; `None` if there are not enough.
    pub fn try_slice_mut(&mut self, bounds: impl RangeBounds<usize>) -> Option<CudaViewMut<'_, T>> {
        self.lent.0.try_slice_mut(bounds)
    }

    /// Mutable views of its two parts; `None` if there are fewer than `mid` elements.
    pub fn try_split_at_mut(&mut self, mid: usize) -> Option<(CudaViewMut<'_, T>, CudaViewMut<'_, T>)> {
        self.lent.0.try_split_at_mut(mid)
    }
}

/// Has a block of stream `own` kept back for work that is enqueued on `stream` now; says what cudarc has to do at its
/// end.
fn used_on<'a>(
    (own, block, events): (&CudaStream, &Block, &DriverEvents),
    stream: &'a CudaStream,
    guard: SyncOnDrop<'a>,
) -> SyncOnDrop<'a> {
    if stream == own {
        return guard;
    }
    if stream.context() != own.context() {
        // Events are recorded in their own context only: the host waits.
        mem::forget(guard);
        return SyncOnDrop::sync_stream(stream);
    }
    // For other streams, and in symmetric pools, what cudarc records is waited for when the slice goes.
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

// SAFETY: as a `CudaSlice`, which it hands on.
unsafe impl<'a, 'b: 'a, T> PushKernelArg<&'b BlockSlice<T>> for LaunchArgs<'a> {
    fn arg(&mut self, arg: &'b BlockSlice<T>) -> &mut Self {
        self.arg(&*arg.lent.0)
    }
}

// SAFETY: as above; of the `&mut` nothing but the address and the events is kept.
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
