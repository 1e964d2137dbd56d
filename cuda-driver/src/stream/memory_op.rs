//! Memory operations of a stream: the stream writes a word of memory, or waits until a word meets a condition,
//! without a kernel.

use cuda_driver_sys::{CUstreamBatchMemOpParams, CUstreamBatchMemOpType, CUstreamWaitValue_flags, Feature};

use super::Stream;
use crate::call::call;
use crate::{DevicePtr, Result};

/// The condition on a word of memory that ends a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WaitCondition {
    /// `(word - value) >= 0`, as a signed difference with wrap-around. A counter may therefore overflow.
    GreaterOrEqual,
    /// `word == value`.
    Equal,
    /// `(word & value) != 0`.
    AnyBit,
    /// `!(word | value) != 0`. Needs [`Capabilities::STREAM_WAIT_NOT_OR`](crate::Capabilities::STREAM_WAIT_NOT_OR).
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

/// Memory operations. They need [`Feature::STREAM_MEMORY_OPERATIONS`], and an address that is aligned to the size of
/// the word. Operations on 64-bit words also need
/// [`Capabilities::STREAM_WORDS_64`](crate::Capabilities::STREAM_WORDS_64).
impl Stream {
    fn require_memory_operations(&self) -> Result<()> {
        let feature = Feature::STREAM_MEMORY_OPERATIONS;
        if self.api().has(feature) { Ok(()) } else { Ok(self.api().require(feature)?) }
    }

    /// Enqueues a write of `value` to the 32-bit word at `at`. The effects of earlier work of the stream are visible
    /// before the write.
    ///
    /// # Safety
    /// The contract of [asynchronous calls](Stream#what-asynchronous-calls-ask-of-the-caller) must hold for the word,
    /// with one exception: other work and host code may read and write the word at the same time, if each access is
    /// atomic and of the whole word.
    ///
    /// # Errors
    /// [`Error::Missing`](crate::Error::Missing), which names the feature, if the driver is too old;
    /// [`Error::Driver`](crate::Error::Driver) from `cuStreamWriteValue32_v2`.
    #[doc(alias = "cuStreamWriteValue32")]
    pub unsafe fn write_value32(&self, at: DevicePtr, value: u32) -> Result<()> {
        self.require_memory_operations()?;
        let _current = self.enter_if_implicit()?;
        // SAFETY: the caller promises that the word is valid; the stream is alive.
        unsafe { call!(self.api(), cuStreamWriteValue32_v2(self.raw(), at.0, value, 0)) }
    }

    /// Enqueues a write of `value` to the 64-bit word at `at`. The effects of earlier work of the stream are visible
    /// before the write.
    ///
    /// # Safety
    /// As for [`write_value32`](Self::write_value32).
    ///
    /// # Errors
    /// [`Error::Missing`](crate::Error::Missing), as for [`write_value32`](Self::write_value32);
    /// [`Error::Driver`](crate::Error::Driver) from `cuStreamWriteValue64_v2`.
    #[doc(alias = "cuStreamWriteValue64")]
    pub unsafe fn write_value64(&self, at: DevicePtr, value: u64) -> Result<()> {
        self.require_memory_operations()?;
        let _current = self.enter_if_implicit()?;
        // SAFETY: the caller promises that the word is valid; the stream is alive.
        unsafe { call!(self.api(), cuStreamWriteValue64_v2(self.raw(), at.0, value, 0)) }
    }

    /// Enqueues a wait: later work of the stream starts only when the 32-bit word at `at`, compared with `value`, meets
    /// the condition. There is no timeout. A caller that must not wait for ever can end the wait by writing the word
    /// from the host.
    ///
    /// # Safety
    /// As for [`write_value32`](Self::write_value32).
    ///
    /// # Errors
    /// [`Error::Missing`](crate::Error::Missing), as for [`write_value32`](Self::write_value32);
    /// [`Error::Driver`](crate::Error::Driver) from `cuStreamWaitValue32_v2`.
    #[doc(alias = "cuStreamWaitValue32")]
    pub unsafe fn wait_value32(&self, at: DevicePtr, condition: WaitCondition, value: u32) -> Result<()> {
        self.require_memory_operations()?;
        let _current = self.enter_if_implicit()?;
        // SAFETY: the caller promises that the word is valid; the stream is alive.
        unsafe { call!(self.api(), cuStreamWaitValue32_v2(self.raw(), at.0, value, condition.flags())) }
    }

    /// Enqueues a wait for the 64-bit word at `at`, like [`wait_value32`](Self::wait_value32).
    ///
    /// # Safety
    /// As for [`write_value32`](Self::write_value32).
    ///
    /// # Errors
    /// [`Error::Missing`](crate::Error::Missing), as for [`write_value32`](Self::write_value32);
    /// [`Error::Driver`](crate::Error::Driver) from `cuStreamWaitValue64_v2`.
    #[doc(alias = "cuStreamWaitValue64")]
    pub unsafe fn wait_value64(&self, at: DevicePtr, condition: WaitCondition, value: u64) -> Result<()> {
        self.require_memory_operations()?;
        let _current = self.enter_if_implicit()?;
        // SAFETY: the caller promises that the word is valid; the stream is alive.
        unsafe { call!(self.api(), cuStreamWaitValue64_v2(self.raw(), at.0, value, condition.flags())) }
    }

    /// Enqueues up to 256 operations in the given order, at about the cost of one.
    ///
    /// # Safety
    /// As for [`write_value32`](Self::write_value32), for every word.
    ///
    /// # Errors
    /// [`Error::Missing`](crate::Error::Missing), as for [`write_value32`](Self::write_value32);
    /// [`Error::Driver`](crate::Error::Driver) from `cuStreamBatchMemOp_v2`: `CUDA_ERROR_INVALID_VALUE` for more than
    /// 256 operations.
    #[doc(alias = "cuStreamBatchMemOp")]
    pub unsafe fn batch(&self, operations: &[MemoryOp]) -> Result<()> {
        self.require_memory_operations()?;
        let _current = self.enter_if_implicit()?;
        let mut raw: Vec<_> = operations.iter().map(|operation| operation.raw()).collect();
        let count = u32::try_from(raw.len()).unwrap_or(u32::MAX);
        // SAFETY: the caller promises that the words are valid. The operations outlive the call, which reads them. The
        // driver refuses more than 256 operations before it reads any.
        unsafe { call!(self.api(), cuStreamBatchMemOp_v2(self.raw(), count, raw.as_mut_ptr(), 0)) }
    }
}

/// An operation of [`Stream::batch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MemoryOp {
    /// See [`Stream::write_value32`].
    Write32 {
        /// The address of the word.
        at: DevicePtr,
        /// The value to write.
        value: u32,
    },
    /// See [`Stream::write_value64`].
    Write64 {
        /// The address of the word.
        at: DevicePtr,
        /// The value to write.
        value: u64,
    },
    /// See [`Stream::wait_value32`].
    Wait32 {
        /// The address of the word.
        at: DevicePtr,
        /// The condition that ends the wait.
        condition: WaitCondition,
        /// The value to compare the word with.
        value: u32,
    },
    /// See [`Stream::wait_value64`].
    Wait64 {
        /// The address of the word.
        at: DevicePtr,
        /// The condition that ends the wait.
        condition: WaitCondition,
        /// The value to compare the word with.
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
