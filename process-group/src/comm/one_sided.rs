//! One-sided operations: a rank writes into a window of a peer. The peer makes no matching call; it only waits for
//! the signal.
//!
//! A window has the same layout on every rank. A location in a peer's window is therefore named by this rank's own
//! address at the same offset. NCCL checks neither the end of a put nor the rank that a wait names; this module does.

use std::sync::atomic::Ordering;

use cuda_driver::{DevicePtr, Stream, StreamFlags, graph::CaptureStatus, sys};
use nccl_sys::{Feature, ncclWaitSignalDesc_t, ncclWindow_t};

use super::{
    ArgumentError, CommError, Communicator, DataType, Result,
    call::call,
    task::{Primitive, Task},
};
use crate::store::Deadline;

/// First driver with the functions that NCCL needs for one-sided operations.
const DRIVER: sys::Version = sys::Version::new(12, 5, 0);

/// The only signal, context and flags that exist. Releases that have more take them through other functions.
pub(super) const ONLY: i32 = 0;

/// One-sided operations, from NCCL 2.29 and with a driver of CUDA 12.5. They occupy no thread block of the device: on
/// one host copy engines do the work. Tested on the embedded device, and on two H200 with 2.30.7.
impl Communicator {
    /// Checks that this communicator supports one-sided operations: it supports [windows](Self::windows_supported),
    /// and the release and this rank's driver have the functions needed.
    ///
    /// # Errors
    /// [`CommError::Missing`] below 2.29; [`CommError::Setting`] with the reason.
    pub fn one_sided_supported(&self) -> Result<()> {
        let shared = self.shared();
        self.nccl().api().require(Feature::ONE_SIDED)?;
        self.windows_supported()?;
        let found = shared.context.driver().version();
        if found < DRIVER {
            let problem = format!("they need a driver of CUDA {DRIVER}, but this rank has {found}");
            return Err(CommError::Setting { setting: "one-sided operations", problem });
        }
        Ok(())
    }

    /// Prepares one-sided operations. Collective. NCCL's first one-sided operation of a rank waits until every rank
    /// has made one. This call makes it, with a deadline, so that no later operation waits. Does nothing if it was
    /// done before.
    ///
    /// # Errors
    /// Those of [`one_sided_supported`](Self::one_sided_supported), before anything was done;
    /// [`DeadlineExceeded`](CommError::DeadlineExceeded) when a rank did not come in time, and
    /// [`Nccl`](CommError::Nccl): the communicator is then poisoned.
    pub fn prepare_one_sided(&self, deadline: Deadline) -> Result<()> {
        const CALL: &str = "ncclSignal";
        super::open_group::refuse_inside(CALL)?;
        self.one_sided_supported()?;
        if self.shared().one_sided.load(Ordering::Acquire) {
            return Ok(());
        }
        let waiting_for = "the other ranks to prepare one-sided operations".to_owned();
        self.serve(CALL, waiting_for, deadline, |shared| {
            let stream = Stream::new(&shared.context, StreamFlags::NON_BLOCKING)?;
            let (nccl, name, comm, raw) = (&shared.nccl, shared.name(), shared.raw(), stream.raw().cast());
            // A signal to itself, and a wait for it: afterwards all signal counts are as before.
            let rank = shared.place.rank as i32;
            let mut own = ncclWaitSignalDesc_t { opCnt: 1, peer: rank, sigIdx: ONLY, ctx: ONLY };
            // SAFETY: the communicator is alive while this call is inside. The descriptor is read during the call.
            unsafe {
                call!(nccl, name, ncclSignal(rank, ONLY, ONLY, ONLY.cast_unsigned(), comm, raw))?;
                call!(nccl, name, ncclWaitSignal(1, &mut own, comm, raw))?;
            }
            stream.synchronize()?;
            shared.one_sided.store(true, Ordering::Release);
            Ok(())
        })
    }

    /// Writes `count` elements from `local` to `peer`'s copy of `place` (the same window, the same offset), then
    /// raises `peer`'s count of this rank's signals by one. Both addresses lie in [windows](super::Window) of this
    /// communicator. After `peer` has [waited](Self::wait_signals) for the signal, it sees the data of this put and
    /// of all earlier puts to it. When the put is done, `local` may be written again. Above 1 GiB the put consists of
    /// several copies and one signal.
    ///
    /// # Errors
    /// See the head of the section on collectives; [`NotPrepared`](ArgumentError::NotPrepared),
    /// [`OutsideWindows`](ArgumentError::OutsideWindows), and [`CommError::Missing`] in a captured stream below
    /// 2.30.3.
    ///
    /// # Safety
    /// `local` holds `count` elements, which nothing writes until the put is done. The window is registered on `peer`
    /// until then, with as many bytes as here. Nothing reads or writes `peer`'s copy of `place` until `peer` has
    /// waited for the signal.
    #[doc(alias = "ncclPutSignal")]
    pub unsafe fn put_signal(
        &self,
        local: DevicePtr,
        place: DevicePtr,
        count: usize,
        dtype: DataType,
        peer: usize,
        stream: &Stream,
    ) -> Result<()> {
        let task = Task::new(Primitive::PutSignal, local, place, count, dtype).with(peer);
        // SAFETY: the caller's contract.
        unsafe { self.submit(&task, stream) }
    }

    /// Raises `peer`'s count of this rank's signals by one, after all earlier puts to it.
    ///
    /// # Errors
    /// As for [`put_signal`](Self::put_signal).
    #[doc(alias = "ncclSignal")]
    pub fn signal(&self, peer: usize, stream: &Stream) -> Result<()> {
        // SAFETY: a signal accesses no memory of the program.
        unsafe { self.submit(&Task::signals(Primitive::Signal, 1, peer), stream) }
    }

    /// Makes `stream` wait for `count` signals of `peer` beyond those that earlier waits consumed. A captured wait
    /// counts only captured signals, and other waits count only signals that are not captured.
    ///
    /// # Errors
    /// As for [`put_signal`](Self::put_signal); [`Signals`](ArgumentError::Signals).
    #[doc(alias = "ncclWaitSignal")]
    pub fn wait_signals(&self, peer: usize, count: usize, stream: &Stream) -> Result<()> {
        // SAFETY: a wait accesses no memory of the program.
        unsafe { self.submit(&Task::signals(Primitive::WaitSignals, count, peer), stream) }
    }

    /// Checks the parts of a one-sided task that depend on the communicator's state.
    pub(super) fn check_one_sided(&self, task: Task, stream: &Stream) -> Result<()> {
        let shared = self.shared();
        let call = task.call.name();
        if !shared.one_sided.load(Ordering::Acquire) {
            return Err(ArgumentError::NotPrepared { call }.into());
        }
        if task.primitive == Primitive::PutSignal && task.count > 0 {
            self.window(call, "send", task.send, &task)?;
        }
        self.window_of(task)?;
        if !shared.nccl.has(Feature::CAPTURED_ONE_SIDED) && stream.capture_status()? != CaptureStatus::None {
            shared.nccl.api().require(Feature::CAPTURED_ONE_SIDED)?;
        }
        Ok(())
    }

    /// Returns the window that a task writes into, if it does, and the offset in it in bytes.
    #[inline(always)]
    pub(super) fn window_of(&self, task: Task) -> Result<Option<(ncclWindow_t, usize)>> {
        match task.primitive {
            Primitive::PutSignal if task.count > 0 => {
                self.window(task.call.name(), "receive", task.receive, &task).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Returns the window that a buffer of a task lies in, and the offset in it in bytes.
    fn window(
        &self,
        call: &'static str,
        buffer: &'static str,
        ptr: DevicePtr,
        task: &Task,
    ) -> Result<(ncclWindow_t, usize)> {
        let (address, bytes) = (ptr.0, task.count * task.dtype.size());
        let window = self.shared().windows().handle(address, bytes);
        window.ok_or_else(|| ArgumentError::OutsideWindows { call, buffer, address, bytes }.into())
    }
}
