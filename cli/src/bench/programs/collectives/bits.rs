//! Compares the results of each layer with NCCL's, bit for bit: enqueued, and from a graph.

use std::sync::atomic::{AtomicUsize, Ordering};

use cuda_driver::memory::DeviceMemory;
use nccl_sys::{ncclDataType_t, ncclRedOp_t};
use process_group::comm::{DataType, ReduceOp};

use super::calls::{CONTENDERS, Calls, Reduction};
use super::rank::Rank;
use crate::bench::programs::support::Result;

const COUNTS: [usize; 3] = [2, 1001, 1 << 18];
const TYPES: [(DataType, ncclDataType_t); 12] = [
    (DataType::I8, ncclDataType_t::ncclInt8),
    (DataType::U8, ncclDataType_t::ncclUint8),
    (DataType::I32, ncclDataType_t::ncclInt32),
    (DataType::U32, ncclDataType_t::ncclUint32),
    (DataType::I64, ncclDataType_t::ncclInt64),
    (DataType::U64, ncclDataType_t::ncclUint64),
    (DataType::F16, ncclDataType_t::ncclFloat16),
    (DataType::Bf16, ncclDataType_t::ncclBfloat16),
    (DataType::F32, ncclDataType_t::ncclFloat32),
    (DataType::F64, ncclDataType_t::ncclFloat64),
    (DataType::F8E4M3, ncclDataType_t::ncclFloat8e4m3),
    (DataType::F8E5M2, ncclDataType_t::ncclFloat8e5m2),
];
/// NCCL has no boolean type: on bytes, the maximum means "any" and the minimum means "all".
const BOOL: (DataType, ncclDataType_t) = (DataType::Bool, ncclDataType_t::ncclUint8);
const ANY_OR_ALL: [(ReduceOp, ncclRedOp_t); 4] = [
    (ReduceOp::Sum, ncclRedOp_t::ncclMax),
    (ReduceOp::Prod, ncclRedOp_t::ncclMin),
    (ReduceOp::Max, ncclRedOp_t::ncclMax),
    (ReduceOp::Min, ncclRedOp_t::ncclMin),
];
/// 1.5, in the types whose sums support factors.
const FACTOR: f64 = 1.5;
const FACTORS: [(DataType, ncclDataType_t, u64); 4] = [
    (DataType::F16, ncclDataType_t::ncclFloat16, 0x3e00),
    (DataType::Bf16, ncclDataType_t::ncclBfloat16, 0x3fc0),
    (DataType::F32, ncclDataType_t::ncclFloat32, 0x3fc0_0000),
    (DataType::F64, ncclDataType_t::ncclFloat64, 0x3ff8_0000_0000_0000),
];
/// Compute capability of the first devices that reduce 8-bit floats.
const REDUCES_F8: (u32, u32) = (9, 0);
const REDUCTIONS: [(ReduceOp, ncclRedOp_t); 5] = [
    (ReduceOp::Sum, ncclRedOp_t::ncclSum),
    (ReduceOp::Prod, ncclRedOp_t::ncclProd),
    (ReduceOp::Max, ncclRedOp_t::ncclMax),
    (ReduceOp::Min, ncclRedOp_t::ncclMin),
    (ReduceOp::Avg, ncclRedOp_t::ncclAvg),
];

/// Number of results compared on all ranks, and of each contender's results that differ.
#[derive(Default)]
pub(crate) struct Tally {
    compared: AtomicUsize,
    differ: [AtomicUsize; CONTENDERS.len()],
}

impl Tally {
    pub(crate) fn print(&self) {
        let compared = self.compared.load(Ordering::SeqCst);
        // The first contender is the baseline of the others.
        for (contender, differ) in CONTENDERS.iter().zip(&self.differ).skip(1) {
            let name = contender.name();
            println!("results\t{name}\t{compared}");
            println!("results that differ\t{name}\t{}", differ.load(Ordering::SeqCst));
        }
    }
}

/// Adds this rank's results to the tally. Returns when all ranks have added theirs.
pub(crate) fn compare(rank: &Rank<'_>, calls: &Calls<'_>, tally: &Tally) -> Result<()> {
    let most = COUNTS[COUNTS.len() - 1] * 8;
    let send = DeviceMemory::new(rank.context, most)?;
    send.copy_from_host(0, &noise(rank.rank, most))?;
    let receive = CONTENDERS.map(|contender| Ok((contender, DeviceMemory::new(rank.context, most)?)));
    let receive: Vec<_> = receive.into_iter().collect::<Result<_>>()?;
    let unwritten = vec![0xa5u8; most];
    let (release, capability) = (rank.nccl().release(), rank.context.device().compute_capability()?);
    let is_there = |(dtype, _): &(DataType, _)| {
        let is_f8 = matches!(dtype, DataType::F8E4M3 | DataType::F8E5M2);
        release >= dtype.since() && (!is_f8 || capability >= REDUCES_F8)
    };
    let plain = TYPES.into_iter().filter(is_there).flat_map(|dtype| REDUCTIONS.map(move |op| (dtype, op)));
    let mut cases: Vec<_> = plain.chain(ANY_OR_ALL.map(|op| (BOOL, op))).collect();
    for (dtype, raw, factor) in FACTORS {
        let op = calls.premultiplied(raw, factor)?;
        cases.push(((dtype, raw), (ReduceOp::PreMulSum(FACTOR), op)));
    }
    for elements in COUNTS {
        for (dtype, op) in cases.iter().copied() {
            let reduction = Reduction { elements, dtype, op };
            let bytes = elements * dtype.0.size();
            let enqueue = || {
                receive.iter().try_for_each(|(contender, memory)| {
                    let place = (send.ptr(), memory.ptr());
                    // SAFETY: both are as long as the longest, and the stream is waited for below.
                    unsafe { calls.all_reduce(*contender, place, reduction) }
                })
            };
            for captured in [false, true] {
                for (_, memory) in &receive {
                    memory.copy_from_host(0, &unwritten[..bytes])?;
                }
                if captured {
                    let graph = calls.capture(enqueue)?;
                    calls.stream.launch(&graph)?;
                    calls.stream.synchronize()?;
                } else {
                    enqueue()?;
                    calls.stream.synchronize()?;
                }
                let mut results = [const { Vec::new() }; CONTENDERS.len()];
                for ((_, memory), result) in receive.iter().zip(&mut results) {
                    *result = vec![0u8; bytes];
                    memory.copy_to_host(0, result)?;
                }
                tally.compared.fetch_add(1, Ordering::SeqCst);
                for (result, differ) in results.iter().zip(&tally.differ) {
                    differ.fetch_add(usize::from(*result != results[0]), Ordering::SeqCst);
                }
            }
        }
    }
    for (_, (_, op)) in cases.iter().filter(|(_, (op, _))| matches!(op, ReduceOp::PreMulSum(_))) {
        calls.forget(*op)?;
    }
    rank.barrier.wait();
    Ok(())
}

/// Returns pseudo-random bytes, different on each rank.
fn noise(rank: usize, bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15 ^ (rank as u64 + 1);
    let next = || {
        // xorshift64
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    std::iter::repeat_with(next).take(bytes).collect()
}
