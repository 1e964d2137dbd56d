//! One-sided operations: a rank writes into a window of a peer. The peer makes no matching call; it only waits for
//! the signal.
//!
//! A window has the same layout on every rank. To name a location in a peer's window, a caller therefore passes the
//! address at the same offset in this rank's own window. NCCL does not check that a put ends inside the window, nor
//! that the rank passed to a wait exists. This crate checks both.

use std::{ptr, sync::atomic::Ordering};

use cuda_driver::{DevicePtr, Stream, StreamFlags, graph::CaptureStatus, sys};
use nccl_sys::{Feature, ncclWaitSignalDesc_t, ncclWindow_t};

use super::{ArgumentError, CommError, Communicator, DataType, Result, call::call, launch::Launch, op::Op};
use crate::{operation::Primitive, store::Deadline};

/// First driver with the functions that NCCL needs for one-sided operations.
const DRIVER: sys::Version = sys::Version::new(12, 5, 0);

/// The signal index, the context and the flags of every one-sided call. NCCL's functions accept no other value.
/// Releases with more signals or contexts have other functions for them.
const ONLY: i32 = 0;

/// One-sided operations, from NCCL 2.29 and with a driver of CUDA 12.5. These operations occupy no thread block of
/// the device: on one host, copy engines do the work. Tested on the embedded device of gpu-sim, and on two H200 with
/// 2.30.7.
impl Communicator {
    /// Checks that this communicator supports one-sided operations: it supports [windows](Self::windows_supported),
    /// and the release and this rank's driver have the functions needed.
    ///
    /// # Errors
    /// [`CommError::Missing`] below 2.29; [`CommError::Setting`] with the reason, if windows are not supported or the
    /// driver is older than CUDA 12.5.
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

    /// Prepares one-sided operations. Collective. In NCCL, the first one-sided operation of a rank waits until every
    /// rank has made its first one. This call makes that first operation with a deadline, so that no later operation
    /// waits. Does nothing if this rank has prepared one-sided operations before.
    ///
    /// # Errors
    /// Those of [`one_sided_supported`](Self::one_sided_supported), and [`InsideGroup`](CommError::InsideGroup) if this
    /// thread has an open NCCL group: these change nothing.
    /// [`DeadlineExceeded`](CommError::DeadlineExceeded) if a rank did not make this call in time, and
    /// [`Nccl`](CommError::Nccl): both poison the communicator.
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
            // This rank signals itself and waits for that signal, so afterwards all signal counts are as before.
            let rank = shared.place.rank as i32;
            let mut own = ncclWaitSignalDesc_t { opCnt: 1, peer: rank, sigIdx: ONLY, ctx: ONLY };
            // SAFETY: the call guard keeps the communicator alive during the call. NCCL reads the descriptor before
            // it returns.
            unsafe {
                call!(nccl, name, ncclSignal(rank, ONLY, ONLY, ONLY.cast_unsigned(), comm, raw))?;
                call!(nccl, name, ncclWaitSignal(1, &mut own, comm, raw))?;
            }
            stream.synchronize()?;
            shared.one_sided.store(true, Ordering::Release);
            Ok(())
        })
    }

    /// Writes `count` elements from `local` into a window of `peer`, then raises `peer`'s count of this rank's
    /// signals by one. `place` names the destination: it is the address at the same offset in this rank's own copy of
    /// the window. Both addresses lie in [windows](super::Window) of this communicator. After `peer` has
    /// [waited](Self::wait_signals) for the signal, `peer` sees the data of this put and of all earlier puts from
    /// this rank to `peer`. When the put is done, `local` may be written again. Above 1 GiB the put consists of
    /// several copies and one signal.
    ///
    /// # Errors
    /// Those of all collectives, such as [`all_reduce`](Self::all_reduce);
    /// [`NotPrepared`](ArgumentError::NotPrepared), [`OutsideWindows`](ArgumentError::OutsideWindows), and
    /// [`CommError::Missing`] in a captured stream below 2.30.3.
    ///
    /// # Safety
    /// `local` holds `count` elements, and nothing writes to them until the put is done. Until then the window stays
    /// registered on `peer`, with the same length as on this rank. Nothing reads or writes `peer`'s copy of `place`
    /// until `peer` has waited for the signal.
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
        let op = Op::new(Primitive::PutSignal, local, place, count, dtype).with(peer);
        // SAFETY: the caller's contract.
        unsafe { self.submit(&op, stream) }
    }

    /// Raises `peer`'s count of this rank's signals by one, after all earlier puts from this rank to `peer`.
    ///
    /// # Errors
    /// As for [`put_signal`](Self::put_signal).
    #[doc(alias = "ncclSignal")]
    pub fn signal(&self, peer: usize, stream: &Stream) -> Result<()> {
        // SAFETY: a signal accesses no memory of the program.
        unsafe { self.submit(&Op::signals(Primitive::Signal, 1, peer), stream) }
    }

    /// Makes `stream` wait for `count` signals from `peer` beyond those that earlier waits consumed. A captured wait
    /// counts only captured signals, and other waits count only signals that are not captured.
    ///
    /// # Errors
    /// As for [`put_signal`](Self::put_signal); [`Signals`](ArgumentError::Signals).
    #[doc(alias = "ncclWaitSignal")]
    pub fn wait_signals(&self, peer: usize, count: usize, stream: &Stream) -> Result<()> {
        // SAFETY: a wait accesses no memory of the program.
        unsafe { self.submit(&Op::signals(Primitive::WaitSignals, count, peer), stream) }
    }

    /// Checks the parts of a one-sided op that depend on the communicator's state.
    pub(super) fn check_one_sided(&self, op: Op, stream: &Stream) -> Result<()> {
        let shared = self.shared();
        let call = op.call.name();
        if !shared.one_sided.load(Ordering::Acquire) {
            return Err(ArgumentError::NotPrepared { call }.into());
        }
        if op.primitive == Primitive::PutSignal && op.count > 0 {
            self.window(call, "send", op.send, &op)?;
        }
        self.window_of(op)?;
        if !shared.nccl.has(Feature::CAPTURED_ONE_SIDED) && stream.capture_status()? != CaptureStatus::None {
            shared.nccl.api().require(Feature::CAPTURED_ONE_SIDED)?;
        }
        Ok(())
    }

    /// Returns the window that a put writes into, and the byte offset in that window. `None` for an op that writes
    /// no data.
    #[inline(always)]
    pub(super) fn window_of(&self, op: Op) -> Result<Option<(ncclWindow_t, usize)>> {
        match op.primitive {
            Primitive::PutSignal if op.count > 0 => {
                self.window(op.call.name(), "receive", op.receive, &op).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Returns the window that contains a buffer of an op, and the byte offset of the buffer in that window.
    fn window(
        &self,
        call: &'static str,
        buffer: &'static str,
        ptr: DevicePtr,
        op: &Op,
    ) -> Result<(ncclWindow_t, usize)> {
        let (address, bytes) = (ptr.0, op.count * op.dtype.size());
        let window = self.shared().windows().handle(address, bytes);
        window.ok_or_else(|| ArgumentError::OutsideWindows { call, buffer, address, bytes }.into())
    }
}

impl Launch<'_> {
    /// Launches a one-sided operation.
    ///
    /// # Safety
    /// As for [`enqueue`](Self::enqueue).
    pub(super) unsafe fn one_sided(&self, op: &Op) -> Result<()> {
        let Self { nccl, name, comm, stream, .. } = *self;
        let Op { primitive, count, rank, .. } = *op;
        let (peer, flags) = (rank as i32, ONLY.cast_unsigned());
        // SAFETY: the caller upholds this function's contract. `Op::check` has checked the rank.
        unsafe {
            match primitive {
                Primitive::PutSignal if count > 0 => {
                    let (window, at) = self.window.unwrap_or((ptr::null_mut(), 0));
                    let (send, dtype) = (op.send.0 as *const _, op.dtype.moved(self.place.release));
                    call!(
                        nccl,
                        name,
                        ncclPutSignal(send, count, dtype, peer, window, at, ONLY, ONLY, flags, comm, stream)
                    )
                }
                Primitive::WaitSignals => {
                    let mut awaited =
                        ncclWaitSignalDesc_t { opCnt: count as i32, peer, sigIdx: ONLY, ctx: ONLY };
                    call!(nccl, name, ncclWaitSignal(1, &mut awaited, comm, stream))
                }
                // A put without elements is launched as a signal.
                _ => call!(nccl, name, ncclSignal(peer, ONLY, ONLY, flags, comm, stream)),
            }
        }
    }
}
