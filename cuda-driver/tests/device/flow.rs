//! One flow through the whole crate.

use cuda_driver::graph::{CaptureMode, RelaxedCapture};
use cuda_driver::memory::{DeviceMemory, PinnedFlags, PinnedMemory, StreamMemory};
use cuda_driver::vmm::{Access, Granularity, HandleTypes, PhysicalMemory, Reservation};
use cuda_driver::{Driver, Event, EventFlags, Result, Stream, StreamFlags};

/// Something of everything; what takes a second device only if there is one.
pub(crate) fn flow(driver: &Driver) -> Result<()> {
    let context = driver.device(0)?.retain_primary()?;
    let device = context.device();
    assert!(!device.name()?.is_empty());
    assert_ne!(device.uuid()?, [0; 16]);
    assert!(device.total_memory()? > 0);
    if driver.device_count()? > 1 {
        let peer = driver.device(1)?.retain_primary()?;
        if device.can_access_peer(peer.device())? {
            context.enable_peer_access(&peer)?;
            context.disable_peer_access(&peer)?;
        }
    }
    context.memory_info()?;
    let stream = Stream::new(&context, StreamFlags::NON_BLOCKING)?;
    let urgent =
        Stream::with_priority(&context, StreamFlags::NON_BLOCKING, context.stream_priority_range()?.1)?;
    let [event, later] =
        [Event::new(&context, EventFlags::empty())?, Event::new(&context, EventFlags::empty())?];

    let memory = DeviceMemory::new(&context, 4096)?;
    let pinned = PinnedMemory::new(&context, 4096, PinnedFlags::DEVICE_MAPPED)?;
    pinned.device_ptr()?;
    driver.pointer_info(memory.ptr())?;
    context.address_range(memory.ptr())?;
    memory.export_ipc()?;
    memory.copy_from_host(0, &[1u8; 16])?;
    let half = memory.ptr() + 2048usize;
    // SAFETY: both memories outlive the work: it is waited for, or they go with the context's last handle.
    unsafe {
        context.fill_u8(memory.ptr(), 0, 4096)?;
        stream.copy_from_host(memory.ptr(), pinned.as_ptr().cast(), 2048)?;
        stream.fill_u8(memory.ptr(), 1, 16)?;
        stream.fill_u16(memory.ptr(), 1, 16)?;
        stream.fill_u32(memory.ptr(), 1, 16)?;
        stream.copy(half, memory.ptr(), 2048)?;
        stream.copy_peer((half, &context), (memory.ptr(), &context), 2048)?;
        stream.copy_to_host(pinned.as_ptr().cast(), half, 2048)?;
        stream.write_value32(memory.ptr(), 1)?;
        stream.write_value64(memory.ptr(), 1)?;
    }
    stream.record(&event)?;
    urgent.wait(&event)?;
    stream.launch_host_fn(|| {})?;
    stream.record(&later)?;
    stream.synchronize()?;
    assert!(stream.query()? && later.query()?);
    later.synchronize()?;
    later.elapsed_us(&event)?;

    let pooled = StreamMemory::new(&stream, 4096)?;
    drop(pooled);
    StreamMemory::new(&stream, 4096)?.free()?;

    let relaxed = RelaxedCapture::enter(driver)?;
    drop(relaxed);
    let capture = stream.begin_capture(CaptureMode::ThreadLocal)?;
    // SAFETY: the memory outlives the launch, which is waited for.
    unsafe { stream.fill_u8(memory.ptr(), 2, 4096)? };
    let graph = capture.end()?;
    graph.node_count()?;
    let exec = graph.instantiate()?;
    exec.upload(&stream)?;
    stream.launch(&exec)?;
    context.synchronize()?;

    super::kernels::flow(driver, &context, &stream)?;

    let bytes = Granularity::of(device, HandleTypes::POSIX_FD)?.round_up(1);
    let physical = PhysicalMemory::create(&context, bytes, HandleTypes::POSIX_FD)?;
    let imported =
        PhysicalMemory::import_fd(&context, std::os::fd::AsFd::as_fd(&physical.export_fd()?), bytes)?;
    imported.device_ordinal()?;
    let reservation = Reservation::new(driver, 2 * bytes, 0)?;
    let first = reservation.map(0, &physical, 0, bytes)?;
    let second = reservation.map(bytes, &imported, 0, bytes)?;
    reservation.set_access(0, 2 * bytes, &[(device, Access::ReadWrite)])?;
    first.unmap()?;
    drop(second);
    memory.free()
}
