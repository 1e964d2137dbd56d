//! Shapes of tensors in a [buffer](super::Buffer).

use process_group::comm::DataType;

/// The shape of a tensor, its strides in elements, and the data type of the elements.
///
/// ```
/// use process_group::comm::DataType;
/// use symm_mem::rendezvous::Layout;
///
/// let rows = Layout::contiguous([3, 4], DataType::F32);
/// assert_eq!(rows.strides(), [4, 1]);
/// assert_eq!(rows.bytes(), Some(48));
/// let columns = Layout::strided([3, 4], [1, 3], DataType::F32).expect("as many strides");
/// assert_eq!(columns.bytes(), Some(48));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    shape: Vec<usize>,
    strides: Vec<usize>,
    data_type: DataType,
}

impl Layout {
    /// A contiguous layout, with the last dimension's elements next to each other (row-major).
    #[must_use]
    pub fn contiguous(shape: impl Into<Vec<usize>>, data_type: DataType) -> Self {
        let shape = shape.into();
        let mut strides = vec![1usize; shape.len()];
        for at in (1..shape.len()).rev() {
            strides[at - 1] = strides[at].saturating_mul(shape[at].max(1));
        }
        Self { shape, strides, data_type }
    }

    /// A layout with the given strides, or `None` if the number of strides differs from the number of dimensions.
    #[must_use]
    pub fn strided(
        shape: impl Into<Vec<usize>>,
        strides: impl Into<Vec<usize>>,
        data_type: DataType,
    ) -> Option<Self> {
        let (shape, strides) = (shape.into(), strides.into());
        (shape.len() == strides.len()).then_some(Self { shape, strides, data_type })
    }

    /// The number of elements in each dimension.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The distance in memory between neighbours in each dimension, in elements.
    #[must_use]
    pub fn strides(&self) -> &[usize] {
        &self.strides
    }

    /// The data type of the elements.
    #[must_use]
    pub fn data_type(&self) -> DataType {
        self.data_type
    }

    /// The number of elements; `None` on overflow.
    #[must_use]
    pub fn elements(&self) -> Option<usize> {
        if self.shape.contains(&0) {
            return Some(0);
        }
        self.shape.iter().try_fold(1usize, |all, length| all.checked_mul(*length))
    }

    /// The number of bytes from the start of the first element in memory to the end of the last one. Returns 0 if there
    /// are no elements, and `None` on overflow.
    #[must_use]
    pub fn bytes(&self) -> Option<usize> {
        if self.shape.contains(&0) {
            return Some(0);
        }
        let last = self.shape.iter().zip(&self.strides).try_fold(0usize, |last, (length, stride)| {
            last.checked_add((length - 1).checked_mul(*stride)?)
        })?;
        last.checked_add(1)?.checked_mul(self.data_type.size())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// A tensor with a dimension of length 0 has no elements, whatever the lengths of the other dimensions are.
        #[test]
        fn a_tensor_with_an_empty_dimension_has_no_elements(
            mut shape in prop::collection::vec(prop_oneof![0usize..5, Just(usize::MAX)], 0..5),
            at: prop::sample::Index,
        ) {
            shape.insert(at.index(shape.len() + 1), 0);
            let layout = Layout::contiguous(shape, DataType::F32);
            prop_assert_eq!((layout.elements(), layout.bytes()), (Some(0), Some(0)));
        }
    }
}
