//! Limits the work of the server in one `Input::Received` or `Input::Tick`, so that no client delays the others for
//! long. Each of these inputs has its own [`Budget`]. The module docs of `server` define *turn* and *greeting*.
//!
//! Work is counted in *units*. Receiving a string, looking up a key, or copying a KiB is one unit, and takes 0.1 to
//! 0.2 µs.

/// The units for ending a wait, or for handling a part of the greeting. Most of that work is the system call that sends
/// the reply, if there is one.
pub(super) const WAKE: usize = 16;

/// Returns the units for copying or reading this many bytes, rounded down.
pub(super) fn copying(bytes: usize) -> usize {
    bytes >> 10
}

/// Returns the units for freeing this many strings, rounded down.
pub(super) fn dropping(strings: usize) -> usize {
    strings / 8
}

/// A limited amount of work, in units.
#[derive(Debug)]
pub(super) struct Budget {
    limit: usize,
    spent: usize,
    /// True if the first piece of work may exceed the limit.
    first_is_free: bool,
}

impl Budget {
    /// Makes the budget of one `Input::Tick`, which the turns of all clients in that tick share. The first piece of
    /// work may exceed the limit, so that every tick makes progress.
    pub(super) fn tick(limit: usize) -> Self {
        Self { limit, spent: 0, first_is_free: true }
    }

    /// Makes the budget of the work that is done as soon as a client's bytes arrive. Even the first piece of work must
    /// not exceed the limit. Work that the budget does not allow is left for a later turn of the client.
    pub(super) fn at_once(limit: usize) -> Self {
        Self { limit, spent: 0, first_is_free: false }
    }

    /// Makes a budget without a limit.
    pub(super) fn unlimited() -> Self {
        Self::tick(usize::MAX)
    }

    /// Returns true if an indivisible piece of work of this many units may begin.
    pub(super) fn allows(&self, units: usize) -> bool {
        self.spent.saturating_add(units) <= self.limit || (self.first_is_free && self.spent == 0)
    }

    /// Counts work that is done or about to be done, whether or not [`allows`](Self::allows) was asked. So the sum may
    /// exceed the limit.
    pub(super) fn spend(&mut self, units: usize) {
        self.spent = self.spent.saturating_add(units);
    }

    pub(super) fn spent(&self) -> usize {
        self.spent
    }

    pub(super) fn is_spent(&self) -> bool {
        self.spent >= self.limit
    }
}
