//! Graphs keep the modules of their kernels loaded, and the owners passed to them alive.

use std::sync::Arc;

use cuda_driver::graph::{CaptureMode, Graph};
use cuda_driver::memory::DeviceMemory;
use cuda_driver::module::{JitOptions, LaunchConfig, Module};
use cuda_driver::sys::{CUresult, CUstreamCaptureMode};
use cuda_driver::{Context, Event, EventFlags, Stream, StreamFlags};
use gpu_sim::{Action, Injection, World};

use super::kernels::{self, PTX};
use super::{INJECTED, failed, on_stream};

const WORDS: [u32; 4] = [1, 2, 3, 4];

/// Like [`on_stream`], with the kernels registered and device memory that contains [`WORDS`].
fn on_memory(test: impl FnOnce(&World, &Context, &Stream, &DeviceMemory)) {
    on_stream(|world, context, stream| {
        kernels::register(world);
        let memory = DeviceMemory::new(context, 16).unwrap();
        memory.copy_from_host(0, &WORDS).unwrap();
        test(world, context, stream, &memory);
    });
}

/// Loads a new module, launches its kernel `reverse`, which reverses the order of the words in `memory`, and drops
/// the module.
fn reverse(context: &Context, stream: &Stream, memory: &DeviceMemory) {
    let module = Module::load_ptx(context, PTX, &JitOptions::new()).unwrap();
    let reverse = module.function("reverse").unwrap();
    let config = LaunchConfig::new(1, 4).shared_bytes(16);
    // SAFETY: the memory outlives all launches of the graph, which the tests wait for.
    unsafe { stream.launch_kernel(&reverse, &config, (memory.ptr(), 4u32)).unwrap() };
}

fn capture(stream: &Stream, work: impl FnOnce()) -> Graph {
    let capture = stream.begin_capture(CaptureMode::ThreadLocal).unwrap();
    work();
    capture.end().unwrap()
}

/// Begins a capture by a raw call, as another library does.
pub(super) fn begin_raw(context: &Context, stream: &Stream) {
    let begin = context.driver().api().cuStreamBeginCapture_v2().unwrap();
    // SAFETY: the stream is alive.
    let code = unsafe { begin(stream.raw(), CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED) };
    assert_eq!(code, CUresult::CUDA_SUCCESS);
}

pub(super) fn end_raw(context: &Context, stream: &Stream) {
    let (end, mut graph) = (context.driver().api().cuStreamEndCapture().unwrap(), std::ptr::null_mut());
    // SAFETY: the stream is alive; writes one handle, to a local that outlives the call.
    assert_eq!(unsafe { end(stream.raw(), &mut graph) }, CUresult::CUDA_SUCCESS);
    // SAFETY: nobody else has the graph, and the graph is never launched.
    drop(unsafe { Graph::from_raw(context, graph) });
}

fn read(memory: &DeviceMemory) -> [u32; 4] {
    let mut words = [0; 4];
    memory.copy_to_host(0, &mut words).unwrap();
    words
}

#[test]
fn an_executable_keeps_the_modules_of_its_kernels() {
    on_memory(|world, context, stream, memory| {
        let graph = capture(stream, || reverse(context, stream, memory));
        let exec = graph.instantiate().unwrap();
        drop(graph);
        for expected in [[4, 3, 2, 1], WORDS] {
            stream.launch(&exec).unwrap();
            stream.synchronize().unwrap();
            assert_eq!(read(memory), expected);
        }
        assert_eq!(world.calls("cuModuleUnload"), 0);
        drop(exec);
        assert_eq!(world.calls("cuModuleUnload"), 1);
    });
}

#[test]
fn a_stream_that_is_drawn_in_keeps_modules_for_the_graph() {
    on_memory(|world, context, stream, memory| {
        let other = Stream::new(context, StreamFlags::NON_BLOCKING).unwrap();
        let [fork, join] = [(); 2].map(|()| Event::new(context, EventFlags::DISABLE_TIMING).unwrap());
        let graph = capture(stream, || {
            stream.record(&fork).unwrap();
            other.wait(&fork).unwrap();
            reverse(context, &other, memory);
            other.record(&join).unwrap();
            stream.wait(&join).unwrap();
        });
        let exec = graph.instantiate().unwrap();
        stream.launch(&exec).unwrap();
        stream.synchronize().unwrap();
        assert_eq!((read(memory), world.calls("cuModuleUnload")), ([4, 3, 2, 1], 0));
    });
}

#[test]
fn a_graph_that_is_launched_into_a_capture_is_kept_for_it() {
    on_memory(|world, context, stream, memory| {
        let inner = capture(stream, || reverse(context, stream, memory)).instantiate().unwrap();
        let open = stream.begin_capture(CaptureMode::ThreadLocal).unwrap();
        let launched = stream.launch(&inner);
        assert_eq!(launched.unwrap_err().code(), Some(CUresult::CUDA_ERROR_NOT_SUPPORTED), "not modelled");
        drop(inner);
        assert_eq!(world.calls("cuModuleUnload"), 0);
        drop(open);
        assert_eq!(world.calls("cuModuleUnload"), 1);
    });
}

#[test]
fn an_executable_that_is_updated_keeps_the_new_graphs_modules() {
    on_memory(|world, context, stream, memory| {
        let mut exec = capture(stream, || reverse(context, stream, memory)).instantiate().unwrap();
        exec.update(&capture(stream, || reverse(context, stream, memory))).unwrap();
        stream.launch(&exec).unwrap();
        stream.synchronize().unwrap();
        assert_eq!((read(memory), world.calls("cuModuleUnload")), ([4, 3, 2, 1], 0));
        drop(exec);
        assert_eq!(world.calls("cuModuleUnload"), 2);
    });
}

#[test]
fn a_graph_keeps_what_it_is_told_until_its_last_executable_goes() {
    on_stream(|_, context, stream| {
        let held = |owner: &Arc<()>| Arc::strong_count(owner) > 1;
        let owner = Arc::new(());
        let graph = capture(stream, || {
            assert!(stream.keep_in_graph(owner.clone()).unwrap());
        });
        let execs = [(); 2].map(|()| graph.instantiate().unwrap());
        drop(graph);
        let [first, second] = execs;
        drop(first);
        assert!(held(&owner));
        drop(second);
        assert!(!held(&owner));
        // An owner is dropped with a capture that is discarded. A stream that does not capture holds no owner, and
        // neither does a capture of another library.
        let open = stream.begin_capture(CaptureMode::ThreadLocal).unwrap();
        assert!(stream.keep_in_graph(owner.clone()).unwrap() && held(&owner));
        let other = Stream::new(context, StreamFlags::NON_BLOCKING).unwrap();
        assert!(!other.keep_in_graph(owner.clone()).unwrap());
        drop(open);
        assert!(!held(&owner));
        begin_raw(context, &other);
        assert!(!other.keep_in_graph(owner.clone()).unwrap() && !held(&owner));
        end_raw(context, &other);
    });
}

#[test]
fn nothing_is_kept_without_a_capture() {
    on_memory(|world, context, stream, memory| {
        let other = Stream::new(context, StreamFlags::NON_BLOCKING).unwrap();
        // A capture that is discarded drops the module.
        let open = stream.begin_capture(CaptureMode::ThreadLocal).unwrap();
        reverse(context, stream, memory);
        assert_eq!(world.calls("cuModuleUnload"), 0);
        drop(open);
        assert_eq!(world.calls("cuModuleUnload"), 1);
        // A launch on another stream during the capture is not part of the capture.
        let module = Module::load_ptx(context, PTX, &JitOptions::new()).unwrap();
        let function = module.function("reverse").unwrap();
        let config = LaunchConfig::new(1, 4).shared_bytes(16);
        let graph = capture(stream, || {
            // SAFETY: memory and module outlive the work, which is waited for.
            unsafe { other.launch_kernel(&function, &config, (memory.ptr(), 4u32)).unwrap() };
        });
        other.synchronize().unwrap();
        drop((module, function));
        assert_eq!((read(memory), world.calls("cuModuleUnload")), ([4, 3, 2, 1], 2));
        assert_eq!(graph.node_count().unwrap(), 0);
    });
}

#[test]
fn a_capture_whose_number_the_driver_does_not_tell_does_not_begin() {
    on_memory(|world, _, stream, _| {
        world.faults().inject(Injection::new("cuStreamGetCaptureInfo_v2", Action::Fail(INJECTED))).unwrap();
        let error = stream.begin_capture(CaptureMode::ThreadLocal).unwrap_err();
        assert_eq!(failed(&error), ("cuStreamGetCaptureInfo_v2", INJECTED));
        stream.synchronize().expect("it does not capture");
        assert_eq!(capture(stream, || {}).node_count().unwrap(), 0);
    });
}
