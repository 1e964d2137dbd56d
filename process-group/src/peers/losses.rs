//! The lost peers of a process, and the callbacks that receive them.

use std::sync::{Arc, PoisonError, Weak};

use super::Loss;
use crate::sync::{Mutex, MutexGuard};

/// A callback that receives the rank in the job of a failed process, and the failure. Called on a thread of the watch,
/// so the callback must not block. [`Losses::tell`] calls it on the thread of its caller for losses that are known.
pub(crate) type Listener = dyn Fn(usize, Loss) + Send + Sync;

/// The losses, and their listeners. Every listener gets every loss once.
#[derive(Default)]
pub(super) struct Losses(Mutex<State>);

/// One lock for both lists, so that a loss is either known when a listener is added, or passed to that listener later.
#[derive(Default)]
struct State {
    listeners: Vec<Weak<Listener>>,
    known: Vec<(usize, Loss)>,
}

impl Losses {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes a loss to the listeners, unless the rank was lost before.
    pub(super) fn report(&self, rank: usize, loss: Loss) {
        let listeners = {
            let mut state = self.lock();
            if state.known.iter().any(|(other, _)| *other == rank) {
                return;
            }
            state.known.push((rank, loss));
            state.listeners.clone()
        };
        listeners.iter().filter_map(Weak::upgrade).for_each(|listener| listener(rank, loss));
    }

    /// Calls `listener` at once for every known loss, and from now on for every new loss.
    pub(super) fn tell(&self, listener: &Arc<Listener>) {
        let known = {
            let mut state = self.lock();
            state.listeners.retain(|listener| listener.strong_count() > 0);
            state.listeners.push(Arc::downgrade(listener));
            state.known.clone()
        };
        known.into_iter().for_each(|(rank, loss)| listener(rank, loss));
    }

    /// Returns the known losses, each with the rank in the job.
    pub(super) fn known(&self) -> Vec<(usize, Loss)> {
        self.lock().known.clone()
    }
}

#[cfg(test)]
mod interleavings {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::sync::model::{check, thread};

    /// A thread of the watch reports a peer that another thread has reported too, while a listener is added.
    #[test]
    fn a_listener_gets_each_loss_once() {
        check(|| {
            let (losses, calls) = (Arc::new(Losses::default()), Arc::new(AtomicUsize::new(0)));
            let listener: Arc<Listener> = {
                let calls = calls.clone();
                Arc::new(move |_, _| _ = calls.fetch_add(1, Ordering::Relaxed))
            };
            let reports = [(); 2].map(|()| {
                let losses = losses.clone();
                thread::spawn(move || losses.report(1, Loss::Died))
            });
            losses.tell(&listener);
            reports.into_iter().for_each(|report| report.join().unwrap());
            assert_eq!(calls.load(Ordering::Relaxed), 1);
        });
    }
}
