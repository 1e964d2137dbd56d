//! Buffers: device memory as operations take it.

use cuda_driver::{Context, DevicePtr};

use super::{GroupError, Result};
use crate::{comm::DataType, memory};

/// Device memory that holds elements of one type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffer {
    /// The address of the first element.
    pub ptr: DevicePtr,
    /// The number of elements.
    pub elements: usize,
    /// Their type.
    pub dtype: DataType,
}

impl Buffer {
    /// Returns the buffer of `elements` elements of `dtype` at `ptr`.
    #[must_use]
    pub const fn new(ptr: DevicePtr, elements: usize, dtype: DataType) -> Self {
        Self { ptr, elements, dtype }
    }

    /// Like [`new`](Self::new), but checks that the whole buffer is memory of the context's device. Groups
    /// make the same check when they first see memory; this one fails where the buffer is made. Neither knows the
    /// blocks of an allocator: a buffer that is longer than its block, but lies within the segment, passes.
    ///
    /// # Errors
    /// [`GroupError::Buffer`].
    pub fn checked(context: &Context, ptr: DevicePtr, elements: usize, dtype: DataType) -> Result<Self> {
        let buffer = Self::new(ptr, elements, dtype);
        if elements > 0 {
            memory::look(context, ptr, buffer.bytes() as u64).map_err(|source| GroupError::Buffer {
                operation: "a check",
                group: "no group".into(),
                buffer: "given",
                source,
            })?;
        }
        Ok(buffer)
    }

    /// Returns its length in bytes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.elements.saturating_mul(self.dtype.size())
    }

    /// Splits the whole buffer into consecutive parts with these numbers of elements. The result is a list as
    /// operations with unequal shares take it.
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
    /// [`GroupError::Sizes`] if the sum of the sizes is not the number of elements.
    #[doc(alias = "split_sizes")]
    pub fn split(&self, sizes: &[usize]) -> Result<Vec<Self>> {
        let sum: u128 = sizes.iter().map(|size| *size as u128).sum();
        if sum != self.elements as u128 {
            return Err(GroupError::Sizes { elements: self.elements, parts: sizes.len(), sum });
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
