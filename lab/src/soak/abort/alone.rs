//! Baseline: resources that NCCL leaves by itself, and the time of its aborts. The same cases run with only NCCL's
//! own functions, on real GPUs.
//!
//! When an abort ends a call inside NCCL, NCCL leaks some resources of that call, whoever aborts it (2.28.9: memory
//! of a connection in progress, descriptors of a registration and of an initialisation). No caller can free these, so
//! a case's leaks are compared with NCCL's own.
//!
//! A communicator's own threads wait for messages for half a second at a time, and check only between two waits
//! whether they must end; a thread that receives no message ends after the second wait (2.28.9, `src/proxy.cc`). NCCL
//! alone may therefore need a second, so the time of a late case is compared with NCCL's own.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use cuda_driver::memory::DeviceMemory;
use cuda_driver::{Context, Stream, StreamFlags};
use nccl_sys::{Api, CallError, ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclResult_t, ncclUniqueId};
use process_group::{comm::UniqueId, store::Deadline};

use super::{
    Case,
    round::{HUNG, hung, segment},
};
use lockstep_cli::backend::Backend;

/// Longer than it takes until a call blocks.
const PAUSE: Duration = Duration::from_millis(100);

/// Rounds for a call that blocks: it always blocks in the same place, so few suffice.
const BLOCKED: u32 = 5;

/// Rounds for a shrink. It does not block, since one of the two ranks shrinks alone; its leaks depend on the moment
/// of the abort.
const MOMENTS: u32 = 100;

/// True if the case is possible with NCCL's functions alone.
pub(super) fn knows(case: Case) -> bool {
    matches!(
        case,
        Case::Init | Case::Split | Case::Shrink | Case::Window | Case::Message | Case::GroupEnd | Case::Queue
    )
}

/// Returns the number of NCCL rounds that represent `times` rounds of the case.
pub(super) fn rounds(case: Case, times: u32) -> u32 {
    if case == Case::Shrink { times.max(MOMENTS) } else { BLOCKED }
}

/// Returns the delay of a round's abort.
pub(super) fn pause(case: Case, number: u32) -> Duration {
    if case == Case::Shrink { case.moment(Backend::Cuda, number) } else { PAUSE }
}

/// Place of a communicator's handle, which NCCL writes while another thread may read it.
#[derive(Default)]
struct Cell(AtomicPtr<c_void>);

impl Cell {
    fn get(&self) -> ncclComm_t {
        self.0.load(Ordering::Acquire).cast()
    }
}

/// Runs one round. Another thread aborts the first rank while it is inside the case's call, then the others, then a
/// child, whose handle NCCL returns even if its creation failed. Returns the time of all aborts: the last one in a
/// process frees resources that the others share.
pub(super) fn round(
    case: Case,
    contexts: &[Context],
    api: &Api,
    id: &UniqueId,
    pause: Duration,
) -> Result<Duration> {
    let id = ncclUniqueId { internal: id.as_bytes().map(u8::cast_signed) };
    let (init, abort) = (api.ncclCommInitRank()?, api.ncclCommAbort()?);
    // The call is aborted, so its code does not matter.
    let made = |result: Result<(), CallError>| match result {
        Err(CallError::Missing(missing)) => Err(missing),
        _ => Ok(()),
    };
    let size = i32::try_from(contexts.len())?;
    // Leaked on purpose: after a failure NCCL may still write there.
    let cells = Vec::leak((0..=contexts.len()).map(|_| Cell::default()).collect());
    let (child, cells) = cells.split_last().context("no cells")?;
    let (child, cells): (&'static Cell, &'static [Cell]) = (child, cells);
    let join = |rank: usize| -> Result<ncclResult_t> {
        // SAFETY: the cell is as large as a handle, and is never freed.
        let init = || unsafe { init(cells[rank].0.as_ptr().cast(), size, id, rank as i32) };
        Ok(contexts[rank].with_current(init)?)
    };
    if case != Case::Init {
        thread::scope(|scope| {
            let ranks: Vec<_> = (0..contexts.len()).map(|rank| scope.spawn(move || join(rank))).collect();
            ranks.into_iter().try_for_each(|rank| {
                let code = rank.join().ok().context("a rank panicked")??;
                ensure!(code == ncclResult_t::ncclSuccess, "ncclCommInitRank: {code:?}");
                Ok(())
            })
        })?;
    }
    let context = &contexts[0];
    let stream = Stream::new(context, StreamFlags::NON_BLOCKING)?;
    let memory = DeviceMemory::new(context, 4096)?;
    let segment = if case == Case::Window { Some(segment(context)?) } else { None };
    let took = thread::scope(|scope| {
        let body = || -> Result<()> {
            let (comm, at, stream) = (cells[0].get(), memory.ptr().0 as *mut c_void, stream.raw().cast());
            let float = ncclDataType_t::ncclFloat32;
            // SAFETY: the communicator is there, memory and stream outlive the call, whose end is forced; the window is
            // written to a place of this frame, which NCCL has let go of when the call is over.
            unsafe {
                match case {
                    Case::Init => drop(join(0)?),
                    Case::Split => {
                        let out = child.0.as_ptr().cast();
                        made(api.comm_split(comm, 0, 0, out, ptr::null_mut()))?;
                    }
                    Case::Shrink => {
                        let (mut excluded, flags) = ([1], nccl_sys::NCCL_SHRINK_DEFAULT as i32);
                        let (list, out) = (excluded.as_mut_ptr(), child.0.as_ptr().cast());
                        made(api.comm_shrink(comm, list, 1, out, ptr::null_mut(), flags))?;
                    }
                    Case::Window => {
                        let (mut window, segment) = (ptr::null_mut(), segment.as_ref().context("no memory")?);
                        let at = segment.ptr().0 as *mut c_void;
                        let flags = nccl_sys::NCCL_WIN_COLL_SYMMETRIC as i32;
                        made(api.comm_window_register(comm, at, segment.bytes(), &raw mut window, flags))?;
                    }
                    Case::Queue => {
                        made(api.all_reduce(at, at, 1024, float, ncclRedOp_t::ncclSum, comm, stream))?;
                    }
                    _ => {
                        made(api.send(at, 1024, float, 1, comm, stream))?;
                    }
                }
            }
            Ok(())
        };
        let inside = scope.spawn(move || context.with_current(body)?);
        thread::sleep(pause);
        let abort_one = |cell: &Cell| {
            if !cell.get().is_null() {
                // SAFETY: the communicator is there, and is aborted once.
                unsafe { abort(cell.get()) };
            }
        };
        let begun = Instant::now();
        abort_one(&cells[0]);
        let deadline = Deadline::after(HUNG);
        while !inside.is_finished() {
            if deadline.expired() {
                hung(&format!("{}, in NCCL's own call", case.name()));
            }
            thread::sleep(Duration::from_millis(1).min(deadline.remaining()));
        }
        inside.join().ok().context("the call panicked")??;
        // The last abort frees all resources, since no thread is inside a call any more.
        cells[1..].iter().for_each(abort_one);
        // After its parent, whose abort sets the abort flag of a failed child.
        abort_one(child);
        Ok::<_, anyhow::Error>(begun.elapsed())
    })?;
    let _ = stream.synchronize();
    Ok(took)
}
