//! Maps from clients to values.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
};

/// The id of a client, assigned by the caller of the state machine. An id must never be used for a second client.
pub type ClientId = u64;

/// A map from clients to values. Every request looks up its client several times, so the hash function is a cheap one.
/// It needs no protection against chosen ids, because the store's host counts ids upwards. An attacker gets many ids
/// whose hashes collide in the map only by opening very many connections and keeping a few of them. Collisions slow the
/// host down and have no other effect.
pub(in super::super) type Clients<T> = HashMap<ClientId, T, BuildHasherDefault<Spread>>;

/// A hasher for client ids. The hashes of consecutive ids differ in the lowest and in the highest bits, and the map
/// uses both.
#[derive(Debug, Default)]
pub(in super::super) struct Spread(u64);

impl Hasher for Spread {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }

    fn write_u64(&mut self, number: u64) {
        // 2^64 divided by the golden ratio, rounded to an odd number. It gives consecutive ids distant hashes.
        self.0 = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
