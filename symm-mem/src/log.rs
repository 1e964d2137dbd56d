//! The allocation log: what a pool was asked to do, in order, with a hash over every prefix.
//!
//! Two ranks have the same hash after n operations exactly if they did the same n operations (but for
//! collisions of 64 bits). It is what makes a difference visible that sizes and counts do not show, and the
//! operations that it remembers are what the first difference is named by.

use std::{collections::VecDeque, panic::Location};

use crate::agreement::{LogPoint, Operation, OperationKind};

/// How many operations are remembered: what was done before is known by its hash only.
const REMEMBERED: usize = 1 << 16;

/// Adds `words` to a hash. Not for secrets: it finds accidents, not adversaries.
pub(crate) fn chain(hash: u64, words: &[u64]) -> u64 {
    words.iter().fold(hash, |hash, word| {
        // One round of SplitMix64: a bijection of the sum, so that no word is lost.
        let mut mixed = hash.rotate_left(23).wrapping_add(*word).wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    })
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    kind: OperationKind,
    bytes: u64,
    ordinal: u32,
    offset: u64,
    call_site: &'static Location<'static>,
    hash_before: u64,
}

/// A pool's operations, in order. Memory is bounded; the hash covers all of them.
#[derive(Debug, Default)]
pub struct AllocationLog {
    head: LogPoint,
    entries: VecDeque<Entry>,
}

impl AllocationLog {
    /// An empty log.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an operation on the block at `offset` of segment `ordinal`, asked for at `call_site`.
    pub fn push(
        &mut self,
        kind: OperationKind,
        bytes: u64,
        ordinal: u32,
        offset: u64,
        call_site: &'static Location<'static>,
    ) {
        if self.entries.len() == REMEMBERED {
            self.entries.pop_front();
        }
        let hash_before = self.head.hash;
        self.entries.push_back(Entry { kind, bytes, ordinal, offset, call_site, hash_before });
        // The call site is not part of it: ranks may come to the same request on different lines.
        let words = [kind as u64, bytes, ordinal.into(), offset];
        self.head = LogPoint { length: self.head.length + 1, hash: chain(hash_before, &words) };
    }

    /// The log as it is now.
    pub fn head(&self) -> LogPoint {
        self.head
    }

    /// The earliest length whose hash is remembered.
    pub fn since(&self) -> u64 {
        self.head.length - self.entries.len() as u64
    }

    /// The hash over the first `length` operations, if it is remembered.
    pub fn hash_at(&self, length: u64) -> Option<u64> {
        if length == self.head.length {
            return Some(self.head.hash);
        }
        self.entry(length).map(|entry| entry.hash_before)
    }

    /// The operation of number `sequence` (from 0), if there is one and it is remembered.
    pub fn operation(&self, sequence: u64) -> Option<Operation> {
        let Entry { kind, bytes, ordinal, offset, call_site, .. } = *self.entry(sequence)?;
        Some(Operation { kind, bytes, ordinal, offset, call_site: call_site.to_string() })
    }

    fn entry(&self, sequence: u64) -> Option<&Entry> {
        let index = sequence.checked_sub(self.since())?;
        self.entries.get(usize::try_from(index).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn push(log: &mut AllocationLog, bytes: u64) {
        log.push(OperationKind::Allocate, bytes, 0, 0, Location::caller());
    }

    #[test]
    fn prefixes_have_the_hash_that_the_log_had() {
        let (mut long, mut short) = (AllocationLog::new(), AllocationLog::new());
        for bytes in 0..10 {
            push(&mut long, bytes);
            push(&mut short, bytes);
        }
        for bytes in 10..20 {
            push(&mut long, bytes);
        }
        assert_eq!(long.hash_at(10), Some(short.head().hash));
        assert_ne!(long.head(), short.head());
        assert_eq!(long.operation(12).map(|operation| operation.bytes), Some(12));
        assert_eq!(long.hash_at(21), None);
        assert_eq!(short.operation(10), None);
    }

    #[test]
    fn memory_is_bounded() {
        let mut log = AllocationLog::new();
        for bytes in 0..REMEMBERED as u64 + 5 {
            push(&mut log, bytes);
        }
        assert_eq!(log.since(), 5);
        assert_eq!(log.hash_at(4), None);
        assert!(log.hash_at(5).is_some() && log.operation(4).is_none());
        assert_eq!(log.operation(5).map(|operation| operation.bytes), Some(5));
    }
}
