//! One round of a case: every rank, from its creation to its end.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use cuda_driver::memory::DeviceMemory;
use cuda_driver::vmm::{Access, HandleTypes, Mapping, PhysicalMemory, Reservation};
use cuda_driver::{Context, Stream, StreamFlags};
use process_group::ProcessGroup;
use process_group::comm::{
    AbortHandle, CommError, Communicator, Config, DataType, Group, Nccl, ReduceOp, ShrinkMode, UniqueId,
    WindowFacts, WindowRequest, wait_for_dropped,
};
use process_group::group::Buffer;
use process_group::store::{Deadline, HashStore};
use rustix::process::{Signal, getpid, kill_process};

use super::Case;
use lockstep_cli::explain;

/// Longer than any step takes, unless it hangs.
pub(super) const FAR: Duration = Duration::from_secs(30);

/// Time limit of a round. Within it every wait with a deadline has ended; waits without one may remain, such as for
/// stream work that was not aborted or for a call that never returns.
pub(super) const HUNG: Duration = Duration::from_secs(120);

/// Communicators with work in flight that are aborted together.
const TOGETHER: usize = 8;

/// One round of a case.
pub(super) struct Round<'a> {
    pub(super) case: Case,
    /// Name for errors.
    pub(super) name: &'a str,
    pub(super) contexts: &'a [Context],
    pub(super) nccl: &'a Nccl,
    /// The id, for cases that create one communicator.
    pub(super) id: Option<UniqueId>,
    /// Time that a call gets to block.
    pub(super) pause: Duration,
}

/// State that the ranks of a round share.
struct Table {
    store: Arc<HashStore>,
    /// Barrier after the end of the ranks that are aborted first.
    over: Barrier,
    /// Current step of each rank.
    steps: Vec<Mutex<&'static str>>,
}

impl Round<'_> {
    /// Runs the round. Returns the time of each rank's abort, with the call that it ended. Ends the process if the
    /// round does not end.
    pub(super) fn run(&self) -> Result<Vec<Duration>> {
        let size = self.contexts.len();
        let steps = (0..size).map(|_| Mutex::new("begin")).collect();
        let table = Table { store: Arc::default(), over: Barrier::new(size), steps };
        let (told, heard) = mpsc::channel();
        thread::scope(|scope| {
            for rank in 0..size {
                let (told, table) = (told.clone(), &table);
                // The receiver goes away only when the process ends.
                scope.spawn(move || drop(told.send(self.rank(rank, table))));
            }
            drop(told);
            let hung = Deadline::after(HUNG);
            let mut times = Vec::new();
            let mut failure = None;
            for _ in 0..size {
                match heard.recv_timeout(hung.remaining()) {
                    Ok(Ok(took)) => times.extend(took),
                    Ok(Err(error)) => failure = failure.or(Some(error)),
                    // The scope reports the panic.
                    Err(RecvTimeoutError::Disconnected) => break,
                    Err(RecvTimeoutError::Timeout) => self.give_up(&table),
                }
            }
            failure.map_or(Ok(times), Err)
        })
    }

    fn give_up(&self, table: &Table) -> ! {
        let step = |(rank, step): (usize, &Mutex<&str>)| {
            format!("\n  rank {rank}: {}", step.lock().unwrap_or_else(PoisonError::into_inner))
        };
        let steps: String = table.steps.iter().enumerate().map(step).collect();
        hung(&format!("{}{steps}", self.name))
    }

    fn rank(&self, rank: usize, table: &Table) -> Result<Option<Duration>> {
        let seat = Seat { round: self, rank, context: &self.contexts[rank], table, over: Over(table) };
        let absent = rank + 1 == self.contexts.len();
        let ended = match self.case {
            Case::Flight => seat.flight(absent),
            Case::Init => seat.init(absent),
            Case::Wait | Case::Barrier | Case::Meeting => seat.group(absent),
            _ => seat.communicator(absent),
        };
        table.say(rank, "over");
        ended.with_context(|| format!("rank {rank}"))
    }
}

/// Ends the process by a signal, because threads that never return prevent a normal exit.
pub(super) fn hung(what: &str) -> ! {
    eprintln!("error: not over after {} s: {what}", HUNG.as_secs());
    loop {
        // SIGKILL runs no exit handlers of libraries, which may wait for the hanging work.
        let _ = kill_process(getpid(), Signal::KILL);
    }
}

impl Table {
    fn say(&self, rank: usize, step: &'static str) {
        *self.steps[rank].lock().unwrap_or_else(PoisonError::into_inner) = step;
    }
}

/// Meets the other ranks once on drop, so that no rank waits for one that failed.
struct Over<'a>(&'a Table);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.over.wait();
    }
}

/// One rank of a round.
struct Seat<'a> {
    round: &'a Round<'a>,
    rank: usize,
    context: &'a Context,
    table: &'a Table,
    over: Over<'a>,
}

impl Seat<'_> {
    fn far() -> Deadline {
        Deadline::after(FAR)
    }

    /// Records the rank's current step.
    fn step(&self, step: &'static str) {
        self.table.say(self.rank, step);
    }

    fn config(&self) -> Config {
        let mut config = Config::new().name("soak");
        config.window_facts =
            WindowFacts { one_host: Some(true), peer_access: Some(true), ..WindowFacts::default() };
        config
    }

    fn join(&self, deadline: Deadline) -> Result<Communicator> {
        let id = self.round.id.context("a case of groups")?;
        self.join_with(&id, deadline)
    }

    fn join_with(&self, id: &UniqueId, deadline: Deadline) -> Result<Communicator> {
        self.step("making a communicator");
        let Round { nccl, contexts, .. } = self.round;
        let size = contexts.len();
        Ok(Communicator::init(nccl, self.context, id, self.rank, size, &self.config(), deadline)?)
    }

    /// Gives a call the time to block.
    fn settle(&self) {
        thread::sleep(self.round.pause);
    }

    fn stream(&self) -> Result<Stream> {
        Ok(Stream::new(self.context, StreamFlags::NON_BLOCKING)?)
    }

    /// Waits for the others, and aborts the remaining communicators; afterwards no work of the rank is on the device.
    fn end(
        self,
        handles: &[AbortHandle],
        streams: &[&Stream],
        took: Option<Duration>,
    ) -> Result<Option<Duration>> {
        let Self { table, rank, over, .. } = self;
        table.say(rank, "waiting for the others");
        drop(over);
        table.say(rank, "aborting");
        let began = Instant::now();
        aborted(handles)?;
        let took = took.unwrap_or_else(|| began.elapsed());
        // Aborted work may leave an error on the stream, which does not matter once it is off the device.
        table.say(rank, "waiting for its streams");
        streams.iter().for_each(|stream| drop(stream.synchronize()));
        Ok(Some(took))
    }

    /// Eight communicators with work that waits for the absent rank.
    fn flight(self, absent: bool) -> Result<Option<Duration>> {
        let first = self.join(Self::far())?;
        let mut communicators = vec![first];
        for number in 1..TOGETHER {
            let id = self.share(&format!("id/{number}"))?;
            communicators.push(self.join_with(&id, Self::far())?);
        }
        let handles: Vec<_> = communicators.iter().map(Communicator::abort_handle).collect();
        let streams = communicators.iter().map(|_| self.stream()).collect::<Result<Vec<_>>>()?;
        let memory = DeviceMemory::new(self.context, 4096)?;
        for (communicator, stream) in communicators.iter().zip(&streams) {
            self.connect(|| all_reduce(communicator, &memory, stream), stream)?;
        }
        let mut took = None;
        if !absent {
            self.step("enqueueing");
            for (communicator, stream) in communicators.iter().zip(&streams) {
                all_reduce(communicator, &memory, stream)?;
            }
            self.settle();
            self.step("aborting");
            let began = Instant::now();
            aborted(&handles)?;
            took = Some(began.elapsed());
        }
        let streams: Vec<_> = streams.iter().collect();
        self.end(&handles, &streams, took)
    }

    /// Makes the first call together with the absent rank: in some releases ranks wait in it, on the host, until all
    /// have called.
    fn connect<E: std::error::Error + Send + Sync + 'static>(
        &self,
        call: impl FnOnce() -> Result<(), E>,
        stream: &Stream,
    ) -> Result<()> {
        self.step("connecting");
        call()?;
        Ok(stream.synchronize()?)
    }

    /// Returns a unique id that rank 0 creates.
    fn share(&self, key: &str) -> Result<UniqueId> {
        use process_group::store::Store as _;
        if self.rank == 0 {
            self.table.store.set(key, self.round.nccl.unique_id()?.as_bytes())?;
        }
        Ok(UniqueId::try_from(&self.table.store.get(key, Self::far())?[..])?)
    }

    /// Init while the absent rank never joins.
    fn init(self, absent: bool) -> Result<Option<Duration>> {
        if absent {
            return Ok(None);
        }
        let patience = self.round.pause;
        let began = Instant::now();
        let made = self.join(Deadline::after(patience));
        ensure!(made.is_err(), "a communicator was made without one of its ranks");
        self.step("waiting for the abort in the background");
        ensure!(wait_for_dropped(Self::far()), "it is not aborted");
        Ok(Some(began.elapsed().saturating_sub(patience)))
    }

    /// Cases with one communicator and a call on it.
    fn communicator(self, absent: bool) -> Result<Option<Duration>> {
        let communicator = self.join(Self::far())?;
        let handles = [communicator.abort_handle()];
        let stream = self.stream()?;
        let memory = DeviceMemory::new(self.context, 4096)?;
        let segment = if self.round.case == Case::Window { Some(segment(self.context)?) } else { None };
        if self.round.case == Case::Destroy {
            self.connect(|| all_reduce(&communicator, &memory, &stream), &stream)?;
        }
        if absent {
            return self.end(&handles, &[&stream], None);
        }
        let peer = self.round.contexts.len() - 1;
        let split = |communicator: &Communicator| {
            communicator.split(Some(0), 0, &self.config(), Self::far()).map(drop)
        };
        let message = |communicator: &Communicator| {
            // SAFETY: the memory holds as many elements, and outlives the work, whose end is forced.
            unsafe { communicator.send(memory.ptr(), 1024, DataType::F32, peer, &stream) }
        };
        let case = self.round.case;
        let took = match case {
            Case::Split => self.under(&handles, true, || split(&communicator)),
            Case::Shrink => {
                // Each rank excludes the lowest other one and waits for the absent rank; of two, it shrinks alone.
                let survivors: Vec<_> = (0..=peer).filter(|rank| *rank != self.rank).collect();
                let excluded = &survivors[..1];
                self.under(&handles, self.round.contexts.len() > 2, || {
                    let (mode, config) = (ShrinkMode::Orderly, self.config());
                    communicator.shrink(excluded, mode, &config, Self::far()).map(drop)
                })
            }
            Case::Window => {
                let segment = segment.as_ref().context("a window needs memory")?;
                let request = WindowRequest::symmetric(segment.ptr(), segment.bytes());
                self.under(&handles, true, || {
                    // SAFETY: the segment is mapped until the communicator is gone.
                    let made = unsafe { communicator.register_windows(&[request], Self::far()) };
                    made.map(drop)
                })
            }
            Case::Destroy => {
                all_reduce(&communicator, &memory, &stream)?;
                self.under(&handles, false, || communicator.destroy(Self::far()))
            }
            Case::Message => self.under(&handles, false, || message(&communicator)),
            Case::GroupEnd => self.under(&handles, false, || {
                let group = Group::begin(self.round.nccl)?;
                let sent = message(&communicator);
                // The group is always ended: dropping it would lose its error.
                sent.and(group.finish())
            }),
            _ => thread::scope(|scope| {
                let inside = scope.spawn(|| split(&communicator));
                let took = self.under(&handles, false, || all_reduce(&communicator, &memory, &stream));
                ensure!(matches!(inside.join(), Ok(Err(_))), "a split without one of its ranks");
                took
            }),
        }?;
        self.end(&handles, &[&stream], Some(took))
    }

    /// Cases with a process group.
    fn group(self, absent: bool) -> Result<Option<Duration>> {
        let Round { nccl, contexts, case, .. } = self.round;
        self.step("making a group");
        let builder = ProcessGroup::builder()
            .store(self.table.store.clone())
            .rank(self.rank)
            .world_size(contexts.len());
        let group = builder.context(self.context).nccl(nccl).timeout(FAR).build()?;
        let handles = [group.abort_handle()];
        let stream = self.stream()?;
        let memory = DeviceMemory::new(self.context, 4096)?;
        let buffer = Buffer::new(memory.ptr(), 1024, DataType::F32);
        // SAFETY: the memory holds as many elements, and outlives the work, whose end is forced.
        let reduce = || unsafe { group.raw().all_reduce(buffer, buffer, ReduceOp::Sum, &stream) };
        if *case == Case::Wait {
            self.connect(|| reduce().map(drop), &stream)?;
        }
        if absent {
            return self.end(&handles, &[&stream], None);
        }
        let took = match case {
            // Another rank may have ended the group before this one enqueues.
            Case::Wait => self.under(&handles, true, || reduce()?.wait_until(Self::far())),
            Case::Barrier => self.under(&handles, true, || group.barrier(Self::far())),
            _ => self.under(&handles, true, || {
                let request = process_group::group::Request::Color { color: Some(0), key: 0 };
                group.split_with("half", &request, self.config(), Self::far()).map(drop)
            }),
        }?;
        self.end(&handles, &[&stream], Some(took))
    }

    /// Aborts while another thread is in `call`, which must fail if `fails`. Returns when both are over.
    fn under<E: std::error::Error + Send + Sync + 'static>(
        &self,
        handles: &[AbortHandle],
        fails: bool,
        call: impl FnOnce() -> Result<(), E> + Send,
    ) -> Result<Duration> {
        thread::scope(|scope| {
            let inside = scope.spawn(call);
            self.step("in the call");
            self.settle();
            self.step("aborting");
            let began = Instant::now();
            aborted(handles)?;
            self.step("waiting for the call's end");
            let ended = inside.join().map_err(|_| anyhow!("the call panicked"))?;
            let took = began.elapsed();
            ensure!(!fails || ended.is_err(), "the call succeeded without one of its ranks");
            Ok(took)
        })
    }
}

/// Aborts communicators; fails if one was leaked.
fn aborted(handles: &[AbortHandle]) -> Result<()> {
    for result in AbortHandle::abort_together(handles, Deadline::after(FAR)) {
        result.map_err(|error| anyhow!("the abort: {}", explain(&error.into())))?;
    }
    Ok(())
}

fn all_reduce(communicator: &Communicator, memory: &DeviceMemory, stream: &Stream) -> Result<(), CommError> {
    let at = memory.ptr();
    // SAFETY: the memory holds as many elements, and outlives the work, whose end is forced.
    unsafe { communicator.all_reduce(at, at, 1024, DataType::F32, ReduceOp::Sum, stream) }
}

/// Memory that can be registered as a window.
pub(super) fn segment(context: &Context) -> Result<Mapping> {
    const BYTES: usize = 2 << 20;
    let physical = PhysicalMemory::create(context, BYTES, HandleTypes::POSIX_FD)?;
    let reservation = Reservation::new(context.driver(), BYTES, BYTES)?;
    let mapping = reservation.map(0, &physical, 0, BYTES)?;
    mapping.set_access(&[(context.device(), Access::ReadWrite)])?;
    Ok(mapping)
}
