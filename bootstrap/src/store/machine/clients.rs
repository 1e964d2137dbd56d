//! Maps from clients to values.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
};

/// A client's id, assigned by the caller. An id is not used again.
pub type ClientId = u64;

/// A map from clients to values. Every request looks up its client several times, so the hash is one
/// multiplication. The server assigns the ids by counting. An attacker gets ids with equal hashes only by opening
/// very many connections and keeping a few of them. That slows the host down and has no other effect.
pub(in super::super) type Clients<T> = HashMap<ClientId, T, BuildHasherDefault<Spread>>;

/// Spreads a number over all bits, because the map uses the lowest and the highest bits of a hash.
#[derive(Debug, Default)]
pub(in super::super) struct Spread(u64);

impl Hasher for Spread {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }

    fn write_u64(&mut self, number: u64) {
        // 2^64 divided by the golden ratio, rounded to an odd number: consecutive ids get distant hashes.
        self.0 = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
