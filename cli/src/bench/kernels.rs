//! `lockstep bench kernels`: times the collective kernels of symm-mem, eagerly and from a graph, and checks what they
//! compute.
//!
//! The ranks are threads of this process. With fewer GPUs than ranks, several ranks share a GPU. Then the times show
//! the kernels' own work and their synchronization, not the links between GPUs.

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use comfy_table::{CellAlignment, Table, presets};
use cuda_driver::graph::CaptureMode;
use cuda_driver::{Context, DevicePtr, Driver, Event, EventFlags, Stream, StreamFlags};
use gpu_sim::World;
use half::bf16;
use process_group::comm::{DataType, ReduceOp};
use process_group::store::{HashStore, Store};
use serde::Serialize;
use symm_mem::kernels::{Algorithm, AllGather, AllReduce, AllToAll, Kernels, ReduceScatter, Target, twins};
use symm_mem::rendezvous::{
    CudaAllocator, GroupInfo, PeerAllocator, Rendezvous, RendezvousOptions, SymmetricMemory,
};

use super::NoCheck;
use super::figures::json;
use crate::progress::Progress;
use crate::values;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Number of ranks: threads of one process, spread over the GPUs; from 1 to 8
    #[arg(long, default_value_t = 2, value_parser = values::whole::<u32>("a number of ranks", 1..=8), allow_negative_numbers = true)]
    ranks: u32,
    /// Length of the longest buffer, in MiB from 1 to 1024
    #[arg(long, default_value_t = 64, value_parser = values::whole::<u32>("a number of MiB", 1..=1024), allow_negative_numbers = true)]
    largest: u32,
    /// Print the figures as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    no_check: NoCheck,
}

/// Longer than any kernel waits for another rank.
const PATIENCE: Duration = Duration::from_secs(60);

/// Bytes of an element, a bf16.
const ELEMENT: usize = 2;

/// The collectives, with the names of their rows.
const COLLECTIVES: [(&str, Collective); 5] = [
    ("all-reduce, one-shot", Collective::AllReduce(Algorithm::OneShot)),
    ("all-reduce, two-shot", Collective::AllReduce(Algorithm::TwoShot)),
    ("reduce-scatter", Collective::ReduceScatter),
    ("all-gather", Collective::AllGather),
    ("all-to-all", Collective::AllToAll),
];

#[derive(Clone, Copy)]
enum Collective {
    AllReduce(Algorithm),
    ReduceScatter,
    AllGather,
    AllToAll,
}

#[derive(Serialize)]
struct Report {
    /// The GPUs, or the embedded device.
    machine: String,
    ranks: usize,
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    collective: &'static str,
    /// Length in bytes of the longer one of a rank's input and its result.
    bytes: usize,
    /// Time of a call in µs: launched one by one, and as a node of a graph.
    eager_us: f64,
    graph_us: f64,
}

pub(super) fn run(options: &Options) -> Result<()> {
    options.no_check.refuse("kernels")?;
    let machine = Machine::open(options.ranks)?;
    let rows = machine.run((options.largest as usize) << 20)?;
    let report = Report { machine: machine.description, ranks: machine.ranks, rows };
    if options.json {
        println!("{}", json(&report)?);
        return Ok(());
    }
    println!("collective kernels, bf16, {} ranks on {}", report.ranks, report.machine);
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(["collective", "bytes", "eager µs", "graph µs"]);
    for row in &report.rows {
        let us = |time: f64| format!("{time:.2}");
        let cells = [row.collective.to_owned(), row.bytes.to_string(), us(row.eager_us), us(row.graph_us)];
        table.add_row(cells);
    }
    table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    println!("{table}");
    Ok(())
}

/// The devices of the ranks.
struct Machine {
    ranks: usize,
    description: String,
    driver: Driver,
    devices: u32,
    /// The embedded device, if there is no GPU.
    world: Option<World>,
}

impl Machine {
    fn open(ranks: u32) -> Result<Self> {
        let found = Driver::load().and_then(|driver| Ok((driver.device_count()?, driver)));
        let ranks = ranks as usize;
        if let Ok((count @ 1.., driver)) = found {
            let devices = count.min(ranks as u32);
            let description = format!("{devices} x {}", driver.device(0)?.name()?);
            return Ok(Self { ranks, description, driver, devices, world: None });
        }
        let world = World::builder().devices(ranks).capacity(4 << 30).start()?;
        twins::register(&world);
        // SAFETY: the embedded device keeps the contracts of the C API, and lives as long as the machine.
        let driver = unsafe { Driver::new(cuda_driver::sys::Api::from_parts(world.cuda())?)? };
        let description = "embedded devices: their times are not a GPU's".to_owned();
        Ok(Self { ranks, description, driver, devices: ranks as u32, world: Some(world) })
    }

    /// Runs all cases on all ranks, and returns the times of rank 0.
    fn run(&self, largest: usize) -> Result<Vec<Row>> {
        let (store, barrier) = (Arc::new(HashStore::new()), Barrier::new(self.ranks));
        let run = |rank: usize| -> Result<Vec<Row>> {
            let context = self.driver.device(rank as u32 % self.devices)?.retain_primary()?;
            let progress = (rank == 0).then(Progress::start);
            let rank = Rank::new(self, (rank, &barrier), &context, store.clone(), largest)?;
            context.with_current(|| rank.measure(progress.as_ref()))?
        };
        // The other ranks would wait for a rank that has failed.
        let run = |rank: usize| {
            run(rank).unwrap_or_else(|error| {
                eprintln!("rank {rank}: {error:#}");
                std::process::exit(1)
            })
        };
        thread::scope(|scope| {
            let others: Vec<_> = (1..self.ranks).map(|rank| scope.spawn(move || drop(run(rank)))).collect();
            let rows = run(0);
            others.into_iter().try_for_each(|other| other.join()).map_err(|_| anyhow!("a rank panicked"))?;
            Ok(rows)
        })
    }
}

/// One rank. The input of a call lies in the first half of its buffer, the result in the second.
struct Rank<'a> {
    rank: usize,
    world: usize,
    barrier: &'a Barrier,
    context: &'a Context,
    is_embedded: bool,
    largest: usize,
    kernels: Kernels,
    stream: Stream,
    begin: Event,
    end: Event,
    /// Address of the rank's buffer.
    own: DevicePtr,
    memory: SymmetricMemory,
}

/// A collective on buffers of some length.
#[derive(Clone, Copy)]
struct Case {
    collective: Collective,
    /// Number of elements of each rank, or for each rank.
    elements: usize,
}

impl<'a> Rank<'a> {
    fn new(
        machine: &Machine,
        (rank, barrier): (usize, &'a Barrier),
        context: &'a Context,
        store: Arc<dyn Store>,
        largest: usize,
    ) -> Result<Self> {
        let world = machine.ranks;
        let group = GroupInfo::new("kernels", rank, 0..world as u32, store)?;
        let options = RendezvousOptions::default().deadline(PATIENCE).shared_devices(true);
        let rendezvous = Rendezvous::new(group, context, options)?;
        let buffer = CudaAllocator::new(context)?.allocate(2 * largest)?;
        let memory = rendezvous.rendezvous(&buffer)?;
        let kernels = Kernels::load(context)?;
        kernels.prepare(DataType::Bf16)?;
        let event = || Event::new(context, EventFlags::default());
        Ok(Self {
            rank,
            world,
            barrier,
            context,
            is_embedded: machine.world.is_some(),
            largest,
            kernels,
            stream: Stream::new(context, StreamFlags::NON_BLOCKING)?,
            begin: event()?,
            end: event()?,
            own: buffer.ptr(),
            memory,
        })
    }

    /// Shows the progress on one rank.
    fn measure(&self, progress: Option<&Progress>) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        for (name, collective) in COLLECTIVES {
            let steps = (1..).map(|power| 8_usize.pow(power)).take_while(|bytes| *bytes < self.largest);
            for bytes in steps.chain([self.largest]) {
                let parts = if matches!(collective, Collective::AllReduce(_)) { 1 } else { self.world };
                let elements = bytes / ELEMENT / parts;
                if elements > 0 {
                    progress.inspect(|progress| progress.show(format!("{name}, {bytes} bytes")));
                    let case = Case { collective, elements };
                    let row = self.case(case, bytes).with_context(|| format!("{name} of {bytes} bytes"));
                    let (eager_us, graph_us) = row?;
                    rows.push(Row { collective: name, bytes, eager_us, graph_us });
                }
            }
        }
        Ok(rows)
    }

    /// Times a case, eagerly and from a graph. Checks the results of both.
    fn case(&self, case: Case, bytes: usize) -> Result<(f64, f64)> {
        let (calls, launches) = match bytes {
            _ if self.is_embedded => (2, 1),
            0..=0xFFFF => (100, 10),
            0x1_0000..=0xFF_FFFF => (50, 4),
            _ => (10, 2),
        };
        let (inputs, results) = case.lengths(self.world);
        let values: Vec<u16> = (0..inputs).map(|index| input(self.rank, index).to_bits()).collect();
        // SAFETY: the values fit into the first half of the buffer, and no kernel runs.
        unsafe { self.context.copy_from_host(self.own, &values)? };
        self.clear(results)?;
        self.call(case)?;
        self.stream.synchronize()?;
        self.memory.check()?;
        self.compare(case)?;
        let eager =
            self.time(calls * launches, || (0..calls * launches).try_for_each(|_| self.call(case)))?;
        self.clear(results)?;
        let capture = self.stream.begin_capture(CaptureMode::ThreadLocal)?;
        (0..calls).try_for_each(|_| self.call(case))?;
        let graph = capture.end()?.instantiate()?;
        // The first launch loads the graph, so it is not timed.
        self.stream.launch(&graph)?;
        self.stream.synchronize()?;
        self.compare(case)?;
        let graph =
            self.time(calls * launches, || Ok((0..launches).try_for_each(|_| self.stream.launch(&graph))?))?;
        Ok((eager, graph))
    }

    /// Clears the place of the result, and waits for all ranks: from then on a peer's kernel may write there.
    fn clear(&self, results: usize) -> Result<()> {
        let bytes = (results * ELEMENT).next_multiple_of(4);
        // SAFETY: the place lies in the buffer, and no kernel runs.
        unsafe { self.stream.fill_u32(self.own + self.largest as u64, 0, bytes / 4)? };
        self.stream.synchronize()?;
        self.context.synchronize()?;
        self.barrier.wait();
        Ok(())
    }

    /// Returns the µs per call of `calls` calls that `enqueue` enqueues.
    fn time(&self, calls: usize, enqueue: impl FnOnce() -> Result<()>) -> Result<f64> {
        self.barrier.wait();
        self.stream.record(&self.begin)?;
        enqueue()?;
        self.stream.record(&self.end)?;
        self.stream.synchronize()?;
        self.memory.check()?;
        self.barrier.wait();
        Ok(self.end.elapsed_us(&self.begin)? / calls as f64)
    }

    /// Launches the collective.
    fn call(&self, Case { collective, elements }: Case) -> Result<()> {
        let (kernels, stream, ranks) = (&self.kernels, &self.stream, &self.memory.ranks(PATIENCE));
        let (dtype, op) = (DataType::Bf16, ReduceOp::Sum);
        let input = self.memory.offset() as u64;
        let target = Target::Offset(input + self.largest as u64);
        let (elements, bytes) = (elements as u64, (elements * ELEMENT) as u64);
        // SAFETY: input and result lie in the two halves of all ranks' buffers, which stay until the streams are done.
        unsafe {
            match collective {
                Collective::AllReduce(algorithm) => {
                    let call = AllReduce { input, target, elements, dtype, op, algorithm };
                    kernels.all_reduce(stream, ranks, &call)?;
                }
                Collective::ReduceScatter => {
                    let call = ReduceScatter { input, target, elements, dtype, op };
                    kernels.reduce_scatter(stream, ranks, &call)?;
                }
                Collective::AllGather => {
                    kernels.all_gather(stream, ranks, &AllGather { input, target, bytes })?;
                }
                Collective::AllToAll => {
                    kernels.all_to_all(stream, ranks, &AllToAll { input, target, bytes })?;
                }
            }
        }
        Ok(())
    }

    /// Compares every element of the result with the expected one. Then waits for all ranks.
    fn compare(&self, case: Case) -> Result<()> {
        let mut found = vec![0_u16; case.lengths(self.world).1];
        // SAFETY: the result lies in the second half of the buffer. No kernel writes there, because no rank launches
        // another one before all have compared.
        unsafe { self.context.copy_to_host(&mut found, self.own + self.largest as u64)? };
        for (index, bits) in found.into_iter().enumerate() {
            let (found, wanted) = (bf16::from_bits(bits), case.result(self.rank, self.world, index));
            ensure!(found == wanted, "rank {} found {found} at {index}, not {wanted}", self.rank);
        }
        self.barrier.wait();
        Ok(())
    }
}

impl Case {
    /// Number of elements of a rank's input and of its result.
    fn lengths(self, world: usize) -> (usize, usize) {
        let Self { collective, elements } = self;
        match collective {
            Collective::AllReduce(_) => (elements, elements),
            Collective::ReduceScatter => (elements * world, elements),
            Collective::AllGather => (elements, elements * world),
            Collective::AllToAll => (elements * world, elements * world),
        }
    }

    /// The expected result on `rank` at `index`.
    fn result(self, rank: usize, world: usize, index: usize) -> bf16 {
        let sum = |index| bf16::from_f32((0..world).map(|peer| input(peer, index).to_f32()).sum());
        let (from, within) = (index / self.elements, index % self.elements);
        match self.collective {
            Collective::AllReduce(_) => sum(index),
            Collective::ReduceScatter => sum(rank * self.elements + index),
            Collective::AllGather => input(from, within),
            Collective::AllToAll => input(from, rank * self.elements + within),
        }
    }
}

/// The input of `rank` at `index`: a small integer, so that sums over all ranks are exact.
fn input(rank: usize, index: usize) -> bf16 {
    bf16::from_f32(((index % 13) + rank) as f32)
}
