//! Where this rank's own buffer lies, of the buffers that kernels are told by an array in the device's memory.
//!
//! A captured kernel names its buffer by the array and an offset. Whoever makes such an array enters it here, so that the
//! graph can pin what lies there.

use std::{
    collections::BTreeMap,
    sync::{PoisonError, RwLock},
};

use cuda_driver::DevicePtr;

/// The own buffers, by the addresses of the arrays.
static OWN: RwLock<BTreeMap<u64, DevicePtr>> = RwLock::new(BTreeMap::new());

/// An entry, until it is dropped: before its array.
#[derive(Debug)]
pub(crate) struct OwnBuffer {
    array: u64,
}

impl OwnBuffer {
    /// The array at `array` has `own` for this rank.
    pub(crate) fn enter(array: DevicePtr, own: DevicePtr) -> Self {
        OWN.write().unwrap_or_else(PoisonError::into_inner).insert(array.0, own);
        Self { array: array.0 }
    }
}

impl Drop for OwnBuffer {
    fn drop(&mut self) {
        OWN.write().unwrap_or_else(PoisonError::into_inner).remove(&self.array);
    }
}

/// This rank's own buffer in the array at `array`, if it was entered.
pub(super) fn own_buffer(array: DevicePtr) -> Option<DevicePtr> {
    OWN.read().unwrap_or_else(PoisonError::into_inner).get(&array.0).copied()
}
