//! Stream memory operations: streams that write words and wait for them.

use std::ffi::c_uint;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

use cuda_driver_sys::{
    CUdeviceptr, CUgraphNodeType, CUstream, CUstreamBatchMemOpParams, CUstreamBatchMemOpType as Op,
    cuuint32_t, cuuint64_t,
};

use super::copy::check;
use crate::abi::{DriverError, DriverResult};
use crate::fault::Fault;
use crate::memory::{Access, View};
use crate::stream::{Exec, Repeat};
use crate::world::Machine;

/// `CU_STREAM_WAIT_VALUE_FLUSH`: remote writes are visible before the wait ends. Here they always are.
const FLUSH: c_uint = 1 << 30;
/// `CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER`.
const NO_BARRIER: c_uint = 1;

abi! {
    call fn cuStreamWriteValue32_v2(machine, stream: CUstream, to: CUdeviceptr, value: cuuint32_t, flags: c_uint) {
        enqueue(machine, stream, vec![Step::write(to, Word::W32, value.into(), flags)?])?;
    }

    call fn cuStreamWriteValue64_v2(machine, stream: CUstream, to: CUdeviceptr, value: cuuint64_t, flags: c_uint) {
        enqueue(machine, stream, vec![Step::write(to, Word::W64, value, flags)?])?;
    }

    call fn cuStreamWaitValue32_v2(machine, stream: CUstream, at: CUdeviceptr, value: cuuint32_t, flags: c_uint) {
        enqueue(machine, stream, vec![Step::wait(at, Word::W32, value.into(), flags)?])?;
    }

    call fn cuStreamWaitValue64_v2(machine, stream: CUstream, at: CUdeviceptr, value: cuuint64_t, flags: c_uint) {
        enqueue(machine, stream, vec![Step::wait(at, Word::W64, value, flags)?])?;
    }

    call fn cuStreamBatchMemOp_v2(
        machine, stream: CUstream, count: c_uint, operations: *mut CUstreamBatchMemOpParams, flags: c_uint,
    ) {
        if flags != 0 || count > 256 {
            return Err(DriverError::invalid(format!("{count} operations (at most 256) with flags {flags} (0)")));
        }
        let operations = list!(operations.cast_const(), count as usize)?;
        let steps = operations.iter().map(Step::of).collect::<DriverResult<Vec<_>>>()?;
        enqueue(machine, stream, steps)?;
    }
}

/// The size of a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Word {
    W32,
    W64,
}

/// Condition that ends a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Until {
    /// The word is not behind the value, as a cyclic counter.
    NotBehind,
    Equal,
    /// Word and value have a bit in common.
    And,
    /// A bit is set in neither word nor value.
    Nor,
}

/// One operation of a batch.
#[derive(Debug, Clone, Copy)]
enum Step {
    Write {
        to: u64,
        word: Word,
        value: u64,
    },
    Wait {
        at: u64,
        word: Word,
        value: u64,
        until: Until,
    },
    /// A barrier: each step is one already.
    Nothing,
}

impl Step {
    fn write(to: u64, word: Word, value: u64, flags: c_uint) -> DriverResult<Self> {
        if flags & !NO_BARRIER != 0 {
            return Err(DriverError::invalid(format!("write flags {flags}")));
        }
        aligned(to, word)?;
        Ok(Self::Write { to, word, value })
    }

    fn wait(at: u64, word: Word, value: u64, flags: c_uint) -> DriverResult<Self> {
        let until = match flags & !FLUSH {
            0 => Until::NotBehind,
            1 => Until::Equal,
            2 => Until::And,
            3 => Until::Nor,
            _ => return Err(DriverError::invalid(format!("wait flags {flags}"))),
        };
        aligned(at, word)?;
        Ok(Self::Wait { at, word, value, until })
    }

    fn of(operation: &CUstreamBatchMemOpParams) -> DriverResult<Self> {
        // SAFETY: every variant begins with the operation's kind, and all are plain integers.
        let (kind, write, wait) = unsafe { (operation.operation, operation.writeValue, operation.waitValue) };
        // SAFETY: plain integers; the kind says which width is meant.
        let (narrow, wide) = unsafe { (write.__bindgen_anon_1.value, write.__bindgen_anon_1.value64) };
        match kind {
            Op::CU_STREAM_MEM_OP_WRITE_VALUE_32 => {
                Self::write(write.address, Word::W32, narrow.into(), write.flags)
            }
            Op::CU_STREAM_MEM_OP_WRITE_VALUE_64 => Self::write(write.address, Word::W64, wide, write.flags),
            Op::CU_STREAM_MEM_OP_WAIT_VALUE_32 => {
                Self::wait(wait.address, Word::W32, narrow.into(), wait.flags)
            }
            Op::CU_STREAM_MEM_OP_WAIT_VALUE_64 => Self::wait(wait.address, Word::W64, wide, wait.flags),
            Op::CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES | Op::CU_STREAM_MEM_OP_BARRIER => Ok(Self::Nothing),
            other => Err(DriverError::unsupported(format!("{other:?} is not modelled"))),
        }
    }

    fn run(self, exec: &Exec) -> Result<(), Fault> {
        match self {
            Self::Nothing => Ok(()),
            Self::Write { to, word, value } => {
                let view = exec.copy_view(to, word.bytes(), Access::WRITE)?;
                word.store(&view, value);
                Ok(())
            }
            Self::Wait { at, word, value, until } => {
                let view = exec.copy_view(at, word.bytes(), Access::READ)?;
                let reason = || format!("the word at {at:#x} to be {until:?} {value:#x}");
                view.wait(reason, || until.holds(word, word.load(&view), value))
            }
        }
    }
}

impl Word {
    fn bytes(self) -> u64 {
        match self {
            Self::W32 => 4,
            Self::W64 => 8,
        }
    }

    fn load(self, view: &View) -> u64 {
        // SAFETY: the view has the word's bytes at an aligned address (checked at enqueue; the shadow keeps page
        // offsets), and everybody who races here uses atomics or accepts to race, as on a device.
        unsafe {
            match self {
                Self::W32 => (*view.as_ptr().cast::<AtomicU32>()).load(SeqCst).into(),
                Self::W64 => (*view.as_ptr().cast::<AtomicU64>()).load(SeqCst),
            }
        }
    }

    fn store(self, view: &View, value: u64) {
        // SAFETY: as `load`, for writing.
        unsafe {
            match self {
                Self::W32 => (*view.as_ptr().cast::<AtomicU32>()).store(value as u32, SeqCst),
                Self::W64 => (*view.as_ptr().cast::<AtomicU64>()).store(value, SeqCst),
            }
        }
    }
}

impl Until {
    fn holds(self, word: Word, found: u64, value: u64) -> bool {
        match (self, word) {
            (Self::NotBehind, Word::W32) => (found as u32).wrapping_sub(value as u32) as i32 >= 0,
            (Self::NotBehind, Word::W64) => found.wrapping_sub(value) as i64 >= 0,
            (Self::Equal, _) => found == value,
            (Self::And, _) => found & value != 0,
            (Self::Nor, Word::W32) => !(found as u32 | value as u32) != 0,
            (Self::Nor, Word::W64) => !(found | value) != 0,
        }
    }
}

fn aligned(address: u64, word: Word) -> DriverResult {
    if address == 0 || !address.is_multiple_of(word.bytes()) {
        return Err(DriverError::invalid(format!(
            "{address:#x} is not aligned to its {} bytes",
            word.bytes()
        )));
    }
    Ok(())
}

fn enqueue(machine: &Arc<Machine>, stream: CUstream, steps: Vec<Step>) -> DriverResult {
    let stream = machine.stream(stream)?;
    for step in &steps {
        match *step {
            Step::Write { to, word, .. } => check(machine, &stream, to, word.bytes(), Access::WRITE)?,
            Step::Wait { at, word, .. } => check(machine, &stream, at, word.bytes(), Access::READ)?,
            Step::Nothing => {}
        }
    }
    let work =
        Repeat::new(format!("{steps:x?}"), move |exec: &Exec| steps.iter().try_for_each(|s| s.run(exec)));
    stream.enqueue(machine, CUgraphNodeType::CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, work)
}
