//! The same calls through each layer: 2,000 all-reduces of 8 bytes.

use std::{
    cell::{Cell, RefCell},
    ffi::c_void,
};

use cuda_driver::{
    DevicePtr, DeviceSlice, Event, EventFlags, Stream, StreamFlags,
    graph::{CaptureMode, GraphExec},
    memory::DeviceMemory,
};
use nccl_sys::{cudaStream_t, ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclResult_t, ncclScalarResidence_t};
use process_group::{
    ProcessGroup,
    comm::{Communicator, DataType, ReduceOp},
    group::Buffer,
};

use super::rank::{Rank, check};
use crate::bench::programs::support::{Result, timed};

/// Calls of a round.
const CALLS: usize = 2000;
/// Calls that are timed together and then waited for: few enough that no call waits for room in the stream.
const BURST: usize = 20;
/// Calls of a graph.
const GRAPH: usize = 50;
/// Events used in turn: so many that each has completed long before it is used again.
const EVENTS: usize = 1024;

/// A layer that makes the calls with addresses.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Contender {
    Raw,
    /// The minimum for a caller that later queries completion: an event record after the call.
    RawAndEvent,
    Communicator,
    /// Creates a work for each call, which is dropped.
    ProcessGroup,
}

pub(crate) const CONTENDERS: [Contender; 4] =
    [Contender::Raw, Contender::RawAndEvent, Contender::Communicator, Contender::ProcessGroup];

impl Contender {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Raw => "ncclAllReduce",
            Self::RawAndEvent => "ncclAllReduce and an event",
            Self::Communicator => "Communicator",
            Self::ProcessGroup => "ProcessGroup",
        }
    }
}

/// Contenders whose calls are timed.
#[derive(Clone, Copy)]
pub(crate) enum Timed {
    Addresses(Contender),
    /// The safe method of the process group, with a slice.
    Slice,
}

pub(crate) const TIMED: [Timed; CONTENDERS.len() + 1] = [
    Timed::Addresses(Contender::Raw),
    Timed::Addresses(Contender::RawAndEvent),
    Timed::Addresses(Contender::Communicator),
    Timed::Addresses(Contender::ProcessGroup),
    Timed::Slice,
];

impl Timed {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Addresses(contender) => contender.name(),
            Self::Slice => "ProcessGroup, slice",
        }
    }
}

/// Ways of making the calls.
pub(crate) enum Case {
    /// Host time of all calls, one after the other.
    Loop,
    /// Host time of bursts, without the waits between them.
    Bursts,
    /// Time until graphs of the calls are done; one graph for each of [`TIMED`].
    Graphs(Vec<GraphExec>),
}

impl Case {
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Loop => "loop of 2000",
            Self::Bursts => "bursts of 20",
            Self::Graphs(_) => "graphs of 50",
        }
    }
}

/// NCCL's function, looked up once, like in a program that links it.
type AllReduce = unsafe extern "C" fn(
    *const c_void,
    *mut c_void,
    usize,
    ncclDataType_t,
    ncclRedOp_t,
    ncclComm_t,
    cudaStream_t,
) -> ncclResult_t;

/// The calls of one rank on one communicator.
pub(crate) struct Calls<'a> {
    rank: &'a Rank<'a>,
    world: &'a ProcessGroup,
    communicator: &'a Communicator,
    raw: AllReduce,
    pub(crate) stream: Stream,
    memory: DeviceMemory,
    slice: RefCell<DeviceSlice<f32>>,
    events: Vec<Event>,
    next: Cell<usize>,
}

/// Elements, type and operator of a reduction: in our types, and in NCCL's.
#[derive(Clone, Copy)]
pub(crate) struct Reduction {
    pub(crate) elements: usize,
    pub(crate) dtype: (DataType, ncclDataType_t),
    pub(crate) op: (ReduceOp, ncclRedOp_t),
}

const EIGHT_BYTES: Reduction = Reduction {
    elements: 2,
    dtype: (DataType::F32, ncclDataType_t::ncclFloat32),
    op: (ReduceOp::Sum, ncclRedOp_t::ncclSum),
};

impl<'a> Calls<'a> {
    pub(crate) fn new(rank: &'a Rank<'a>, world: &'a ProcessGroup) -> Result<Self> {
        let memory = DeviceMemory::new(rank.context, 8)?;
        // Sums of zeros stay zero.
        memory.copy_from_host(0, &[0f32; 2])?;
        let event = |_| Event::new(rank.context, EventFlags::DISABLE_TIMING);
        let stream = Stream::new(rank.context, StreamFlags::NON_BLOCKING)?;
        let slice = RefCell::new(stream.alloc_zeros(EIGHT_BYTES.elements)?);
        Ok(Self {
            rank,
            world,
            communicator: world.communicator(),
            raw: rank.nccl().api().ncclAllReduce()?,
            stream,
            memory,
            slice,
            events: (0..EVENTS).map(event).collect::<Result<_, _>>()?,
            next: Cell::new(0),
        })
    }

    /// # Safety
    /// Both addresses have as many elements as are reduced, until the stream has passed the call.
    #[inline]
    pub(crate) unsafe fn all_reduce(
        &self,
        contender: Contender,
        (from, to): (DevicePtr, DevicePtr),
        Reduction { elements, dtype, op }: Reduction,
    ) -> Result<()> {
        let Self { world, communicator, stream, .. } = self;
        let raw = || {
            let (from, to) = (from.0 as *const c_void, to.0 as *mut c_void);
            let (comm, stream) = (communicator.raw(), stream.raw().cast());
            // SAFETY: the caller's contract; this thread alone uses the communicator.
            check(unsafe { (self.raw)(from, to, elements, dtype.1, op.1, comm, stream) }, "ncclAllReduce")
        };
        // SAFETY: as above.
        unsafe {
            match contender {
                Contender::Raw => raw(),
                Contender::RawAndEvent => {
                    raw()?;
                    let next = self.next.replace((self.next.get() + 1) % EVENTS);
                    Ok(stream.record(&self.events[next])?)
                }
                Contender::Communicator => {
                    Ok(communicator.all_reduce(from, to, elements, dtype.0, op.0, stream)?)
                }
                Contender::ProcessGroup => {
                    let buffer = |at| Buffer::new(at, elements, dtype.0);
                    let work = world.raw().all_reduce(buffer(from), buffer(to), op.0, stream)?;
                    drop(work);
                    Ok(())
                }
            }
        }
    }

    /// Creates NCCL's operator for sums of elements multiplied by a factor, given by its bits. It must be
    /// [destroyed](Self::forget).
    pub(crate) fn premultiplied(&self, dtype: ncclDataType_t, mut factor: u64) -> Result<ncclRedOp_t> {
        let (mut op, scalar, comm) =
            (ncclRedOp_t::ncclSum, (&raw mut factor).cast(), self.communicator.raw());
        let on_host = ncclScalarResidence_t::ncclScalarHostImmediate;
        // SAFETY: reads one element of a local, whose first bytes are the factor's, and writes one number, to a local;
        // this thread alone uses the communicator.
        unsafe { self.rank.nccl().api().red_op_create_pre_mul_sum(&mut op, scalar, dtype, on_host, comm) }?;
        Ok(op)
    }

    pub(crate) fn forget(&self, op: ncclRedOp_t) -> Result<()> {
        // SAFETY: made of this communicator, and destroyed once.
        Ok(unsafe { self.rank.nccl().api().red_op_destroy(op, self.communicator.raw()) }?)
    }

    /// `count` calls of 8 bytes.
    fn calls(&self, contender: Timed, count: usize) -> Result<()> {
        match contender {
            Timed::Addresses(layer) => {
                let place = (self.memory.ptr(), self.memory.ptr());
                // SAFETY: the memory is 8 bytes, and goes when the stream has been waited for.
                (0..count).try_for_each(|_| unsafe { self.all_reduce(layer, place, EIGHT_BYTES) })
            }
            Timed::Slice => {
                let mut slice = self.slice.borrow_mut();
                (0..count).try_for_each(|_| {
                    drop(self.world.all_reduce(&mut *slice, EIGHT_BYTES.op.0)?);
                    Ok(())
                })
            }
        }
    }

    /// Captures the work that `enqueue` enqueues into a graph.
    pub(crate) fn capture(&self, enqueue: impl FnOnce() -> Result<()>) -> Result<GraphExec> {
        let capture = self.stream.begin_capture(CaptureMode::ThreadLocal)?;
        enqueue()?;
        Ok(capture.end()?.instantiate()?)
    }

    pub(crate) fn cases(&self) -> Result<[Case; 3]> {
        let graph = |contender| self.capture(|| self.calls(contender, GRAPH));
        Ok([Case::Loop, Case::Bursts, Case::Graphs(TIMED.into_iter().map(graph).collect::<Result<_>>()?)])
    }

    /// Returns the time in ns per call of `TIMED[at]`.
    pub(crate) fn time(&self, case: &Case, at: usize) -> Result<f64> {
        let contender = TIMED[at];
        let mut us = 0.0;
        match case {
            Case::Loop => {
                self.rank.barrier.wait();
                us += timed(|| self.calls(contender, CALLS))?.0;
            }
            Case::Bursts => {
                for _ in 0..CALLS / BURST {
                    self.rank.barrier.wait();
                    us += timed(|| self.calls(contender, BURST))?.0;
                    self.stream.synchronize()?;
                }
            }
            Case::Graphs(graphs) => {
                let graph = &graphs[at];
                self.rank.barrier.wait();
                us += timed(|| {
                    (0..CALLS / GRAPH).try_for_each(|_| self.stream.launch(graph))?;
                    Ok(self.stream.synchronize()?)
                })?
                .0;
            }
        }
        self.stream.synchronize()?;
        Ok(us * 1e3 / CALLS as f64)
    }
}

impl Drop for Calls<'_> {
    fn drop(&mut self) {
        // No work may access the memory after this; after an error the benchmark ends anyway.
        let _ = self.stream.synchronize();
    }
}
