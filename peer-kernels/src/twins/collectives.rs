//! [Twins](super) of the kernels in `gather.cu` and `reduce.cu`: host functions that a simulated device runs in place
//! of the kernels.

use gpu_sim::fault::Fault;
use gpu_sim::kernel::{Element, Launch, Op, reduce};
use gpu_sim::memory::Access;

use super::{
    parameter,
    peers::{Peers, SignalResult},
};
use crate::arguments::{Gather, Reduce, TargetKind, VEC16_BYTES, share_of};
use crate::{Kernel, PadLayout};

/// Calls `block` for every thread block of a launch, one after the other, with the addresses of the ranks' buffers and
/// the number of the thread block. Before and after each call, synchronizes with the thread block of the same number on
/// all other ranks. Stops once the kernel has [given up](crate): a synchronization failed, or `block` returned
/// false. Does nothing if an earlier kernel of this rank has given up.
fn blocks(
    launch: &Launch<'_>,
    kernel: u32,
    block: impl Fn(&Peers<'_>, &[u64], u32) -> SignalResult,
) -> Result<(), Fault> {
    let kernel = Kernel::of_number(kernel).ok_or_else(|| Fault::Trap(format!("kernel {kernel}")))?;
    Peers::enter(launch, kernel, |peers| {
        let bases = peers.buffers()?;
        for number in 0..launch.grid[0] {
            let channel = PadLayout::USER_CHANNELS + number;
            // If the kernel has given up, the remaining blocks do not run. On a GPU, all blocks run at the same time:
            // the other ones read the gave-up word of the pad while they wait, and end once it is set.
            if !(peers.meet(channel)? && block(peers, &bases, number)? && peers.meet(channel)?) {
                return Ok(false);
            }
        }
        Ok(true)
    })
}

/// Converts a range of vectors ([`VEC16_BYTES`] bytes each) to a range of bytes, and limits both of its ends to
/// `bytes`.
fn range((first, end): (u64, u64), bytes: u64) -> (u64, u64) {
    ((first * VEC16_BYTES).min(bytes), (end * VEC16_BYTES).min(bytes))
}

pub(crate) fn gather(launch: &Launch<'_>) -> Result<(), Fault> {
    // SAFETY: `Gather` consists of numbers, so any bytes are a valid value.
    let gather: Gather = unsafe { parameter(launch, 1)? };
    blocks(launch, gather.kernel, |peers, bases, block| {
        let own = if gather.own != 0 { bases[peers.ranks.rank as usize] } else { 0 };
        let vecs = share_of(gather.bytes.div_ceil(VEC16_BYTES), block, launch.grid[0]);
        let (start, end) = range(vecs, gather.bytes);
        for (peer, base) in (0_u64..).zip(bases) {
            let from = base + gather.input + gather.stride * peer;
            let to = own + gather.output + gather.bytes * peer;
            if from != to {
                let from = launch.exec.view(from + start, end - start, Access::READ)?;
                launch.exec.view(to + start, end - start, Access::WRITE)?.copy_from(&from);
            }
        }
        Ok(true)
    })
}

/// Returns the twin of the reduction kernel for this element type and operation.
pub(crate) fn reducing(element: Element, op: Op) -> impl Fn(&Launch<'_>) -> Result<(), Fault> {
    move |launch| {
        // SAFETY: `Reduce` consists of numbers, so any bytes are a valid value.
        let arguments: Reduce = unsafe { parameter(launch, 1)? };
        blocks(launch, arguments.kernel, |peers, bases, block| {
            let rank = peers.ranks.rank;
            let own = bases[rank as usize];
            let is_target = |target_kind: TargetKind| arguments.target == target_kind as u32;
            let vecs = arguments.bytes.div_ceil(VEC16_BYTES);
            let (outputs, (first, end)) = if is_target(TargetKind::Everywhere) {
                let outputs: Vec<u64> = bases.iter().map(|base| base + arguments.output).collect();
                (outputs, share_of(vecs, rank, peers.ranks.world))
            } else {
                let base = if is_target(TargetKind::Address) { 0 } else { own };
                (vec![base + arguments.output], (0, vecs))
            };
            let part = share_of(end - first, block, launch.grid[0]);
            let (mut row_start, end) = (first + part.0, first + part.1);
            while row_start < end {
                let row_end = (row_start + u64::from(launch.block[0])).min(end);
                let (start, stop) = range((row_start, row_end), arguments.bytes);
                let combined = combined(launch, bases, arguments.input + start, stop - start, (element, op))?;
                if is_target(TargetKind::OntoInput) && !peers.meet(PadLayout::USER_CHANNELS + block)? {
                    return Ok(false);
                }
                for output in &outputs {
                    launch.exec.view(output + start, stop - start, Access::WRITE)?.write(0, &combined);
                }
                row_start = row_end;
            }
            Ok(true)
        })
    }
}

/// Combines the `bytes` bytes at offset `at` of all ranks' buffers, and returns the result.
fn combined(
    launch: &Launch<'_>,
    bases: &[u64],
    at: u64,
    bytes: u64,
    (element, op): (Element, Op),
) -> Result<Vec<u8>, Fault> {
    let inputs = bases.iter().map(|base| {
        let view = launch.exec.view(base + at, bytes, Access::READ)?;
        let mut input = vec![0; view.len()];
        view.read(0, &mut input);
        Ok(input)
    });
    let inputs = inputs.collect::<Result<Vec<_>, Fault>>()?;
    let mut output = vec![0; inputs[0].len()];
    reduce(&mut output, &inputs.iter().map(Vec::as_slice).collect::<Vec<_>>(), element, op);
    Ok(output)
}
