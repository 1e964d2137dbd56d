//! Writes of, and waits for, words of memory in stream order, without a kernel.

use cuda_driver_sys::{CUstreamBatchMemOpParams, CUstreamBatchMemOpType, CUstreamWaitValue_flags, Feature};

use super::Stream;
use crate::call::call;
use crate::{DevicePtr, Result};

/// The condition that ends a wait for a word of memory. `GreaterOrEqual` compares cyclically, by the signed
/// difference, so a counter may wrap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WaitCondition {
    /// `(word - value) >= 0`, as a signed difference.
    GreaterOrEqual,
    /// `word == value`.
    Equal,
    /// `(word & value) != 0`.
    AnyBit,
    /// `!(word | value) != 0`.
    NotOr,
}

impl WaitCondition {
    fn flags(self) -> u32 {
        match self {
            Self::GreaterOrEqual => CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ,
            Self::Equal => CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_EQ,
            Self::AnyBit => CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_AND,
            Self::NotOr => CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_NOR,
        }
        .0
    }
}

/// Each needs [`Feature::STREAM_MEMORY_OPERATIONS`]; addresses must be aligned to the word.
impl Stream {
    fn require_memory_operations(&self) -> Result<()> {
        let feature = Feature::STREAM_MEMORY_OPERATIONS;
        if self.api().has(feature) { Ok(()) } else { Ok(self.api().require(feature)?) }
    }

    /// Writes a 32-bit word when the stream reaches it; earlier work of the stream is visible before it.
    ///
    /// # Safety
    /// The contract of [asynchronous calls](Stream#what-asynchronous-calls-ask-of-the-caller), for the word.
    ///
    /// # Errors
    /// [`Error::Missing`](crate::Error::Missing) naming the feature where the driver is too old;
    /// [`Error::Driver`](crate::Error::Driver) from `cuStreamWriteValue32_v2`.
    #[doc(alias = "cuStreamWriteValue32")]
    pub unsafe fn write_value32(&self, at: DevicePtr, value: u32) -> Result<()> {
        self.require_memory_operations()?;
        let _current = self.enter_if_implicit()?;
        // SAFETY: the caller vouches for the word; the stream is alive.
        unsafe { call!(self.api(), cuStreamWriteValue32_v2(self.raw(), at.0, value, 0)) }
    }

    /// Writes a 64-bit word when the stream reaches it; earlier work of the stream is visible before it.
    ///
    /// # Safety
    /// As [`write_value32`](Self::write_value32).
    ///
    /// # Errors
    /// As [`write_value32`](Self::write_value32).
    #[doc(alias = "cuStreamWriteValue64")]
    pub unsafe fn write_value64(&self, at: DevicePtr, value: u64) -> Result<()> {
        self.require_memory_operations()?;
        let _current = self.enter_if_implicit()?;
        // SAFETY: the caller vouches for the word; the stream is alive.
        unsafe { call!(self.api(), cuStreamWriteValue64_v2(self.raw(), at.0, value, 0)) }
    }

    /// Holds the stream's later work until a 32-bit word of memory meets the condition. Only the word ends
    /// the wait, so a caller that cannot wait for ever must bound it from the host.
    ///
    /// # Safety
    /// As [`write_value32`](Self::write_value32).
    ///
    /// # Errors
    /// As [`write_value32`](Self::write_value32), from `cuStreamWaitValue32_v2`.
    #[doc(alias = "cuStreamWaitValue32")]
    pub unsafe fn wait_value32(&self, at: DevicePtr, condition: WaitCondition, value: u32) -> Result<()> {
        self.require_memory_operations()?;
        let _current = self.enter_if_implicit()?;
        // SAFETY: the caller vouches for the word; the stream is alive.
        unsafe { call!(self.api(), cuStreamWaitValue32_v2(self.raw(), at.0, value, condition.flags())) }
    }

    /// Holds the stream's later work until a 64-bit word of memory meets the condition, as
    /// [`wait_value32`](Self::wait_value32).
    ///
    /// # Safety
    /// As [`write_value32`](Self::write_value32).
    ///
    /// # Errors
    /// As [`write_value32`](Self::write_value32), from `cuStreamWaitValue64_v2`.
    #[doc(alias = "cuStreamWaitValue64")]
    pub unsafe fn wait_value64(&self, at: DevicePtr, condition: WaitCondition, value: u64) -> Result<()> {
        self.require_memory_operations()?;
        let _current = self.enter_if_implicit()?;
        // SAFETY: the caller vouches for the word; the stream is alive.
        unsafe { call!(self.api(), cuStreamWaitValue64_v2(self.raw(), at.0, value, condition.flags())) }
    }

    /// Enqueues up to 256 operations, in their order, at about the cost of one.
    ///
    /// # Safety
    /// As [`write_value32`](Self::write_value32), for every word.
    ///
    /// # Errors
    /// As [`write_value32`](Self::write_value32), from `cuStreamBatchMemOp_v2`: `CUDA_ERROR_INVALID_VALUE` for more
    /// than 256.
    #[doc(alias = "cuStreamBatchMemOp")]
    pub unsafe fn batch(&self, operations: &[MemoryOp]) -> Result<()> {
        self.require_memory_operations()?;
        let _current = self.enter_if_implicit()?;
        let mut raw: Vec<_> = operations.iter().map(|operation| operation.raw()).collect();
        let count = u32::try_from(raw.len()).unwrap_or(u32::MAX);
        // SAFETY: the caller vouches for the words; reads the operations, which outlive the call (the driver refuses
        // more than 256 before it reads them).
        unsafe { call!(self.api(), cuStreamBatchMemOp_v2(self.raw(), count, raw.as_mut_ptr(), 0)) }
    }
}

/// One operation of [`Stream::batch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MemoryOp {
    /// See [`Stream::write_value32`].
    Write32 {
        /// The word.
        at: DevicePtr,
        /// The value to write.
        value: u32,
    },
    /// See [`Stream::write_value64`].
    Write64 {
        /// The word.
        at: DevicePtr,
        /// The value to write.
        value: u64,
    },
    /// See [`Stream::wait_value32`].
    Wait32 {
        /// The word.
        at: DevicePtr,
        /// When the wait ends.
        condition: WaitCondition,
        /// The value to compare with.
        value: u32,
    },
    /// See [`Stream::wait_value64`].
    Wait64 {
        /// The word.
        at: DevicePtr,
        /// When the wait ends.
        condition: WaitCondition,
        /// The value to compare with.
        value: u64,
    },
}

impl MemoryOp {
    fn raw(self) -> CUstreamBatchMemOpParams {
        use CUstreamBatchMemOpType as Op;
        let mut raw = CUstreamBatchMemOpParams::default();
        match self {
            Self::Write32 { at, value } => {
                raw.writeValue.operation = Op::CU_STREAM_MEM_OP_WRITE_VALUE_32;
                raw.writeValue.address = at.0;
                raw.writeValue.__bindgen_anon_1.value = value;
            }
            Self::Write64 { at, value } => {
                raw.writeValue.operation = Op::CU_STREAM_MEM_OP_WRITE_VALUE_64;
                raw.writeValue.address = at.0;
                raw.writeValue.__bindgen_anon_1.value64 = value;
            }
            Self::Wait32 { at, condition, value } => {
                raw.waitValue.operation = Op::CU_STREAM_MEM_OP_WAIT_VALUE_32;
                raw.waitValue.address = at.0;
                raw.waitValue.__bindgen_anon_1.value = value;
                raw.waitValue.flags = condition.flags();
            }
            Self::Wait64 { at, condition, value } => {
                raw.waitValue.operation = Op::CU_STREAM_MEM_OP_WAIT_VALUE_64;
                raw.waitValue.address = at.0;
                raw.waitValue.__bindgen_anon_1.value64 = value;
                raw.waitValue.flags = condition.flags();
            }
        }
        raw
    }
}
