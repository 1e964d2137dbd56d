//! Where a shard's state lies: a place that is never freed, so that a block can refer to it without counting.
//!
//! A block's way in and out costs two locks; counting a reference on each would cost a third of that again. Desks of
//! shards that are gone serve the next ones: there are never more than there were shards at one time.

use std::sync::PoisonError;

use super::lock::{Guard, Rank, Ranked};
use super::shard::ShardState;
use super::sync::{Mutex, global};

/// A shard's state behind the lock that a hit takes.
#[derive(Debug)]
pub(super) struct Desk(Ranked<Option<ShardState>>);

global! {
    static SPARE: Mutex<Vec<&'static Desk>> = Mutex::new(Vec::new());
}

/// A shard's state, locked.
pub(super) struct Open<'a>(Guard<'a, Option<ShardState>>);

impl Desk {
    /// A desk for a new shard.
    pub(super) fn take(state: ShardState) -> &'static Self {
        let spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let desk = spare.unwrap_or_else(|| Box::leak(Box::new(Self(Ranked::new(Rank::Shard, None)))));
        *desk.0.lock() = Some(state);
        desk
    }

    /// The state of the shard whose desk it is.
    #[inline]
    pub(super) fn lock(&self) -> Open<'_> {
        Open(self.0.lock())
    }

    /// Clears the desk of a shard that is gone and has no block out, for the next one.
    pub(super) fn clear(&'static self) -> Option<ShardState> {
        let state = self.0.lock().take();
        SPARE.lock().unwrap_or_else(PoisonError::into_inner).push(self);
        state
    }
}

const IN_USE: &str = "a desk has its shard's state while a shard or a block refers to it";

impl std::ops::Deref for Open<'_> {
    type Target = ShardState;
    #[inline]
    fn deref(&self) -> &ShardState {
        self.0.as_ref().expect(IN_USE)
    }
}

impl std::ops::DerefMut for Open<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut ShardState {
        self.0.as_mut().expect(IN_USE)
    }
}
