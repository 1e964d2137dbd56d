//! Ranks in one process, driven by one thread: each has a block, a pad and a fault record on its device.
//!
//! If there are more ranks than devices, several ranks share a device, on separate streams. They wait for each other,
//! so all of their blocks must fit on the device at once: eight ranks of 32 blocks of 512 threads do on a GPU with 64
//! multiprocessors or more.

use std::time::Duration;

use cuda_driver::memory::DeviceMemory;
use cuda_driver::{Context, Device, Driver, Stream, StreamFlags};
use symm_mem::kernels::{FaultRecord, KernelError, Kernels, PadLayout, Ranks};

/// One rank. Fields are dropped in declaration order: the kernels outlive the work in flight, for which
/// [`Rank::done`] waits.
pub(crate) struct Rank {
    pub(crate) stream: Stream,
    pub(crate) block: DeviceMemory,
    pub(crate) pad: DeviceMemory,
    pub(crate) record: FaultRecord,
    pub(crate) ranks: Ranks,
    pub(crate) kernels: Kernels,
    _addresses: DeviceMemory,
}

impl Rank {
    /// Waits until all work is done. Returns the error of a kernel that gave up.
    pub(crate) fn done(&self) -> Result<(), KernelError> {
        self.stream.synchronize()?;
        self.record.check()
    }

    pub(crate) fn context(&self) -> &Context {
        self.block.context()
    }
}

/// Ranks on the driver's first `devices` devices, assigned in turn, each with a block of `bytes` bytes.
pub(crate) fn ranks(
    driver: &Driver,
    devices: u32,
    world: u32,
    bytes: usize,
    deadline: Duration,
) -> Result<Vec<Rank>, KernelError> {
    let contexts = (0..devices.min(world)).map(|device| driver.device(device)?.retain_primary());
    let contexts = contexts.collect::<Result<Vec<_>, _>>()?;
    for a in &contexts {
        for b in contexts.iter().filter(|b| *b != a) {
            match a.enable_peer_access(b) {
                // An earlier rig of this process enabled it.
                Err(error)
                    if error.code()
                        == Some(cuda_driver::sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) => {}
                other => other?,
            }
        }
    }
    let layout = PadLayout::new(world);
    let context = |rank: u32| &contexts[rank as usize % contexts.len()];
    let memory = |bytes: usize| {
        (0..world).map(|rank| DeviceMemory::new(context(rank), bytes)).collect::<Result<Vec<_>, _>>()
    };
    let (blocks, pads) = (memory(bytes)?, memory(layout.bytes())?);
    for pad in &pads {
        pad.copy_from_host(0, &vec![0_u8; layout.bytes()])?;
    }
    let addresses: Vec<u64> = blocks.iter().chain(&pads).map(|memory| memory.ptr().0).collect();
    let ranks = (0..world)
        .zip(blocks.into_iter().zip(pads))
        .map(|(rank, (block, pad))| {
            let context = context(rank);
            let arrays = DeviceMemory::new(context, addresses.len() * 8)?;
            arrays.copy_from_host(0, &addresses)?;
            let record = FaultRecord::new(context)?;
            let ranks = Ranks {
                buffers: arrays.ptr(),
                pads: arrays.ptr() + u64::from(world) * 8,
                pad: pad.ptr(),
                fault: record.ptr(),
                rank,
                world,
                deadline_ns: u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX),
            };
            let kernels = Kernels::load(context)?;
            let stream = Stream::new(context, StreamFlags::NON_BLOCKING)?;
            Ok(Rank { stream, block, pad, record, ranks, kernels, _addresses: arrays })
        })
        .collect::<Result<Vec<_>, KernelError>>()?;
    contexts.iter().try_for_each(Context::synchronize)?;
    Ok(ranks)
}

/// Waits for copies from the host to the ranks: a copy from pageable memory may still be under way when the call
/// returns, and the ranks' streams do not wait for it.
pub(crate) fn settle(ranks: &[Rank]) {
    ranks.iter().for_each(|rank| rank.context().synchronize().unwrap());
}

/// Waits for all ranks. Returns their kernels' errors, in the order of the ranks.
pub(crate) fn done(ranks: &[Rank]) -> Vec<Result<(), KernelError>> {
    ranks.iter().map(Rank::done).collect()
}

#[track_caller]
pub(crate) fn all_done(ranks: &[Rank]) {
    for (rank, result) in done(ranks).into_iter().enumerate() {
        result.unwrap_or_else(|error| panic!("rank {rank}: {error}"));
    }
}

/// Returns whether every pair of the devices has peer access.
pub(crate) fn peers(devices: &[Device]) -> cuda_driver::Result<bool> {
    for a in devices {
        for b in devices.iter().filter(|b| b.ordinal() != a.ordinal()) {
            if !a.can_access_peer(b)? {
                return Ok(false);
            }
        }
    }
    Ok(true)
}
