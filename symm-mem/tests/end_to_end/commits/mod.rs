//! Commits for overlapping groups, and collectives over the resulting windows: on the embedded device, and on the
//! machine's own GPUs with its NCCL. `NCCL_SYS_LIBRARY` names another library. `NCCL_CHECK_MODE=DEBUG_GLOBAL` makes
//! NCCL compare its windows itself, from 2.29.7 on.

mod disagree;
mod peers;
mod processes;
mod replays;

use std::sync::LazyLock;

use cuda_driver::{Driver, Stream, graph::CaptureMode, memory::DeviceMemory};
use nccl_sys::Feature;
use process_group::{
    ProcessGroup,
    comm::{DataType, Nccl, ReduceOp},
    group::Buffer,
};
use symm_mem::{
    Geometry, SymmetricBlock, SymmetricGroup, SymmetricPool, commit_all,
    rendezvous::{Origin, PeerBuffers},
};

use crate::{
    common::turn,
    embedded::job::{self, Rank, options, soon},
};

/// Size of a segment. Each block has a segment: one half to send from, one half to receive into.
const SEGMENT: u64 = 2 << 20;
const HALF: usize = SEGMENT as usize / 2;
const ELEMENTS: usize = HALF / size_of::<f32>();

/// The first release that supports windows over several segments.
const JOINS: i32 = 23003;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    AllReduce,
    AllGather,
    ReduceScatter,
}

const OPERATIONS: [Operation; 3] = [Operation::AllReduce, Operation::AllGather, Operation::ReduceScatter];

impl Operation {
    /// Enqueues the operation over the halves, as far as it fills them.
    fn enqueue(self, group: &ProcessGroup, input: Buffer, output: Buffer, stream: &Stream) {
        let part = |buffer: Buffer| Buffer::new(buffer.ptr, ELEMENTS / group.size(), DataType::F32);
        // SAFETY: both are as long, and live until the stream has been synchronised.
        let work = unsafe {
            match self {
                Self::AllReduce => group.raw().all_reduce(input, output, ReduceOp::Sum, stream),
                Self::AllGather => group.raw().all_gather(part(input), output, stream),
                Self::ReduceScatter => group.raw().reduce_scatter(input, part(output), ReduceOp::Sum, stream),
            }
        };
        work.expect("it is enqueued");
    }

    /// The exact value of element `at` of the output on a member, and the largest error of a sum in any order.
    fn expected(self, group: &ProcessGroup, at: usize) -> (f64, f64) {
        let part = ELEMENTS / group.size();
        let at = match self {
            Self::AllReduce => at,
            Self::AllGather => return (value(group.global_ranks()[at / part], at % part).into(), 0.0),
            Self::ReduceScatter => group.rank() * part + at,
        };
        let values: Vec<f64> = group.global_ranks().iter().map(|rank| value(*rank, at).into()).collect();
        let most: f64 = values.iter().map(|value| value.abs()).sum();
        (values.iter().sum(), most * (group.size() - 1) as f64 * f64::from(f32::EPSILON))
    }

    /// Number of output elements that the operation writes.
    fn written(self, group: &ProcessGroup) -> usize {
        if self == Self::ReduceScatter {
            ELEMENTS / group.size()
        } else {
            ELEMENTS / group.size() * group.size()
        }
    }
}

/// The bits of the inputs of four ranks: from -1 to 1, different on any two ranks.
static INPUTS: LazyLock<Vec<Vec<u32>>> = LazyLock::new(|| {
    let value = |rank: u32, at: u32| {
        let mixed = (at ^ rank << 24).wrapping_mul(0x9e37_79b1);
        ((mixed ^ mixed >> 15) as f32 / (u32::MAX / 2) as f32 - 1.0).to_bits()
    };
    (0..4).map(|rank| (0..ELEMENTS as u32).map(|at| value(rank, at)).collect()).collect()
});

/// The input of rank `rank` at `at`.
fn value(rank: usize, at: usize) -> f32 {
    f32::from_bits(INPUTS[rank][at])
}

fn buffer(at: cuda_driver::DevicePtr) -> Buffer {
    Buffer::new(at, ELEMENTS, DataType::F32)
}

/// The part of one rank.
fn commit_compute_and_leave(rank: Rank) {
    commit_and_compute(&rank);
    // A rank that leaves frees memory that others may still read.
    rank.world.barrier(soon()).expect("all come to the end");
    rank.leave();
}

fn commit_and_compute(rank: &Rank) {
    let plain = DeviceMemory::new(&rank.context, 2 * HALF).expect("there is room");
    let mine = &INPUTS[rank.rank as usize];
    plain.copy_from_host(0, mine).expect("it can be written");
    let groups = [&rank.world, &rank.tp];
    let mut checked = Vec::new();
    for count in [1, 4, 16] {
        let geometry = Geometry { first_segment: SEGMENT, largest_segment: SEGMENT };
        let pool = SymmetricPool::new(&rank.domain, &rank.context, geometry).expect("virtual memory");
        let blocks: Vec<SymmetricBlock> =
            (0..count).map(|_| pool.allocate(SEGMENT).expect("there is room")).collect();
        let commits = groups.map(|group| (&pool, group as &dyn SymmetricGroup));
        for report in commit_all(&commits, options()) {
            let report = report.expect("the ranks agree");
            assert_eq!((report.new_segments, report.segments), (count, count), "{report:?}");
            // Segments are contiguous: one window is enough if the library supports several segments in a window.
            let windows =
                if nccl_sys::version_code(rank.world.nccl().release()) >= JOINS { 1 } else { count };
            assert!(report.without.is_none() && report.windows == windows, "{report:?}");
        }
        for block in &blocks {
            // SAFETY: as much memory, which nobody else reads before the ranks have met.
            unsafe { rank.context.copy_from_host(block.ptr(), mine) }.expect("it can be written");
        }
        rank.context.synchronize().expect("it is written");
        rank.world.barrier(soon()).expect("all ranks come");
        for group in groups {
            // If there are several windows, the first block and the last one are in different windows.
            for block in [&blocks[0], &blocks[count - 1]] {
                for operation in OPERATIONS {
                    compute(rank, group, &pool, block, &plain, operation, &mut checked);
                }
                peers(rank, group, &pool, block);
            }
        }
        drop((blocks, pool));
    }
}

/// The bits of an operation's output, in windows and in plain memory. A check computes all sums again, so equal outcomes
/// are checked once.
#[derive(PartialEq)]
struct Outcome {
    group: String,
    operation: Operation,
    found: Vec<u32>,
    apart: Vec<u32>,
}

/// Runs the operation on a window, eagerly and captured, and on plain memory. Checks outcomes that `checked` lacks.
fn compute(
    rank: &Rank,
    group: &ProcessGroup,
    pool: &SymmetricPool,
    block: &SymmetricBlock,
    plain: &DeviceMemory,
    operation: Operation,
    checked: &mut Vec<Outcome>,
) {
    let stream = &rank.stream;
    let outcome = |at: cuda_driver::DevicePtr| {
        stream.synchronize().expect("the work is done");
        let mut found = vec![0_f32; operation.written(group)];
        // SAFETY: as much memory, which nobody writes meanwhile.
        unsafe { rank.context.copy_to_host(&mut found, at) }.expect("it can be read");
        // SAFETY: as above.
        unsafe { stream.fill_u32(at, f32::NAN.to_bits(), ELEMENTS) }.expect("it can be written");
        stream.synchronize().expect("the work is done");
        found
    };
    let (input, output) = (buffer(block.ptr()), buffer(block.ptr() + HALF));
    operation.enqueue(group, input, output, stream);
    let eager = outcome(output.ptr);

    let mut capture = pool.begin_capture();
    capture.uses(block);
    let recording = stream.begin_capture(CaptureMode::ThreadLocal).expect("nothing is captured");
    operation.enqueue(group, input, output, stream);
    let graph = recording.end().and_then(|graph| graph.instantiate()).expect("the capture is valid");
    let pin = capture.finish();
    let captured: Vec<_> = (0..2)
        .map(|_| {
            stream.launch(&graph).expect("the graph can be launched");
            outcome(output.ptr)
        })
        .collect();
    drop((graph, pin));

    let apart = (buffer(plain.ptr()), buffer(plain.ptr() + HALF));
    operation.enqueue(group, apart.0, apart.1, stream);
    let apart = outcome(apart.1.ptr);

    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    for (how, found) in [("eager", &eager), ("captured", &captured[0]), ("launched again", &captured[1])] {
        let outcome =
            Outcome { group: group.name().to_owned(), operation, found: bits(found), apart: bits(&apart) };
        if checked.contains(&outcome) {
            continue;
        }
        checked.push(outcome);
        for (at, (found, apart)) in found.iter().zip(&apart).enumerate() {
            // A sum of two values has only one order.
            let same =
                group.size() > 2 && operation != Operation::AllGather || found.to_bits() == apart.to_bits();
            let (exact, most) = operation.expected(group, at);
            let near = (f64::from(*found) - exact).abs() <= most.max(f64::from(f32::EPSILON) * exact.abs());
            assert!(
                same && near,
                "{operation:?} of {}, {how}: {found} at {at}, {apart} without windows, {exact} exactly",
                group.name()
            );
        }
    }
}

/// Checks the contents of the members' windows, if NCCL provides their addresses.
fn peers(rank: &Rank, group: &ProcessGroup, pool: &SymmetricPool, block: &SymmetricBlock) {
    if !group.nccl().has(Feature::PEER_POINTERS) {
        return;
    }
    let found = pool.window(block.ptr(), block.bytes(), group.id()).expect("in one segment");
    let (window, offset) = found.expect("in a window");
    // SAFETY: used while the window is registered.
    let peers =
        unsafe { PeerBuffers::of_window(group.communicator(), &window, soon()) }.expect("all are in reach");
    assert_eq!(peers.origin(), Origin::Window);
    for (member, base) in group.global_ranks().into_iter().zip(peers.addresses()) {
        let mut found = vec![0_u32; ELEMENTS];
        // SAFETY: nobody writes the first half of a block.
        unsafe { rank.context.copy_to_host(&mut found, *base + offset as usize) }.expect("it can be read");
        assert!(found == INPUTS[member], "rank {member} as rank {} sees it", rank.rank);
    }
}

/// Runs all ranks, one thread each.
fn on_ranks(ranks: Vec<Rank>, body: impl Fn(Rank) + Sync) {
    std::thread::scope(|scope| {
        for rank in ranks {
            let body = &body;
            scope.spawn(move || body(rank));
        }
    });
}

fn on_all(ranks: Vec<Rank>) {
    on_ranks(ranks, commit_compute_and_leave);
}

#[test]
fn windows_of_overlapping_groups_give_what_plain_memory_gives() {
    for release in [22809, 22907, 23007] {
        job::run_on_one_thread(4, release, |_| {}, on_all);
    }
}

/// Returns the machine's driver, its NCCL and its number of devices, of which two are needed; or the reason to skip.
fn gpus() -> Result<(Driver, Nccl, u32), String> {
    let driver = Driver::load().map_err(|error| error.to_string())?;
    let nccl = Nccl::load().map_err(|error| error.to_string())?;
    match driver.device_count().map_err(|error| error.to_string())? {
        devices @ 0..2 => Err(format!("2 GPUs are needed, here are {devices}")),
        devices => Ok((driver, nccl, devices)),
    }
}

#[test]
fn hardware_commits() {
    let _turn = turn();
    let (driver, nccl, devices) = match gpus() {
        Ok(found) => found,
        Err(why) => return println!("skipped: {why}"),
    };
    for size in [2, 4].into_iter().filter(|size| *size <= devices) {
        let ranks = job::ranks(&driver, &nccl, size);
        if let Err(why) = ranks[0].world.windows_supported() {
            println!("skipped: {why}");
            return ranks.into_iter().for_each(Rank::abandon);
        }
        on_all(ranks);
        println!("{size} ranks, NCCL {}: 1, 4 and 16 segments for two groups", nccl.release());
    }
}
