//! The bytes in transit in one direction of a connection of a seeded world.

use std::{collections::VecDeque, io, time::Duration};

use gpu_sim::sched;

use super::current::Instant;

/// Returns true with a probability of 1/`n`, as the seed decides. Returns false if `n` is 0.
pub(super) fn one_in(n: u64) -> bool {
    n > 0 && sched::draw(n) == 0
}

/// Returns a random transit time: zero in half of the cases, otherwise less than 2 ms.
pub(super) fn delay() -> Duration {
    if one_in(2) { Duration::ZERO } else { Duration::from_micros(sched::draw(2_000)) }
}

/// Returns `most` in half of the cases, otherwise a random number from 1 to `most`. `most` is at least 1.
fn part(most: usize) -> usize {
    if one_in(2) { 1 + sched::draw(most as u64) as usize } else { most }
}

/// The reason why no more bytes follow in a direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// The sender has closed its socket.
    Closed,
    /// The connection was cut, or the receiver has closed its socket. Or the sender is a server that closed its socket
    /// before it had read all bytes of the other direction (in half of these cases).
    Reset,
}

/// Bytes with the times of their arrival, and the end of the bytes.
#[derive(Debug)]
pub(super) struct Pipe {
    parts: VecDeque<(Instant, VecDeque<u8>)>,
    /// The number of bytes in `parts`.
    length: usize,
    /// The number of bytes from which on the pipe is full.
    capacity: usize,
    end: Option<End>,
    /// True while nothing arrives, neither bytes nor the end. They arrive later, as TCP repeats what is lost.
    is_held: bool,
}

impl Pipe {
    pub(super) fn new() -> Self {
        let capacity = [64, 4 << 10, 64 << 10][sched::draw(3) as usize];
        Self { parts: VecDeque::new(), length: 0, capacity, end: None, is_held: false }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns true if the pipe accepts no bytes now. A pipe that has ended is not full, because a write returns an
    /// error at once.
    pub(super) fn is_full(&self) -> bool {
        self.length >= self.capacity && self.seen_end().is_none()
    }

    pub(super) fn is_reset(&self) -> bool {
        self.seen_end() == Some(End::Reset)
    }

    /// Holds back the bytes and the end, or lets them arrive again.
    pub(super) fn hold(&mut self, is_held: bool) {
        self.is_held = is_held;
    }

    /// Returns the end, unless it is held back.
    fn seen_end(&self) -> Option<End> {
        self.end.filter(|_| !self.is_held)
    }

    /// Returns the time at which the next bytes arrive, or have arrived.
    pub(super) fn arrival(&self) -> Option<Instant> {
        self.parts.front().map(|(at, _)| *at).filter(|_| !self.is_held)
    }

    /// Returns true if [`read`](Self::read) has a result.
    pub(super) fn is_readable(&self, now: Instant) -> bool {
        self.arrival().map_or(self.seen_end().is_some(), |at| at <= now)
    }

    /// Ends the pipe, unless it has ended already.
    pub(super) fn end(&mut self, end: End) {
        self.end.get_or_insert(end);
    }

    /// Loses all bytes.
    pub(super) fn clear(&mut self) {
        self.parts.clear();
        self.length = 0;
    }

    /// Reads a part of the bytes that have arrived, or the end. If neither is there, returns as the error the time at
    /// which the next bytes arrive, or `None` if no bytes are in transit.
    pub(super) fn read(
        &mut self,
        buffer: &mut [u8],
        now: Instant,
    ) -> Result<io::Result<usize>, Option<Instant>> {
        if !self.is_readable(now) {
            return Err(self.arrival());
        }
        let arrived = self.parts.iter().take_while(|(at, _)| *at <= now).map(|(_, part)| part.len());
        let most = arrived.sum::<usize>().min(buffer.len());
        if most == 0 {
            return Ok(match self.end {
                Some(End::Reset) => Err(io::ErrorKind::ConnectionReset.into()),
                _ => Ok(0),
            });
        }
        let count = part(most);
        for byte in &mut buffer[..count] {
            while self.parts.front().is_some_and(|(_, part)| part.is_empty()) {
                self.parts.pop_front();
            }
            *byte =
                self.parts.front_mut().and_then(|(_, part)| part.pop_front()).expect("bytes have arrived");
        }
        while self.parts.front().is_some_and(|(_, part)| part.is_empty()) {
            self.parts.pop_front();
        }
        self.length -= count;
        Ok(Ok(count))
    }

    /// Accepts some of the bytes, and returns their number. Returns an error after the end, and `None` if the pipe is
    /// full.
    pub(super) fn write(&mut self, bytes: &[u8], now: Instant) -> Option<io::Result<usize>> {
        if self.seen_end().is_some() {
            return Some(Err(io::ErrorKind::ConnectionReset.into()));
        }
        let most = bytes.len().min(self.capacity - self.length);
        if most == 0 {
            return None;
        }
        let count = part(most);
        let at = now + delay();
        let at = self.parts.back().map_or(at, |(before, _)| at.max(*before));
        self.parts.push_back((at, bytes[..count].iter().copied().collect()));
        self.length += count;
        Some(Ok(count))
    }
}
