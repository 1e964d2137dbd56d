//! A small protocol: members add numbers, and act on the sum unless it is 0 or 1.

use std::time::Duration;

use super::super::{
    Absence, Absentee, Agreement, Answer, Conclusion, Decision, Input, Member, Memory, Output, Protocol,
    Report, Request,
};
use crate::wire;

/// Each member contributes a number. A sum of 0 is refused. A sum of 1 is the result without an action. Every other sum
/// is the plan of an action. If a member's action fails or is late, the verdict is [`Decision::Refused`]. Otherwise, if
/// the plan is a multiple of 8, another action follows, whose plan is half of it and which shares the limits of the
/// first. The plan of the last action is the result. If a member is missing, the value of the key `NAME/why/RANK`, if there is one, is the reason of a refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sum;

impl Protocol for Sum {
    const PROTOCOL: wire::Protocol = wire::Protocol { magic: *b"SU", version: 3 };
    type Record = u64;
    type Plan = u64;
    /// True if the action has succeeded.
    type Outcome = bool;
    type Agreed = u64;
    type Refusal = String;

    fn decide(records: &[(u32, u64)]) -> Decision<Self> {
        match records.iter().fold(0u64, |sum, (_, number)| sum.wrapping_add(*number)) {
            0 => Decision::Refused { refusal: "nothing to add".into() },
            1 => Decision::Agreed { agreed: 1 },
            sum => Decision::Act { plan: sum },
        }
    }

    fn is_final(outcome: &bool) -> bool {
        !outcome
    }

    fn judge(plan: &u64, reports: &[(u32, Report<bool>)]) -> Decision<Self> {
        let with = |wanted: Report<bool>| reports.iter().find(|(_, report)| *report == wanted);
        let failed = with(Report::Outcome(false)).or_else(|| with(Report::Late));
        match failed {
            Some((rank, report)) => Decision::Refused { refusal: format!("rank {rank}: {report:?}") },
            None if plan.is_multiple_of(8) => Decision::Act { plan: plan / 2 },
            None => Decision::Agreed { agreed: *plan },
        }
    }

    fn shares_limits(_plan: &u64) -> bool {
        true
    }

    fn evidence(name: &str, missing: &[Absentee]) -> Vec<String> {
        missing.iter().map(|absentee| why_key(name, absentee.rank)).collect()
    }

    fn explain(absence: &Absence<'_>) -> Option<String> {
        let mut known = absence.missing.iter().zip(absence.values);
        known.find_map(|(absentee, value)| {
            let why = String::from_utf8_lossy(value.as_deref()?).into_owned();
            Some(format!("rank {} is missing: {why}", absentee.rank))
        })
    }
}

/// Returns the key with the reason why `rank` is missing in the agreement `name`.
pub(super) fn why_key(name: &str, rank: u32) -> String {
    format!("{name}/why/{rank}")
}

/// Returns the member `rank` of the agreement `sum`, whose members are the ranks 0 to `size - 1`.
pub(super) fn member_of(rank: u32, size: u32, patience: Duration) -> Member {
    Member { name: "sum".into(), rank, members: (0..size).collect(), generation: 1, patience, deadline: None }
}

/// Drives the two members of an agreement, which contribute `number` each and have this patience, and returns their
/// ends. `change` may change the requests of a rank. `has_acted` gets a rank, its plan, the deadline of the action and
/// the time, and returns whether the action has succeeded; it is called again until it has. A second passes whenever
/// both members wait.
pub(super) fn drive(
    number: u64,
    patience: Duration,
    change: impl Fn(usize, &mut Request),
    mut has_acted: impl FnMut(usize, u64, Duration, Duration) -> bool,
) -> [Conclusion<Sum>; 2] {
    let (mut store, mut now) = (Memory::default(), Duration::ZERO);
    let machine = |rank| Agreement::<Sum>::new(member_of(rank, 2, patience), number, 0).unwrap();
    let mut machines = [0, 1].map(machine);
    let mut outputs = machines.each_mut().map(|machine| machine.begin(now));
    while outputs.iter().any(|output| !matches!(output, Output::Done(_))) {
        let before = outputs.clone();
        for rank in 0..2 {
            let input = match outputs[rank].clone() {
                Output::Done(_) => continue,
                Output::Act { plan, until, .. } => {
                    has_acted(rank, plan, until, now).then_some(Input::Acted(true))
                }
                Output::Store(mut request) => {
                    change(rank, &mut request);
                    let has_expired = matches!(request, Request::Await { until, .. } if until < now);
                    let answer = store.execute(&request).or(has_expired.then_some(Answer::Expired));
                    answer.map(Input::Store)
                }
            };
            if let Some(input) = input {
                outputs[rank] = machines[rank].step(input, now);
            }
        }
        if outputs == before {
            now += Duration::from_secs(1);
        }
    }
    outputs.map(|output| match output {
        Output::Done(end) => end,
        _ => unreachable!(),
    })
}
