//! The work of one launch: the operations that a group queued on one communicator, as one piece of stream work.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};

use super::collective::{self, Factor, Kind, Shape};
use super::comm::Comm;
use super::error::{Failure, Interrupted};
use super::p2p::{self, Direction, Message};
use super::rma::{self, OneSided};
use super::shm::{CARD_WORDS, Plane, RankMessage};
use super::ticket::Ticket;
use super::transport::find_minority;
use crate::fault::Fault;
use crate::memory::{Access, View};
use crate::sched;
use crate::stream::{Exec, Launched, Work};

/// One `ncclAllReduce` or other collective, with its buffers.
#[derive(Clone, Debug)]
pub(crate) struct Collective {
    pub(crate) shape: Shape,
    pub(crate) send: u64,
    pub(crate) recv: u64,
    binding: Binding,
}

/// Registration of the call's buffers, looked up when it is enqueued. It must be equal on all ranks.
#[derive(Clone, Copy, Debug, Default)]
struct Binding {
    /// Bit 0: the send buffer; bit 1: the receive buffer.
    registered: u64,
    /// Window number from 1, and offset, of the send and the receive buffer; zeros for none.
    windows: [u64; 4],
}

impl Collective {
    /// Looks up the current registrations of the buffers. Windows registered in the same group exist already.
    pub(crate) fn bind(comm: &Comm, shape: Shape, send: u64, recv: u64) -> Self {
        let lengths = shape.lengths(comm.rank, comm.size);
        // The buffers whose registration decides the path, by kind.
        let (sends, receives) = match shape.kind {
            Kind::AllReduce => (true, true),
            Kind::ReduceScatter => (true, false),
            Kind::AllGather => (false, true),
            _ => (false, false),
        };
        let registrations = comm.registrations.lock().unwrap_or_else(PoisonError::into_inner);
        let registered = |wanted: bool, address, len: usize| {
            u64::from(wanted && registrations.contains(address, len as u64))
        };
        let windows = comm.windows.lock().unwrap_or_else(PoisonError::into_inner);
        let window = |wanted: bool, address| if wanted { windows.find(address) } else { (0, 0) };
        let (from, to) = (window(sends, send), window(receives, recv));
        let binding = Binding {
            registered: registered(sends, send, lengths.0) | registered(receives, recv, lengths.1) << 1,
            windows: [from.0, from.1, to.0, to.1],
        };
        Self { shape, send, recv, binding }
    }

    /// True if a window that the call was bound to is gone, because a graph outlived it.
    fn is_stale(&self, comm: &Comm) -> bool {
        let windows = comm.windows.lock().unwrap_or_else(PoisonError::into_inner);
        [self.binding.windows[0], self.binding.windows[2]]
            .into_iter()
            .any(|number| number != 0 && !windows.is_live(number))
    }
}

/// One step of a plan.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Collective(Collective),
    /// Messages that progress together.
    Messages(Vec<Message>),
    /// Operations that run one after the other.
    OneSided(Vec<OneSided>),
}

/// The work of one communicator in one launch.
#[derive(Debug)]
pub(crate) struct Plan {
    comm: Arc<Comm>,
    steps: Arc<Vec<Step>>,
    captured: bool,
    join: Option<Arc<Join>>,
}

impl Plan {
    pub(crate) fn new(comm: &Arc<Comm>, steps: Vec<Step>, captured: bool, join: Option<Arc<Join>>) -> Self {
        if captured {
            comm.graphs.fetch_add(1, Ordering::SeqCst);
        }
        Self { comm: comm.clone(), steps: Arc::new(steps), captured, join }
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        if self.captured {
            self.comm.graphs.fetch_sub(1, Ordering::SeqCst);
            self.comm.signal().notify();
        }
    }
}

impl Work for Plan {
    fn describe(&self) -> String {
        match &self.steps[..] {
            [Step::Collective(one)] => format!("{} on {}", one.shape, self.comm),
            [Step::OneSided(all)] => format!("{} one-sided operations on {}", all.len(), self.comm),
            [Step::Messages(all)] => format!("{} sends and receives on {}", all.len(), self.comm),
            steps => format!("{} grouped steps on {}", steps.len(), self.comm),
        }
    }

    fn launch(&self) -> Launched {
        let mut ticket = Ticket::take(&self.comm);
        let (comm, steps, captured) = (self.comm.clone(), self.steps.clone(), self.captured);
        let targets = match steps.first() {
            Some(Step::OneSided(operations)) => rma::targets(&comm, operations, captured),
            _ => Vec::new(),
        };
        let join = self.join.clone().map(Lead);
        Box::new(move |exec| {
            let result = ticket
                .wait()
                .and_then(|()| join.as_ref().map_or(Ok(()), |join| join.0.wait_for_streams()))
                .map_err(Stop::from)
                .and_then(|()| steps.iter().try_for_each(|step| run(&comm, exec, step, &targets, captured)));
            let ended = end(&comm, result);
            drop(join);
            drop(ticket);
            ended
        })
    }
}

/// Why a plan stops before its end.
enum Stop {
    Interrupted(Interrupted),
    Fault(Fault),
}

impl From<Interrupted> for Stop {
    fn from(interrupted: Interrupted) -> Self {
        Self::Interrupted(interrupted)
    }
}

/// Maps a plan's result to the stream's: only a fault of this rank's device, or the end of the world, stops the
/// stream.
fn end(comm: &Comm, result: Result<(), Stop>) -> Result<(), Fault> {
    match result {
        Ok(()) | Err(Stop::Interrupted(Interrupted::Aborted | Interrupted::Revoked)) => Ok(()),
        Err(Stop::Interrupted(Interrupted::World(error))) => {
            comm.fail(&Failure::system(error.to_string()));
            Err(error.into())
        }
        Err(Stop::Interrupted(other)) => {
            comm.fail(&other.into());
            Ok(())
        }
        Err(Stop::Fault(fault)) => {
            comm.fail(&Failure::cuda(fault.to_string()));
            comm.report_fault();
            Err(fault)
        }
    }
}

fn run(comm: &Comm, exec: &Exec, step: &Step, targets: &[u64], captured: bool) -> Result<(), Stop> {
    if let Some(interrupted) = comm.interruption(Plane::Stream) {
        return Err(interrupted.into());
    }
    if comm.is_suspended() {
        // The VA ranges of its buffers stay reserved, so a kernel of a graph accesses unmapped memory.
        return Err(Stop::Fault(Fault::Trap(format!("a graph's kernel runs while {comm} is suspended"))));
    }
    let view = |address, len: usize, access| exec.view(address, len as u64, access).map_err(Stop::Fault);
    match step {
        Step::Collective(one) => {
            let (send, recv) = one.shape.lengths(comm.rank, comm.size);
            let (send, recv) = (view(one.send, send, Access::READ)?, view(one.recv, recv, Access::WRITE)?);
            let factor = match one.shape.factor {
                Some(Factor::At(address)) => {
                    let mut factor = [0; 8];
                    let len = one.shape.element.size();
                    view(address, len, Access::READ)?.read(0, &mut factor[..len]);
                    Some(u64::from_ne_bytes(factor))
                }
                Some(Factor::Value(factor)) => Some(factor),
                None => None,
            };
            collective(comm, one, factor, &send, &recv)?;
        }
        Step::OneSided(operations) => {
            let local = |operation: &OneSided| {
                let (address, len) = operation.local();
                view(address, len, Access::READ)
            };
            let views: Vec<View> = operations.iter().map(local).collect::<Result<_, _>>()?;
            if let Some(failure) = rma::run(comm, operations, &views, targets, captured)? {
                comm.fail(&failure);
            }
        }
        Step::Messages(messages) => {
            let views: Vec<View> = messages
                .iter()
                .map(|message| {
                    let access = match message.direction {
                        Direction::Send => Access::READ,
                        Direction::Recv => Access::WRITE,
                    };
                    view(message.buffer, message.bytes(), access)
                })
                .collect::<Result<_, _>>()?;
            p2p::run(comm, messages, &views)?;
        }
    }
    Ok(())
}

const SHAPE: Range<usize> = 1..6;
const REGISTERED: usize = 6;
const WINDOWS: Range<usize> = 7..11;
const STALE: usize = 11;

/// Compares the ranks' calls, then runs the collective.
fn collective(
    comm: &Comm,
    one: &Collective,
    factor: Option<u64>,
    send: &View,
    recv: &View,
) -> Result<(), Interrupted> {
    let number = comm.collectives.fetch_add(1, Ordering::SeqCst);
    if comm.size > 1 {
        let mut card: RankMessage = [0; CARD_WORDS];
        card[0] = number;
        card[SHAPE].copy_from_slice(&one.shape.words());
        card[REGISTERED] = one.binding.registered;
        card[WINDOWS].copy_from_slice(&one.binding.windows);
        card[STALE] = u64::from(one.is_stale(comm));
        let cards = comm.exchange(Plane::Stream, one.shape.kind.name(), &card)?;
        if let Some(text) = divergence(&cards) {
            let text = format!("collective {number} of communicator {:08x}: {text}", comm.id() as u32);
            if !comm.strict {
                return Err(comm.hang(Plane::Stream, &text));
            }
            comm.fail(&Failure::usage(text));
            return Ok(());
        }
    }
    collective::run(comm, &one.shape, factor, send, recv)
}

/// Describes the first difference between the ranks' calls, if there is one.
fn divergence(cards: &[RankMessage]) -> Option<String> {
    if let Some(rank) = cards.iter().position(|card| card[STALE] != 0) {
        return Some(format!(
            "rank {rank} runs work whose window was deregistered after it was enqueued or captured"
        ));
    }
    let (odd, usual) = find_minority(cards)?;
    let (a, b) = (&cards[odd], &cards[usual]);
    let both = |odd_says: String, usual_says: String| {
        Some(format!("rank {odd} {odd_says}, while rank {usual} {usual_says}"))
    };
    if a[SHAPE] != b[SHAPE] {
        let calls = |card: &RankMessage| {
            let mut words = [0; 5];
            words.copy_from_slice(&card[SHAPE]);
            format!("calls {}", Shape::describe(&words))
        };
        return both(calls(a), calls(b));
    }
    if a[WINDOWS] != b[WINDOWS] {
        let place = |number: u64, offset: u64| match number {
            0 => "no window".to_owned(),
            _ => format!("window {} at {offset:#x}", number - 1),
        };
        let has = |card: &RankMessage| {
            let w = &card[WINDOWS];
            format!("sends from {} and receives in {}", place(w[0], w[1]), place(w[2], w[3]))
        };
        return both(has(a), has(b));
    }
    if a[REGISTERED] != b[REGISTERED] {
        let has = |card: &RankMessage| {
            let one = |bit: u64| if card[REGISTERED] & bit != 0 { "registered" } else { "unregistered" };
            format!("has its send buffer {} and its receive buffer {}", one(1), one(2))
        };
        return both(has(a), has(b));
    }
    both(format!("is at its collective {}", a[0]), format!("is at {}", b[0]))
}

/// Joins several streams of one group: the plan begins when all have reached it, and they continue when it is done.
#[derive(Debug)]
pub(crate) struct Join {
    comm: Arc<Comm>,
    streams: usize,
    arrived: AtomicUsize,
    done: AtomicBool,
}

impl Join {
    /// Joins the plan's stream with `streams` others.
    pub(crate) fn new(comm: &Arc<Comm>, streams: usize) -> Arc<Self> {
        let (arrived, done) = (AtomicUsize::new(0), AtomicBool::new(false));
        Arc::new(Self { comm: comm.clone(), streams, arrived, done })
    }

    fn wait_for_streams(&self) -> Result<(), Interrupted> {
        self.comm.wait(
            Plane::Stream,
            || format!("{} other streams of a group on {}", self.streams, self.comm),
            || self.arrived.load(Ordering::SeqCst) == self.streams,
        )
    }
}

/// The plan's guard on the join: dropping it lets the other streams continue, however the plan ends.
struct Lead(Arc<Join>);

impl Drop for Lead {
    fn drop(&mut self) {
        self.0.done.store(true, Ordering::SeqCst);
        self.0.comm.signal().notify();
    }
}

/// Work of another stream of the group: arrive, and wait for the plan.
#[derive(Debug)]
pub(crate) struct Side(pub(crate) Arc<Join>);

impl Work for Side {
    fn describe(&self) -> String {
        format!("a stream of a group that joins another, on {}", self.0.comm)
    }

    fn launch(&self) -> Launched {
        let arrival = Arrival(self.0.clone());
        Box::new(move |_| {
            let join = arrival.0.clone();
            drop(arrival);
            let reason = || format!("the group's work on another stream, on {}", join.comm);
            Ok(sched::wait(join.comm.signal(), reason, None, || join.done.load(Ordering::SeqCst))?)
        })
    }
}

/// Guard that counts a stream as arrived, also when its work is dropped unrun.
struct Arrival(Arc<Join>);

impl Drop for Arrival {
    fn drop(&mut self) {
        self.0.arrived.fetch_add(1, Ordering::SeqCst);
        self.0.comm.signal().notify();
    }
}
