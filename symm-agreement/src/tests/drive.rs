//! Runs the state machines of an agreement's members over one store. The agreement may ask every member for *actions*.
//! The *plan* of an action is its data, and the *outcome* is the data that a member posts after it.

use std::time::Duration;

use bootstrap::agreement::{Agreement, Answer, Ending, Input, Memory, Output, Protocol, Request};

use crate::hash::chain;

/// The end of an agreement on one rank.
pub(crate) struct EndedRank<P: Protocol> {
    pub(crate) result: Result<P::Agreed, Ending<P>>,
    /// The plan of the rank's last action, or `None` if it began none.
    pub(crate) last: Option<P::Plan>,
    /// The time at which the rank got the result.
    pub(crate) at: Duration,
}

/// Runs an agreement, and returns how it ended on each rank, `None` for a rank that died. `machines[n]` is the state
/// machine of rank n. `seed` determines the order of the ranks' steps, which are the transitions of their state
/// machines. `victim` is a rank and the number of one of its steps, from 0: the rank dies before this step. `act`
/// executes the action of a plan, and returns its outcome. It gets the rank, the plan, the deadline of the action, and
/// the time, which it can increase.
pub(crate) fn drive<P: Protocol>(
    mut machines: Vec<Agreement<P>>,
    seed: u64,
    victim: Option<(u32, u32)>,
    mut act: impl FnMut(u32, P::Plan, Duration, &mut Duration) -> P::Outcome,
) -> Vec<Option<EndedRank<P>>> {
    let (mut store, mut now, mut random, mut steps) = (Memory::default(), Duration::ZERO, seed, 0);
    // `None` for a rank that has ended or died.
    let mut outputs: Vec<_> = machines.iter_mut().map(|machine| Some(machine.begin(now))).collect();
    let mut last: Vec<Option<P::Plan>> = vec![None; machines.len()];
    let mut ends: Vec<_> = machines.iter().map(|_| None).collect();
    loop {
        // The time until which a rank waits for a key that has no value.
        let waits = |output: &Output<P>| match output {
            Output::Store(Request::Await { key, until }) if !store.0.contains_key(key) => Some(*until),
            _ => None,
        };
        let is_ready = |rank: &usize| outputs[*rank].as_ref().is_some_and(|output| waits(output).is_none());
        let ready: Vec<usize> = (0..machines.len()).filter(is_ready).collect();
        if ready.is_empty() {
            let Some(soonest) = outputs.iter().flatten().filter_map(waits).min() else { break ends };
            now = now.max(soonest);
            for (machine, output) in machines.iter_mut().zip(&mut outputs) {
                if output.as_ref().and_then(waits).is_some_and(|until| until <= now) {
                    *output = Some(machine.step(Input::Store(Answer::Expired), now));
                }
            }
            continue;
        }
        random = chain(random, [1]);
        let at = ready[random as usize % ready.len()];
        let rank = at as u32;
        if let Some((victim, step)) = victim
            && victim == rank
        {
            if steps == step {
                outputs[at] = None;
                continue;
            }
            steps += 1;
        }
        let input = match outputs[at].take().expect("the rank is ready") {
            Output::Store(request) => {
                let answer = store.execute(&request).expect("it does not wait");
                assert_ne!(answer, Answer::Taken, "a member posts once");
                Input::Store(answer)
            }
            Output::Act { plan, until, .. } => {
                last[at] = Some(plan.clone());
                Input::Acted(act(rank, plan, until, &mut now))
            }
            Output::Done(end) => {
                store.remove(&end.read);
                ends[at] = Some(EndedRank { result: end.result, last: last[at].take(), at: now });
                continue;
            }
        };
        outputs[at] = Some(machines[at].step(input, now));
    }
}
