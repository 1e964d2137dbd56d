//! Random programs: several ranks take part in several agreements, some of them in different orders, with crashes, lost
//! stores, lost replies, late members, and members of another version, generation or member list.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use super::{
    super::{Agreement, Answer, Conclusion, Ending, Failure, Input, Member, Output, Request},
    memory::Memory,
    sum::Sum,
};

/// A xorshift generator.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound.max(1) as u64) as usize
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}

type Outcome = Result<u64, Ending<Sum>>;

/// A rank, with the agreements that it has still to enter.
struct Rank {
    program: VecDeque<(Member, u64)>,
    running: Option<(Agreement<Sum>, Output<Sum>)>,
    /// True once it is dead, or has lost the store.
    is_gone: bool,
    fails: bool,
}

/// The faults of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    Crash,
    StoreLost,
    RepliesLost,
    ActionFails,
    OtherOrder,
    OtherGeneration,
    OtherMembers,
    OtherVersion,
}

const FAULTS: [Fault; 9] = [
    Fault::None,
    Fault::Crash,
    Fault::StoreLost,
    Fault::RepliesLost,
    Fault::ActionFails,
    Fault::OtherOrder,
    Fault::OtherGeneration,
    Fault::OtherMembers,
    Fault::OtherVersion,
];

struct Run {
    random: Random,
    fault: Fault,
    /// The rank with the fault.
    culprit: usize,
    ranks: Vec<Rank>,
    store: Memory,
    now: Duration,
    results: BTreeMap<String, Vec<(usize, Outcome)>>,
    /// The members of each agreement.
    members: BTreeMap<String, Vec<u32>>,
    /// The keys of the outcomes that were posted.
    outcomes: BTreeSet<String>,
    /// The agreement that the culprit enters with another generation or member list.
    changed: Option<String>,
    trace: Vec<String>,
}

const AGREEMENTS: usize = 4;

impl Run {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        (0..8).for_each(|_| _ = random.below(2));
        let size = 2 + random.below(4);
        let fault = FAULTS[random.below(FAULTS.len())];
        let culprit = random.below(size);
        let mut ranks: Vec<Rank> = (0..size)
            .map(|_| Rank { program: VecDeque::new(), running: None, is_gone: false, fails: false })
            .collect();
        for number in 0..AGREEMENTS {
            let all: Vec<u32> = (0..size as u32).collect();
            let members: Vec<u32> = all
                .iter()
                .copied()
                .filter(|rank| number == 0 || *rank == culprit as u32 || !random.one_in(3))
                .collect();
            for rank in &members {
                let patience = Duration::from_millis(10 + random.below(500) as u64);
                let member = Member {
                    name: format!("agreement {number}"),
                    rank: *rank,
                    members: members.clone(),
                    generation: 1,
                    patience,
                };
                ranks[*rank as usize].program.push_back((member, u64::from(*rank) + 1));
            }
        }
        let seats = ranks.iter().flat_map(|rank| &rank.program);
        let members = seats.map(|(member, _)| (member.name.clone(), member.members.clone())).collect();
        let program = &mut ranks[culprit].program;
        let changed = Some(program[1].0.name.clone());
        match fault {
            Fault::OtherOrder => program.swap(0, 1),
            Fault::OtherGeneration => program[1].0.generation = 2,
            Fault::OtherMembers => {
                let members = &mut program[1].0.members;
                members.reverse();
                members.push(99);
            }
            Fault::ActionFails => ranks[culprit].fails = true,
            _ => {}
        }
        let (store, results, trace) = (Memory::default(), BTreeMap::new(), Vec::new());
        let outcomes = BTreeSet::new();
        Self {
            random,
            fault,
            culprit,
            ranks,
            store,
            now: Duration::ZERO,
            results,
            members,
            outcomes,
            changed,
            trace,
        }
    }

    fn run(mut self) -> Self {
        loop {
            let ready: Vec<usize> = (0..self.ranks.len()).filter(|rank| self.is_ready(*rank)).collect();
            if ready.is_empty() {
                let Some(until) = self.first_end() else { return self };
                self.now = self.now.max(until);
                continue;
            }
            let rank = ready[self.random.below(ready.len())];
            // Time passes, so that in some runs waits time out before all members have come.
            if self.random.one_in(4) {
                self.now += Duration::from_millis(self.random.below(40) as u64);
            }
            self.step(rank);
        }
    }

    /// Returns the earliest end of a wait.
    fn first_end(&self) -> Option<Duration> {
        let waits = self.ranks.iter().filter(|rank| !rank.is_gone).filter_map(|rank| match &rank.running {
            Some((_, Output::Store(Request::Await { until, .. }))) => Some(*until),
            _ => None,
        });
        waits.min()
    }

    fn is_ready(&self, rank: usize) -> bool {
        let rank = &self.ranks[rank];
        match &rank.running {
            _ if rank.is_gone => false,
            None => !rank.program.is_empty(),
            Some((_, Output::Store(Request::Await { key, until }))) => {
                self.store.0.contains_key(key) || self.now >= *until
            }
            Some(_) => true,
        }
    }

    fn step(&mut self, index: usize) {
        let now = self.now;
        if index == self.culprit && self.random.one_in(12) {
            match self.fault {
                Fault::Crash => {
                    self.trace.push(format!("{index} crashes"));
                    self.ranks[index].is_gone = true;
                    return;
                }
                Fault::StoreLost if self.ranks[index].running.is_some() => {
                    if self.random.one_in(2)
                        && let Some((_, Output::Store(request))) = self.ranks[index].running.clone()
                    {
                        self.execute(&request);
                    }
                    self.trace.push(format!("{index} loses the store"));
                    self.give(index, Input::Store(Answer::StoreFailed));
                    self.ranks[index].is_gone = true;
                    return;
                }
                _ => {}
            }
        }
        let Some((_, output)) = self.ranks[index].running.clone() else {
            let Some((member, number)) = self.ranks[index].program.pop_front() else { return };
            self.trace.push(format!("{index} enters {} at {now:?}", member.name));
            let nonce = index as u64;
            let mut machine = Agreement::new(member, number, nonce).expect("the member is valid");
            let output = machine.begin(now);
            self.ranks[index].running = Some((machine, output));
            return;
        };
        match output {
            Output::Act { .. } => {
                let succeeds = !self.ranks[index].fails;
                self.give(index, Input::Acted(succeeds));
            }
            Output::Store(request) => {
                let request = self.as_of_another_version(index, request);
                let answer = self.execute(&request);
                let is_lost = self.fault == Fault::RepliesLost && self.random.one_in(6);
                if !is_lost || matches!(request, Request::Await { .. }) {
                    self.give(index, Input::Store(answer));
                }
            }
            Output::Done(_) => unreachable!("it would have ended"),
        }
    }

    /// Changes the version of the records that the culprit posts.
    fn as_of_another_version(&self, index: usize, mut request: Request) -> Request {
        if let Request::Post { value, .. } = &mut request
            && (self.fault, self.culprit) == (Fault::OtherVersion, index)
        {
            value[2] += 1;
        }
        request
    }

    fn execute(&mut self, request: &Request) -> Answer {
        if let Request::Post { key, .. } = request
            && key.contains("/outcomes0/")
        {
            self.outcomes.insert(key.clone());
        }
        self.store.execute(request).unwrap_or(Answer::Expired)
    }

    fn give(&mut self, index: usize, input: Input<Sum>) {
        let Some((machine, _)) = &mut self.ranks[index].running else { return };
        let name = machine.name().to_owned();
        let output = machine.step(input, self.now);
        match output {
            Output::Done(Conclusion { result, read, .. }) => {
                self.trace.push(format!("{index} ends {name} at {:?}: {result:?}", self.now));
                self.store.remove(&read);
                self.ranks[index].running = None;
                self.results.entry(name).or_default().push((index, result));
            }
            output => {
                if let Some(running) = &mut self.ranks[index].running {
                    running.1 = output;
                }
            }
        }
    }

    /// Checks the results.
    fn judge(&self) -> Result<(), String> {
        for (name, results) in &self.results {
            let told: Vec<&(usize, Outcome)> = results
                .iter()
                .filter(|(_, result)| !matches!(result, Err(Ending::InDoubt | Ending::StoreFailed)))
                .collect();
            // Only the rank with another member list may have another result, because the others can agree without
            // it.
            let has_others_list = |rank: usize| self.fault == Fault::OtherMembers && rank == self.culprit;
            let alike: Vec<_> = told.iter().filter(|(rank, _)| !has_others_list(*rank)).collect();
            if let Some(pair) = alike.windows(2).find(|pair| pair[0].1 != pair[1].1) {
                return Err(format!("{name}: {pair:?}"));
            }
            // An agreement needs the outcomes of all members. A sum of 1 is agreed without an action.
            if results.iter().any(|(_, result)| matches!(result, Ok(sum) if *sum != 1)) {
                let posted = |rank: &u32| self.outcomes.contains(&format!("{name}/outcomes0/{rank}"));
                if let Some(rank) =
                    self.members.get(name).and_then(|all| all.iter().find(|rank| !posted(rank)))
                {
                    return Err(format!("{name}: agreed without the outcome of rank {rank}"));
                }
            }
            for (rank, result) in results {
                self.judge_one(name, *rank, result)?;
            }
        }
        self.judge_detection()?;
        let waits = |rank: &Rank| !rank.is_gone && (rank.running.is_some() || !rank.program.is_empty());
        match self.ranks.iter().position(waits) {
            Some(rank) => Err(format!("rank {rank} waits for ever")),
            None => Ok(()),
        }
    }

    /// Checks that no rank has agreed with a rank of another version, generation or member list. Checks that no
    /// keys of agreements are left if all have a result and there was no fault.
    fn judge_detection(&self) -> Result<(), String> {
        let culprit = self.culprit;
        for (name, results) in &self.results {
            let of_culprit = results.iter().find(|(rank, _)| *rank == culprit).map(|(_, result)| result);
            let differs = match self.fault {
                Fault::OtherGeneration | Fault::OtherMembers => self.changed.as_ref() == Some(name),
                Fault::OtherVersion => true,
                _ => false,
            };
            // If only one rank took part, no rank differed from another.
            let differs = differs && results.len() > 1;
            let is_unreadable = |(_, result): &(usize, Outcome)| {
                matches!(result, Err(Ending::Failed(Failure::Unreadable { .. })))
            };
            if results.len() > 1 && results.iter().any(is_unreadable) {
                return Err(format!("{name}: a record of another version was read"));
            }
            if differs && matches!(of_culprit, Some(Ok(_))) {
                return Err(format!("{name}: rank {culprit} has agreed with the fault {:?}", self.fault));
            }
            let all_others =
                results.iter().filter(|(rank, _)| *rank != culprit).all(|(_, result)| result.is_ok());
            if differs
                && self.fault != Fault::OtherMembers
                && of_culprit.is_some()
                && results.len() > 1
                && all_others
            {
                return Err(format!(
                    "{name}: ranks have agreed with rank {culprit} and the fault {:?}",
                    self.fault
                ));
            }
        }
        let left = self.store.0.keys().find(|key| !key.starts_with("places/"));
        let all_agreed = self.results.values().flatten().all(|(_, result)| result.is_ok());
        match left {
            Some(key) if self.fault == Fault::None && all_agreed => {
                Err(format!("{key} is left in the store"))
            }
            _ => Ok(()),
        }
    }

    fn judge_one(&self, name: &str, rank: usize, result: &Outcome) -> Result<(), String> {
        let wrong = || Err(format!("{name}: rank {rank} has {result:?} with the fault {:?}", self.fault));
        match result {
            Err(Ending::OutOfStep | Ending::Unreadable(_)) => wrong(),
            Err(Ending::InDoubt | Ending::StoreFailed) if self.fault != Fault::StoreLost => wrong(),
            Err(Ending::Refused(_))
                if !matches!(self.fault, Fault::ActionFails | Fault::Crash | Fault::StoreLost) =>
            {
                wrong()
            }
            Err(Ending::Failed(Failure::Generations { generations }))
                if self.fault != Fault::OtherGeneration
                    || !generations.entries.iter().any(|entry| entry.ranks == [self.culprit as u32]) =>
            {
                wrong()
            }
            Err(Ending::Failed(Failure::Protocols { protocols }))
                if self.fault != Fault::OtherVersion
                    || !protocols.entries.iter().any(|entry| entry.ranks == [self.culprit as u32]) =>
            {
                wrong()
            }
            Err(Ending::Failed(Failure::Unreadable { .. })) if self.fault != Fault::OtherVersion => wrong(),
            Err(Ending::Failed(Failure::Taken { .. } | Failure::Left { .. })) => wrong(),
            Err(Ending::Failed(Failure::Members { .. })) if self.fault != Fault::OtherMembers => wrong(),
            Err(Ending::Failed(Failure::Absent { circle, .. })) if !circle.is_empty() => {
                let names: BTreeSet<&str> =
                    circle.iter().map(|waiting| waiting.place.name.as_str()).collect();
                // A circular wait spans several agreements, and arises only if one rank has another order.
                if names.len() < 2 || self.fault != Fault::OtherOrder { wrong() } else { Ok(()) }
            }
            _ => Ok(()),
        }
    }
}

/// Runs these seeds, and returns the number of runs in which every agreement had a result.
fn explore(seeds: std::ops::Range<u64>) -> usize {
    let mut agreed = 0;
    for seed in seeds {
        let run = Run::new(seed).run();
        if let Err(problem) = run.judge() {
            panic!("seed {seed}: {problem}\n{}", run.trace.join("\n"));
        }
        let all = run.results.values().flatten().all(|(_, result)| result.is_ok());
        agreed += usize::from(all);
    }
    agreed
}

/// The variable `AGREEMENT_SEEDS` sets the number of seeds.
#[test]
fn random_programs_agree_or_fail_alike() {
    let seeds = std::env::var("AGREEMENT_SEEDS").ok().and_then(|number| number.parse().ok()).unwrap_or(4000);
    let agreed = explore(0..seeds);
    assert!(agreed > 0);
}

/// Two ranks that call two agreements in different orders both get the circular wait.
#[test]
fn crossing_agreements_fail_with_the_circle() {
    let member = |name: &str, rank: u32| Member {
        name: name.into(),
        rank,
        members: vec![0, 1],
        generation: 1,
        patience: Duration::from_millis(100),
    };
    let rank = |names: [&str; 2], rank: u32| Rank {
        program: names.map(|name| (member(name, rank), 1)).into(),
        running: None,
        is_gone: false,
        fails: false,
    };
    for seed in 1..200 {
        let mut run = Run::new(seed);
        (run.fault, run.culprit) = (Fault::OtherOrder, 0);
        run.ranks = vec![rank(["a", "b"], 0), rank(["b", "a"], 1)];
        let run = run.run();
        assert_eq!(run.judge(), Ok(()), "seed {seed}\n{}", run.trace.join("\n"));
        let circles = |name: &str| {
            let ended = &run.results[name];
            ended.iter().all(|(_, result)| {
                matches!(result, Err(Ending::Failed(Failure::Absent { circle, .. })) if circle.len() == 2)
            })
        };
        assert!(circles("a") && circles("b"), "seed {seed}\n{}", run.trace.join("\n"));
    }
}
