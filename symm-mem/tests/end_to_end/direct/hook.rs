//! Code of a test that runs in place of a thread's next calls of the driver.

use std::{cell::RefCell, sync::OnceLock};

use cuda_driver::sys::{
    CUgraph, CUgraphNode, CUresult, CUstream, CUstreamBatchMemOpParams, CUstreamCaptureStatus, Table,
};
struct Hook {
    function: &'static str,
    /// Calls until it runs, this one included.
    left: u64,
    run: Box<dyn FnOnce() -> CUresult>,
}

thread_local! {
    static HOOK: RefCell<Option<Hook>> = const { RefCell::new(None) };
}

/// The functions that the table had before.
static ORIGINAL: OnceLock<Table> = OnceLock::new();

/// Runs `run` before the `nth` call of `function` by this thread. If it returns an error, the call does nothing else.
pub(super) fn before(function: &'static str, nth: u64, run: impl FnOnce() -> CUresult + 'static) {
    HOOK.set(Some(Hook { function, left: nth, run: Box::new(run) }));
}

/// Removes the hook of this thread. Returns whether it has not run.
pub(super) fn remove() -> bool {
    HOOK.take().is_some()
}

fn run(function: &str) -> CUresult {
    let due = HOOK.with_borrow_mut(|hook| {
        let of_function = hook.as_mut().filter(|hook| hook.function == function)?;
        of_function.left -= 1;
        hook.take_if(|hook| hook.left == 0)
    });
    due.map_or(CUresult::CUDA_SUCCESS, |hook| (hook.run)())
}

/// Replaces the functions that tests use hooks for.
pub(super) fn hooked(mut table: Table) -> Table {
    table.cuStreamBatchMemOp_v2 = Some(batch);
    table.cuStreamGetCaptureInfo_v2 = Some(capture_info);
    table
}

/// Remembers the functions that [`hooked`] replaces.
pub(super) fn remember(table: impl FnOnce() -> Table) {
    ORIGINAL.get_or_init(table);
}

macro_rules! hook {
    ($name:ident => $function:ident($($parameter:ident: $type:ty),*)) => {
        unsafe extern "C" fn $name($($parameter: $type),*) -> CUresult {
            let code = run(stringify!($function));
            if code != CUresult::CUDA_SUCCESS {
                return code;
            }
            let original = ORIGINAL.get().and_then(|table| table.$function).expect("the machine has it");
            // SAFETY: the caller's contract, which is that of the function itself.
            unsafe { original($($parameter),*) }
        }
    };
}

hook!(batch => cuStreamBatchMemOp_v2(
    stream: CUstream, count: std::ffi::c_uint, params: *mut CUstreamBatchMemOpParams, flags: std::ffi::c_uint
));
hook!(capture_info => cuStreamGetCaptureInfo_v2(
    stream: CUstream, status: *mut CUstreamCaptureStatus, id: *mut u64, graph: *mut CUgraph,
    dependencies: *mut *const CUgraphNode, count: *mut usize
));
