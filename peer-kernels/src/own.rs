//! Finds this rank's buffer by the device address of an array that contains the addresses of all ranks' buffers.
//!
//! A captured kernel gets the array's address and an offset as arguments. To pin this rank's buffer for the graph (to
//! keep the memory while the graph exists), the launch must find the buffer by the array's address. So code that
//! creates an array registers it here.

use std::{
    collections::BTreeMap,
    sync::{PoisonError, RwLock},
};

use cuda_driver::DevicePtr;

/// Maps the device address of each registered array to the buffer of the rank that registered the array.
static OWN: RwLock<BTreeMap<u64, DevicePtr>> = RwLock::new(BTreeMap::new());

/// The registration of an array. Dropping this value removes the array from the table of arrays. The owner of the array
/// must drop this value before it frees the array, because another array can then get the same address.
#[derive(Debug)]
pub struct OwnBuffer {
    array: u64,
}

impl OwnBuffer {
    /// Registers `own` as this rank's buffer in the array at `array`. Launches that a graph captures then pin the
    /// buffer: its memory is kept while the graph exists ([`cuda_driver::graph_memory`]).
    ///
    /// # Safety
    /// The caller owns the memory at `array`, and has registered it only once. `own` is the address in the array that
    /// belongs to the caller's rank.
    pub unsafe fn enter(array: DevicePtr, own: DevicePtr) -> Self {
        OWN.write().unwrap_or_else(PoisonError::into_inner).insert(array.0, own);
        Self { array: array.0 }
    }
}

impl Drop for OwnBuffer {
    fn drop(&mut self) {
        OWN.write().unwrap_or_else(PoisonError::into_inner).remove(&self.array);
    }
}

/// This rank's own buffer in the array at `array`, if the array is registered.
pub(crate) fn own_buffer(array: DevicePtr) -> Option<DevicePtr> {
    OWN.read().unwrap_or_else(PoisonError::into_inner).get(&array.0).copied()
}
