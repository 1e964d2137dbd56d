//! The buffer argument of operations: address, number of elements and element type.

use cuda_driver::{Context, DevicePtr};

use super::{GroupErrorKind, Result};
use crate::{
    comm::DataType,
    memory::{self, Answers},
};

/// Device memory that holds elements of one type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffer {
    /// The address of the first element.
    pub ptr: DevicePtr,
    /// The number of elements.
    pub elements: usize,
    /// The type of the elements.
    pub dtype: DataType,
}

impl Buffer {
    /// Returns the buffer of `elements` elements of `dtype` at `ptr`.
    #[must_use]
    pub const fn new(ptr: DevicePtr, elements: usize, dtype: DataType) -> Self {
        Self { ptr, elements, dtype }
    }

    /// Like [`new`](Self::new), but checks that the whole buffer is memory of the context's device. A group makes the
    /// same check when an operation first uses the memory; `checked` fails earlier, where the buffer is made. Both
    /// checks know the segments of an allocator, but not its blocks: a buffer that extends past its block passes if it
    /// lies within the segment.
    ///
    /// # Errors
    /// [`GroupErrorKind::Buffer`] if the check fails.
    pub fn checked(context: &Context, ptr: DevicePtr, elements: usize, dtype: DataType) -> Result<Self> {
        let buffer = Self::new(ptr, elements, dtype);
        if elements > 0 {
            memory::look(context, &Answers::default(), ptr, buffer.bytes() as u64)
                .map_err(|source| GroupErrorKind::Buffer { buffer: "given", source })?;
        }
        Ok(buffer)
    }

    /// Returns the buffer's length in bytes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.elements.saturating_mul(self.dtype.size())
    }

    /// Splits the whole buffer into consecutive parts. Part `i` has `sizes[i]` elements. The parts can be passed to an
    /// operation that takes a list of buffers, one for every rank.
    ///
    /// ```
    /// # use process_group::{comm::DataType, group::Buffer};
    /// # use cuda_driver::DevicePtr;
    /// let whole = Buffer::new(DevicePtr(0x1000), 6, DataType::F32);
    /// let parts = whole.split(&[1, 0, 5])?;
    /// assert_eq!(parts[2], Buffer::new(DevicePtr(0x1004), 5, DataType::F32));
    /// # Ok::<(), process_group::group::GroupError>(())
    /// ```
    ///
    /// # Errors
    /// [`GroupErrorKind::Sizes`] if the sum of the sizes is not the number of elements.
    #[doc(alias = "split_sizes")]
    pub fn split(&self, sizes: &[usize]) -> Result<Vec<Self>> {
        let sum: u128 = sizes.iter().map(|size| *size as u128).sum();
        if sum != self.elements as u128 {
            return Err(GroupErrorKind::Sizes { elements: self.elements, parts: sizes.len(), sum }.into());
        }
        let mut at = self.ptr.0;
        let part = |size: &usize| {
            let part = Self { ptr: DevicePtr(at), elements: *size, dtype: self.dtype };
            at = at.wrapping_add(part.bytes() as u64);
            part
        };
        Ok(sizes.iter().map(part).collect())
    }
}
