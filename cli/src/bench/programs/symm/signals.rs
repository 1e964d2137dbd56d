//! Rendezvous, and signals in graphs of many operations.

use std::time::Duration;

use cuda_driver::{
    Event, EventFlags, Stream, StreamFlags,
    graph::{CaptureMode, GraphExec},
};
use symm_mem::{
    kernels::KernelError,
    rendezvous::{CudaAllocator, PeerAllocator, Rendezvous, SymmetricMemory},
};

use super::rank::Rank;
use crate::bench::programs::support::{Result, timed};

/// Operations of a graph, and launches of it per figure.
const OPERATIONS: usize = 50;
const LAUNCHES: usize = 10;

/// Longer than any signal takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Channels of the barriers and of the signals.
const CHANNELS: [u32; 2] = [0, 1];

pub(crate) struct Signals {
    allocator: CudaAllocator,
    barriers: GraphExec,
    /// Only on ranks 0 and 1.
    signals: Option<GraphExec>,
    begin: Event,
    end: Event,
    stream: Stream,
    /// Declared after the graphs, which use its signal pads, so it is dropped after them.
    _memory: SymmetricMemory,
}

impl Signals {
    pub(crate) fn new(rank: &Rank<'_>, rendezvous: &Rendezvous) -> Result<Self> {
        let allocator = CudaAllocator::new(rank.context)?;
        let memory = rendezvous.rendezvous(&allocator.allocate(4096)?)?;
        let stream = Stream::new(rank.context, StreamFlags::NON_BLOCKING)?;
        let meet = || {
            // SAFETY: the graph lies before the memory.
            unsafe { memory.barrier(&stream, CHANNELS[0], PATIENCE) }
        };
        // One barrier before the capture, because the first loads the kernels.
        meet()?;
        let barriers = graph(&stream, meet)?;
        let exchange = || -> Result<(), KernelError> {
            let peer = 1 - rank.rank;
            // SAFETY: the graph lies before the memory.
            unsafe {
                if rank.rank == 0 {
                    memory.put_signal(&stream, peer, CHANNELS[1], PATIENCE)?;
                }
                memory.wait_signal(&stream, peer, CHANNELS[1], PATIENCE)?;
                if rank.rank == 1 {
                    memory.put_signal(&stream, peer, CHANNELS[1], PATIENCE)?;
                }
            }
            Ok(())
        };
        let signals = if rank.rank < 2 { Some(graph(&stream, exchange)?) } else { None };
        let event = || Event::new(rank.context, EventFlags::default());
        let (begin, end) = (event()?, event()?);
        Ok(Self { allocator, barriers, signals, begin, end, stream, _memory: memory })
    }

    pub(crate) fn round(&self, rank: &Rank<'_>, rendezvous: &Rendezvous) -> Result<()> {
        let memory = self.allocator.allocate(64 << 20)?;
        rank.barrier.wait();
        let (us, symmetric) = timed(|| Ok(rendezvous.rendezvous(&memory)?))?;
        rank.say(|| format!("rendezvous of 64 MiB\tSymmetricMemory\t{:.0}", us * 1e3));
        // All ranks have mapped each other's memory.
        rank.barrier.wait();
        drop(symmetric);

        let ns = self.time(rank, Some(&self.barriers))?;
        rank.say(|| format!("barrier\tSymmetricMemory\t{ns:.1}"));
        // A signal and the reply to it.
        let ns = self.time(rank, self.signals.as_ref())? / 2.0;
        rank.say(|| format!("signal, put to wait\tSymmetricMemory\t{ns:.1}"));
        Ok(())
    }

    /// Returns ns per operation of a graph.
    fn time(&self, rank: &Rank<'_>, graph: Option<&GraphExec>) -> Result<f64> {
        let launches = if rank.embedded { 1 } else { LAUNCHES };
        let Some(graph) = graph else {
            rank.barrier.wait();
            return Ok(0.0);
        };
        // In the first launch, one rank waits for the other, so it is not timed.
        self.stream.launch(graph)?;
        rank.barrier.wait();
        self.stream.record(&self.begin)?;
        (0..launches).try_for_each(|_| self.stream.launch(graph))?;
        self.stream.record(&self.end)?;
        self.stream.synchronize()?;
        Ok(self.end.elapsed_us(&self.begin)? * 1e3 / (launches * OPERATIONS) as f64)
    }
}

fn graph(stream: &Stream, operation: impl Fn() -> Result<(), KernelError>) -> Result<GraphExec> {
    let capture = stream.begin_capture(CaptureMode::ThreadLocal)?;
    (0..OPERATIONS).try_for_each(|_| operation())?;
    Ok(capture.end()?.instantiate()?)
}
