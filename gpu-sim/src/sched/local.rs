//! State of a single rank: per thread in the free mode, per actor in the seeded mode.

use std::any::{Any, TypeId};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;

/// State of the ranks, by (world, actor, type).
type Locals = HashMap<(u64, u64, TypeId), Box<dyn Any>>;

thread_local! {
    /// The running actor's number; 0 outside of all actors.
    static TASK: Cell<u64> = const { Cell::new(0) };
    static NAME: RefCell<Option<Arc<str>>> = const { RefCell::new(None) };
    static LOCALS: RefCell<Locals> = RefCell::default();
}

pub(super) fn task() -> u64 {
    TASK.get()
}

/// Sets the task that runs on this thread and returns the previous one.
pub(super) fn enter(task: u64, name: Option<Arc<str>>) -> (u64, Option<Arc<str>>) {
    (TASK.replace(task), NAME.replace(name))
}

pub(super) fn name() -> Option<Arc<str>> {
    NAME.with_borrow(Clone::clone)
}

/// Passes the caller's own `T` in world `world` to `f`, creating it on first use. `f` must not call this for the same
/// `T`.
pub(crate) fn with_local<T: Default + 'static, R>(world: u64, f: impl FnOnce(&mut T) -> R) -> R {
    let key = (world, task(), TypeId::of::<T>());
    let mut value: Box<T> = LOCALS
        .with_borrow_mut(|map| map.remove(&key))
        .and_then(|any| any.downcast().ok())
        .unwrap_or_default();
    let result = f(&mut value);
    LOCALS.with_borrow_mut(|map| map.insert(key, value));
    result
}

/// Drops the state of a task of `world` on this thread, or of all its tasks.
pub(crate) fn forget_locals(world: u64, task: Option<u64>) {
    let is_gone = |key: &(u64, u64, TypeId)| key.0 == world && task.is_none_or(|task| key.1 == task);
    let gone: Vec<_> = LOCALS.with_borrow_mut(|map| map.extract_if(|key, _| is_gone(key)).collect());
    drop(gone);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_state_of_one_world_is_forgotten() {
        let add = |world| {
            with_local(world, |count: &mut u32| {
                *count += 1;
                *count
            })
        };
        // No world has these numbers.
        let (first, second) = (u64::MAX, u64::MAX - 1);
        assert_eq!((add(first), add(second)), (1, 1));
        forget_locals(first, Some(1));
        assert_eq!((add(first), add(second)), (2, 2));
        forget_locals(first, None);
        assert_eq!((add(first), add(second)), (1, 3));
    }
}
