//! Device slices and views of them.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

use super::Allocation;
use crate::graph::BoundMemory;
use crate::{DevicePtr, Element, Error, Result, Stream};

/// Elements in device memory, freed in the order of the stream that allocated them.
///
/// [`Stream::alloc_zeros`], [`Stream::alloc`], [`Stream::clone_htod`] and [`Stream::clone_dtod`] allocate a device
/// slice. [`from_owner`](Self::from_owner) makes one from the memory of another allocator, which then also frees that
/// memory. The [module](super#order) describes how uses on several streams are ordered.
pub struct DeviceSlice<T: Element> {
    memory: BoundMemory,
    start: DevicePtr,
    len: usize,
    elements: PhantomData<T>,
}

/// A shared view of elements of a [`DeviceSlice`], like `&[T]`.
///
/// Functions that read device memory take `impl Into<DeviceView<T>>`: a view, `&slice`, or a reference to a
/// [`DeviceViewMut`].
pub struct DeviceView<'a, T: Element> {
    memory: &'a BoundMemory,
    start: DevicePtr,
    len: usize,
    elements: PhantomData<&'a [T]>,
}

/// An exclusive view of elements of a [`DeviceSlice`], like `&mut [T]`.
///
/// Functions that write device memory take `impl Into<DeviceViewMut<T>>`: a view, `&mut slice`, or `&mut view`.
/// Two exclusive views that can be used at the same time never overlap:
/// ```compile_fail,E0499
/// # use cuda_driver::{DeviceSlice, Result};
/// fn twice(slice: &mut DeviceSlice<f32>) -> Result<()> {
///     let (first, second) = (slice.slice_mut(0..2)?, slice.slice_mut(1..3)?);
///     drop((first, second));
///     Ok(())
/// }
/// ```
pub struct DeviceViewMut<'a, T: Element> {
    memory: &'a BoundMemory,
    start: DevicePtr,
    len: usize,
    elements: PhantomData<&'a mut [T]>,
}

impl<T: Element> DeviceSlice<T> {
    length_methods!();

    pub(super) fn new(stream: &Stream, len: usize) -> Result<Self> {
        // A size that overflows saturates. The driver then refuses to allocate it: no device has as much memory.
        let memory = Allocation::new(stream, len.saturating_mul(size_of::<T>()))?;
        let start = memory.ptr();
        Ok(Self { memory, start, len, elements: PhantomData })
    }

    /// Makes a slice of `len` elements at `start` from the memory of another allocator. The slice keeps `memory` alive.
    ///
    /// # Safety
    /// `start` must be a multiple of the element's size, and the `len` elements there must lie in `memory`.
    ///
    /// Every use of these elements that does not go through the slice must be ordered with the work of the
    /// [stream](crate::graph::StreamBound::stream) of `memory`. Such a use is either enqueued on that stream, or events
    /// make that stream and the use wait for each other. This condition ends when the slice, and every capture, graph
    /// and executable with work on the slice, have been dropped.
    #[must_use]
    pub unsafe fn from_owner(memory: BoundMemory, start: DevicePtr, len: usize) -> Self {
        let start = if len == 0 { DevicePtr::NULL } else { start };
        Self { memory, start, len, elements: PhantomData }
    }

    /// The stream that the slice belongs to.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        self.memory.stream()
    }

    /// The address of the first element, for `unsafe` calls; [`DevicePtr::NULL`] if there are no elements.
    #[doc(alias = "ptr")]
    #[must_use]
    pub fn device_ptr(&self) -> DevicePtr {
        self.start
    }

    /// A view of all elements.
    #[must_use]
    pub fn as_view(&self) -> DeviceView<'_, T> {
        DeviceView { memory: &self.memory, start: self.start, len: self.len, elements: PhantomData }
    }

    /// An exclusive view of all elements.
    #[must_use]
    pub fn as_view_mut(&mut self) -> DeviceViewMut<'_, T> {
        DeviceViewMut { memory: &self.memory, start: self.start, len: self.len, elements: PhantomData }
    }

    /// A view of a range of elements.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<DeviceView<'_, T>> {
        self.as_view().slice(range)
    }

    /// An exclusive view of a range of elements.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<DeviceViewMut<'_, T>> {
        let (start, len) = self.as_view().part(range)?;
        Ok(DeviceViewMut { memory: &self.memory, start, len, elements: PhantomData })
    }
}

impl<'a, T: Element> DeviceView<'a, T> {
    length_methods!();

    /// The stream that the slice belongs to.
    #[must_use]
    pub fn stream(&self) -> &'a Stream {
        self.memory.stream()
    }

    /// The address of the first element, for `unsafe` calls; has no meaning if there are no elements.
    #[must_use]
    pub fn device_ptr(&self) -> DevicePtr {
        self.start
    }

    /// A view of a range of these elements.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        let (start, len) = self.part(range)?;
        Ok(Self { start, len, ..*self })
    }

    /// The memory that the elements lie in, for [`Stream::enqueue_using`].
    #[must_use]
    pub fn memory(&self) -> &'a BoundMemory {
        self.memory
    }

    /// Returns the address and the length of a range of elements.
    fn part(&self, range: impl RangeBounds<usize>) -> Result<(DevicePtr, usize)> {
        // A bound past `usize::MAX` saturates and is then out of range, because no slice has as many elements.
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(last) => last.saturating_add(1),
            Bound::Excluded(end) => *end,
            Bound::Unbounded => self.len,
        };
        if start > end || end > self.len {
            return Err(Error::OutOfRange { start, end, len: self.len });
        }
        Ok((self.start + start * size_of::<T>(), end - start))
    }
}

impl<T: Element> DeviceViewMut<'_, T> {
    length_methods!();

    /// The stream that the slice belongs to.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        self.memory.stream()
    }

    /// The address of the first element, for `unsafe` calls; has no meaning if there are no elements.
    #[must_use]
    pub fn device_ptr(&self) -> DevicePtr {
        self.start
    }

    /// A shared view of these elements.
    #[must_use]
    pub fn as_view(&self) -> DeviceView<'_, T> {
        DeviceView { memory: self.memory, start: self.start, len: self.len, elements: PhantomData }
    }

    /// A shared view of a range of these elements.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<DeviceView<'_, T>> {
        self.as_view().slice(range)
    }

    /// An exclusive view of a range of these elements.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<DeviceViewMut<'_, T>> {
        let (start, len) = self.as_view().part(range)?;
        Ok(DeviceViewMut { memory: self.memory, start, len, elements: PhantomData })
    }

    /// Two exclusive views: of the elements before `middle`, and of the others.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if there are fewer than `middle` elements.
    pub fn split_at_mut(&mut self, middle: usize) -> Result<(DeviceViewMut<'_, T>, DeviceViewMut<'_, T>)> {
        let view = self.as_view();
        let (first, second) = (view.part(..middle)?, view.part(middle..)?);
        let part = |(start, len)| DeviceViewMut { memory: self.memory, start, len, elements: PhantomData };
        Ok((part(first), part(second)))
    }
}

impl<T: Element> Clone for DeviceView<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Element> Copy for DeviceView<'_, T> {}

impl<'a, T: Element> From<&'a DeviceSlice<T>> for DeviceView<'a, T> {
    fn from(slice: &'a DeviceSlice<T>) -> Self {
        slice.as_view()
    }
}

impl<'a, T: Element> From<&DeviceView<'a, T>> for DeviceView<'a, T> {
    fn from(view: &DeviceView<'a, T>) -> Self {
        *view
    }
}

impl<'a, T: Element> From<&'a DeviceViewMut<'_, T>> for DeviceView<'a, T> {
    fn from(view: &'a DeviceViewMut<'_, T>) -> Self {
        view.as_view()
    }
}

impl<'a, T: Element> From<&'a mut DeviceSlice<T>> for DeviceViewMut<'a, T> {
    fn from(slice: &'a mut DeviceSlice<T>) -> Self {
        slice.as_view_mut()
    }
}

impl<'a, T: Element> From<&'a mut DeviceViewMut<'_, T>> for DeviceViewMut<'a, T> {
    fn from(view: &'a mut DeviceViewMut<'_, T>) -> Self {
        Self { memory: view.memory, start: view.start, len: view.len, elements: PhantomData }
    }
}

impl<T: Element> fmt::Debug for DeviceSlice<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        describe(f, "DeviceSlice", &self.as_view())
    }
}

impl<T: Element> fmt::Debug for DeviceView<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        describe(f, "DeviceView", self)
    }
}

impl<T: Element> fmt::Debug for DeviceViewMut<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        describe(f, "DeviceViewMut", &self.as_view())
    }
}

fn describe<T: Element>(f: &mut fmt::Formatter<'_>, kind: &str, view: &DeviceView<'_, T>) -> fmt::Result {
    let element = std::any::type_name::<T>();
    write!(f, "{kind}<{element}>({:?}, {} elements of {:?})", view.start, view.len, view.stream())
}
