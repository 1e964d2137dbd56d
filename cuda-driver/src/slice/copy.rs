//! Allocation of device slices, and copies between slices.
//!
//! Copies make the stream's context current, because the driver requires it for stream-ordered memory.

use super::{DeviceSlice, DeviceView, DeviceViewMut, PinnedSlice, require_context};
use crate::graph::{BoundMemory, DuringCapture, RelaxedCapture, enqueue, refuse_capture, synchronize};
use crate::{Element, Error, Event, EventFlags, Result, Stream, device};

impl Stream {
    /// Allocates `len` elements of device memory with unspecified values. The slice belongs to this stream and is freed
    /// in this stream's order.
    ///
    /// # Errors
    /// [`Error::Driver`] from `cuMemAllocAsync`: `CUDA_ERROR_OUT_OF_MEMORY`, or `CUDA_ERROR_NOT_SUPPORTED` for a device
    /// without [memory pools](crate::Capabilities::MEMORY_POOLS). [`Error::Driver`] from `cuStreamIsCapturing`;
    /// [`Error::WhileCapturing`] if this stream captures; [`Error::CaptureRace`] if another thread may have made this
    /// stream part of a capture during the call; [`Error::PerThreadStream`] for the per-thread default stream. If `len`
    /// is 0, only the last of these errors is possible, because nothing is allocated.
    #[doc(alias = "cuMemAllocAsync")]
    pub fn alloc<T: Element>(&self, len: usize) -> Result<DeviceSlice<T>> {
        DeviceSlice::new(self, len)
    }

    /// Allocates `len` elements of device memory, and enqueues a fill that sets all their bytes to zero.
    ///
    /// # Errors
    /// The errors of [`alloc`](Self::alloc) and [`memset_zeros`](Self::memset_zeros).
    pub fn alloc_zeros<T: Element>(&self, len: usize) -> Result<DeviceSlice<T>> {
        let mut slice = self.alloc(len)?;
        self.memset_zeros(&mut slice)?;
        Ok(slice)
    }

    /// Calls `work`, which enqueues work on this stream that uses `memory`, and [orders](crate::slice#order) that work
    /// with the other uses of the memory. In a capture, the graph holds the memory. Use this method for work that this
    /// crate does not enqueue itself, such as calls of other libraries.
    ///
    /// # Errors
    /// [`Error::DifferentDevices`] or [`Error::DifferentDrivers`] for memory of another context than the stream's, and
    /// the errors of ordering, as for [`memset_zeros`](Self::memset_zeros); the error of `work`. The work may have been
    /// enqueued even if the result is an error.
    pub fn enqueue_using<T, E: From<Error>>(
        &self,
        memory: &[BoundMemory],
        work: impl FnOnce() -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        memory.iter().try_for_each(|memory| require_context(memory, self))?;
        enqueue(self, memory, DuringCapture::Keep, work)
    }

    /// Enqueues a fill that sets all bytes of `to` to zero.
    ///
    /// # Errors
    /// [`Error::DifferentDevices`] or [`Error::DifferentDrivers`] for a slice of another context than the stream's;
    /// [`Error::Driver`] from `cuMemsetD8Async`.
    ///
    /// Errors while the fill is [ordered](crate::slice#order) with other uses of the slice:
    /// - [`Error::WhileCapturing`] if this stream is in a capture that another library began, or in an invalidated one.
    ///   It is also returned if the slice's stream is in a capture that this stream is not in.
    /// - [`Error::CaptureRace`] if another thread may have made one of these streams part of a capture during the call,
    ///   or may have ended this stream's capture.
    /// - [`Error::Driver`] from calls on streams and events.
    ///
    /// After [`Error::CaptureRace`] or [`Error::Driver`], the fill may have been enqueued.
    #[doc(alias = "cuMemsetD8Async")]
    pub fn memset_zeros<'a, T: Element>(&self, to: impl Into<DeviceViewMut<'a, T>>) -> Result<()> {
        let to = to.into();
        require_context(to.as_view().memory(), self)?;
        if to.bytes() == 0 {
            return Ok(());
        }
        enqueue(self, &[to.as_view().memory().clone()], DuringCapture::Keep, || {
            // SAFETY: the range lies in a slice, which the view borrows exclusively. `enqueue` orders the fill with
            // other uses and with the free of the slice.
            unsafe { self.fill_u8(to.device_ptr(), 0, to.bytes()) }
        })
    }

    /// Copies host memory to a device slice of the same length. Blocks until earlier work on this stream and on the
    /// slice's stream is done, and then until the copy is done.
    ///
    /// # Errors
    /// [`Error::DifferentLengths`]; [`Error::DifferentDevices`] or [`Error::DifferentDrivers`] for a slice of another
    /// context than the stream's; [`Error::WhileCapturing`] if one of the two streams captures; [`Error::Driver`] from
    /// `cuStreamIsCapturing`, `cuThreadExchangeStreamCaptureMode`, `cuStreamSynchronize` or `cuMemcpyHtoD_v2`, also for
    /// errors of earlier asynchronous work.
    #[doc(alias = "cuMemcpyHtoD")]
    pub fn memcpy_htod<'a, T: Element>(&self, from: &[T], to: impl Into<DeviceViewMut<'a, T>>) -> Result<()> {
        let to = to.into();
        require_same_length(from.len(), to.len())?;
        self.finish_uses(to.as_view())?;
        if to.bytes() == 0 {
            return Ok(());
        }
        let _relaxed = RelaxedCapture::enter(self.context().driver())?;
        // SAFETY: the range lies in a slice, which the view borrows exclusively. All earlier uses of it have ended.
        unsafe { self.context().enqueue_copy_from_host(to.device_ptr(), from) }?;
        let written = Self::legacy_default(self.context()).synchronize();
        if written.is_err() {
            to.as_view().memory().keep_for_ever();
        }
        written
    }

    /// Copies a device slice to host memory of the same length. Blocks until earlier work on this stream and on the
    /// slice's stream is done, and then until the copy is done.
    ///
    /// # Errors
    /// As [`memcpy_htod`](Self::memcpy_htod), with `cuMemcpyDtoH_v2` in place of `cuMemcpyHtoD_v2`.
    #[doc(alias = "cuMemcpyDtoH")]
    pub fn memcpy_dtoh<'a, T: Element>(
        &self,
        from: impl Into<DeviceView<'a, T>>,
        to: &mut [T],
    ) -> Result<()> {
        let from = from.into();
        require_same_length(from.len(), to.len())?;
        self.finish_uses(from)?;
        if from.bytes() == 0 {
            return Ok(());
        }
        let _relaxed = RelaxedCapture::enter(self.context().driver())?;
        // SAFETY: the range lies in a slice, which the view borrows. All earlier uses of it have ended.
        unsafe { self.context().copy_to_host(to, from.device_ptr()) }
    }

    /// Allocates a device slice on this stream and copies `from` to it. Blocks as [`memcpy_htod`](Self::memcpy_htod)
    /// does.
    ///
    /// # Errors
    /// The errors of [`alloc`](Self::alloc) and [`memcpy_htod`](Self::memcpy_htod).
    pub fn clone_htod<T: Element>(&self, from: &[T]) -> Result<DeviceSlice<T>> {
        let mut slice = self.alloc(from.len())?;
        self.memcpy_htod(from, &mut slice)?;
        Ok(slice)
    }

    /// Copies a device slice to a new vector. Blocks as [`memcpy_dtoh`](Self::memcpy_dtoh) does.
    ///
    /// # Errors
    /// The errors of [`memcpy_dtoh`](Self::memcpy_dtoh).
    pub fn clone_dtoh<'a, T: Element>(&self, from: impl Into<DeviceView<'a, T>>) -> Result<Vec<T>> {
        let from = from.into();
        // SAFETY: any bits are a value of `T`, and so are zeros.
        let mut values = vec![unsafe { std::mem::zeroed() }; from.len()];
        self.memcpy_dtoh(from, &mut values)?;
        Ok(values)
    }

    /// Enqueues a copy of a device slice to another one of the same length. The slices may be of different devices;
    /// this stream must be of the context of one of them. If the devices cannot access each other, the driver copies
    /// through the host.
    ///
    /// # Errors
    /// [`Error::DifferentLengths`]; [`Error::DifferentDevices`] if the stream is of neither slice's context;
    /// [`Error::DifferentDrivers`] if a slice is of another driver than the stream; [`Error::Driver`] from
    /// `cuMemcpyDtoDAsync_v2` or `cuMemcpyPeerAsync`; the errors of ordering, as for
    /// [`memset_zeros`](Self::memset_zeros).
    #[doc(alias = "cuMemcpyDtoDAsync")]
    #[doc(alias = "cuMemcpyPeerAsync")]
    pub fn memcpy_dtod<'a, 'b, T: Element>(
        &self,
        from: impl Into<DeviceView<'a, T>>,
        to: impl Into<DeviceViewMut<'b, T>>,
    ) -> Result<()> {
        let (from, to) = (from.into(), to.into());
        require_same_length(from.len(), to.len())?;
        let (source, target) = (from.stream().context(), to.stream().context());
        self.context().driver().require_same("the source", source.driver(), "the stream that should copy")?;
        self.context().driver().require_same("the target", target.driver(), "the stream that should copy")?;
        if self.context() != source && self.context() != target {
            let (found, wanted) = (self.context().device(), target.device());
            return Err(device::mismatch(
                ("the stream", found),
                ("the slice that it should copy to", wanted),
            ));
        }
        let bytes = from.bytes();
        if bytes == 0 {
            return Ok(());
        }
        let _current = self.context().enter()?;
        enqueue(self, &[from.memory().clone(), to.as_view().memory().clone()], DuringCapture::Keep, || {
            if source == target {
                // SAFETY: both ranges lie in slices that the views borrow. `to` is borrowed exclusively, so they do not
                // overlap. `enqueue` orders the copy with other uses and with the frees of the slices.
                unsafe { self.copy(to.device_ptr(), from.device_ptr(), bytes) }
            } else {
                // SAFETY: as above.
                unsafe { self.copy_peer((to.device_ptr(), target), (from.device_ptr(), source), bytes) }
            }
        })
    }

    /// Allocates a device slice on this stream, and enqueues a copy of `from` to it.
    ///
    /// # Errors
    /// The errors of [`alloc`](Self::alloc) and [`memcpy_dtod`](Self::memcpy_dtod).
    pub fn clone_dtod<'a, T: Element>(&self, from: impl Into<DeviceView<'a, T>>) -> Result<DeviceSlice<T>> {
        let from = from.into();
        let mut slice = self.alloc(from.len())?;
        self.memcpy_dtod(from, &mut slice)?;
        Ok(slice)
    }

    /// Enqueues a copy of a pinned slice to a device slice of the same length, and returns without waiting for it. The
    /// copy runs after earlier copies that use `from`.
    ///
    /// # Errors
    /// [`Error::DifferentLengths`]; [`Error::DifferentDevices`] or [`Error::DifferentDrivers`] if the device slice is
    /// of another context than the stream; [`Error::DifferentDrivers`] if the pinned slice is of another driver (it may
    /// be of any context of the stream's driver); [`Error::UnknownEnd`] if an earlier copy may still use the pinned
    /// slice and cannot be waited for; [`Error::WhileCapturing`] if this stream or the device slice's stream captures;
    /// [`Error::Driver`] from `cuMemcpyHtoDAsync_v2`; the other errors of ordering, as for
    /// [`memset_zeros`](Self::memset_zeros).
    ///
    /// After an error, the copy may have been enqueued.
    #[doc(alias = "cuMemcpyHtoDAsync")]
    pub fn memcpy_htod_async<'a, T: Element>(
        &self,
        from: &PinnedSlice<T>,
        to: impl Into<DeviceViewMut<'a, T>>,
    ) -> Result<()> {
        let to = to.into();
        require_same_length(from.len(), to.len())?;
        self.copy_pinned(from, to.as_view(), || {
            // SAFETY: both ranges lie in slices, and `to` is borrowed exclusively. `copy_pinned` orders the copy with
            // other uses of both slices, and they are freed only after it.
            unsafe { self.copy_from_host(to.device_ptr(), from.start().cast(), from.bytes()) }
        })
    }

    /// Enqueues a copy of a device slice to a pinned slice of the same length, and returns without waiting for it. The
    /// copy runs after earlier copies that use `to`.
    ///
    /// # Errors
    /// As [`memcpy_htod_async`](Self::memcpy_htod_async), with `cuMemcpyDtoHAsync_v2` in place of
    /// `cuMemcpyHtoDAsync_v2`.
    #[doc(alias = "cuMemcpyDtoHAsync")]
    pub fn memcpy_dtoh_async<'a, T: Element>(
        &self,
        from: impl Into<DeviceView<'a, T>>,
        to: &mut PinnedSlice<T>,
    ) -> Result<()> {
        let from = from.into();
        require_same_length(from.len(), to.len())?;
        self.copy_pinned(to, from, || {
            // SAFETY: both ranges lie in slices. `to` stays borrowed exclusively until `copy_pinned` has stored an
            // event for the copy; later host access waits for that event.
            unsafe { self.copy_to_host(to.start().cast(), from.device_ptr(), from.bytes()) }
        })
    }

    /// Calls `copy`, which enqueues a copy between a pinned slice and a device slice, and stores an event for this
    /// copy in the pinned slice.
    fn copy_pinned<T: Element>(
        &self,
        pinned: &PinnedSlice<T>,
        slice: DeviceView<'_, T>,
        copy: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let driver = self.context().driver();
        driver.require_same("the pinned slice", pinned.context().driver(), "the stream that should copy")?;
        require_context(slice.memory(), self)?;
        if slice.bytes() == 0 {
            return Ok(());
        }
        let event = Event::new(self.context(), EventFlags::DISABLE_TIMING)?;
        let earlier = pinned.earlier_uses()?;
        let (mut is_enqueued, mut is_recorded) = (false, false);
        let _current = self.context().enter()?;
        let copied = enqueue(self, &[slice.memory().clone()], DuringCapture::Refuse, || {
            earlier.iter().try_for_each(|event| self.wait_uncounted(event))?;
            is_enqueued = true;
            // The driver may have enqueued the copy even if it returns an error.
            let recorded = copy().and_then(|()| self.record(&event));
            is_recorded = recorded.is_ok();
            if !is_recorded && synchronize(self).is_err() {
                pinned.lose();
            }
            recorded
        });
        match copied {
            Err(Error::CaptureRace { .. }) if is_enqueued => pinned.lose(),
            // If the record of the event may be part of a capture, `enqueue` returns `CaptureRace`, which the arm above
            // handles. In this arm the record is not part of a capture, so a stream that later waits for the event does
            // not join one.
            _ if is_recorded => pinned.add_use(event, &earlier),
            _ => {}
        }
        copied
    }

    /// Blocks until this stream and the slice's stream have done all their work. Returns an error if one of them
    /// captures, or if the slice is of another context than this stream.
    fn finish_uses<T: Element>(&self, slice: DeviceView<'_, T>) -> Result<()> {
        require_context(slice.memory(), self)?;
        for stream in [self, slice.stream()] {
            refuse_capture(stream)?;
            synchronize(stream)?;
        }
        Ok(())
    }
}

fn require_same_length(from: usize, to: usize) -> Result<()> {
    if from == to { Ok(()) } else { Err(Error::DifferentLengths { from, to }) }
}
