//! How much work is done for clients before others have their turn.
//!
//! Work is counted in units of 0.1 to 0.2 µs. One unit is a string that is received, a key that is looked up, or a KiB
//! that is copied.

/// Units for ending a wait: most of it is the system call that sends the reply.
pub(super) const WAKE: usize = 16;

/// Units for copying or reading through `bytes`.
pub(super) fn copying(bytes: usize) -> usize {
    bytes >> 10
}

/// Units for giving back the memory of `strings`.
pub(super) fn dropping(strings: usize) -> usize {
    strings / 8
}

/// What is left of an amount of work.
#[derive(Debug)]
pub(super) struct Budget {
    limit: usize,
    spent: usize,
    /// Whether the first piece of work is done however large it is.
    first_is_free: bool,
}

impl Budget {
    /// A turn: its first piece of work may exceed it, so that every turn gets on.
    pub(super) fn turn(limit: usize) -> Self {
        Self { limit, spent: 0, first_is_free: true }
    }

    /// Work that is done at once, before anybody else has a turn: nothing exceeds it.
    pub(super) fn at_once(limit: usize) -> Self {
        Self { limit, spent: 0, first_is_free: false }
    }

    /// As much as there is.
    pub(super) fn unlimited() -> Self {
        Self::turn(usize::MAX)
    }

    /// Whether a piece of work that cannot be divided may begin.
    pub(super) fn allows(&self, units: usize) -> bool {
        self.spent.saturating_add(units) <= self.limit || (self.first_is_free && self.spent == 0)
    }

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
