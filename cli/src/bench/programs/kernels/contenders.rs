//! The kernels of peer-kernels, and NCCL's with and without windows, each with a buffer of its own.

use std::sync::Arc;
use std::time::Duration;

use cuda_driver::memory::DeviceMemory;
use cuda_driver::{Context, DevicePtr, Stream};
use process_group::ProcessGroup;
use process_group::comm::{DataType, ReduceOp, WindowOutcome, WindowRequest};
use process_group::store::Store;
use symm_mem::kernels::{Algorithm, AllGather, AllReduce, AllToAll, Kernels, ReduceScatter, Target};
use symm_mem::rendezvous::{
    CudaAllocator, GroupInfo, PeerAllocator, PeerMemory, Rendezvous, RendezvousOptions, SymmetricMemory,
};

use super::case::{Case, Collective, ELEMENT};
use super::devices::Devices;
use crate::bench::programs::support::{Result, far};

/// Longer than any kernel waits for another rank.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::bench) enum Contender {
    Kernels,
    /// In memory that is not registered.
    Nccl,
    NcclWindows,
}

impl Contender {
    pub(in crate::bench) const fn name(self) -> &'static str {
        match self {
            Self::Kernels => "symm-mem",
            Self::Nccl => "NCCL",
            Self::NcclWindows => "NCCL with windows",
        }
    }

    /// Returns the name of a collective if this contender measures it. NCCL has one all-reduce.
    pub(super) fn collective_name(self, name: &'static str, collective: Collective) -> Option<&'static str> {
        match (self, collective) {
            (Self::Kernels, _) => Some(name),
            (_, Collective::AllReduce(Algorithm::TwoShot)) => None,
            _ => Some(collective.family()),
        }
    }
}

/// NCCL's part.
struct Nccl {
    group: ProcessGroup,
    plain: DeviceMemory,
    /// Memory of a window.
    window: Option<PeerMemory>,
}

/// All contenders of a rank. In each buffer, the first half is the input of a call, the second the result.
pub(super) struct Contenders {
    kernels: Kernels,
    own: PeerMemory,
    pub(super) memory: SymmetricMemory,
    nccl: Option<Nccl>,
    largest: usize,
    /// The contenders that are left out, and why.
    pub(super) left_out: Vec<(Contender, String)>,
}

impl Contenders {
    pub(super) fn new(
        devices: &Devices,
        rank: usize,
        context: &Context,
        store: &Arc<dyn Store>,
        largest: usize,
    ) -> Result<Self> {
        let group = GroupInfo::new("kernels", rank, 0..devices.ranks as u32, store.clone())?;
        let options = RendezvousOptions::default().deadline(PATIENCE).shared_devices(true);
        let rendezvous = Rendezvous::new(group, context, options)?;
        let allocator = CudaAllocator::new(context)?;
        let own = allocator.allocate(2 * largest)?;
        let memory = rendezvous.rendezvous(&own)?;
        let kernels = Kernels::load(context)?;
        kernels.prepare(DataType::Bf16)?;
        let mut left_out = Vec::new();
        let nccl = match &devices.nccl {
            Ok(nccl) => {
                let builder = ProcessGroup::builder().name("nccl").store(store.clone()).rank(rank);
                let group = builder.world_size(devices.ranks).context(context).nccl(nccl).build()?;
                let plain = DeviceMemory::new(context, 2 * largest)?;
                let window = match window(&group, &allocator, 2 * largest)? {
                    Ok(buffer) => Some(buffer),
                    Err(why) => {
                        left_out.push((Contender::NcclWindows, why));
                        None
                    }
                };
                Some(Nccl { group, plain, window })
            }
            Err(why) => {
                left_out.extend([Contender::Nccl, Contender::NcclWindows].map(|it| (it, why.clone())));
                None
            }
        };
        Ok(Self { kernels, own, memory, nccl, largest, left_out })
    }

    /// Returns the contenders with the addresses of their buffers.
    pub(super) fn buffers(&self) -> impl Iterator<Item = (Contender, DevicePtr)> {
        let nccl = self.nccl.as_ref();
        let plain = nccl.map(|nccl| (Contender::Nccl, nccl.plain.ptr()));
        let window = nccl.and_then(|nccl| nccl.window.as_ref());
        let window = window.map(|window| (Contender::NcclWindows, window.ptr()));
        [Some((Contender::Kernels, self.own.ptr())), plain, window].into_iter().flatten()
    }

    /// Returns the results' offset in each buffer.
    pub(super) fn result_offset(&self) -> u64 {
        self.largest as u64
    }

    /// Enqueues the collective.
    ///
    /// # Safety
    /// The contenders stay until the stream has passed the call, and graphs that captured it are gone.
    pub(super) unsafe fn call(
        &self,
        (contender, buffer): (Contender, DevicePtr),
        case: Case,
        stream: &Stream,
    ) -> Result<()> {
        // SAFETY: the caller's contract. Inputs and results lie in the two halves of all ranks' buffers.
        unsafe {
            match (contender, &self.nccl) {
                (Contender::Kernels, _) => self.call_kernel(case, stream),
                (_, Some(nccl)) => self.call_nccl(nccl, buffer, case, stream),
                (_, None) => Err("NCCL is left out".into()),
            }
        }
    }

    unsafe fn call_kernel(&self, Case { collective, elements }: Case, stream: &Stream) -> Result<()> {
        let (kernels, ranks) = (&self.kernels, &self.memory.ranks(PATIENCE));
        let (dtype, op) = (DataType::Bf16, ReduceOp::Sum);
        let input = self.memory.offset() as u64;
        let target = Target::Offset(input + self.result_offset());
        let (elements, bytes) = (elements as u64, (elements * ELEMENT) as u64);
        // SAFETY: the caller's contract.
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

    unsafe fn call_nccl(&self, nccl: &Nccl, from: DevicePtr, case: Case, stream: &Stream) -> Result<()> {
        let (communicator, to) = (nccl.group.communicator(), from + self.result_offset());
        let (count, dtype, op) = (case.elements, DataType::Bf16, ReduceOp::Sum);
        // SAFETY: the caller's contract.
        unsafe {
            match case.collective {
                Collective::AllReduce(_) => communicator.all_reduce(from, to, count, dtype, op, stream)?,
                Collective::ReduceScatter => {
                    communicator.reduce_scatter(from, to, count, dtype, op, stream)?;
                }
                Collective::AllGather => communicator.all_gather(from, to, count, dtype, stream)?,
                Collective::AllToAll => communicator.all_to_all(from, to, count, dtype, stream)?,
            }
        }
        Ok(())
    }

    /// Destroys the communicator. Its memory goes after it.
    pub(super) fn close(self) -> Result<()> {
        if let Some(Nccl { group, plain, window }) = self.nccl {
            group.destroy(far())?;
            drop((plain, window));
        }
        Ok(())
    }
}

/// Makes a buffer that is a window of the group's communicator. Returns why the communicator has no windows otherwise.
fn window(
    group: &ProcessGroup,
    allocator: &CudaAllocator,
    bytes: usize,
) -> Result<Result<PeerMemory, String>> {
    if let Err(why) = group.windows_supported() {
        return Ok(Err(why.to_string()));
    }
    let buffer = allocator.allocate(bytes)?;
    let request = WindowRequest::symmetric(buffer.ptr(), bytes);
    // SAFETY: the buffer goes after the communicator.
    let outcomes = unsafe { group.communicator().register_windows(&[request], far()) }?;
    Ok(match outcomes.into_iter().next() {
        Some(WindowOutcome::Unsupported(why)) => Err(why.to_string()),
        _ => Ok(buffer),
    })
}
