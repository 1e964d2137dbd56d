//! What NCCL leaves behind by itself: the same cases with nothing but its own functions, on real GPUs.
//!
//! A call that an abort ends inside NCCL leaves some of what it had begun, whoever aborts it (2.28.9: memory of a
//! connection that was being made, descriptors of a registration and of an initialisation). No caller can give that
//! back; so what a case leaves is held against what NCCL leaves alone.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cuda_driver::memory::DeviceMemory;
use cuda_driver::{Context, Stream, StreamFlags};
use nccl_sys::{Api, ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclResult_t, ncclUniqueId};
use process_group::comm::UniqueId;

use super::{Case, round::segment};

/// Longer than a call takes to block.
const PAUSE: Duration = Duration::from_millis(100);

/// Whether the case can be made of NCCL's functions alone.
pub(super) fn knows(case: Case) -> bool {
    matches!(case, Case::Init | Case::Window | Case::Message | Case::GroupEnd | Case::Queue)
}

/// Where NCCL writes a communicator, also while another thread looks.
#[derive(Default)]
struct Cell(AtomicPtr<c_void>);

impl Cell {
    fn get(&self) -> ncclComm_t {
        self.0.load(Ordering::Acquire).cast()
    }
}

/// One round: the first rank is aborted by another thread while it is inside the case's call, then the others.
pub(super) fn round(case: Case, contexts: &[Context], api: &Api, id: &UniqueId) -> Result<()> {
    let id = ncclUniqueId { internal: id.as_bytes().map(u8::cast_signed) };
    let (init, abort) = (api.ncclCommInitRank()?, api.ncclCommAbort()?);
    let size = i32::try_from(contexts.len())?;
    // Kept when something fails: NCCL may still write there.
    let cells: &'static [Cell] = Vec::leak(contexts.iter().map(|_| Cell::default()).collect());
    let join = |rank: usize| -> Result<ncclResult_t> {
        let _current = contexts[rank].enter()?;
        // SAFETY: the cell is as large as a handle, and is never freed.
        Ok(unsafe { init(cells[rank].0.as_ptr().cast(), size, id, rank as i32) })
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
    thread::scope(|scope| {
        let inside = scope.spawn(|| -> Result<()> {
            let _current = context.enter()?;
            let (comm, at, stream) = (cells[0].get(), memory.ptr().0 as *mut c_void, stream.raw().cast());
            let float = ncclDataType_t::ncclFloat32;
            // SAFETY: the communicator is there, memory and stream outlive the call, whose end is forced; the window is
            // written to a place of this frame, which NCCL has let go of when the call is over.
            unsafe {
                match case {
                    Case::Init => drop(join(0)?),
                    Case::Window => {
                        let (mut window, segment) = (ptr::null_mut(), segment.as_ref().context("no memory")?);
                        let at = segment.ptr().0 as *mut c_void;
                        let flags = nccl_sys::NCCL_WIN_COLL_SYMMETRIC as i32;
                        api.ncclCommWindowRegister()?(comm, at, segment.bytes(), &raw mut window, flags);
                    }
                    Case::Queue => {
                        api.ncclAllReduce()?(at, at, 1024, float, ncclRedOp_t::ncclSum, comm, stream);
                    }
                    _ => {
                        api.ncclSend()?(at, 1024, float, 1, comm, stream);
                    }
                }
            }
            Ok(())
        });
        thread::sleep(PAUSE);
        let abort_one = |cell: &Cell| {
            if !cell.get().is_null() {
                // SAFETY: the communicator is there, and is aborted once.
                unsafe { abort(cell.get()) };
            }
        };
        abort_one(&cells[0]);
        inside.join().ok().context("the call panicked")??;
        // The last of a process frees all of it: nobody is inside any more.
        cells[1..].iter().for_each(abort_one);
        Ok::<_, anyhow::Error>(())
    })?;
    let _ = stream.synchronize();
    Ok(())
}
