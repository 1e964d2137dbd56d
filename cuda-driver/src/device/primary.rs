//! The primary context of a device: retaining it, and reading and setting its flags.
//!
//! This crate never resets the primary context, because a reset destroys the objects that all parts of the process
//! have made from it.

use std::ffi::{c_int, c_uint};

use super::Device;
use crate::call::call;
use crate::{Context, ContextFlags, Result};

/// The state of a device's primary context, read without retaining it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct PrimaryState {
    /// The flags that the context has, or with which it will be made.
    pub flags: ContextFlags,
    /// True if any part of the process retains the context.
    pub active: bool,
}

impl Device {
    /// Retains the device's primary context, which the CUDA runtime and frameworks use too. Makes the context if nobody
    /// retains it yet.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuDevicePrimaryCtxRetain`, for example
    /// `CUDA_ERROR_OUT_OF_MEMORY`.
    #[doc(alias = "cuDevicePrimaryCtxRetain")]
    pub fn retain_primary(&self) -> Result<Context> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: writes one handle, to a local that outlives the call.
        unsafe { call!(self.api(), cuDevicePrimaryCtxRetain(&mut raw, self.raw)) }?;
        Ok(Context::from_retained(self.clone(), raw))
    }

    /// Returns whether the primary context is active, and its flags.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuDevicePrimaryCtxGetState`.
    #[doc(alias = "cuDevicePrimaryCtxGetState")]
    pub fn primary_state(&self) -> Result<PrimaryState> {
        let (mut flags, mut active): (c_uint, c_int) = (0, 0);
        // SAFETY: writes two integers, to locals that outlive the call.
        unsafe { call!(self.api(), cuDevicePrimaryCtxGetState(self.raw, &mut flags, &mut active)) }?;
        Ok(PrimaryState { flags: ContextFlags::from_bits_retain(flags), active: active != 0 })
    }

    /// Sets the flags of the primary context. While the context is active, some flags cannot be changed: the driver
    /// leaves them as they are.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuDevicePrimaryCtxSetFlags_v2`.
    #[doc(alias = "cuDevicePrimaryCtxSetFlags")]
    pub fn set_primary_flags(&self, flags: ContextFlags) -> Result<()> {
        // SAFETY: takes no pointer.
        unsafe { call!(self.api(), cuDevicePrimaryCtxSetFlags_v2(self.raw, flags.bits())) }
    }
}
