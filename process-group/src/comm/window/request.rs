//! Window requests, and the checks that one rank makes of them.

use cuda_driver::DevicePtr;
use nccl_sys::Version;

bitflags::bitflags! {
    /// The uses of a window.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct WindowFlags: u32 {
        /// Collectives, copy engines and one-sided calls may use the window. Every rank uses the same offsets in it.
        #[doc(alias = "NCCL_WIN_COLL_SYMMETRIC")]
        const SYMMETRIC = nccl_sys::NCCL_WIN_COLL_SYMMETRIC;
    }
}

impl Default for WindowFlags {
    fn default() -> Self {
        Self::SYMMETRIC
    }
}

/// First release that accepts a window over a part of an allocation.
const SUBRANGES: Version = Version::new(2, 28, 0);

/// Memory to register as a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowRequest {
    /// Start address, a multiple of 4096. Below NCCL 2.28, the start of an allocation, a multiple of 2 MiB.
    pub ptr: DevicePtr,
    /// Length in bytes. Below NCCL 2.30.7 the same on every rank. Below 2.28 a multiple of 2 MiB.
    pub bytes: usize,
    /// The uses of the window.
    pub flags: WindowFlags,
}

impl WindowRequest {
    /// Requests a symmetric window over `bytes` bytes at `ptr`.
    #[must_use]
    pub fn symmetric(ptr: DevicePtr, bytes: usize) -> Self {
        Self { ptr, bytes, flags: WindowFlags::SYMMETRIC }
    }
}

/// A window that this rank cannot register, deregister or look up. Reported before the NCCL call, because the other
/// ranks could wait for this rank.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[error("window request {index} ({bytes} bytes at {address:#x}): {problem}")]
pub struct WindowRequestError {
    /// Index of the request or window in the caller's list.
    pub index: usize,
    /// Start address of the window.
    pub address: u64,
    /// Length of the window in bytes.
    pub bytes: usize,
    /// Description of the problem.
    pub problem: String,
}

/// Checks the requests against each other and against the registered windows.
pub(super) fn check_requests(
    requests: &[WindowRequest],
    live: &[(u64, usize)],
    release: Version,
) -> Result<(), WindowRequestError> {
    let mut taken = live.to_vec();
    for (index, request) in requests.iter().enumerate() {
        let WindowRequest { ptr: DevicePtr(address), bytes, .. } = *request;
        let refuse = |problem: String| Err(WindowRequestError { index, address, bytes, problem });
        let (alignment, whole) = if release < SUBRANGES { (2 << 20, true) } else { (4096, false) };
        if address == 0 || bytes == 0 {
            return refuse("a window needs memory".into());
        }
        if address.checked_add(bytes as u64).is_none() {
            return refuse("it ends beyond the last address".into());
        }
        if !address.is_multiple_of(alignment) {
            return refuse(format!("NCCL {release} wants it to start at a multiple of {alignment} bytes"));
        }
        if whole && !(bytes as u64).is_multiple_of(alignment) {
            return refuse(format!("NCCL {release} wants its length to be a multiple of {alignment} bytes"));
        }
        let end = address + bytes as u64;
        if let Some((other, length)) = taken.iter().find(|(at, len)| address < at + *len as u64 && *at < end)
        {
            return refuse(format!(
                "it overlaps {length} bytes at {other:#x}, which are a window of this communicator or requested before; \
                 NCCL does not define what two windows over one byte do"
            ));
        }
        taken.push((address, bytes));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Accepted requests are aligned, and no byte belongs to two of them.
        #[test]
        fn accepted_requests_are_disjoint(
            starts in prop::collection::vec((0u64..64, 0usize..9), 0..12), live in 0usize..12, old: bool,
        ) {
            let unit = if old { 2 << 20 } else { 4096 };
            let release = if old { Version::new(2, 27, 3) } else { Version::new(2, 28, 9) };
            let all: Vec<_> = starts.iter().map(|(at, n)| (at * unit, n * unit as usize)).collect();
            let (live, new) = all.split_at(live.min(all.len()));
            let requests: Vec<_> = new.iter().map(|(at, n)| WindowRequest::symmetric(DevicePtr(*at), *n)).collect();
            let meets = |a: &(u64, usize), b: &(u64, usize)| a.0 < b.0 + b.1 as u64 && b.0 < a.0 + a.1 as u64;
            let bad = new.iter().enumerate().any(|(i, a)| {
                a.0 == 0 || a.1 == 0 || live.iter().chain(&new[..i]).any(|b| meets(a, b))
            });
            prop_assert_eq!(check_requests(&requests, live, release).is_err(), bad);
        }
    }

    #[test]
    fn a_misaligned_request_is_named() {
        let requests = [
            WindowRequest::symmetric(DevicePtr(2 << 20), 2 << 20),
            WindowRequest::symmetric(DevicePtr(8 << 20), 4096),
        ];
        check_requests(&requests, &[], Version::new(2, 28, 9)).unwrap();
        let error = check_requests(&requests, &[], Version::new(2, 27, 5)).unwrap_err();
        assert_eq!(error.index, 1);
        assert!(error.to_string().contains("2.27.5 wants its length to be a multiple of 2097152"), "{error}");
    }
}
