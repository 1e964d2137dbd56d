//! Memory shared with another process. A test starts this same program again, with its own name as the filter and
//! what the child needs in the environment; the child takes the other branch.

use std::os::fd::AsFd as _;
use std::process::{Command, Stdio};

use cuda_driver::memory::{DeviceMemory, ImportedMemory, IpcHandle};
use cuda_driver::vmm::{Access, HandleTypes, PhysicalMemory, Reservation};

use super::on_stream;

const ROLE: &str = "CUDA_DRIVER_TEST_CHILD";
const BYTES: usize = 4 << 20;

/// Runs `test` of this program in a child, and fails if it fails.
fn child(test: &str, role: &str, stdin: Stdio) {
    // The harness names tests without the crate.
    let (_, module) = module_path!().split_once("::").unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("{module}::{test}"), "--nocapture"])
        .env(ROLE, role)
        .stdin(stdin)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{told}{}", String::from_utf8_lossy(&output.stderr));
    assert!(told.contains("1 passed"), "the child ran one test: {told}");
}

#[test]
fn a_descriptor_carries_memory_to_another_process() {
    let owner = std::env::var_os(ROLE).is_none();
    on_stream(|_, context, _| {
        let memory = if owner {
            PhysicalMemory::create(context, BYTES, HandleTypes::POSIX_FD).unwrap()
        } else {
            // The parent passed the descriptor as standard input.
            PhysicalMemory::import_fd(context, std::io::stdin().as_fd(), BYTES).unwrap()
        };
        let mapping =
            Reservation::new(context.driver(), BYTES, 0).unwrap().map(0, &memory, 0, BYTES).unwrap();
        mapping.set_access(&[(context.device(), Access::ReadWrite)]).unwrap();
        let last = mapping.ptr() + (BYTES - 8);
        let mut word = [0u64];
        if owner {
            // SAFETY: the word is mapped; the child uses it between the two calls.
            unsafe { context.copy_from_host(last, &[41u64]) }.unwrap();
            let descriptor = memory.export_fd().unwrap();
            child("a_descriptor_carries_memory_to_another_process", "importer", descriptor.into());
            // SAFETY: as above.
            unsafe { context.copy_to_host(&mut word, last) }.unwrap();
            assert_eq!(word, [42], "the child added one");
        } else {
            // SAFETY: the word is mapped; the parent waits.
            unsafe {
                context.copy_to_host(&mut word, last).unwrap();
                context.copy_from_host(last, &[word[0] + 1]).unwrap();
            }
        }
    });
}

#[test]
fn a_legacy_handle_carries_memory_to_another_process() {
    let role = std::env::var(ROLE);
    on_stream(|_, context, _| match &role {
        Err(_) => {
            let memory = DeviceMemory::new(context, BYTES).unwrap();
            memory.copy_from_host(BYTES - 8, &[41u64]).unwrap();
            let handle = memory.export_ipc().unwrap().0.map(|byte| format!("{byte:02x}")).concat();
            child("a_legacy_handle_carries_memory_to_another_process", &handle, Stdio::null());
            let mut word = [0u64];
            memory.copy_to_host(BYTES - 8, &mut word).unwrap();
            assert_eq!(word, [42], "the child added one");
        }
        Ok(handle) => {
            let byte = |index: usize| u8::from_str_radix(&handle[2 * index..2 * index + 2], 16).unwrap();
            let imported = ImportedMemory::open(context, IpcHandle(std::array::from_fn(byte))).unwrap();
            let last = imported.ptr() + (BYTES - 8);
            let mut word = [0u64];
            // SAFETY: the exporter's memory is that long, and it waits.
            unsafe {
                context.copy_to_host(&mut word, last).unwrap();
                context.copy_from_host(last, &[word[0] + 1]).unwrap();
            }
        }
    });
}
