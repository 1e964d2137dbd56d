//! The launches of all-reduce, reduce-scatter, all-gather and all-to-all.

use cuda_driver::module::{LaunchConfig, Parameter};
use cuda_driver::{DevicePtr, Stream, graph_memory};
use process_group::comm::{DataType, ReduceOp};

use super::arguments::{Gather, Reduce, THREADS, TargetKind, blocks};
use super::code::{ELEMENTS, GATHER, OPERATIONS, REDUCE};
use super::own::own_buffer;
use super::{Kernel, KernelError, Kernels, PadLayout, Ranks};

/// Destination of a collective's result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Target {
    /// The result shares memory with the input:
    /// - [`AllReduce`]: the result overwrites the input.
    /// - [`ReduceScatter`]: the result overwrites this rank's part of the input.
    /// - [`AllGather`]: the result contains the input, which is already in its place.
    /// - [`AllToAll`]: not supported.
    InPlace,
    /// An address that this rank's device can write. The address may differ between ranks. The result must not overlap
    /// any rank's input.
    Address(DevicePtr),
    /// An offset in bytes in the rank's own buffer, the same on all ranks. The result must not overlap the input. An
    /// all-reduce also accepts the offset of its input, which means [`InPlace`](Self::InPlace).
    Offset(u64),
}

/// Algorithm of an all-reduce.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// Every rank reads the whole inputs of all ranks, and computes the whole result. For little data: no rank writes
    /// to a peer, but each rank reads [`world`](Ranks::world) times the length of the input.
    OneShot,
    /// The input is divided into [`world`](Ranks::world) slices. Rank `r` combines slice `r` of all ranks' inputs, and
    /// writes the result to all ranks. For more data. Does not support [`Target::Address`].
    TwoShot,
}

/// `output[i]` = the combination of all ranks' `input[i]`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AllReduce {
    /// Offset of the input in every rank's buffer, in bytes, of any alignment.
    pub input: u64,
    /// Destination of the result.
    pub target: Target,
    /// Number of elements of each rank's input, and of the result.
    pub elements: u64,
    /// Data type of the elements.
    pub dtype: DataType,
    /// Operation that combines the elements.
    pub op: ReduceOp,
    /// Algorithm.
    pub algorithm: Algorithm,
}

/// `output[i]` = the combination of all ranks' `input[rank * elements + i]`, where `rank` is this rank. With
/// [`Target::InPlace`], the output overwrites the elements from `input[rank * elements]` on in this rank's buffer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReduceScatter {
    /// Offset of the input (`world * elements` elements) in every rank's buffer, in bytes, of any alignment.
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

/// `output[r * bytes ..]` = the `bytes` bytes of input of rank `r`, for every rank `r`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AllGather {
    /// Offset of each rank's input in its own buffer, in bytes, of any alignment. Exception: with [`Target::InPlace`],
    /// this is the offset of the output. The input of rank `r` is then at `input + r * bytes` in its buffer.
    pub input: u64,
    /// Destination of the result.
    pub target: Target,
    /// Number of bytes of each rank's input.
    pub bytes: u64,
}

/// `output[r * bytes ..]` = the `bytes` bytes at `input[rank * bytes ..]` of rank `r`, for every rank `r`. `rank` is
/// this rank. Does not support [`Target::InPlace`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AllToAll {
    /// Offset of the input (`world * bytes` bytes) in every rank's buffer, in bytes, of any alignment.
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
    /// [What a launch asks of the caller](Kernels#what-a-launch-asks-of-the-caller). On every rank, the input must lie
    /// entirely in the buffer, and so must the result for [`Target::Offset`] and [`Target::InPlace`]. Memory at a
    /// [`Target::Address`] must have room for the whole result.
    ///
    /// # Errors
    /// Invalid arguments are rejected before anything is launched. Returns [`KernelError::Driver`] if loading the code
    /// or the launch fails. This call succeeds even if a peer does not arrive by the [deadline](Ranks::deadline_ns).
    /// Once the stream has completed the kernel, the [`FaultRecord`](super::FaultRecord) then contains the failed wait.
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
        let target = if call.target == Target::Offset(call.input) { Target::InPlace } else { call.target };
        let buffers = CollectiveBuffers::checked(
            kernel,
            ranks,
            (call.input, 1),
            (target, 1),
            (call.elements, call.dtype),
        )?;
        let (bytes, (output, target_kind)) = (buffers.bytes, target.output(call.input));
        let (target_kind, share) = match (call.algorithm, target) {
            (Algorithm::OneShot, Target::InPlace) => (TargetKind::OntoInput, bytes),
            (Algorithm::OneShot, _) => (target_kind, bytes),
            (Algorithm::TwoShot, Target::Address(_)) => return Err(KernelError::TargetOutside { kernel }),
            (Algorithm::TwoShot, _) => (TargetKind::Everywhere, bytes / u64::from(ranks.world)),
        };
        let reduce =
            Reduce { input: call.input, output, bytes, target: target_kind as u32, kernel: kernel as u32 };
        // SAFETY: the caller's promise.
        unsafe {
            self.collective(stream, &buffers, buffers.reduce_kernel(call.dtype, call.op)?, reduce, share)
        }
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
        let (kernel, target) = (Kernel::ReduceScatter, call.target);
        let (input, elements) = ((call.input, ranks.world), (call.elements, call.dtype));
        let buffers = CollectiveBuffers::checked(kernel, ranks, input, (target, 1), elements)?;
        let bytes = buffers.bytes;
        let input = call.input + bytes * u64::from(ranks.rank);
        // Rank r reads only part r of every rank's input. So no other rank reads the part of this rank's input that the
        // result overwrites in place.
        let (output, target_kind) = target.output(input);
        let reduce = Reduce { input, output, bytes, target: target_kind as u32, kernel: kernel as u32 };
        // SAFETY: the caller's promise.
        unsafe {
            self.collective(stream, &buffers, buffers.reduce_kernel(call.dtype, call.op)?, reduce, bytes)
        }
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
        let (kernel, target) = (Kernel::AllGather, call.target);
        let (output, elements) = ((target, ranks.world), (call.bytes, DataType::U8));
        let buffers = CollectiveBuffers::checked(kernel, ranks, (call.input, 1), output, elements)?;
        let stride = if target == Target::InPlace { buffers.bytes } else { 0 };
        // SAFETY: the caller's promise.
        unsafe { self.gather(stream, &buffers, call.input, stride) }
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
        let (kernel, world, elements) = (Kernel::AllToAll, ranks.world, (call.bytes, DataType::U8));
        let buffers =
            CollectiveBuffers::checked(kernel, ranks, (call.input, world), (call.target, world), elements)?;
        if call.target == Target::InPlace {
            return Err(KernelError::NotInPlace { kernel });
        }
        // SAFETY: the caller's promise.
        unsafe { self.gather(stream, &buffers, call.input + buffers.bytes * u64::from(ranks.rank), 0) }
    }

    /// Launches the kernel of all-gather and all-to-all. `input` and `stride` are those of [`Gather`].
    ///
    /// # Safety
    /// As [`all_reduce`](Self::all_reduce).
    unsafe fn gather(
        &self,
        stream: &Stream,
        buffers: &CollectiveBuffers<'_>,
        input: u64,
        stride: u64,
    ) -> Result<(), KernelError> {
        let (bytes, (output, target_kind)) = (buffers.bytes, buffers.target.output(buffers.input));
        let own = u32::from(target_kind == TargetKind::Own);
        let gather = Gather { input, stride, output, bytes, own, kernel: buffers.kernel as u32 };
        // SAFETY: the caller's promise.
        unsafe { self.collective(stream, buffers, (GATHER, 0), gather, bytes) }
    }

    /// Launches the kernel with index `entry` in unit (PTX module) `unit`. `share` is the number of bytes that the
    /// thread blocks of one rank handle together.
    ///
    /// # Safety
    /// As [`all_reduce`](Self::all_reduce). `P` must be the type of the kernel's second parameter.
    unsafe fn collective<P: Parameter>(
        &self,
        stream: &Stream,
        buffers: &CollectiveBuffers<'_>,
        (unit, entry): (usize, usize),
        arguments: P,
        share: u64,
    ) -> Result<(), KernelError> {
        buffers.pin_if_captured(stream)?;
        let function = self.function(unit, entry)?;
        // Each block waits for the block of the same number on every other rank, so all ranks must launch equally many
        // blocks. They do, because all ranks pass the same `share`.
        let config = LaunchConfig::new(blocks(share), THREADS);
        // SAFETY: the arguments are those of the kernel; the caller promises the rest.
        unsafe { stream.launch_kernel(function, &config, (*buffers.ranks, arguments))? };
        Ok(())
    }

    /// Loads the kernels that combine elements of this type, and the kernel of all-gather and all-to-all. Kernels that
    /// are not loaded are loaded by their first launch. Loading may wait for running work of the device. If several
    /// ranks share a device, that work can be a collective kernel that itself waits for the rank that loads. So on a
    /// shared device, all ranks must load before any of them launches.
    ///
    /// # Errors
    /// [`KernelError::Driver`] from loading modules. A type that cannot be combined is no error: then only the kernel
    /// of all-gather and all-to-all is loaded.
    pub fn prepare(&self, dtype: DataType) -> Result<(), KernelError> {
        let _gather = self.function(GATHER, 0)?;
        match reduce_kernel(dtype, ReduceOp::Max) {
            Some((unit, entry)) => self.function(unit, entry).map(drop),
            None => Ok(()),
        }
    }
}

/// Finds the kernel that combines elements of this type by this operation. Returns the index of its unit (PTX module),
/// and its index in that unit. Returns `None` if there is no such kernel.
fn reduce_kernel(dtype: DataType, op: ReduceOp) -> Option<(usize, usize)> {
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

impl Target {
    /// Returns the address or the offset of the result, and its kind. `in_place` is the offset of the result for
    /// [`InPlace`](Self::InPlace).
    fn output(self, in_place: u64) -> (u64, TargetKind) {
        match self {
            Self::InPlace => (in_place, TargetKind::Own),
            Self::Offset(offset) => (offset, TargetKind::Own),
            Self::Address(at) => (at.0, TargetKind::Address),
        }
    }
}

/// The input and the result of a collective on this rank. Both consist of one or [`world`](Ranks::world) parts, all of
/// the same length.
struct CollectiveBuffers<'a> {
    kernel: Kernel,
    ranks: &'a Ranks,
    input: u64,
    target: Target,
    /// Length of a part in bytes.
    bytes: u64,
    /// Length of the input in bytes.
    read: u64,
    /// Length of the result in bytes.
    written: u64,
}

impl<'a> CollectiveBuffers<'a> {
    /// Describes an input of `input_parts` parts and a result of `result_parts` parts, each of `elements` elements.
    /// Fails if no kernel supports `ranks`, or if a result at an offset would overlap the input. Also fails if the
    /// input's offset plus the length of `world` parts is 2^56 bytes or more.
    fn checked(
        kernel: Kernel,
        ranks: &'a Ranks,
        (input, input_parts): (u64, u32),
        (target, result_parts): (Target, u32),
        (elements, dtype): (u64, DataType),
    ) -> Result<Self, KernelError> {
        ranks.check(kernel)?;
        let bytes = elements.checked_mul(dtype.size() as u64);
        let all = bytes.and_then(|bytes| bytes.checked_mul(u64::from(ranks.world)));
        // The kernels multiply a length by the index of a block or a rank, which is below 2^8. The product must fit
        // into 64 bits, so the length must be below 2^56.
        let fits = all.and_then(|all| input.checked_add(all)).is_some_and(|end| end < 1 << 56);
        let bytes = bytes.filter(|_| fits).ok_or(KernelError::TooLong { kernel, elements })?;
        let (read, written) = (bytes * u64::from(input_parts), bytes * u64::from(result_parts));
        if let Target::Offset(output) = target {
            let apart = output.checked_add(written).is_some_and(|end| end <= input) || output >= input + read;
            if !apart {
                return Err(KernelError::Overlap { kernel, input, read, output, written });
            }
        }
        Ok(Self { kernel, ranks, input, target, bytes, read, written })
    }

    /// Returns the result of [`reduce_kernel`], or an error that names the collective.
    fn reduce_kernel(&self, dtype: DataType, op: ReduceOp) -> Result<(usize, usize), KernelError> {
        let kernel = self.kernel;
        reduce_kernel(dtype, op).ok_or_else(|| KernelError::NotCombined { kernel, dtype, op: op.to_string() })
    }

    /// If `stream` captures, pins this rank's input and result for the graph: they stay allocated while the graph
    /// exists. Memory in this rank's buffer is pinned only if the array at [`Ranks::buffers`] is registered (see
    /// [`own_buffer`]).
    fn pin_if_captured(&self, stream: &Stream) -> cuda_driver::Result<()> {
        let Self { input, read, written, .. } = *self;
        let own = |offset: u64, bytes: u64| {
            let base = own_buffer(self.ranks.buffers)?;
            Some((DevicePtr(base.0.saturating_add(offset)), bytes))
        };
        let output = match self.target {
            // The result of a gather in place is longer than its input.
            Target::InPlace => own(input, written),
            Target::Offset(offset) => own(offset, written),
            Target::Address(at) => Some((at, written)),
        };
        graph_memory::note(stream, own(input, read).into_iter().chain(output))
    }
}

const _: () = assert!(super::arguments::MOST_BLOCKS <= PadLayout::KERNEL_CHANNELS);
