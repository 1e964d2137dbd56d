//! Model checks: threads that enqueue, query, suspend, abort and destroy in all interleavings.

use std::sync::Arc;

use super::*;
use crate::sync::{
    atomic::{AtomicBool, AtomicUsize},
    model::{check, thread},
};

/// A guard, the number of threads inside NCCL, and whether the communicator is freed.
struct Model {
    guard: CallGuard,
    inside: AtomicUsize,
    is_freed: AtomicBool,
}

impl Model {
    fn new() -> Arc<Self> {
        let guard = CallGuard::new("a".into());
        guard.open();
        Arc::new(Self { guard, inside: AtomicUsize::new(0), is_freed: AtomicBool::new(false) })
    }

    /// Makes a call if the guard admits it. Asserts that no other thread is inside and that the communicator is not
    /// freed.
    fn call(&self, kind: Kind) {
        if let Ok(entry) = self.guard.enter("call", kind, None) {
            assert_eq!(self.inside.fetch_add(1, Ordering::Relaxed), 0, "two are inside");
            assert!(!self.is_freed.load(Ordering::Relaxed), "it is freed");
            self.inside.fetch_sub(1, Ordering::Relaxed);
            drop(entry);
        }
    }

    /// Waits until the closed guard is empty, then frees the communicator.
    fn free(&self) {
        self.guard.wait_empty(Deadline::after(Duration::MAX)).unwrap();
        assert_eq!(self.inside.load(Ordering::Relaxed), 0, "somebody is inside");
        self.is_freed.store(true, Ordering::Relaxed);
    }

    /// Suspends and resumes the communicator. Asserts that no thread is inside between the two.
    fn suspend(&self) {
        if let Ok(entry) = self.guard.enter("suspend", Kind::Collective, None) {
            self.guard.set_suspended(true);
            drop(entry);
            assert_eq!(self.inside.load(Ordering::Relaxed), 0, "work is inside");
            self.guard.set_suspended(false);
        }
    }

    fn abort(&self) {
        let is_first = self.guard.close("aborted", Some("abort"));
        self.guard.interrupt(Force::Aborted);
        if is_first {
            self.free();
            self.guard.set_freed(Ok(()));
        } else {
            self.guard.wait_freed(Deadline::after(Duration::MAX)).unwrap();
            assert!(
                self.is_freed.load(Ordering::Relaxed),
                "an abort returned before the communicator was freed"
            );
        }
    }
}

fn spawn(model: &Arc<Model>, run: impl FnOnce(&Model) + Send + 'static) -> thread::JoinHandle<()> {
    let model = model.clone();
    thread::spawn(move || run(&model))
}

/// Returns a listener, and the flag that the listener sets when it is called.
fn listener() -> (Arc<Listener>, Arc<AtomicBool>) {
    let told = Arc::new(AtomicBool::new(false));
    let flag = told.clone();
    (Arc::new(move |_| flag.store(true, Ordering::Relaxed)), told)
}

/// If `close_working` succeeds, its listener is called on every later abort.
#[test]
fn an_abort_tells_who_destroys() {
    check(|| {
        let model = Model::new();
        let aborting = spawn(&model, Model::abort);
        let (listener, told) = listener();
        let closed = model.guard.close_working("destroy", "destroyed", &listener);
        if closed.is_ok() {
            model.free();
            model.guard.set_freed(Ok(()));
        }
        aborting.join().unwrap();
        assert_eq!(told.load(Ordering::Relaxed), closed.is_ok());
    });
}

/// The listener of a waiting call is also called if the abort comes before `tell`.
#[test]
fn an_abort_tells_who_waits_for_a_call() {
    check(|| {
        let model = Model::new();
        let aborting = spawn(&model, Model::abort);
        let (listener, told) = listener();
        model.guard.tell(&listener);
        aborting.join().unwrap();
        assert!(told.load(Ordering::Relaxed));
    });
}

#[test]
fn one_is_inside_and_nobody_once_it_is_freed() {
    let programs: [[fn(&Model); 2]; 6] = [
        [|model| model.call(Kind::Enqueue), |model| model.call(Kind::Local)],
        [|model| model.call(Kind::Enqueue), Model::abort],
        [|model| model.call(Kind::Local), Model::abort],
        [Model::abort, Model::abort],
        [|model| drop(model.guard.observe("look")), Model::abort],
        [|model| model.call(Kind::Enqueue), Model::suspend],
    ];
    for program in programs {
        check(move || {
            let model = Model::new();
            let threads: Vec<_> = program.iter().map(|run| spawn(&model, *run)).collect();
            model.call(Kind::Enqueue);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            if !model.guard.is_closed() {
                assert_eq!(model.guard.word.load(Ordering::Relaxed), 0, "everybody has left");
            }
        });
    }
}
