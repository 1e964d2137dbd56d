//! A hash function that gives the same result on every rank. It detects accidental differences and is not
//! cryptographic.

/// Returns `hash` after `words` are added to it.
pub fn chain(hash: u64, words: impl IntoIterator<Item = u64>) -> u64 {
    words.into_iter().fold(hash, |hash, word| {
        // One round of SplitMix64. For a given word, the round maps different hashes to different hashes. So unequal
        // hashes stay unequal while equal words are added.
        let mut mixed = hash.rotate_left(23).wrapping_add(word).wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    })
}
