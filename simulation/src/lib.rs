//! Simulates whole programs of several ranks under seeded schedules, and checks invariants that hold under every
//! failure.
//!
//! A seed and the [`Limits`] determine the ranks, overlapping groups, a program, one trouble (a fault or a difference
//! between ranks), and the order of all events. In the program, the ranks do the following:
//!
//! - They create groups, some of them late in the program or a second time.
//! - They allocate blocks of a [pool](symm_mem::SymmetricPool), and free them. For some blocks, they first agree on the
//!   length.
//! - They [commit](symm_mem::SymmetricPool::commit) the pool for one or several groups: the pool's segments (its device
//!   memory) become windows of the groups' NCCL communicators. If the NCCL release has no windows, the segments are
//!   registered plainly (`ncclCommRegister`).
//! - They [retire](symm_mem::SymmetricPool::retire) segments: all ranks deregister the windows of a segment, and free
//!   its memory.
//! - They capture graphs, and enqueue collectives and point-to-point messages.
//! - They run [rendezvous](symm_mem::rendezvous), in which they map each other's memory, and
//!   [exchanges](symm_mem::exchange), in which they agree on plans. A plan is a list of one-sided transfers.
//!
//! These parts are production code: the pools, the state that a pool keeps for each group, the state machines of the
//! agreements among ranks, and the server and the clients of the store ([`bootstrap::store`]). The connections to the
//! store are simulated. The devices and the library (NCCL) are those of `gpu-sim`, the crate that simulates the CUDA
//! driver and NCCL. A run takes place in one thread, with a simulated clock in µs. So a seed with the same limits
//! always gives the same run.
//!
//! All files use these terms:
//!
//! - *Trouble*: the fault, or the difference between ranks, of a run.
//! - *Culprit*: the rank that the trouble concerns. A seed draws a culprit in any case, but a few troubles, such as a
//!   dead store, concern no single rank.
//! - *Domain*: the ranks that make the same requests of a pool in the same order ([`Domain`](symm_mem::Domain)). The
//!   pools of a run belong to one domain. It contains all ranks, unless the trouble makes the ranks disagree about its
//!   members.
//! - *Event*: a unit of work that the scheduler executes at a point of the simulated time, such as the arrival of bytes
//!   at the store.
//! - *Meeting*: one agreement among ranks, the *members* of the meeting. Each commit, retirement, rendezvous and
//!   exchange is a meeting, and so is each agreement on a length or on plain registrations.
//! - *Record*, *decision*, *action*, *outcome*, *verdict*: in a meeting, each member posts a record in the store. The
//!   decision follows from all records, and may ask every member for an action, for example to register windows. Each
//!   member then posts the outcome of its action. The verdict follows from all outcomes, and may ask for another
//!   action. See [`bootstrap::agreement`]. The type `Action` of the file `scenario` is an entry of a rank's program,
//!   and no action in this sense.
//! - *In doubt*: from the post of its record until it has read the result, a member is in doubt, because the other
//!   members may act on its record.
//! - *Circle of waits*: ranks that wait for each other, each in a meeting in which another rank of the circle is
//!   missing.
//! - *Log* of a pool: the pool's operations in order, such as the placement or the freeing of a block.
//! - *Poisoned* group: a group whose members may have different windows. Its communicator must be aborted. See
//!   [`Poison`](symm_mem::Poison).
//! - *Lost store*: a rank loses the store if the trouble separates it, or all ranks, from the store, for some time or
//!   for the rest of the run. The rank goes on with its program: it allocates, runs collectives, frees, and begins its
//!   meetings.
//! - *Phase*: a part of the program. In each phase, the ranks allocate and free blocks and commit the pool for their
//!   groups. They may also retire segments, or run a rendezvous or an exchange.
//! - *Step* of a rank: an event that the rank handles. For example, the rank executes the next `Action` of its program,
//!   or one of its calls to the store ends. The steps of a rank are counted from 1.
//! - *Token* of a rank: a random number that identifies the last request of the state machine of the rank's meeting. It
//!   changes with every request. An answer with another token belongs to an earlier request, and is ignored.
//!
//! | file | subject |
//! |---|---|
//! | `scenario`, `programs`, `trouble` | the choices of a seed, the programs of the ranks, and the trouble |
//! | `world` | the scheduler |
//! | `requests` | the requests of ranks to the store. Production code turns each request into calls to the store |
//! | `store` | the transport of these calls and their replies, and the repetition of failed requests |
//! | `network` | the server of the store, and the connections of ranks to it |
//! | `acts`, `meetings`, `ends` | the execution of programs, and the course and the end of meetings |
//! | `keys` | the keys of meetings that may be left in the store at the end of the run |
//! | `plans`, `exchanges` | exchanges and the transfers of their plans, and the state of both |
//! | `registration` | windows and plain registration |
//! | `sharing` | export and opening of memory |
//! | `rank`, `work` | a rank, and the state machine of its current meeting |
//! | `device` | the devices |
//! | `library`, `communicator` | NCCL: the communicators, and a record of the registered memory |
//! | `oracle`, `waits`, `lost`, `blame`, `results` | the checks of the invariants, and the checked results |
//! | `versions` | a rank that uses another version of the protocol |
//! | `pools`, `lock` | access to the parts of a pool, and to a mutex |
//! | `violation` | the limits of a seed, and a violated invariant |
//! | `random` | the random numbers |
//!
//! All ranks of a run are in one process. A rank *exports* memory, so that other ranks can *open* it, that is, map it.
//! For both, the ranks use production code, `memory_sharing::Exports` and `memory_sharing::open_exports`. Between ranks
//! of one process, this code needs no file descriptors. The simulation has none, because a run uses a world of gpu-sim
//! (a simulated machine) that belongs to one thread, and such a world exports no file descriptors.
//!
//! Two production functions do not run, because they would block the only thread of the run:
//! - `memory_sharing::open`. It waits for file descriptors from ranks in other processes, and then calls
//!   `open_exports`. The simulation calls only `open_exports`.
//! - `Memberships::retire` of `symm-mem`. It waits for a thread that waits for an idle device. `Device::rest` takes the
//!   place of this wait, and makes the same calls into the driver.
//!
//! Injected faults can make the driver calls of `open_exports` and `Device::rest` fail.
//!
//! The simulation leaves out:
//! - The data of collectives and messages. The simulation only counts the collectives and the messages.
//! - The code that connects the state machine of a meeting to NCCL and the store in production, such as
//!   `symm-mem/src/membership/commit/member.rs`. The files `store` and `meetings` take its place.
//!
//! The tests in `symm-mem/tests/end_to_end/embedded` cover both. They run production code on gpu-sim, with a thread for
//! each rank.

mod acts;
mod blame;
mod communicator;
mod device;
mod ends;
mod exchanges;
mod keys;
mod library;
mod lock;
mod lost;
mod meetings;
mod network;
mod oracle;
mod plans;
mod pools;
mod programs;
mod random;
mod rank;
mod registration;
mod requests;
mod results;
mod scenario;
mod sharing;
mod store;
#[cfg(test)]
mod tests;
mod trouble;
mod versions;
mod violation;
mod waits;
mod work;
mod world;

use std::{
    collections::{BTreeMap, HashSet},
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use crate::lock::lock;

pub use self::violation::{Limits, Violation};
use self::{device::Devices, world::World};

/// The result of a seed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// The number of all events of the run. The *steps* of ranks (see [the terms](self)) are only some of them.
    pub steps: u64,
    /// The visited states of the run, each as a hash, in ascending order. A state consists of the kind of trouble and
    /// the states of all ranks.
    pub states: Vec<u64>,
    /// A hash of the times and the order of all events. It is equal in all runs of a seed with the same limits.
    pub record: u64,
    /// Counts the results that ranks get from meetings, by the name of the run's trouble and the name of the result. A
    /// meeting counts once for each member on which it has ended.
    pub tally: BTreeMap<(String, &'static str), u64>,
    /// The violated invariant, if there is one.
    pub violation: Option<Violation>,
    /// A summary of the seed's choices, and then the events if a trace was requested. Empty if the run cannot start.
    pub trace: Vec<String>,
}

/// Runs one seed. Records the events in [`Run::trace`] if `trace` is true.
#[must_use]
pub fn run(seed: u64, limits: &Limits, trace: bool) -> Run {
    let mut run = Run {
        steps: 0,
        states: Vec::new(),
        record: 0,
        tally: BTreeMap::new(),
        violation: None,
        trace: Vec::new(),
    };
    let mut world = match World::new(seed, limits, trace) {
        Ok(world) => world,
        Err(violation) => return Run { violation: Some(violation), ..run },
    };
    let begin = format!(
        "seed {seed}: {} ranks, {:?} on rank {}, groups {:?}, release {}, messages of up to {} us",
        world.ranks.len(),
        world.scenario.trouble,
        world.scenario.culprit,
        world.scenario.groups,
        world.scenario.release,
        world.scenario.slowest,
    );
    // A panic of the tested code is a violation too.
    let ran = catch_unwind(AssertUnwindSafe(|| {
        world.run()?;
        world.judge()?;
        world.tear_down()?;
        world.devices.take().map_or(Ok(()), Devices::finish)
    }));
    let ran = ran.unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().map(String::as_str);
        let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("of no text");
        Err(Violation(format!("a panic: {said}")))
    });
    let trouble = world.scenario.trouble.name();
    for ended in &world.ended {
        *run.tally.entry((trouble.clone(), ended.said.name())).or_default() += 1;
    }
    run.violation = ran.err().map(|Violation(what)| Violation(format!("{begin}: {what}")));
    run.trace = world.trace.take().unwrap_or_default();
    run.trace.insert(0, begin);
    (run.steps, run.record) = (world.event_count, world.event_hash);
    run.states = std::mem::take(&mut world.states);
    run.states.sort_unstable();
    run.states.dedup();
    // After a violation, the state of the ranks may be inconsistent, so it is leaked instead of dropped. Only the
    // devices are dropped. They own the gpu-sim world of this thread, and the next run on this thread starts a new one.
    if run.violation.is_some() {
        drop(world.devices.take());
        std::mem::forget(world);
    }
    run
}

/// Tries to reduce the phases, groups and requests of `limits`, in this order. Keeps a reduction if `seed` still
/// violates an invariant with it. Returns the reduced limits, which give a shorter trace, or `limits` if no reduction
/// is kept.
#[must_use]
pub fn shrink(seed: u64, limits: &Limits) -> Limits {
    let mut least = *limits;
    let mut attempt = |smaller: Limits| {
        if run(seed, &smaller, false).violation.is_some() {
            least = smaller;
        }
        least
    };
    let mut at = *limits;
    for phases in (1..=3).rev().filter(|less| *less < limits.phases) {
        at = attempt(Limits { phases, ..at });
    }
    for groups in (1..=4).rev().filter(|less| *less < limits.groups) {
        at = attempt(Limits { groups, ..at });
    }
    for requests in [12, 6, 3, 1, 0].into_iter().filter(|less| *less < limits.requests) {
        at = attempt(Limits { requests, ..at });
    }
    at
}

/// The results of many seeds. They do not depend on the number of threads.
#[derive(Debug, Default)]
pub struct Summary {
    /// The number of seeds run.
    pub seeds: u64,
    /// The number of events of all runs.
    pub steps: u64,
    /// The visited states of all runs, each as a hash. See [`Run::states`].
    pub states: HashSet<u64>,
    /// The sums of [`Run::tally`] over all runs.
    pub tally: BTreeMap<(String, &'static str), u64>,
    /// The violations, by seed.
    pub violations: BTreeMap<u64, Violation>,
}

/// Runs all `seeds` on `threads` threads, or on one thread if `threads` is 0. After every seed that is a multiple of
/// 64, calls `done` with the approximate number of seeds run so far.
pub fn explore(seeds: Range<u64>, limits: &Limits, threads: usize, done: &(dyn Fn(u64) + Sync)) -> Summary {
    let summary = Mutex::new(Summary::default());
    let next = AtomicU64::new(seeds.start);
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                break;
            }
            let run = run(seed, limits, false);
            let mut all = lock(&summary);
            all.seeds += 1;
            all.steps += run.steps;
            all.states.extend(run.states);
            run.tally.into_iter().for_each(|(what, count)| *all.tally.entry(what).or_default() += count);
            all.violations.extend(run.violation.map(|violation| (seed, violation)));
            drop(all);
            if seed.is_multiple_of(64) {
                done(seed - seeds.start);
            }
        }
    };
    thread::scope(|scope| (0..threads.max(1)).for_each(|_| drop(scope.spawn(work))));
    summary.into_inner().unwrap_or_else(PoisonError::into_inner)
}
