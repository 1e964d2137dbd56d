//! Groups: calls between `ncclGroupStart` and `ncclGroupEnd` are queued, per rank, and run at the end.
//!
//! At the end the host calls (init, split, windows) run first. Those of one communicator run in their order; those of
//! different communicators run concurrently, since one thread may drive several ranks. Then the stream work is
//! launched as one plan per communicator, in the order of the communicators' identities, which is the same on all
//! ranks. An error is kept until the end, and then nothing runs.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cuda_driver_sys::{CUgraphNodeType, CUstream};

use super::collective::Shape;
use super::comm::Comm;
use super::error::{Failure, Result};
use super::library::Library;
use super::p2p::Message;
use super::plan::{Collective, Join, Plan, Side, Step};
use super::rma::{self, OneSided};
use crate::abi::DriverError;
use crate::sched::{self, Signal, panic_text, with_local};
use crate::stream::Stream;
use crate::world::Machine;

/// A queued host call.
pub(crate) type Job = Box<dyn FnOnce() -> Result + Send>;

/// One stream operation of a communicator's plan.
#[derive(Debug)]
pub(crate) enum Operation {
    /// A collective, its send and its receive buffer.
    Collective(Shape, u64, u64),
    Message(Message),
    OneSided(OneSided),
}

/// The calling rank's open group.
#[derive(Default)]
struct Group {
    depth: u32,
    failure: Option<Failure>,
    jobs: BTreeMap<(u64, usize), Vec<Job>>,
    operations: Vec<(Arc<Comm>, Operation, usize)>,
    aborted: Vec<Arc<Comm>>,
}

fn with_group<R>(machine: &Machine, f: impl FnOnce(&mut Group) -> R) -> R {
    with_local(machine.id, f)
}

/// Opens a group, or a nested group.
pub(crate) fn start(machine: &Machine) {
    with_group(machine, |group| group.depth += 1);
}

/// Closes a group; closing the outermost one runs it.
pub(crate) fn end(machine: &Arc<Machine>, library: &Library) -> Result {
    let group = with_group(machine, |group| match group.depth {
        0 => Err(Failure::usage("ncclGroupEnd without ncclGroupStart")),
        1 => Ok(Some(std::mem::take(group))),
        _ => {
            group.depth -= 1;
            Ok(None)
        }
    })?;
    let Some(group) = group else { return Ok(()) };
    for comm in &group.aborted {
        library.remove(comm);
    }
    if let Some(failure) = group.failure {
        return Err(failure);
    }
    run_jobs(machine, group.jobs.into_values().collect())?;
    launch(machine, group.operations)
}

/// Records an error of a queued call in the open group.
pub(crate) fn remember(machine: &Machine, failure: &Failure) {
    with_group(machine, |group| {
        if group.depth > 0 {
            group.failure.get_or_insert_with(|| failure.clone());
        }
    });
}

/// Queues a host call of a communicator, in a group of its own if none is open.
pub(crate) fn add_job(machine: &Arc<Machine>, library: &Library, comm: &Arc<Comm>, job: Job) -> Result {
    let inside = comm.clone();
    let job: Job = Box::new(move || {
        let _inside = Inside::enter(inside);
        job()
    });
    start(machine);
    with_group(machine, |group| group.jobs.entry((comm.id(), comm.handle)).or_default().push(job));
    end(machine, library)
}

/// Counts a host call as inside a communicator.
struct Inside(Arc<Comm>);

impl Inside {
    fn enter(comm: Arc<Comm>) -> Self {
        comm.calls.fetch_add(1, Ordering::SeqCst);
        Self(comm)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.calls.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Queues stream work of a communicator, in a group of its own if none is open.
pub(crate) fn add_operation(
    machine: &Arc<Machine>,
    library: &Library,
    comm: &Arc<Comm>,
    operation: Operation,
    stream: usize,
) -> Result {
    start(machine);
    with_group(machine, |group| group.operations.push((comm.clone(), operation, stream)));
    end(machine, library)
}

/// Removes a communicator when the open group ends; returns false if none is open.
pub(crate) fn forget_at_end(machine: &Machine, comm: &Arc<Comm>) -> bool {
    with_group(machine, |group| {
        if group.depth > 0 {
            group.aborted.push(comm.clone());
        }
        group.depth > 0
    })
}

/// Results of the queues that run concurrently.
#[derive(Default)]
struct Ends {
    results: Mutex<BTreeMap<usize, Result>>,
    signal: Signal,
}

impl Ends {
    fn results(&self) -> MutexGuard<'_, BTreeMap<usize, Result>> {
        self.results.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One of those queues. It reports an end even if it never runs, after its calls are dropped.
struct Lane {
    queue: Vec<Job>,
    ends: Arc<Ends>,
    number: usize,
    result: Result,
}

impl Lane {
    fn run(mut self) {
        let queue = std::mem::take(&mut self.queue);
        let run = || queue.into_iter().try_for_each(|job| job());
        self.result = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
            Err(Failure::internal(format!("a call of a group panicked: {}", panic_text(&*panic))))
        });
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.queue.clear();
        let result = std::mem::replace(&mut self.result, Ok(()));
        self.ends.results().insert(self.number, result);
        self.ends.signal.notify();
    }
}

/// Runs the queues of several communicators concurrently and returns the first error, in their order. It always waits
/// until all have ended, because they write the caller's out parameters.
fn run_jobs(machine: &Arc<Machine>, queues: Vec<Vec<Job>>) -> Result {
    if queues.len() <= 1 {
        return queues.into_iter().flatten().try_for_each(|job| job());
    }
    let count = queues.len();
    let ends = Arc::new(Ends::default());
    for (number, queue) in queues.into_iter().enumerate() {
        let result = Err(Failure::system("the world ended before a call of a group could run"));
        let lane = Lane { queue, ends: ends.clone(), number, result };
        let name = format!("{} of {count} in a group of {}", number + 1, sched::whoami());
        machine.sched.spawn(&machine.devices[0].pool, name.into(), Box::new(move || lane.run()));
    }
    let reason = || format!("the calls of {count} communicators in a group");
    sched::wait_uninterruptible(&ends.signal, reason, || ends.results().len() == count)
        .map_err(|error| Failure::system(error.to_string()))?;
    let results = std::mem::take(&mut *ends.results());
    results.into_values().collect()
}

/// A plan under construction.
struct Draft {
    comm: Arc<Comm>,
    operations: Vec<Operation>,
    streams: Vec<Arc<Stream>>,
}

/// Launches stream work: one plan per communicator.
fn launch(machine: &Arc<Machine>, operations: Vec<(Arc<Comm>, Operation, usize)>) -> Result {
    let mut drafts: Vec<Draft> = Vec::new();
    for (comm, operation, handle) in operations {
        let stream = machine.stream(handle as CUstream).map_err(cuda)?;
        if stream.context.device != comm.device {
            return Err(Failure::cuda(format!(
                "{} is given to {comm}, which is on device {}",
                stream.name, comm.device
            )));
        }
        let at = drafts.iter().position(|draft| Arc::ptr_eq(&draft.comm, &comm)).unwrap_or_else(|| {
            drafts.push(Draft { comm, operations: Vec::new(), streams: Vec::new() });
            drafts.len() - 1
        });
        drafts[at].operations.push(operation);
        if !drafts[at].streams.iter().any(|known| known.id == stream.id) {
            drafts[at].streams.push(stream);
        }
    }
    drafts.sort_by_key(|draft| (draft.comm.id(), draft.comm.rank));
    let streams = || drafts.iter().flat_map(|draft| &draft.streams);
    let capturing = streams().filter(|stream| stream.capturing().is_some()).count();
    if capturing != 0 && capturing != streams().count() {
        return Err(Failure::usage("of the streams of a group some capture and some do not"));
    }
    if capturing != 0 && drafts.iter().any(|draft| draft.streams.len() > 1) {
        return Err(Failure::usage(
            "a captured group with several streams for one communicator is not modelled",
        ));
    }
    let is_one_sided = |operation: &Operation| matches!(operation, Operation::OneSided(_));
    let too_old =
        |draft: &Draft| draft.comm.release < rma::CAPTURED_SINCE && draft.operations.iter().any(is_one_sided);
    if capturing != 0 && drafts.iter().any(too_old) {
        return Err(Failure::usage("one-sided operations in a captured stream, before release 2.30.3"));
    }
    for Draft { comm, operations, streams } in drafts {
        let join = (streams.len() > 1).then(|| Join::new(&comm, streams.len() - 1));
        let plan = Plan::new(&comm, steps(&comm, operations), capturing != 0, join.clone());
        let kind = CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL;
        streams[0].enqueue(machine, kind, Arc::new(plan)).map_err(cuda)?;
        if let Some(join) = join {
            for stream in &streams[1..] {
                stream.enqueue(machine, kind, Arc::new(Side(join.clone()))).map_err(cuda)?;
            }
        }
    }
    Ok(())
}

/// Orders a plan: one-sided operations, then collectives in their order, then all messages together.
fn steps(comm: &Comm, operations: Vec<Operation>) -> Vec<Step> {
    let mut steps = Vec::new();
    let (mut messages, mut one_sided) = (Vec::new(), Vec::new());
    for operation in operations {
        match operation {
            Operation::Collective(shape, send, recv) => {
                steps.push(Step::Collective(Collective::bind(comm, shape, send, recv)));
            }
            Operation::Message(message) => messages.push(message),
            Operation::OneSided(operation) => one_sided.push(operation),
        }
    }
    if !one_sided.is_empty() {
        steps.insert(0, Step::OneSided(one_sided));
    }
    if !messages.is_empty() {
        steps.push(Step::Messages(messages));
    }
    steps
}

/// Converts a driver error to the error that NCCL returns.
pub(crate) fn cuda(refusal: DriverError) -> Failure {
    let why = refusal.why.as_deref().unwrap_or("the context was poisoned by an earlier fault, or is gone");
    Failure::cuda(format!("{:?}: {why}", refusal.code))
}
