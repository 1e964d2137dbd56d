//! Captures and graphs.

use std::sync::Arc;

use cuda_driver::graph::{
    CaptureMode, CaptureStatus, Graph, InstantiateFlags, RelaxedCapture, captures_of_this_thread,
    is_capture_open, is_capturing,
};
use cuda_driver::memory::DeviceMemory;
use cuda_driver::{CaptureCount, Driver, Error, Result, Stream};

use super::on_stream;

pub(super) fn captures(driver: &Driver) -> Result<()> {
    let (context, stream) = on_stream(driver)?;
    assert_eq!(stream.capture_status()?, CaptureStatus::None);
    assert_eq!(stream.capture_info()?.id, None);
    let capture = stream.begin_capture(CaptureMode::ThreadLocal)?;
    assert_eq!(stream.capture_status()?, CaptureStatus::Active);
    let info = stream.capture_info()?;
    assert_eq!(info.status, CaptureStatus::Active);
    assert!(info.id.is_some());
    assert_eq!((driver.open_captures().get(), CaptureCount::of(&Arc::default()).get()), (1, 0));
    assert!(
        is_capturing(&context)?
            && is_capture_open()
            && captures_of_this_thread() == std::slice::from_ref(&stream)
    );
    assert!(stream.keep_in_graph(Arc::new(()))?);
    match stream.launch_host_fn(|| {}) {
        Err(Error::WhileCapturing { .. }) => {}
        other => other.map(|()| panic!("a graph could run it often"))?,
    }
    {
        // This memory is allocated and freed during the capture, but is not part of it.
        let _relaxed = RelaxedCapture::enter(driver)?;
        DeviceMemory::new(&context, 4096)?.free()?;
    }
    assert_eq!(capture.end()?.node_count()?, 0);
    drop(stream.begin_capture(CaptureMode::Relaxed)?);
    Ok(())
}

fn filling(stream: &Stream, memory: &DeviceMemory, value: u8, times: usize) -> Result<Graph> {
    let capture = stream.begin_capture(CaptureMode::ThreadLocal)?;
    for _ in 0..times {
        // SAFETY: the section keeps `memory` alive until all launches of the graph have completed.
        unsafe { stream.fill_u8(memory.ptr(), value, 4096)? };
    }
    capture.end()
}

pub(super) fn graphs(driver: &Driver) -> Result<()> {
    let (context, stream) = on_stream(driver)?;
    let memory = DeviceMemory::new(&context, 4096)?;
    let read = || {
        stream.synchronize()?;
        let mut byte = [0u8];
        memory.copy_to_host(0, &mut byte)?;
        Ok::<_, Error>(byte[0])
    };
    let graph = filling(&stream, &memory, 2, 1)?;
    assert_eq!(graph.node_count()?, 1);
    // SAFETY: `into_raw` has just given up ownership of the graph.
    let graph = unsafe { Graph::from_raw(&context, graph.into_raw()) };
    let mut exec = graph.instantiate()?;
    assert!(!exec.raw().is_null());
    exec.upload(&stream)?;
    stream.launch(&exec)?;
    assert_eq!(read()?, 2);

    exec.update(&filling(&stream, &memory, 3, 1)?)?;
    stream.launch(&exec)?;
    assert_eq!(read()?, 3);
    match exec.update(&filling(&stream, &memory, 4, 2)?) {
        Err(Error::GraphUpdate { .. }) => {}
        other => other.map(|()| panic!("a graph of two nodes is another"))?,
    }
    stream.launch(&exec)?;
    assert_eq!(read()?, 3, "it does what it did");
    let exec = graph.instantiate_with(InstantiateFlags::AUTO_FREE_ON_LAUNCH)?;
    stream.launch(&exec)?;
    assert_eq!(read()?, 2);

    let file = std::env::temp_dir().join(format!("cuda-driver-test-{}.dot", std::process::id()));
    let written = graph.write_dot(&file, true);
    let drawing = std::fs::read_to_string(&file);
    let _ = std::fs::remove_file(&file);
    written?;
    assert!(drawing.unwrap().contains("digraph"));
    match graph.write_dot("a\0b".as_ref(), false) {
        Err(Error::Path { .. }) => Ok(()),
        other => other.map(|()| panic!("there is no such path")),
    }
}
