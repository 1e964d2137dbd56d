//! A queue of bytes, and the decoding of strings from it.

use super::{
    budget::{Budget, copying},
    memory::PART,
};

/// Appends the length and the bytes of a string.
pub(super) fn string(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    out.extend_from_slice(bytes);
}

/// A byte queue: bytes are removed at its front and added at its end.
#[derive(Default)]
pub(super) struct Buffer {
    bytes: Vec<u8>,
    /// The number of bytes at the start of `bytes` that were removed from the queue.
    start: usize,
}

impl Buffer {
    /// The largest capacity, in bytes, that an empty buffer keeps. It is small because a server has two buffers for
    /// each connection, and most of them are empty.
    const KEPT: usize = 1 << 10;

    pub(super) fn extend(&mut self, bytes: &[u8]) {
        self.end().extend_from_slice(bytes);
    }

    /// Appends the length and the bytes of a string.
    pub(super) fn string(&mut self, bytes: &[u8]) {
        string(self.end(), bytes);
    }

    /// Returns the vector to append bytes to. The caller must not change the bytes that are already in the vector.
    pub(super) fn end(&mut self) -> &mut Vec<u8> {
        // Bytes are moved only if at least as many were removed since the last move, so the average cost of a byte is
        // constant.
        if self.start * 2 >= self.bytes.len() {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        &mut self.bytes
    }

    /// Returns the bytes that were not removed.
    pub(super) fn as_slice(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    pub(super) fn is_empty(&self) -> bool {
        self.start == self.bytes.len()
    }

    /// Returns the size of the allocation, in bytes.
    pub(super) fn memory(&self) -> usize {
        self.bytes.capacity()
    }

    /// Returns an upper bound on the additional memory, in bytes, while `bytes` more bytes are appended; 0 if they fit.
    /// If they do not fit, this is the size of the whole new allocation, because the old allocation is freed only after
    /// its bytes were copied. A vector doubles its capacity, and allocates at least 8 bytes.
    pub(super) fn growth(&self, bytes: usize) -> usize {
        let (length, capacity) = (self.bytes.len(), self.bytes.capacity());
        if length + bytes <= capacity { 0 } else { (capacity * 2).max(length + bytes).max(8) }
    }

    /// Removes `count` bytes from the front, or all bytes if there are fewer.
    pub(super) fn skip(&mut self, count: usize) {
        self.start = self.bytes.len().min(self.start + count);
        if self.is_empty() {
            self.bytes.clear();
            self.bytes.shrink_to(Self::KEPT);
            self.start = 0;
        }
    }

    /// Removes and returns `N` bytes from the front. Returns `None`, and removes nothing, if there are fewer.
    pub(super) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let array = *self.as_slice().first_chunk()?;
        self.skip(N);
        Some(array)
    }
}

/// Decodes strings that arrive one after the other. The bytes of a string are moved from the buffer to an allocation of
/// the string's length as they arrive, so a long string that arrives in fragments is not collected in the buffer first.
#[derive(Default)]
pub(super) struct Strings {
    /// The complete strings.
    pub(super) whole: Vec<Vec<u8>>,
    /// The bytes of the incomplete string that have arrived, and its full length.
    begun: Option<(Vec<u8>, usize)>,
    /// The sum of the lengths of all strings, including the full length of the incomplete one.
    bytes: usize,
}

impl Strings {
    /// Takes strings from the buffer until there are `count`, the buffer has too few bytes, or the budget is spent
    /// before the next string. Returns which of these was the case.
    ///
    /// Calls `check` before it allocates memory for a string. The arguments are the earlier strings, the sum of all
    /// lengths including this string's, and this string's length. Returns the error if `check` fails.
    pub(super) fn fill<E>(
        &mut self,
        buffer: &mut Buffer,
        count: usize,
        budget: &mut Budget,
        check: impl Fn(&[Vec<u8>], usize, usize) -> Result<(), E>,
    ) -> Result<Filled, E> {
        while self.whole.len() < count {
            let (mut string, length) = match self.begun.take() {
                Some(begun) => begun,
                None if budget.is_spent() => return Ok(Filled::Unfinished),
                None => {
                    let Some(length) = buffer.array().map(u64::from_le_bytes) else {
                        return Ok(Filled::Incomplete);
                    };
                    let length = usize::try_from(length).unwrap_or(usize::MAX);
                    let bytes = self.bytes.saturating_add(length);
                    check(&self.whole, bytes, length)?;
                    self.bytes = bytes;
                    (Vec::with_capacity(length), length)
                }
            };
            let there = buffer.as_slice();
            let there = &there[..there.len().min(length - string.len())];
            string.extend_from_slice(there);
            budget.spend(1 + copying(there.len()));
            buffer.skip(there.len());
            if string.len() < length {
                self.begun = Some((string, length));
                return Ok(Filled::Incomplete);
            }
            self.whole.push(string);
        }
        Ok(Filled::Complete)
    }

    /// Removes and returns the complete strings. There must be no incomplete one.
    pub(super) fn take(&mut self) -> Vec<Vec<u8>> {
        self.bytes = 0;
        std::mem::take(&mut self.whole)
    }

    /// Returns the memory of the strings, in bytes.
    pub(super) fn memory(&self) -> usize {
        self.bytes + self.whole.capacity() * PART
    }
}

/// The reason why [`Strings::fill`] has returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Filled {
    /// There are as many strings as requested.
    Complete,
    /// More bytes must arrive.
    Incomplete,
    /// The budget is spent.
    Unfinished,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_new_allocation_is_at_most_the_predicted_growth(steps in prop::collection::vec((0..40usize, 0..60usize), 1..50)) {
            let mut buffer = Buffer::default();
            for (bytes, removed) in steps {
                let (growth, before) = (buffer.growth(bytes), buffer.memory());
                buffer.extend(&vec![0; bytes]);
                prop_assert!(buffer.memory() == before || buffer.memory() <= growth);
                buffer.skip(removed);
            }
        }
    }
}
