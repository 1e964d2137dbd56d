//! Random programs: several ranks take part in several agreements. Some ranks have two threads, so they can take part
//! in two agreements at a time. A rank may arrive after the patience of others has ended. Each run has at most one kind
//! of [`Fault`], and depends only on its seed. Two further tests run fixed programs, whose steps have random orders.

mod judge;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    thread,
    time::Duration,
};

use super::{
    super::{
        Agreement, Answer, Conclusion, Ending, Failure, Input, Member, Memory, Output, Request, Waiting,
        messages::told_failure,
    },
    sum::Sum,
};

/// A xorshift generator.
struct Random(u64);

impl Random {
    /// Returns a number below `bound`, or 0 if `bound` is 0.
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound.max(1) as u64) as usize
    }

    /// Returns true with a probability of 1 / `count`.
    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}

type Outcome = Result<u64, Ending<Sum>>;

/// A thread of a rank.
#[derive(Default)]
struct Thread {
    /// The agreements in which the thread has yet to take part, and the numbers that it contributes.
    program: VecDeque<(Member, u64)>,
    /// The current agreement, and its output that is not yet executed. `None` between agreements.
    running: Option<(Agreement<Sum>, Output<Sum>)>,
}

#[derive(Default)]
struct Rank {
    threads: Vec<Thread>,
    /// True once the rank has crashed, or has lost the store.
    is_gone: bool,
    /// True if the actions of the rank fail.
    fails: bool,
}

/// The kind of fault in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    Crash,
    /// The store fails for the culprit. Its current agreements end, and it takes part in no others. Its pending
    /// requests may have taken effect.
    StoreLost,
    /// Replies are lost, except those to waits, and the ranks repeat the requests.
    RepliesLost,
    ActionFails,
    /// The culprit takes part in two agreements in reverse order.
    OtherOrder,
    OtherGeneration,
    OtherMembers,
    /// The culprit posts records of another protocol version.
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
    /// The rank with the fault. [`Fault::RepliesLost`] affects all ranks, and [`Fault::None`] no rank.
    culprit: usize,
    ranks: Vec<Rank>,
    store: Memory,
    now: Duration,
    /// For each agreement, by its name: the ranks on which it has ended, with their results.
    results: BTreeMap<String, Vec<(usize, Outcome)>>,
    /// The members of each agreement.
    members: BTreeMap<String, Vec<u32>>,
    /// The keys under which members have posted the outcomes of the first action of each agreement.
    outcomes: BTreeSet<String>,
    /// The circles that members have proposed as failures.
    circles: Vec<Vec<Waiting>>,
    /// The first proposed circle for which [`Run::is_circle`] was false, as a text. `None` if there was none.
    wrong_circle: Option<String>,
    /// With [`Fault::OtherGeneration`] or [`Fault::OtherMembers`]: the agreement in which the culprit uses another
    /// generation or member list.
    changed: Option<String>,
    /// The history of the run, which is printed if a check fails.
    trace: Vec<String>,
}

const AGREEMENTS: usize = 4;

impl Run {
    /// Makes a run with a random program and a random fault.
    fn new(seed: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        (0..8).for_each(|_| _ = random.below(2));
        let size = 2 + random.below(4);
        let fault = FAULTS[random.below(FAULTS.len())];
        let culprit = random.below(size);
        let mut ranks: Vec<Rank> = (0..size).map(|_| Rank::default()).collect();
        for rank in &mut ranks {
            rank.threads.resize_with(1 + random.below(2), Thread::default);
        }
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
                    deadline: None,
                };
                let threads = &mut ranks[*rank as usize].threads;
                let thread = random.below(threads.len());
                threads[thread].program.push_back((member, u64::from(*rank) + 1));
            }
        }
        let seats = ranks.iter().flat_map(|rank| &rank.threads).flat_map(|thread| &thread.program);
        let members = seats.map(|(member, _)| (member.name.clone(), member.members.clone())).collect();
        // The culprit takes part in all agreements, so one of its threads has at least two.
        let programs = ranks[culprit].threads.iter_mut().map(|thread| &mut thread.program);
        let program = programs.max_by_key(|program| program.len()).expect("a rank has threads");
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
            circles: Vec::new(),
            wrong_circle: None,
            changed,
            trace,
        }
    }

    /// Executes the programs until no thread can take a step, not even after a timeout.
    fn run(mut self) -> Self {
        loop {
            let threads =
                |(index, rank): (usize, &Rank)| (0..rank.threads.len()).map(move |thread| (index, thread));
            let all = self.ranks.iter().enumerate().flat_map(threads);
            let ready: Vec<(usize, usize)> = all.filter(|it| self.is_ready(*it)).collect();
            if ready.is_empty() {
                let Some(until) = self.first_end() else { return self };
                self.now = self.now.max(until);
                continue;
            }
            let thread = ready[self.random.below(ready.len())];
            // The clock advances, so that waits time out in some runs before all members have arrived.
            if self.random.one_in(4) {
                self.now += Duration::from_millis(self.random.below(40) as u64);
            }
            self.step(thread);
        }
    }

    /// Returns the earliest time limit of a pending wait; `None` if no thread waits.
    fn first_end(&self) -> Option<Duration> {
        let threads = self.ranks.iter().filter(|rank| !rank.is_gone).flat_map(|rank| &rank.threads);
        let waits = threads.filter_map(|thread| match &thread.running {
            Some((_, Output::Store(Request::Await { until, .. }))) => Some(*until),
            _ => None,
        });
        waits.min()
    }

    /// Returns true if the thread can take a step.
    fn is_ready(&self, (rank, thread): (usize, usize)) -> bool {
        let rank = &self.ranks[rank];
        let thread = &rank.threads[thread];
        match &thread.running {
            _ if rank.is_gone => false,
            None => !thread.program.is_empty(),
            Some((_, Output::Store(Request::Await { key, until }))) => {
                self.store.0.contains_key(key) || self.now >= *until
            }
            Some(_) => true,
        }
    }

    /// Executes one step of a thread. `at` is the index of its rank, and the index of the thread in the rank. If the
    /// rank is the culprit, may inject [`Fault::Crash`] or [`Fault::StoreLost`] instead, which affects all its threads.
    fn step(&mut self, at: (usize, usize)) {
        let (now, (index, thread)) = (self.now, at);
        if index == self.culprit && self.random.one_in(12) {
            match self.fault {
                Fault::Crash => {
                    self.trace.push(format!("{index} crashes"));
                    self.ranks[index].is_gone = true;
                    return;
                }
                Fault::StoreLost if self.ranks[index].threads[thread].running.is_some() => {
                    self.trace.push(format!("{index} loses the store"));
                    for thread in 0..self.ranks[index].threads.len() {
                        let Some((_, output)) = self.ranks[index].threads[thread].running.clone() else {
                            continue;
                        };
                        if self.random.one_in(2)
                            && let Output::Store(request) = output
                        {
                            self.execute(&request);
                        }
                        self.give((index, thread), Input::Store(Answer::StoreFailed));
                    }
                    self.ranks[index].is_gone = true;
                    return;
                }
                _ => {}
            }
        }
        let running = &mut self.ranks[index].threads[thread];
        let Some((_, output)) = running.running.clone() else {
            let Some((member, number)) = running.program.pop_front() else { return };
            self.trace.push(format!("{index} enters {} at {now:?}", member.name));
            let nonce = index as u64;
            let mut machine = Agreement::new(member, number, nonce).expect("the member is valid");
            let output = machine.begin(now);
            running.running = Some((machine, output));
            return;
        };
        match output {
            Output::Act { .. } => {
                let succeeds = !self.ranks[index].fails;
                self.give(at, Input::Acted(succeeds));
            }
            Output::Store(request) => {
                let request = self.as_of_another_version(index, request);
                let answer = self.execute(&request);
                let is_lost = self.fault == Fault::RepliesLost && self.random.one_in(6);
                if !is_lost || matches!(request, Request::Await { .. }) {
                    self.give(at, Input::Store(answer));
                }
            }
            Output::Done(_) => unreachable!("it would have ended"),
        }
    }

    /// With [`Fault::OtherVersion`], changes the version in a record or an outcome that the culprit posts. Returns
    /// every other request unchanged.
    fn as_of_another_version(&self, index: usize, mut request: Request) -> Request {
        if let Request::Post { key, value } = &mut request
            && (self.fault, self.culprit) == (Fault::OtherVersion, index)
            && !key.contains("/read/")
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

    fn give(&mut self, (index, thread): (usize, usize), input: Input<Sum>) {
        let running = &mut self.ranks[index].threads[thread].running;
        let Some((machine, _)) = running else { return };
        let name = machine.name().to_owned();
        let output = machine.step(input, self.now);
        if let Output::Store(Request::Propose { value, .. }) = &output
            && let Some(Failure::Absent { circle, .. }) = told_failure(value)
            && !circle.is_empty()
            && !self.circles.contains(&circle)
        {
            if !self.is_circle(&circle) && self.wrong_circle.is_none() {
                self.wrong_circle = Some(format!("{name}: rank {index} has found {circle:?}"));
            }
            self.circles.push(circle);
        }
        let running = &mut self.ranks[index].threads[thread].running;
        let Some((_, at)) = running else { return };
        match output {
            Output::Done(Conclusion { result, read, .. }) => {
                self.trace.push(format!("{index} ends {name} at {:?}: {result:?}", self.now));
                self.store.remove(&read);
                *running = None;
                self.results.entry(name).or_default().push((index, result));
            }
            output => *at = output,
        }
    }
}

/// Executes and checks the runs of these seeds. Returns the number of runs in which all results are agreed values.
fn explore(seeds: impl Iterator<Item = u64>) -> usize {
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

/// The environment variable `AGREEMENT_SEEDS` sets the number of seeds (default 4000). One thread for each processor
/// executes an equal part of them.
#[test]
fn members_of_random_programs_have_equal_results() {
    let seeds = std::env::var("AGREEMENT_SEEDS").ok().and_then(|number| number.parse().ok()).unwrap_or(4000);
    let workers = thread::available_parallelism().map_or(1, usize::from);
    let agreed: usize = thread::scope(|scope| {
        let part = |first: usize| scope.spawn(move || explore((0..seeds).skip(first).step_by(workers)));
        let parts: Vec<_> = (0..workers).map(part).collect();
        parts.into_iter().map(|part| part.join().unwrap()).sum()
    });
    assert!(agreed > 0);
}

/// Two ranks call two agreements in different orders. Both agreements fail with the circular wait.
#[test]
fn crossing_agreements_fail_with_the_circle() {
    fail_with_the_circle([&[&["a", "b"]], &[&["b", "a"]]], &["a", "b"], 2);
}

/// Two ranks with two threads each wait for each other in four agreements. All four fail with the circular wait.
#[test]
fn crossing_agreements_of_several_threads_fail_with_the_circle() {
    // Each thread calls only one agreement. If a thread called two, it would go on to the second one when the first has
    // failed. The second one could then succeed before the member that searches for the circle makes it fail.
    fail_with_the_circle([&[&["a"], &["b"]], &[&["c"], &["d"]]], &["a", "b", "c", "d"], 4);
}

/// Runs two ranks with many seeds. `ranks` contains, for each thread of each rank, the agreements that the thread
/// calls, in order. Checks that all `agreements` fail with a circle of `waits` waits.
fn fail_with_the_circle(ranks: [&[&[&str]]; 2], agreements: &[&str], waits: usize) {
    for seed in 1..200 {
        // Only one agreement has a short patience, so only one member searches. Another search that begins while the
        // agreements fail may find no circle.
        let impatient = agreements[seed as usize % agreements.len()];
        let member = |name: &str, rank: u32| Member {
            name: name.into(),
            rank,
            members: vec![0, 1],
            generation: 1,
            patience: Duration::from_secs(if name == impatient { 2 } else { 20 }),
            deadline: None,
        };
        let thread = |names: &[&str], rank: u32| Thread {
            program: names.iter().map(|name| (member(name, rank), 1)).collect(),
            running: None,
        };
        let rank = |(threads, rank): (&[&[&str]], u32)| Rank {
            threads: threads.iter().map(|names| thread(names, rank)).collect(),
            ..Rank::default()
        };
        let mut run = Run::new(seed);
        (run.fault, run.culprit) = (Fault::OtherOrder, 0);
        run.ranks = ranks.into_iter().zip(0..).map(rank).collect();
        run.members = agreements.iter().map(|name| (name.to_string(), vec![0, 1])).collect();
        let run = run.run();
        assert_eq!(run.judge(), Ok(()), "seed {seed}\n{}", run.trace.join("\n"));
        let circles = |name: &str| {
            let ended = &run.results[name];
            ended.iter().all(|(_, result)| {
                matches!(result, Err(Ending::Failed(Failure::Absent { circle, .. })) if circle.len() == waits)
            })
        };
        let all = agreements.iter().all(|name| circles(name));
        assert!(all, "seed {seed}\n{}", run.trace.join("\n"));
    }
}
