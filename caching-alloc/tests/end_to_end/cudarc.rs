//! Blocks and streams shared with cudarc. Each test runs in a process of its own with a driver that cudarc
//! can load: the embedded device as a shared library, or the host's own driver.

use std::collections::HashMap;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use std::{env, process, thread};

use ::cudarc::driver::sys::CUstreamCaptureMode;
use ::cudarc::driver::{
    CudaContext, CudaSlice, CudaStream, DevicePtr, DeviceRepr, DeviceSlice, LaunchArgs, PushKernelArg,
    ValidAsZeroBits, result,
};
use caching_alloc::core::{AllocError, Allocator, Pool, SegmentSource, Settings, StreamId};
use caching_alloc::cudarc::{Adopted, BlockSlice, CudarcError};
use caching_alloc::driver::{DriverEvents, DriverSource, Sharing, VirtualMemorySource};
use cuda_driver::Stream;
use cuda_driver::sys::{Origin, candidates};

use super::common::used;

/// Set in a process that runs one test.
const CHILD: &str = "CACHING_ALLOC_TEST_CUDARC";

/// Longer than any test takes.
const LIMIT: Duration = Duration::from_secs(120);

/// Runs a test of this file with each available driver, in a process of its own.
fn over_each_driver(name: &str, test: fn(Arc<CudaContext>)) {
    if env::var_os(CHILD).is_some() {
        thread::spawn(|| {
            thread::sleep(LIMIT);
            eprintln!("not done within {LIMIT:?}");
            process::abort();
        });
        match CudaContext::device_count() {
            Ok(0) => eprintln!("skipped: the driver has no device"),
            Ok(_) => test(CudaContext::new(0).unwrap()),
            Err(error) => eprintln!("skipped: the driver does not start: {error}"),
        }
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let real = candidates()
        .iter()
        .any(|found| found.origins.iter().any(|origin| !matches!(origin, Origin::Package(_))));
    let embedded = embedded_library();
    if let Some(library) = &embedded {
        for name in ["libcuda.so", "libcuda.so.1"] {
            symlink(library, folder.path().join(name)).unwrap();
        }
        run(name, Some(folder.path()));
    }
    if real {
        run(name, None);
    }
    if embedded.is_none() && !real {
        println!(
            "skipped: no driver; for the embedded one: \
             cargo build -p lockstep-gpu-sim --features exports --example shared_library"
        );
    }
}

/// Returns the shared library of the embedded device: the one that `EMBEDDED_LIBRARY` names, or else the one that
/// cargo has built beside this program.
fn embedded_library() -> Option<PathBuf> {
    let beside = || Some(env::current_exe().ok()?.parent()?.parent()?.join("examples/libshared_library.so"));
    let named = env::var_os("EMBEDDED_LIBRARY").map(PathBuf::from);
    named.or_else(beside)?.canonicalize().ok()
}

fn run(name: &str, libraries: Option<&Path>) {
    let (_, module) = module_path!().split_once("::").unwrap();
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", &format!("{module}::{name}"), "--nocapture"]).env(CHILD, "1");
    command.env_remove("CUDA_DRIVER_SYS_LIBRARY").env("GPU_SIM_CAPACITY", (256u64 << 20).to_string());
    command.envs(libraries.map(|folder| ("LD_LIBRARY_PATH", folder)));
    let output = command.output().unwrap();
    let (out, told) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "over {libraries:?}: {}\n{out}\n{told}", output.status);
    assert!(out.contains("1 passed"), "there is no test {module}::{name}:\n{out}");
    told.lines().filter(|line| line.starts_with("skipped: ")).for_each(|line| println!("{line}"));
}

/// Allocates from a pool whose source only its allocator uses.
fn zeros<T: DeviceRepr + ValidAsZeroBits>(
    adopted: &Adopted,
    pool: &Pool,
    stream: &Arc<CudaStream>,
    len: usize,
) -> Result<BlockSlice<T>, CudarcError> {
    // SAFETY: the sources of these tests have memory that the device can access, and only their allocators use them.
    unsafe { adopted.alloc_zeros(pool, stream, len) }
}

/// Returns two allocators over the context, each with its adopted context: one with fixed segments, and one with
/// pages that move.
fn allocators(cuda: &Arc<CudaContext>) -> Vec<(Adopted, Allocator)> {
    let adopted = || Adopted::new(cuda).unwrap();
    let (fixed, moving) = (adopted(), adopted());
    let source = Arc::new(DriverSource::new(fixed.context()));
    let allocator = Allocator::new(source, fixed.events().clone(), Settings::default());
    let pages: Arc<dyn SegmentSource> =
        Arc::new(VirtualMemorySource::new(moving.context(), Sharing::default()).unwrap());
    let remapping = Allocator::remapping(pages, moving.events().clone(), Settings::default()).unwrap();
    vec![(fixed, allocator), (moving, remapping)]
}

/// Holds back the work that is enqueued on a stream from now on. The work runs after a message was sent to the
/// returned sender, or the sender was dropped.
fn hold(adopted: &Adopted, stream: &CudaStream) -> mpsc::Sender<()> {
    let (release, held) = mpsc::channel();
    // SAFETY: the stream is of this context, and alive until the end of this function.
    let stream = unsafe { Stream::borrowed(adopted.context(), stream.cu_stream().cast()) };
    stream.launch_host_fn(move || held.recv().unwrap_or_default()).unwrap();
    release
}

#[test]
fn a_stream_that_cudarc_captures_gets_no_memory_that_may_move_or_go() {
    over_each_driver("a_stream_that_cudarc_captures_gets_no_memory_that_may_move_or_go", |cuda| {
        for (adopted, allocator) in allocators(&cuda) {
            let stream = cuda.new_stream().unwrap();
            let pool = allocator.default_pool();
            // SAFETY: nobody reads it.
            let allocate = || unsafe { adopted.alloc::<u8>(pool, &stream, 4096) };
            drop(allocate().unwrap());
            stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
            let captured = allocate().map(drop);
            // SAFETY: the stream's capture has begun, and its graph is destroyed once.
            unsafe {
                let graph = result::stream::end_capture(stream.cu_stream()).unwrap();
                result::graph::destroy(graph).unwrap();
            }
            let error = captured.unwrap_err();
            assert!(
                matches!(error, CudarcError::Alloc(AllocError::CaptureOutsideGraphPool { .. })),
                "{error}"
            );
            drop(allocate().unwrap());
        }
    });
}

#[test]
fn memory_is_read_written_and_used_again() {
    over_each_driver("memory_is_read_written_and_used_again", |cuda| {
        for (adopted, allocator) in allocators(&cuda) {
            let stream = cuda.new_stream().unwrap();
            let pool = allocator.default_pool();
            let mut slice = zeros::<u32>(&adopted, pool, &stream, 1000).unwrap();
            assert_eq!((slice.len(), slice.num_bytes(), slice.block().bytes()), (1000, 4000, 4096));
            assert!(slice.block().call_site().file().ends_with("cudarc.rs"));
            stream.memcpy_htod(&[7u32; 1000], &mut slice).unwrap();
            stream.memset_zeros(&mut slice.try_slice_mut(10..20).unwrap()).unwrap();
            assert!(slice.try_slice_mut(990..1001).is_none());
            let theirs: CudaSlice<u32> = stream.clone_dtod(&slice).unwrap();
            stream.memcpy_dtod(&theirs.slice(..5), &mut slice.as_view_mut().slice_mut(10..15)).unwrap();
            let mut expected = vec![7; 1000];
            expected[15..20].fill(0);
            assert_eq!(stream.clone_dtoh(&slice).unwrap(), expected);
            assert_eq!(stream.clone_dtoh(&slice.slice(12..17)).unwrap(), [7, 7, 7, 0, 0]);

            let address = slice.block().address();
            assert_eq!(slice.device_ptr(&stream).0, address);
            drop(slice);
            assert_eq!(allocator.stats().all.allocated.current, 0);
            // SAFETY: nobody reads it.
            let again = unsafe { adopted.alloc::<u8>(pool, &stream, 4096) }.unwrap();
            let block = again.into_block();
            assert_eq!((block.address(), block.bytes()), (address, 4096));
            // SAFETY: every pattern of bits is an `f64`.
            let again = unsafe { adopted.slice::<f64>(block, &stream, 512) }.unwrap();
            assert_eq!(stream.clone_dtoh(&again).unwrap().len(), 512);
            drop(again);
            allocator.empty_cache().unwrap();
            assert_eq!((allocator.stats().reserved.current, allocator.faults().len()), (0, 0));
        }
        cuda.check_err().unwrap();
    });
}

#[test]
fn streams_wait_for_each_other_as_over_cudarcs_own_memory() {
    over_each_driver("streams_wait_for_each_other_as_over_cudarcs_own_memory", |cuda| {
        for (adopted, allocator) in allocators(&cuda) {
            let (stream, other) = (cuda.new_stream().unwrap(), cuda.new_stream().unwrap());
            let pool = allocator.default_pool();
            let mut slice = zeros::<u8>(&adopted, pool, &stream, 4096).unwrap();
            let mut copy = zeros::<u8>(&adopted, pool, &stream, 4096).unwrap();
            let ones = stream.clone_htod(&[1u8; 4096]).unwrap();
            stream.synchronize().unwrap();

            // The other stream has not been registered.
            let release = hold(&adopted, &other);
            other.memcpy_dtod(&slice, &mut copy).unwrap();
            let pattern: Vec<u8> = (0..=255).cycle().take(4096).collect();
            stream.memcpy_dtod(&ones, &mut slice).unwrap();
            drop(release);
            other.synchronize().unwrap();
            assert_eq!(stream.clone_dtoh(&copy).unwrap(), [0; 4096], "the read came before the later write");

            stream.memcpy_htod(&pattern, &mut slice).unwrap();
            let release = hold(&adopted, &stream);
            let mut last = zeros::<u8>(&adopted, pool, &stream, 4096).unwrap();
            stream.memcpy_dtod(&slice, &mut last).unwrap();
            other.memcpy_dtod(&last, &mut copy).unwrap();
            drop(release);
            other.synchronize().unwrap();
            assert_eq!(other.clone_dtoh(&copy).unwrap(), pattern, "the read came after the earlier write");
        }
        cuda.check_err().unwrap();
    });
}

#[test]
fn what_a_registered_stream_uses_is_kept_back_by_the_allocator() {
    over_each_driver("what_a_registered_stream_uses_is_kept_back_by_the_allocator", |cuda| {
        // SAFETY: the test orders its streams itself, without the events of cudarc.
        unsafe { cuda.disable_event_tracking() };
        for (adopted, allocator) in allocators(&cuda) {
            let (stream, other) = (cuda.new_stream().unwrap(), cuda.new_stream().unwrap());
            let number = adopted.register(&other).unwrap();
            assert_eq!(adopted.register(&other).unwrap(), number);
            let pool = allocator.default_pool();
            let slice = zeros::<u8>(&adopted, pool, &stream, 4096).unwrap();
            let mut copy = zeros::<u8>(&adopted, pool, &other, 4096).unwrap();
            stream.synchronize().unwrap();
            other.synchronize().unwrap();

            let address = slice.block().address();
            let release = hold(&adopted, &other);
            other.memcpy_dtod(&slice, &mut copy).unwrap();
            drop(slice);
            let pending = used(&allocator.snapshot().unwrap());
            assert_eq!(pending.get(&address), Some(&(4096, true)));
            let next = zeros::<u8>(&adopted, pool, &stream, 4096).unwrap();
            assert_ne!(next.block().address(), address);
            drop(release);
            drop((next, copy));
            allocator.empty_cache().unwrap();
            assert_eq!(used(&allocator.snapshot().unwrap()), HashMap::new());

            // A registered stream is kept alive until it is forgotten.
            let owners = Arc::strong_count(&other);
            adopted.forget(&other);
            assert_eq!(Arc::strong_count(&other), owners - 1);
            assert_eq!(adopted.events().number_of(other.cu_stream().cast()), None);
            assert_eq!(allocator.faults().len(), 0);
        }
        cuda.check_err().unwrap();
    });
}

#[test]
fn what_cannot_be_shared_is_an_error() {
    over_each_driver("what_cannot_be_shared_is_an_error", |cuda| {
        #[repr(align(1024))]
        struct Wide;
        // SAFETY: the type has no bytes.
        unsafe impl ::cudarc::driver::DeviceRepr for Wide {}

        let (adopted, allocator) = allocators(&cuda).swap_remove(0);
        let (stream, pool) = (cuda.default_stream(), allocator.default_pool());
        let sizes = [0, usize::MAX, usize::MAX / 8, 1 << 60];
        for len in sizes {
            let error = zeros::<u64>(&adopted, pool, &stream, len).unwrap_err();
            assert!(matches!(error, CudarcError::Alloc(AllocError::Size(_))), "{len}: {error}");
        }
        let much = zeros::<u8>(&adopted, pool, &stream, 1 << 39).unwrap_err();
        assert!(matches!(much, CudarcError::Alloc(AllocError::OutOfMemory(_))), "{much}");

        let per_thread = adopted.register(&cuda.per_thread_stream()).unwrap_err();
        assert!(matches!(per_thread, CudarcError::PerThreadStream));
        let number = adopted.register(&stream).unwrap();
        let block = |bytes| allocator.allocate(bytes, number).unwrap();
        // SAFETY: no slice is made, because each call returns an error.
        unsafe {
            let long = adopted.slice::<u32>(block(512), &stream, 129).unwrap_err();
            assert!(matches!(long, CudarcError::TooLong { len: 129, size: 4, bytes: 512 }));
            let overflow = adopted.slice::<u32>(block(512), &stream, usize::MAX / 2).unwrap_err();
            assert!(matches!(overflow, CudarcError::TooLong { .. }));
            let wide = adopted.slice::<Wide>(block(512), &stream, 0).unwrap_err();
            assert!(matches!(wide, CudarcError::Alignment { align: 1024 }));
            let other = cuda.new_stream().unwrap();
            let elsewhere = adopted.slice::<u8>(block(512), &other, 1).unwrap_err();
            assert!(matches!(elsewhere, CudarcError::ForeignBlock { .. }));
        }
        // The stream has the same number among the streams of another allocator.
        let events = Arc::new(DriverEvents::new(adopted.context()));
        let source = Arc::new(DriverSource::new(adopted.context()));
        events.register(&Stream::legacy_default(adopted.context()));
        let foreign = Allocator::new(source, events, Settings::default());
        let error = zeros::<u8>(&adopted, foreign.default_pool(), &stream, 1).unwrap_err();
        assert!(matches!(error, CudarcError::ForeignBlock { stream: StreamId(1), .. }), "{error}");
        assert_eq!(foreign.stats().all.allocated.current, 0);

        if CudaContext::device_count().unwrap() > 1 {
            let second = CudaContext::new(1).unwrap();
            let error = adopted.register(&second.default_stream()).unwrap_err();
            assert!(matches!(error, CudarcError::OtherContext { wanted: 0, found: 1, .. }), "{error}");
            for context in [&cuda, &second] {
                assert!(error.to_string().contains(&format!("{:#x}", context.cu_ctx().addr())), "{error}");
            }
        }
        assert_eq!(allocator.stats().all.allocated.current, 0);
    });
}

#[test]
fn a_slice_is_an_argument_of_kernels_and_goes_to_other_threads() {
    fn arguments<'a>(launch: &mut LaunchArgs<'a>, from: &'a BlockSlice<f32>, to: &'a mut BlockSlice<f32>) {
        launch.arg(from).arg(to);
    }
    fn sent<T: Send + Sync>() {}
    let _ = arguments;
    sent::<BlockSlice<f32>>();
    sent::<Adopted>();
}
