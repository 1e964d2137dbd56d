//! Whether each layer gives what NCCL gives, bit for bit: enqueued, and from a graph.

use std::sync::atomic::{AtomicUsize, Ordering};

use cuda_driver::memory::DeviceMemory;
use nccl_sys::{ncclDataType_t, ncclRedOp_t};
use process_group::comm::{DataType, ReduceOp};

use super::{
    Rank,
    calls::{CONTENDERS, Calls, Reduction},
    support::Result,
};

const COUNTS: [usize; 3] = [2, 1001, 1 << 18];
const TYPES: [(DataType, ncclDataType_t); 7] = [
    (DataType::U8, ncclDataType_t::ncclUint8),
    (DataType::I32, ncclDataType_t::ncclInt32),
    (DataType::I64, ncclDataType_t::ncclInt64),
    (DataType::F16, ncclDataType_t::ncclFloat16),
    (DataType::Bf16, ncclDataType_t::ncclBfloat16),
    (DataType::F32, ncclDataType_t::ncclFloat32),
    (DataType::F64, ncclDataType_t::ncclFloat64),
];
const REDUCTIONS: [(ReduceOp, ncclRedOp_t); 5] = [
    (ReduceOp::Sum, ncclRedOp_t::ncclSum),
    (ReduceOp::Prod, ncclRedOp_t::ncclProd),
    (ReduceOp::Max, ncclRedOp_t::ncclMax),
    (ReduceOp::Min, ncclRedOp_t::ncclMin),
    (ReduceOp::Avg, ncclRedOp_t::ncclAvg),
];

/// How many results were compared on all ranks, and how many of each contender differ.
#[derive(Default)]
pub(crate) struct Tally {
    compared: AtomicUsize,
    differ: [AtomicUsize; CONTENDERS.len()],
}

impl Tally {
    pub(crate) fn print(&self) {
        let compared = self.compared.load(Ordering::SeqCst);
        // The first is what the others are compared with.
        for (contender, differ) in CONTENDERS.iter().zip(&self.differ).skip(1) {
            let name = contender.name();
            println!("results\t{name}\t{compared}");
            println!("results that differ\t{name}\t{}", differ.load(Ordering::SeqCst));
        }
    }
}

/// Adds this rank's results to the tally; returns when all ranks have.
pub(crate) fn compare(rank: &Rank<'_>, calls: &Calls<'_>, tally: &Tally) -> Result<()> {
    let most = COUNTS[COUNTS.len() - 1] * 8;
    let send = DeviceMemory::new(rank.context, most)?;
    send.copy_from_host(0, &noise(rank.rank, most))?;
    let receive = CONTENDERS.map(|contender| Ok((contender, DeviceMemory::new(rank.context, most)?)));
    let receive: Vec<_> = receive.into_iter().collect::<Result<_>>()?;
    let unwritten = vec![0xa5u8; most];
    for elements in COUNTS {
        for (dtype, op) in TYPES.into_iter().flat_map(|dtype| REDUCTIONS.map(|op| (dtype, op))) {
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
    rank.barrier.wait();
    Ok(())
}

/// Any bits, of each rank its own.
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
