//! Sharing with another process. On the embedded device (the simulated driver of `gpu-sim`): memory, by a file descriptor
//! and by a legacy IPC handle. On the machine's own driver: also events and memory pools.
//!
//! A test starts this program again as a child process that runs the same test. The child finds its role in the
//! environment variable [`ROLE`] and acts in this role.

use std::os::fd::AsFd as _;
use std::panic::AssertUnwindSafe;
use std::process::{Command, Stdio};

use cuda_driver::memory::{DeviceMemory, ImportedMemory, IpcHandle, MemoryPool, PoolPointer, StreamMemory};
use cuda_driver::vmm::{Access, HandleTypes, PhysicalMemory, Reservation};
use cuda_driver::{Capabilities, Context, DevicePtr, Event, EventFlags, IpcEventHandle, Stream, StreamFlags};

use super::{context, drops, hardware, on_stream, turn};

const ROLE: &str = "CUDA_DRIVER_TEST_CHILD";
const BYTES: usize = 4 << 20;

/// Runs `test` of this program in a child process with the role `role`, and panics if the child fails. The child gets
/// `handle` in the environment, and `stdin` as its standard input.
fn child(test: &str, role: &str, handle: &[u8], stdin: Stdio) {
    // The test harness names tests without the name of the crate.
    let (_, module) = module_path!().split_once("::").unwrap();
    let handle: String = handle.iter().map(|byte| format!("{byte:02x}")).collect();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("{module}::{test}"), "--nocapture"])
        .env(ROLE, format!("{role} {handle}"))
        .stdin(stdin)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{role}: {told}{}", String::from_utf8_lossy(&output.stderr));
    assert!(told.contains("1 passed"), "the child ran one test: {told}");
}

/// In the child, acts in the child's role and returns true. In the parent, which has no role, returns false.
fn take_part(context: &Context, stream: &Stream) -> bool {
    let Ok(role) = std::env::var(ROLE) else { return false };
    let (role, handle) = role.split_once(' ').unwrap();
    let byte = |index: usize| u8::from_str_radix(&handle[2 * index..2 * index + 2], 16).unwrap();
    let stdin = std::io::stdin();
    match role {
        "descriptor" => {
            let memory = PhysicalMemory::import_fd(context, stdin.as_fd(), BYTES).unwrap();
            let mapping =
                Reservation::new(context.driver(), BYTES, 0).unwrap().map(0, &memory, 0, BYTES).unwrap();
            mapping.set_access(&[(context.device(), Access::ReadWrite)]).unwrap();
            add_one(context, mapping.ptr());
        }
        "legacy" => {
            let memory = ImportedMemory::open(context, IpcHandle(std::array::from_fn(byte))).unwrap();
            assert_eq!(memory.context(), context);
            add_one(context, memory.ptr());
        }
        "event" => {
            let event = Event::open_ipc(context, IpcEventHandle(std::array::from_fn(byte))).unwrap();
            event.synchronize().unwrap();
            stream.wait(&event).unwrap();
            stream.record(&event).unwrap();
            stream.synchronize().unwrap();
        }
        "pool" => {
            let pool = MemoryPool::import_fd(context, stdin.as_fd()).unwrap();
            let pointer = PoolPointer(std::array::from_fn(byte));
            let memory = StreamMemory::import(&pool, stream, pointer, BYTES).unwrap();
            add_one(context, memory.ptr());
            memory.free().unwrap();
            stream.synchronize().unwrap();
        }
        other => panic!("{other} is no part"),
    }
    true
}

/// Adds one to the last word of shared memory.
fn add_one(context: &Context, start: DevicePtr) {
    let (last, mut word) = (start + (BYTES - 8), [0u64]);
    // SAFETY: the memory has `BYTES` bytes, and the parent does not use it before the child ends.
    unsafe {
        context.copy_to_host(&mut word, last).unwrap();
        context.copy_from_host(last, &[word[0] + 1]).unwrap();
    }
    context.synchronize().unwrap();
}

/// Sets the last word to 41, calls `other`, in which a child adds one to the word, and checks the result.
fn exchange(context: &Context, start: DevicePtr, other: impl FnOnce()) {
    let (last, mut word) = (start + (BYTES - 8), [0u64]);
    // SAFETY: the memory has `BYTES` bytes, and the child uses it only during `other`.
    unsafe {
        context.copy_from_host(last, &[41u64]).unwrap();
        context.synchronize().unwrap();
        other();
        context.copy_to_host(&mut word, last).unwrap();
    }
    assert_eq!(word, [42], "the child added one");
}

fn by_descriptor(test: &str, context: &Context) {
    let memory = PhysicalMemory::create(context, BYTES, HandleTypes::POSIX_FD).unwrap();
    let mapping = Reservation::new(context.driver(), BYTES, 0).unwrap().map(0, &memory, 0, BYTES).unwrap();
    mapping.set_access(&[(context.device(), Access::ReadWrite)]).unwrap();
    exchange(context, mapping.ptr(), || {
        child(test, "descriptor", &[], memory.export_fd().unwrap().into());
    });
}

fn by_legacy_handle(test: &str, context: &Context) {
    let memory = DeviceMemory::new(context, BYTES).unwrap();
    exchange(context, memory.ptr(), || {
        child(test, "legacy", &memory.export_ipc().unwrap().0, Stdio::null());
    });
}

fn by_event(test: &str, context: &Context, stream: &Stream) {
    if !context.device().can(Capabilities::IPC_EVENTS).unwrap() {
        println!("skipped: events between processes: the device has none");
        return;
    }
    let event = Event::new(context, EventFlags::INTERPROCESS | EventFlags::DISABLE_TIMING).unwrap();
    stream.record(&event).unwrap();
    child(test, "event", &event.export_ipc().unwrap().0, Stdio::null());
    event.synchronize().unwrap();
}

fn by_pool(test: &str, context: &Context, stream: &Stream) {
    if !context.device().pool_handle_types().unwrap().contains(HandleTypes::POSIX_FD) {
        println!("skipped: pools between processes: the device has none");
        return;
    }
    let pool = MemoryPool::new(context, HandleTypes::POSIX_FD, 0).unwrap();
    let memory = StreamMemory::from_pool(&pool, stream, BYTES).unwrap();
    stream.synchronize().unwrap();
    // A pointer can be exported only after its pool has been exported.
    let descriptor = pool.export_fd().unwrap();
    let pointer = memory.export_pointer().unwrap();
    exchange(context, memory.ptr(), || child(test, "pool", &pointer.0, descriptor.into()));
    memory.free().unwrap();
    stream.synchronize().unwrap();
}

#[test]
fn a_descriptor_carries_memory_to_another_process() {
    on_stream(|_, context, stream| {
        if !take_part(context, stream) {
            by_descriptor("a_descriptor_carries_memory_to_another_process", context);
        }
    });
}

#[test]
fn a_legacy_handle_carries_memory_to_another_process() {
    on_stream(|_, context, stream| {
        if !take_part(context, stream) {
            by_legacy_handle("a_legacy_handle_carries_memory_to_another_process", context);
        }
    });
}

#[test]
fn hardware_shares_with_another_process() {
    let Some(driver) = hardware::driver() else { return };
    let _turn = turn();
    {
        let context = context(&driver, 0);
        let stream = Stream::new(&context, StreamFlags::NON_BLOCKING).unwrap();
        if !take_part(&context, &stream) {
            let test = "hardware_shares_with_another_process";
            let exchanges: [(&str, &dyn Fn()); 4] = [
                ("descriptor", &|| by_descriptor(test, &context)),
                ("legacy handle", &|| by_legacy_handle(test, &context)),
                ("event", &|| by_event(test, &context, &stream)),
                ("pool", &|| by_pool(test, &context, &stream)),
            ];
            // Runs all of them, so that every failure is reported.
            let fails = |exchange: &dyn Fn()| std::panic::catch_unwind(AssertUnwindSafe(exchange)).is_err();
            let failed: Vec<&str> =
                exchanges.into_iter().filter(|(_, run)| fails(run)).map(|(name, _)| name).collect();
            assert!(failed.is_empty(), "failed (see above): {failed:?}");
        }
    }
    assert_eq!(*drops(), Vec::<String>::new());
}
