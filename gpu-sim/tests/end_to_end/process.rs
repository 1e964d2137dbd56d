//! Between processes: descriptors and handles give access to the same memory, signals work across processes, and the
//! host cannot access device memory.
//!
//! The other process is this test binary again; an environment variable names its part.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{ExitStatus, Stdio};

use super::common::{Cuda, GRANULE, cu, ok};
use cuda_driver_sys::*;
use gpu_sim::{World, process::test_command};
use rusty_fork::rusty_fork_test;

const PART: &str = "GPU_SIM_TEST_PART";
const RW: CUmemAccess_flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
const POSIX_FD: CUmemAllocationHandleType =
    CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// Starts the other process in a part, with an argument and an optional descriptor, which becomes its number 100.
fn other(part: &str, argument: &str, descriptor: Option<&OwnedFd>) -> std::process::Child {
    let mut command = test_command(concat!(module_path!(), "::the_other_process")).unwrap();
    command.arg("--test-threads=1");
    command.env(PART, part).env("ARGUMENT", argument).env_remove("RUSTY_FORK_OCCURS_DEPTH");
    command.stdout(Stdio::null());
    if let Some(descriptor) = descriptor {
        let number = descriptor.as_raw_fd();
        // SAFETY: between fork and exec, only `dup2`, which is async-signal-safe.
        unsafe {
            command.pre_exec(move || {
                if libc::dup2(number, 100) == 100 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
            });
        }
    }
    command.spawn().unwrap()
}

fn wait(mut child: std::process::Child) -> ExitStatus {
    child.wait().unwrap()
}

/// The body of the other process.
#[test]
#[ignore = "the body of a process that a test starts"]
fn the_other_process() {
    let part = std::env::var(PART).expect("a test below starts this process");
    let argument = std::env::var("ARGUMENT").unwrap();
    let world = World::builder().devices(2).start().unwrap();
    let cuda = Cuda::of(&world);
    match part.as_str() {
        "import" => import(&cuda),
        "panic" => {
            let mut out = 0;
            let code = cu!(cuda, cuMemAlloc_v2(&mut out, 1 << 50));
            // Nothing is left for which the end of the world would wait.
            cuda.leave(0);
            assert_eq!(code, CUresult::CUDA_SUCCESS, "a test fails");
        }
        "signal" => {
            let start = map_imported(&cuda);
            let stream = cuda.stream();
            // Wait for the parent's value, then write this process's.
            ok!(cuda, cuStreamWaitValue32_v2(stream, start, 1, 1));
            ok!(cuda, cuStreamWriteValue32_v2(stream, start + 4, 2, 0));
            ok!(cuda, cuStreamSynchronize(stream));
        }
        "ipc" => {
            let bytes: Vec<_> =
                (0..64).map(|i| u8::from_str_radix(&argument[i * 2..i * 2 + 2], 16).unwrap()).collect();
            let mut handle = CUipcMemHandle { reserved: [0; 64] };
            for (to, from) in handle.reserved.iter_mut().zip(bytes) {
                *to = from as _;
            }
            let mut pointer = 0;
            ok!(cuda, cuIpcOpenMemHandle_v2(&mut pointer, handle, 1));
            assert_eq!(cuda.download(pointer, 1000), [5; 1000]);
            ok!(cuda, cuMemsetD8_v2(pointer, 6, 1000));
            ok!(cuda, cuCtxSynchronize());
            assert_eq!(cu!(cuda, cuMemFree_v2(pointer)), CUresult::CUDA_ERROR_INVALID_VALUE);
            ok!(cuda, cuIpcCloseMemHandle(pointer));
            cuda.leave(0);
            world.finish().unwrap();
        }
        "dereference" => {
            let pointer = cuda.alloc(100);
            // SAFETY: none: this must end the process by SIGSEGV, and the parent checks that it does.
            unsafe { std::ptr::write_volatile(pointer as *mut u8, 1) };
        }
        "kill" => {
            world
                .faults()
                .inject(gpu_sim::Injection::new("cuMemAlloc_v2", gpu_sim::Action::Kill).nth(2))
                .unwrap();
            cuda.alloc(100);
            cuda.alloc(100);
        }
        other => panic!("no part {other}"),
    }
}

fn map_imported(cuda: &Cuda) -> CUdeviceptr {
    let mut handle = 0;
    ok!(cuda, cuMemImportFromShareableHandle(&mut handle, 100 as *mut _, POSIX_FD));
    let start = cuda.reserve(2 * GRANULE);
    ok!(cuda, cuMemMap(start, 2 * GRANULE, 0, handle, 0));
    ok!(cuda, cuMemRelease(handle));
    cuda.allow(0, start, 2 * GRANULE, RW);
    start
}

fn import(cuda: &Cuda) {
    let mut free = 0;
    let mut total = 0;
    ok!(cuda, cuMemGetInfo_v2(&mut free, &mut total));
    let start = map_imported(cuda);
    assert_eq!(cuda.download(start + GRANULE as u64, 5), *b"hello");
    let mut properties = CUmemAllocationProp::default();
    let mut handle = 0;
    ok!(cuda, cuMemRetainAllocationHandle(&mut handle, start as *mut _));
    ok!(cuda, cuMemGetAllocationPropertiesFromHandle(&mut properties, handle));
    // SAFETY: the location is a device, whose variant is `id`.
    assert_eq!(unsafe { properties.location.__bindgen_anon_1.id }, 1, "the exporter's device");
    cuda.upload(start, b"world");
    let mut after = 0;
    ok!(cuda, cuMemGetInfo_v2(&mut after, &mut total));
    assert_eq!(free, after, "imported memory is the exporter's");
}

fn export(cuda: &Cuda, device: i32) -> (CUdeviceptr, OwnedFd) {
    let handle = cuda.create(device, 2 * GRANULE);
    let start = cuda.reserve(2 * GRANULE);
    ok!(cuda, cuMemMap(start, 2 * GRANULE, 0, handle, 0));
    cuda.allow(0, start, 2 * GRANULE, RW);
    let mut descriptor = -1;
    ok!(cuda, cuMemExportToShareableHandle((&raw mut descriptor).cast(), handle, POSIX_FD, 0));
    ok!(cuda, cuMemRelease(handle));
    // SAFETY: the export made the descriptor for us.
    (start, unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Printed output of a test is captured within its process, so the panic is one of another process.
#[test]
fn a_panic_that_drops_a_world_prints_the_notes() {
    let mut command = test_command(concat!(module_path!(), "::the_other_process")).unwrap();
    let output = command.env(PART, "panic").env("ARGUMENT", "").output().unwrap();
    assert!(!output.status.success());
    let printed = String::from_utf8(output.stderr).unwrap();
    let (_, notes) = printed.split_once("notes of the embedded device:\n").expect(&printed);
    assert!(notes.contains("cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY: "), "{printed}");
}

rusty_fork_test! {
    #[test]
    fn exported_memory_is_the_importers_too() {
        let world = World::builder().devices(2).start().unwrap();
        let cuda = Cuda::of(&world);
        let (start, descriptor) = export(&cuda, 1);
        cuda.upload(start + GRANULE as u64, b"hello");
        assert!(wait(other("import", "", Some(&descriptor))).success());
        assert_eq!(cuda.download(start, 5), *b"world");
        ok!(cuda, cuMemUnmap(start, 2 * GRANULE));
        ok!(cuda, cuMemAddressFree(start, 2 * GRANULE));
        cuda.leave(0);
        world.finish().unwrap();
    }

    #[test]
    fn a_write_wakes_a_stream_of_another_process() {
        let world = World::builder().devices(2).start().unwrap();
        let cuda = Cuda::of(&world);
        let (start, descriptor) = export(&cuda, 0);
        let child = other("signal", "", Some(&descriptor));
        let stream = cuda.stream();
        ok!(cuda, cuStreamWriteValue32_v2(stream, start, 1, 0));
        ok!(cuda, cuStreamWaitValue32_v2(stream, start + 4, 2, 1));
        ok!(cuda, cuStreamSynchronize(stream));
        assert!(wait(child).success());
    }

    #[test]
    fn legacy_handles_open_in_other_processes_alone() {
        let world = World::builder().devices(2).start().unwrap();
        let cuda = Cuda::of(&world);
        let pointer = cuda.alloc(1000);
        ok!(cuda, cuMemsetD8_v2(pointer, 5, 1000));
        ok!(cuda, cuCtxSynchronize());
        let mut handle = CUipcMemHandle { reserved: [0; 64] };
        ok!(cuda, cuIpcGetMemHandle(&mut handle, pointer));
        let mut own = 0;
        assert_eq!(cu!(cuda, cuIpcOpenMemHandle_v2(&mut own, handle, 1)), CUresult::CUDA_ERROR_INVALID_CONTEXT);
        let hex: String = handle.reserved.iter().map(|b| format!("{:02x}", *b as u8)).collect();
        assert!(wait(other("ipc", &hex, None)).success());
        assert_eq!(cuda.download(pointer, 1000), [6; 1000]);
        let garbage = CUipcMemHandle { reserved: [1; 64] };
        assert_eq!(cu!(cuda, cuIpcOpenMemHandle_v2(&mut own, garbage, 1)), CUresult::CUDA_ERROR_INVALID_VALUE);
    }

    #[test]
    fn the_host_cannot_touch_device_memory() {
        assert_eq!(wait(other("dereference", "", None)).signal(), Some(libc::SIGSEGV));
    }

    #[test]
    fn a_rank_dies_at_the_call_it_is_told_to() {
        assert_eq!(wait(other("kill", "", None)).signal(), Some(libc::SIGKILL));
    }

    #[test]
    fn what_is_not_device_memory_is_not_imported() {
        let world = World::builder().start().unwrap();
        let cuda = Cuda::of(&world);
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let mut handle = 0;
        for number in [file.as_raw_fd(), 99_999, -1] {
            let code = cu!(cuda, cuMemImportFromShareableHandle(&mut handle, number as isize as *mut _, POSIX_FD));
            let expected = match number == file.as_raw_fd() {
                true => CUresult::CUDA_ERROR_UNKNOWN,
                false => CUresult::CUDA_ERROR_INVALID_VALUE,
            };
            assert_eq!(code, expected);
        }
        let fabric = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_FABRIC;
        let code = cu!(cuda, cuMemImportFromShareableHandle(&mut handle, std::ptr::null_mut(), fabric));
        assert_eq!(code, CUresult::CUDA_ERROR_NOT_SUPPORTED);
        // Memory that was not created as exportable cannot be exported.
        let mut private = 0;
        ok!(cuda, cuMemCreate(&mut private, GRANULE, &cuda.properties(0, false), 0));
        let mut descriptor = -1;
        let code = cu!(cuda, cuMemExportToShareableHandle((&raw mut descriptor).cast(), private, POSIX_FD, 0));
        assert_eq!(code, CUresult::CUDA_ERROR_INVALID_VALUE);
    }
}
