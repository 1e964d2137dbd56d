//! Addresses of device memory.

use std::fmt;
use std::ops::Add;

/// An address at which devices access memory (`CUdeviceptr`). It is a number: the host must not dereference it.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct DevicePtr(pub u64);

impl DevicePtr {
    /// The null address, which no allocation has.
    pub const NULL: Self = Self(0);

    /// Returns true for [`NULL`](Self::NULL).
    #[must_use]
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }

    /// Returns the distance from `base` to this address in bytes; `None` if this address is below `base`.
    #[must_use]
    pub const fn offset_from(self, base: Self) -> Option<u64> {
        self.0.checked_sub(base.0)
    }

    /// Returns true if the address is a multiple of `alignment` bytes. Returns false if `alignment` is 0.
    #[must_use]
    pub const fn is_aligned_to(self, alignment: u64) -> bool {
        alignment != 0 && self.0.is_multiple_of(alignment)
    }
}

/// Adds `bytes` bytes to the address. If the sum overflows, panics in debug builds and wraps in release builds.
impl Add<u64> for DevicePtr {
    type Output = Self;

    fn add(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }
}

/// Adds `bytes` bytes to the address. If the sum overflows, panics in debug builds and wraps in release builds.
impl Add<usize> for DevicePtr {
    type Output = Self;

    fn add(self, bytes: usize) -> Self {
        self + bytes as u64
    }
}

impl fmt::Debug for DevicePtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Display for DevicePtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl fmt::LowerHex for DevicePtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, f)
    }
}
