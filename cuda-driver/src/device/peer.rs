//! Access of one device to the memory of another.

use std::ffi::c_int;

use cuda_driver_sys::CUdevice_P2PAttribute;

use super::Device;
use crate::Result;
use crate::call::call;

/// The kinds of direct access that one device has to the memory of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct PeerLink {
    /// True if the device can read and write the memory.
    pub access: bool,
    /// True if the link supports all atomic operations on the memory.
    pub native_atomics: bool,
    /// True if the device can access CUDA arrays (textures, surfaces) in the memory.
    pub arrays: bool,
    /// Performance rank of the link, compared with those of other pairs of devices. 0 is the fastest.
    pub performance_rank: i32,
}

impl Device {
    /// Returns true if kernels and copies of this device can access the memory of `peer` directly. Returns false if
    /// `peer` is this device.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuDeviceCanAccessPeer`;
    /// [`Error::DifferentDrivers`](crate::Error::DifferentDrivers).
    #[doc(alias = "cuDeviceCanAccessPeer")]
    pub fn can_access_peer(&self, peer: &Device) -> Result<bool> {
        self.driver().require_same("the peer", peer.driver(), "the device")?;
        let mut can: c_int = 0;
        // SAFETY: writes one integer, to a local that outlives the call.
        unsafe { call!(self.api(), cuDeviceCanAccessPeer(&mut can, self.raw, peer.raw)) }?;
        Ok(can != 0)
    }

    /// Returns the kinds of access that this device has to the memory of `peer`.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuDeviceGetP2PAttribute`: `CUDA_ERROR_INVALID_DEVICE` if `peer` is
    /// this device; [`Error::DifferentDrivers`](crate::Error::DifferentDrivers).
    #[doc(alias = "cuDeviceGetP2PAttribute")]
    pub fn link_to(&self, peer: &Device) -> Result<PeerLink> {
        use CUdevice_P2PAttribute as P;
        self.driver().require_same("the peer", peer.driver(), "the device")?;
        let ask = |attribute| {
            let mut value: c_int = 0;
            // SAFETY: writes one integer, to a local that outlives the call.
            unsafe { call!(self.api(), cuDeviceGetP2PAttribute(&mut value, attribute, self.raw, peer.raw)) }?;
            Ok::<_, crate::Error>(value)
        };
        Ok(PeerLink {
            access: ask(P::CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED)? != 0,
            native_atomics: ask(P::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED)? != 0,
            arrays: ask(P::CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED)? != 0,
            performance_rank: ask(P::CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK)?,
        })
    }
}
