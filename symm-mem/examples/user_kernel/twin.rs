//! `strided_gather.cu` as a host function for the embedded device. Its blocks run one after the other.

use std::{sync::atomic::Ordering, time::Duration};

use gpu_sim::{
    World,
    fault::Fault,
    kernel::Launch,
    memory::{Access, View},
    sched::{self, WaitError},
};
use symm_mem::kernels::PadLayout;

use crate::{Gather, KERNEL};

/// Registers the function in place of the kernel.
pub(crate) fn register(machine: &World) {
    machine.register_kernel(KERNEL, &[size_of::<Gather>()], strided_gather);
}

fn strided_gather(launch: &Launch<'_>) -> Result<(), Fault> {
    let bytes = launch.bytes(0)?;
    // SAFETY: the launch has checked that it is as long as the registered size; any bytes are a `Gather`.
    let gather = unsafe { bytes.as_ptr().cast::<Gather>().read_unaligned() };
    let twin = Twin { launch, gather };
    for block in 0..launch.grid[0] {
        if !twin.meet(block)? {
            twin.view(gather.late.0, 4)?.write(0, &1_u32.to_ne_bytes());
            return Ok(());
        }
    }
    (0..gather.world).try_for_each(|peer| twin.gather(peer))
}

struct Twin<'a> {
    launch: &'a Launch<'a>,
    gather: Gather,
}

impl Twin<'_> {
    fn view(&self, address: u64, bytes: u64) -> Result<View, Fault> {
        self.launch.exec.view(address, bytes, Access::all())
    }

    /// Reads an entry of an array of addresses.
    fn entry(&self, array: u64, rank: u32) -> Result<u64, Fault> {
        let mut entry = [0; 8];
        self.launch.exec.view(array + 8 * u64::from(rank), 8, Access::READ)?.read(0, &mut entry);
        Ok(u64::from_ne_bytes(entry))
    }

    fn meet(&self, channel: u32) -> Result<bool, Fault> {
        let Gather { rank, world, .. } = self.gather;
        let peers = || (0..world).filter(|peer| *peer != rank);
        for peer in peers() {
            if !self.flip(peer, channel, rank, [0, 1])? {
                return Ok(false);
            }
        }
        for peer in peers() {
            if !self.flip(rank, channel, peer, [1, 0])? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Changes a word of a pad from `from` to `to`, as soon as it is `from`. Returns false if that is not so before
    /// the deadline.
    fn flip(&self, owner: u32, channel: u32, source: u32, [from, to]: [u32; 2]) -> Result<bool, Fault> {
        let slot = PadLayout::new(self.gather.world).slot(channel, source);
        let view = self.view(self.entry(self.gather.pads.0, owner)? + slot as u64, 4)?;
        let word = view.atomic_u32(0)?;
        let deadline = sched::now() + Duration::from_nanos(self.gather.deadline_ns);
        let reason =
            || format!("{KERNEL}: a word of rank {owner}'s pad, of rank {source} on channel {channel}");
        let flip = || word.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        match view.wait_until(Some(deadline), reason, flip) {
            Ok(()) => Ok(true),
            Err(WaitError::TimedOut { .. }) => Ok(false),
            Err(other) => Err(other.into()),
        }
    }

    fn gather(&self, peer: u32) -> Result<(), Fault> {
        let Gather { buffers, output, offset, count, rank, world, .. } = self.gather;
        let input = self.entry(buffers.0, peer)? + offset;
        let input = self.launch.exec.view(input, 4 * count * u64::from(world), Access::READ)?;
        let output = self.view(output.0 + 4 * count * u64::from(peer), 4 * count)?;
        let mut element = [0; 4];
        for at in 0..count as usize {
            input.read(4 * (at * world as usize + rank as usize), &mut element);
            output.write(4 * at, &element);
        }
        Ok(())
    }
}
