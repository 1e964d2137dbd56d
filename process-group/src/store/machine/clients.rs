//! Maps by clients.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
};

/// A client, as the caller numbers them. A number is not used again.
pub type ClientId = u64;

/// What there is of each client. Every request is looked up here several times, so a hash is one multiplication. The
/// numbers are counted up on this end: who wants many that meet has to connect again and again and keep but few of the
/// connections, which slows the host down and breaks nothing.
pub(in super::super) type Clients<T> = HashMap<ClientId, T, BuildHasherDefault<Spread>>;

/// Spreads a number over all bits: a map uses the lowest and the highest.
#[derive(Debug, Default)]
pub(in super::super) struct Spread(u64);

impl Hasher for Spread {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }

    fn write_u64(&mut self, number: u64) {
        // 2^64 divided by the golden ratio, and odd: neighbours come far apart.
        self.0 = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
