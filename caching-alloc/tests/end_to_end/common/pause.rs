//! A place in a program where a thread waits until the test lets it go on.

use std::sync::{Condvar, Mutex};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

/// Time to watch a thread that should be blocked by another one. A bug may go unseen on a slower machine. Correct code
/// passes on any machine.
const WATCHED: Duration = Duration::from_secs(1);

/// While armed, it stops the first thread that arrives.
#[derive(Debug, Default)]
pub(crate) struct Pause {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Open,
    Armed,
    Reached,
}

impl Pause {
    pub(crate) fn arm(&self) {
        self.set(State::Armed);
    }

    /// Called where the thread may be stopped.
    pub(crate) fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        if *state == State::Armed {
            *state = State::Reached;
            self.changed.notify_all();
            drop(self.changed.wait_while(state, |state| *state == State::Reached).unwrap());
        }
    }

    /// Waits until a thread has been stopped.
    pub(crate) fn wait_until_reached(&self) {
        let state = self.state.lock().unwrap();
        drop(self.changed.wait_while(state, |state| *state == State::Armed).unwrap());
    }

    /// Lets the stopped thread go on, after `other` has had time to overtake it if it can.
    pub(crate) fn release_after<T>(&self, other: &ScopedJoinHandle<'_, T>) {
        let begin = Instant::now();
        while begin.elapsed() < WATCHED && !other.is_finished() {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.open();
    }

    /// Disarms the pause. The stopped thread goes on, and so does a thread in
    /// [`wait_until_reached`](Self::wait_until_reached).
    pub(crate) fn open(&self) {
        self.set(State::Open);
    }

    fn set(&self, to: State) {
        *self.state.lock().unwrap() = to;
        self.changed.notify_all();
    }
}
