//! Threads that the system refuses to start. The call that needed one returns an error, and no thread waits
//! for it.

use std::{
    cell::Cell,
    ffi::{CStr, c_int, c_void},
    mem,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use process_group::{
    comm::{CommError, DataType::F32, ReduceOp, set_drop_error_hook, wait_for_dropped},
    group::{Buffer, GroupError, GroupErrorKind},
    store::{Store, StoreError},
};
use rusty_fork::rusty_fork_test;

use super::common::{far, hold, machine};

thread_local! {
    /// Which of the next threads that this one starts is refused, counted from 0.
    static REFUSED: Cell<Option<u32>> = const { Cell::new(None) };
}

type Start = extern "C" fn(*mut c_void) -> *mut c_void;
type Create =
    unsafe extern "C" fn(*mut libc::pthread_t, *const libc::pthread_attr_t, Start, *mut c_void) -> c_int;

/// Replaces the C library's function in this program.
///
/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: Start,
    argument: *mut c_void,
) -> c_int {
    static REAL: OnceLock<Create> = OnceLock::new();
    let left = REFUSED.with(|refused| refused.replace(refused.get().and_then(|left| left.checked_sub(1))));
    if left == Some(0) {
        return libc::EAGAIN;
    }
    let real = REAL.get_or_init(|| {
        const NAME: &CStr = c"pthread_create";
        // SAFETY: the next definition of the name is the C library's, which has this type.
        unsafe { mem::transmute::<*mut c_void, Create>(libc::dlsym(libc::RTLD_NEXT, NAME.as_ptr())) }
    });
    // SAFETY: the caller's contract.
    unsafe { real(thread, attributes, start, argument) }
}

/// Runs `body` while thread number `nth` of those that it starts here is refused. Returns true if one was
/// refused.
fn without<T>(nth: u32, body: impl FnOnce() -> T) -> (T, bool) {
    REFUSED.set(Some(nth));
    let result = body();
    (result, REFUSED.take().is_none())
}

/// Returns true if the error reports a thread that could not start, of this crate or inside NCCL.
fn is_of_thread(error: &GroupError) -> bool {
    matches!(
        error.kind(),
        GroupErrorKind::Thread { .. }
            | GroupErrorKind::Comm(CommError::Thread { .. } | CommError::Nccl { .. })
    )
}

rusty_fork_test! {
    /// Each in turn, on one rank. The other learns that the group is not made.
    #[test]
    fn a_group_is_not_made_without_its_threads() {
        let machine = machine(2);
        set_drop_error_hook(|_| ());
        let mut refused = 0;
        for nth in 0.. {
            let results = machine.ranks(2, |rank| {
                let builder = rank.builder().epoch(nth.into());
                if rank.rank == 1 {
                    return (builder.build().map(drop), true);
                }
                let (made, was_refused) = without(nth, || builder.build());
                (made.map(drop), was_refused)
            });
            assert!(wait_for_dropped(far()));
            match &results[..] {
                [(Ok(()), false), _] => break,
                [(Err(error), true), (Err(other), _)] => {
                    assert!(is_of_thread(error), "{nth}: {error}");
                    // It does not wait for the deadline.
                    let told = matches!(
                        other.kind(),
                        GroupErrorKind::Store(StoreError::GivenUp { rank: 0, .. }) | GroupErrorKind::Unmade { rank: 0, .. }
                    );
                    assert!(told, "{nth}: {other}");
                }
                other => panic!("{nth}: {other:?}"),
            }
            refused += 1;
        }
        // Two threads of the watch, the watchdog's, and the communicator's.
        assert!(refused >= 4, "{refused} threads were refused");
        machine.world.finish().unwrap();
    }

    /// An abort needs threads. Without them it runs on the calling thread.
    #[test]
    fn who_aborts_without_threads_leaves_nobody_waiting() {
        let machine = machine(2);
        set_drop_error_hook(|_| ());
        for nth in 0..6 {
            machine.ranks(2, |rank| {
                let world = rank.builder().epoch(nth.into()).build().unwrap();
                if rank.rank == 1 {
                    let error = world.barrier(far()).unwrap_err();
                    assert!(matches!(error.kind(), GroupErrorKind::Left { rank: 0, .. }), "{error}");
                    return;
                }
                let arrived = format!("process-group/world/{nth}/barrier/0/records/count");
                rank.store.wait(&[&arrived], far()).unwrap();
                if let (Err(error), _) = without(nth, || world.abort_handle().abort(far())) {
                    assert!(matches!(error, CommError::Thread { .. }), "{nth}: {error}");
                }
            });
        }
    }

    #[test]
    fn an_owner_that_cannot_be_looked_after_is_kept_and_that_is_told() {
        struct Owner(Arc<AtomicBool>);
        impl Drop for Owner {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Release);
            }
        }
        let machine = machine(1);
        machine.ranks(1, |rank| {
            let world = rank.world();
            let (stream, memory) = (rank.stream(), rank.memory(&[1.0]));
            let one = Buffer::new(memory.ptr(), 1, F32);
            let open = hold(&stream);
            let work = unsafe { world.raw().all_reduce(one, one, ReduceOp::Sum, &stream) }.unwrap();
            let is_dropped = Arc::new(AtomicBool::new(false));
            let (kept, refused) = without(0, || work.keep(Owner(is_dropped.clone())));
            assert!(matches!(kept.as_ref().map_err(GroupError::kind), Err(GroupErrorKind::Thread { .. })) && refused, "{kept:?}");
            drop(open);
            work.wait_until(far()).unwrap();
            // The thread that is started for the next owner drops this one too.
            assert!(!is_dropped.load(Ordering::Acquire));
            work.keep(()).unwrap();
            let patience = far();
            while !is_dropped.load(Ordering::Acquire) {
                assert!(!patience.expired());
                thread::sleep(Duration::from_millis(1));
            }
            world.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    /// All groups of the process share one watchdog. The next group tries again to start it.
    #[test]
    fn a_watchdog_that_could_not_be_started_is_for_the_next_group() {
        let machine = machine(1);
        machine.ranks(1, |rank| {
            let failed = (0..).map_while(|nth| {
                let (made, refused) = without(nth, || rank.builder().epoch(nth.into()).build());
                refused.then(|| made.unwrap_err())
            });
            let failed = failed.filter(|error| matches!(error.kind(), GroupErrorKind::Thread { thread: "watchdog", .. })).count();
            assert_eq!(failed, 1);
            let world = rank.builder().epoch(1000).work_timeout(Duration::from_millis(200)).build().unwrap();
            let stream = rank.stream();
            let open = hold(&stream);
            let work = world.track_graph_launch(&stream).unwrap();
            let error = work.wait_until(far()).unwrap_err();
            assert!(matches!(error.kind(), GroupErrorKind::Overdue { .. }), "{error}");
            drop(open);
            stream.synchronize().unwrap();
            world.abort(far()).unwrap();
        });
        assert!(wait_for_dropped(far()));
    }
}
