//! Looks up this rank's buffer in an array of peers' buffers in device memory.
//!
//! A captured kernel names its buffer by such an array and an offset. Code that makes an array enters it here, so that
//! the graph can pin this rank's buffer.

use std::{
    collections::BTreeMap,
    sync::{PoisonError, RwLock},
};

use cuda_driver::DevicePtr;

/// The own buffers, by the addresses of the arrays.
static OWN: RwLock<BTreeMap<u64, DevicePtr>> = RwLock::new(BTreeMap::new());

/// A registered array; dropping this removes it, before the array is freed.
#[derive(Debug)]
pub(crate) struct OwnBuffer {
    array: u64,
}

impl OwnBuffer {
    /// Registers that the array at `array` has `own` for this rank.
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
