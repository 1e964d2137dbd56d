//! A hash function with the same results in every process. Use it for digests that ranks compare, not for security.

/// Returns the 64-bit FNV-1a hash of `bytes`.
#[must_use]
pub fn fnv64(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
