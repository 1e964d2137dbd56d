//! Runs the state machine of a [`meeting`](crate::agreement::meeting) over a store, with the real clock, on the
//! caller's thread.

use process_group::store::{Deadline, Store, StoreError};

use super::driver::StoreSession;
use crate::agreement::{
    self,
    meeting::{Conclusion, Contribution, Input, Meeting, Outcome, Output},
};

/// Runs `machine` to its end. Also returns the store's error if the store failed. `open` shares this rank's memory
/// and maps that of the peers. Once `goes_on` returns false, no member is waited for.
pub(crate) fn run<C: Contribution>(
    mut machine: Meeting<C>,
    store: &dyn Store,
    goes_on: impl Fn() -> bool,
    mut open: impl FnMut(&C::Opening, Deadline) -> Outcome,
) -> (Conclusion<C>, Option<StoreError>) {
    let mut line = StoreSession::new(store);
    let mut input = Input::Store(agreement::Input::Start);
    loop {
        input = match machine.step(input, line.elapsed()) {
            Output::Done(conclusion) => {
                line.remove(&conclusion.read);
                return (conclusion, line.failure);
            }
            Output::Open { opening, until } => Input::Opened(open(&opening, line.deadline(until))),
            Output::Store(request) => Input::Store(line.ask(&request, None, &goes_on)),
        };
    }
}
