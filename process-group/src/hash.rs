//! A small hash that is the same in every process: for digests that are compared between ranks, not for security.

/// FNV-1a over `bytes`, 64 bits.
pub(crate) fn fnv64(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
