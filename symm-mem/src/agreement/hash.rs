//! A hash that is the same on every rank: to find accidents, not adversaries.

/// Adds `words` to a hash.
pub(crate) fn chain(hash: u64, words: impl IntoIterator<Item = u64>) -> u64 {
    words.into_iter().fold(hash, |hash, word| {
        // One round of SplitMix64: for a given word a bijection of the hash, so that no history is lost.
        let mut mixed = hash.rotate_left(23).wrapping_add(word).wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    })
}
