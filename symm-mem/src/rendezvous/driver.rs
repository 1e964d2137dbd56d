//! Runs a rendezvous's machine in life: over a store, with the clock, on the caller's thread.

use process_group::store::{Deadline, Store, StoreError};

use super::protocol::{Conclusion, Input, Meeting, Outcome, Output, Record};
use crate::{agreement, commit::driver::Line};

/// Runs `machine` to its end; with what the store said, if it failed. `share` gives and maps; nobody is waited for once
/// `goes_on` says no.
pub(super) fn run(
    mut machine: Meeting,
    store: &dyn Store,
    goes_on: &dyn Fn() -> bool,
    mut share: impl FnMut(&[Record], Deadline) -> Outcome,
) -> (Conclusion, Option<StoreError>) {
    let mut line = Line::new(store);
    let mut input = Input::Start;
    loop {
        input = match machine.step(input, line.elapsed()) {
            Output::Done(conclusion) => {
                line.remove(&conclusion.read);
                return (conclusion, line.failure);
            }
            Output::Share { records, until } => Input::Shared(share(&records, line.deadline(until))),
            Output::Store(request) => match line.ask(request, goes_on) {
                agreement::Input::StoreFailed => Input::StoreFailed,
                answer => Input::Store(answer),
            },
        };
    }
}
