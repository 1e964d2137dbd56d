//! The launches of all-reduce, reduce-scatter, all-gather and all-to-all.

use cuda_driver::module::{LaunchConfig, Parameter};
use cuda_driver::{DevicePtr, Stream};
use process_group::{
    comm::{DataType, ReduceOp},
    graph_memory,
};

use super::arguments::{Gather, Placing, Reduce, THREADS, blocks};
use super::code::{ELEMENTS, GATHER, OPERATIONS, REDUCE};
use super::own::own_buffer;
use super::{Kernel, KernelError, Kernels, PadLayout, Ranks};

/// Destination of a collective's result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Target {
    /// The result overwrites the input, or a part of it: see [`AllReduce`], [`ReduceScatter`] and [`AllGather`].
    /// [`AllToAll`] does not support this.
    InPlace,
    /// An address that this rank's device can write. The address may differ between ranks. The result must not overlap
    /// any rank's input.
    Address(DevicePtr),
    /// An offset in bytes in the rank's own buffer, the same on all ranks. The result must lie entirely before or
    /// behind the input. An all-reduce also accepts the offset of its input, which means [`InPlace`](Self::InPlace).
    Offset(u64),
}

/// Algorithm of an all-reduce.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// Every rank reads the whole inputs of all ranks, and combines them for itself. For little data: no rank writes to
    /// a peer, but each rank reads `world` times the length of the input.
    OneShot,
    /// The input is divided into `world` slices. Rank `r` combines slice `r` of all ranks' inputs, and writes the
    /// result to all ranks. For more data. Does not support [`Target::Address`].
    TwoShot,
}

/// `output[i]` = the combination of all ranks' `input[i]`. In place, the output overwrites the input.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AllReduce {
    /// First byte of the elements in every rank's buffer: an offset in bytes, of any alignment.
    pub input: u64,
    /// Destination of the result.
    pub target: Target,
    /// Number of elements.
    pub elements: u64,
    /// Data type of the elements.
    pub dtype: DataType,
    /// Operation that combines the elements.
    pub op: ReduceOp,
    /// Algorithm.
    pub algorithm: Algorithm,
}

/// `output[i]` = the combination of all ranks' `input[rank * elements + i]`, where `rank` is this rank. In place, the
/// output overwrites this rank's part of the input in its own buffer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReduceScatter {
    /// First byte of the `world * elements` elements in every rank's buffer: an offset in bytes, of any alignment.
    pub input: u64,
    /// Destination of the result.
    pub target: Target,
    /// Number of elements that each rank gets.
    pub elements: u64,
    /// Data type of the elements.
    pub dtype: DataType,
    /// Operation that combines the elements.
    pub op: ReduceOp,
}

/// `output[r * bytes ..]` = the `bytes` bytes of rank `r`, for every rank `r`. In place, the output begins at `input`,
/// and the bytes of rank `r` are already at `input + r * bytes` in its own buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AllGather {
    /// Offset in bytes in every rank's buffer, of any alignment, the same on all ranks. The rank's data begin there. In
    /// place, the output begins there instead, and the data of rank `r` begin at `input + r * bytes`.
    pub input: u64,
    /// Destination of the result.
    pub target: Target,
    /// Number of bytes of each rank.
    pub bytes: u64,
}

/// `output[r * bytes ..]` = the `bytes` bytes at `input[rank * bytes ..]` of rank `r`, for every rank `r`, where `rank`
/// is this rank. Cannot be in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AllToAll {
    /// First byte of the `world * bytes` bytes in every rank's buffer: an offset in bytes, of any alignment.
    pub input: u64,
    /// Destination of the result.
    pub target: Target,
    /// Number of bytes that each rank gets from each rank.
    pub bytes: u64,
}

/// Collectives. All ranks make the same calls with the same arguments, except that the addresses in [`Target::Address`]
/// may differ. Inputs lie in the ranks' [buffers](Ranks::buffers). Other work must not write an input until the kernels
/// of all ranks have completed.
///
/// Elements are combined in ascending order of the ranks, so all ranks get the same bits. Integers wrap around. An
/// integer average is the wrapped sum divided by the number of ranks, rounded towards zero. [`F16`](DataType::F16) and
/// [`Bf16`](DataType::Bf16) are combined in f32 and rounded once. The minimum or maximum of a number and a NaN is the
/// number. For [`Bool`](DataType::Bool), a sum is a logical or, and a product a logical and.
impl Kernels {
    /// Combines the inputs of all ranks; every rank gets the whole result.
    ///
    /// # Safety
    /// [What a launch asks of the caller](Kernels#what-a-launch-asks-of-the-caller). The input, and a result at an
    /// offset or in place, must lie entirely in every rank's buffer. Memory at a [`Target::Address`] must have room for
    /// the whole result.
    ///
    /// # Errors
    /// Invalid arguments are rejected before anything is launched. [`KernelError::Driver`] from loading the code and
    /// from the launch. If a peer does not arrive, the [`FaultRecord`](super::FaultRecord) contains the failed wait
    /// once the stream has completed the kernel.
    pub unsafe fn all_reduce(
        &self,
        stream: &Stream,
        ranks: &Ranks,
        call: &AllReduce,
    ) -> Result<(), KernelError> {
        let kernel = match call.algorithm {
            Algorithm::OneShot => Kernel::AllReduceOneShot,
            Algorithm::TwoShot => Kernel::AllReduceTwoShot,
        };
        let shape = Shape { kernel, ranks, input: call.input, of: 1, out: 1 };
        let bytes = shape.bytes(call.elements, call.dtype)?;
        let target = if call.target == Target::Offset(call.input) { Target::InPlace } else { call.target };
        shape.check(target, bytes)?;
        let (output, placing, share) = match (call.algorithm, target) {
            (Algorithm::OneShot, Target::InPlace) => (call.input, Placing::OntoInput, bytes),
            (Algorithm::OneShot, Target::Offset(offset)) => (offset, Placing::Own, bytes),
            (Algorithm::OneShot, Target::Address(at)) => (at.0, Placing::Address, bytes),
            (Algorithm::TwoShot, Target::InPlace) => {
                (call.input, Placing::Everywhere, bytes / u64::from(ranks.world))
            }
            (Algorithm::TwoShot, Target::Offset(to)) => {
                (to, Placing::Everywhere, bytes / u64::from(ranks.world))
            }
            (Algorithm::TwoShot, Target::Address(_)) => return Err(KernelError::TargetOutside { kernel }),
        };
        let reduce =
            Reduce { input: call.input, output, bytes, target: placing as u32, kernel: kernel as u32 };
        shape.note(stream, target, bytes)?;
        // SAFETY: the caller's promise.
        unsafe { self.reduce(stream, ranks, kernel, (call.dtype, call.op), reduce, share) }
    }

    /// Combines the inputs of all ranks; every rank gets its part of the result.
    ///
    /// # Safety
    /// As [`all_reduce`](Self::all_reduce).
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub unsafe fn reduce_scatter(
        &self,
        stream: &Stream,
        ranks: &Ranks,
        call: &ReduceScatter,
    ) -> Result<(), KernelError> {
        let kernel = Kernel::ReduceScatter;
        let shape = Shape { kernel, ranks, input: call.input, of: ranks.world, out: 1 };
        let bytes = shape.bytes(call.elements, call.dtype)?;
        let input = call.input + bytes * u64::from(ranks.rank);
        shape.check(call.target, bytes)?;
        // Only this rank reads its part of its own buffer, so the result may overwrite that part.
        let (output, placing) = match call.target {
            Target::InPlace => (input, Placing::Own),
            Target::Offset(offset) => (offset, Placing::Own),
            Target::Address(at) => (at.0, Placing::Address),
        };
        let reduce = Reduce { input, output, bytes, target: placing as u32, kernel: kernel as u32 };
        shape.note(stream, call.target, bytes)?;
        // SAFETY: the caller's promise.
        unsafe { self.reduce(stream, ranks, kernel, (call.dtype, call.op), reduce, bytes) }
    }

    /// Gives every rank the bytes of all ranks.
    ///
    /// # Safety
    /// As [`all_reduce`](Self::all_reduce).
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub unsafe fn all_gather(
        &self,
        stream: &Stream,
        ranks: &Ranks,
        call: &AllGather,
    ) -> Result<(), KernelError> {
        let kernel = Kernel::AllGather;
        let shape = Shape { kernel, ranks, input: call.input, of: 1, out: ranks.world };
        let (input, bytes) = (call.input, shape.bytes(call.bytes, DataType::U8)?);
        shape.check(call.target, bytes)?;
        let (stride, output, own) = match call.target {
            Target::InPlace => (bytes, input, 1),
            Target::Offset(offset) => (0, offset, 1),
            Target::Address(at) => (0, at.0, 0),
        };
        let gather = Gather { input, stride, output, bytes, own, kernel: kernel as u32 };
        shape.note(stream, call.target, bytes)?;
        // SAFETY: the caller's promise.
        unsafe { self.gather(stream, ranks, kernel, gather) }
    }

    /// Gives every rank its part of each rank's input.
    ///
    /// # Safety
    /// As [`all_reduce`](Self::all_reduce).
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub unsafe fn all_to_all(
        &self,
        stream: &Stream,
        ranks: &Ranks,
        call: &AllToAll,
    ) -> Result<(), KernelError> {
        let kernel = Kernel::AllToAll;
        let shape = Shape { kernel, ranks, input: call.input, of: ranks.world, out: ranks.world };
        let bytes = shape.bytes(call.bytes, DataType::U8)?;
        shape.check(call.target, bytes)?;
        let (output, own) = match call.target {
            Target::InPlace => return Err(KernelError::NotInPlace { kernel }),
            Target::Offset(offset) => (offset, 1),
            Target::Address(at) => (at.0, 0),
        };
        let input = call.input + bytes * u64::from(ranks.rank);
        let gather = Gather { input, stride: 0, output, bytes, own, kernel: kernel as u32 };
        shape.note(stream, call.target, bytes)?;
        // SAFETY: the caller's promise.
        unsafe { self.gather(stream, ranks, kernel, gather) }
    }

    /// # Safety
    /// As [`all_reduce`](Self::all_reduce).
    unsafe fn reduce(
        &self,
        stream: &Stream,
        ranks: &Ranks,
        kernel: Kernel,
        (dtype, op): (DataType, ReduceOp),
        reduce: Reduce,
        share: u64,
    ) -> Result<(), KernelError> {
        let (unit, entry) =
            combining(dtype, op).ok_or(KernelError::NotCombined { kernel, dtype, op: op.to_string() })?;
        // SAFETY: the caller's promise.
        unsafe { self.collective(stream, ranks, (unit, entry), reduce, share) }
    }

    /// # Safety
    /// As [`all_reduce`](Self::all_reduce).
    unsafe fn gather(
        &self,
        stream: &Stream,
        ranks: &Ranks,
        kernel: Kernel,
        gather: Gather,
    ) -> Result<(), KernelError> {
        debug_assert_eq!(gather.kernel, kernel as u32);
        // SAFETY: the caller's promise.
        unsafe { self.collective(stream, ranks, (GATHER, 0), gather, gather.bytes) }
    }

    /// # Safety
    /// As [`all_reduce`](Self::all_reduce). `P` must be the type of the kernel's second parameter.
    unsafe fn collective<P: Parameter>(
        &self,
        stream: &Stream,
        ranks: &Ranks,
        (unit, entry): (usize, usize),
        arguments: P,
        share: u64,
    ) -> Result<(), KernelError> {
        let function = self.function(unit, entry)?;
        // All ranks pass the same `share`, so the grid is the same on all ranks.
        let config = LaunchConfig::new(blocks(share), THREADS);
        // SAFETY: the arguments are those of the kernel; the caller promises the rest.
        unsafe { stream.launch_kernel(function, &config, (*ranks, arguments))? };
        Ok(())
    }

    /// Loads the kernels that combine elements of this type, and the kernel of all-gather and all-to-all. Without this
    /// call, the first launch of a kernel loads it. Loading may wait for running work of the device. If several ranks
    /// share a device, that work can be a collective kernel that itself waits for the rank that loads. So all of these
    /// ranks must load before any of them launches.
    ///
    /// # Errors
    /// [`KernelError::Driver`] from loading modules. A type that cannot be combined is no error: then only the kernel
    /// of all-gather and all-to-all is loaded.
    pub fn prepare(&self, dtype: DataType) -> Result<(), KernelError> {
        let _gather = self.function(GATHER, 0)?;
        match combining(dtype, ReduceOp::Max) {
            Some((unit, entry)) => self.function(unit, entry).map(drop),
            None => Ok(()),
        }
    }
}

/// Finds the kernel for this type and operation. Returns the index of its unit (PTX module) and its index in that unit.
/// Returns `None` if there is no such kernel.
fn combining(dtype: DataType, op: ReduceOp) -> Option<(usize, usize)> {
    if !op.allows(dtype) {
        return None;
    }
    // For bytes that are 1 or 0, the maximum is a logical or, and the minimum a logical and.
    let (dtype, op) = match (dtype, op) {
        (DataType::Bool, ReduceOp::Sum) => (DataType::U8, ReduceOp::Max),
        (DataType::Bool, ReduceOp::Prod) => (DataType::U8, ReduceOp::Min),
        (DataType::Bool, op) => (DataType::U8, op),
        other => other,
    };
    let element = ELEMENTS.iter().position(|element| *element == dtype)?;
    let operation = OPERATIONS.iter().position(|operation| *operation == op)?;
    Some((REDUCE + element, operation))
}

/// The sizes of a collective's input and result, counted in parts of equal length.
struct Shape<'a> {
    kernel: Kernel,
    ranks: &'a Ranks,
    input: u64,
    /// Number of parts of the input.
    of: u32,
    /// Number of parts of the result.
    out: u32,
}

impl Shape<'_> {
    /// Returns the length in bytes of a part of `elements` elements. Fails if the offset of the input plus one part for
    /// each rank is 2^56 bytes or more, or if no kernel supports `ranks`.
    fn bytes(&self, elements: u64, dtype: DataType) -> Result<u64, KernelError> {
        let kernel = self.kernel;
        self.ranks.check(kernel)?;
        let bytes = elements.checked_mul(dtype.size() as u64);
        let all = bytes.and_then(|bytes| bytes.checked_mul(u64::from(self.ranks.world)));
        // The kernels multiply a length by the index of a block or a rank, which is below 2^8. The product must fit
        // into 64 bits, so the length must be below 2^56.
        let fits = all.and_then(|all| self.input.checked_add(all)).is_some_and(|end| end < 1 << 56);
        bytes.filter(|_| fits).ok_or(KernelError::TooLong { kernel, elements })
    }

    /// Rejects an offset at which the result would overlap the input.
    fn check(&self, target: Target, bytes: u64) -> Result<(), KernelError> {
        let (input, kernel) = (self.input, self.kernel);
        let Target::Offset(output) = target else { return Ok(()) };
        let (read, written) = (bytes * u64::from(self.of), bytes * u64::from(self.out));
        let apart = output.checked_add(written).is_some_and(|end| end <= input) || output >= input + read;
        if apart { Ok(()) } else { Err(KernelError::Overlap { kernel, input, read, output, written }) }
    }

    /// Pins this rank's memory that the launch uses, if a graph captures the launch. Memory at an offset is pinned
    /// only if the array of buffers is registered ([`own_buffer`]).
    fn note(&self, stream: &Stream, target: Target, bytes: u64) -> cuda_driver::Result<()> {
        let (read, written) = (bytes * u64::from(self.of), bytes * u64::from(self.out));
        let own = |offset: u64, bytes: u64| {
            let base = own_buffer(self.ranks.buffers)?;
            Some((DevicePtr(base.0.saturating_add(offset)), bytes))
        };
        let output = match target {
            // The result of a gather in place is longer than its input.
            Target::InPlace => own(self.input, written),
            Target::Offset(offset) => own(offset, written),
            Target::Address(at) => Some((at, written)),
        };
        graph_memory::note(stream, own(self.input, read).into_iter().chain(output))
    }
}

const _: () = assert!(super::arguments::MOST_BLOCKS <= PadLayout::KERNEL_CHANNELS);
