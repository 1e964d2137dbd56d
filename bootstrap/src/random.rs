//! Random bytes of the operating system.

use std::io;

use rustix::rand::{GetRandomFlags, getrandom};

/// Returns `N` unpredictable bytes, at most 256. Blocks until the system's random number generator is initialized.
pub(crate) fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    fill(&mut bytes)?;
    Ok(bytes)
}

/// Fills at most 256 bytes, as [`random`].
pub(crate) fn fill(bytes: &mut [u8]) -> io::Result<()> {
    // One call returns all bytes, because the system guarantees that for up to 256 bytes.
    match getrandom(&mut *bytes, GetRandomFlags::empty())? {
        length if length == bytes.len() => Ok(()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}
