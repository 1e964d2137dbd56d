//! Streams, events, and the work that is enqueued on streams.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};

use cuda_driver::memory::{DeviceMemory, PinnedFlags, PinnedMemory};
use cuda_driver::{
    Capabilities, DevicePtr, Driver, Event, EventFlags, IpcEventHandle, MemoryOp, Result, Stream,
    StreamFlags, WaitCondition,
};

use super::{attempt, on_stream};

pub(super) fn streams(driver: &Driver) -> Result<()> {
    let (context, stream) = on_stream(driver)?;
    assert_eq!(stream.flags()?, StreamFlags::NON_BLOCKING);
    let (lowest, highest) = context.stream_priority_range()?;
    let urgent = Stream::with_priority(&context, StreamFlags::empty(), highest)?;
    assert_eq!((urgent.priority()?, urgent.flags()?), (highest, StreamFlags::empty()));
    assert!(lowest >= highest);
    assert_ne!(stream.id()?, urgent.id()?);
    // SAFETY: `stream` outlives `borrowed`.
    let borrowed = unsafe { Stream::borrowed(&context, stream.raw()) };
    assert_eq!(borrowed, stream);
    assert_eq!(borrowed.context(), &context);
    assert!(borrowed.is_same(&stream) && !stream.is_same(&urgent));
    // SAFETY: the handle is `CU_STREAM_PER_THREAD`, which always exists.
    let of_thread = unsafe { Stream::borrowed(&context, std::ptr::without_provenance_mut(2)) };
    assert!(of_thread.is_per_thread() && !of_thread.is_same(&of_thread.clone()));
    let owner = Arc::new(());
    // SAFETY: `stream` outlives `kept` and its clone.
    let kept = unsafe { Stream::kept_by(&context, stream.raw(), owner.clone()) };
    let again = kept.clone();
    drop((borrowed, kept));
    assert_eq!((Arc::strong_count(&owner), &again), (2, &stream), "kept until the last clone goes");
    drop(again);
    assert_eq!(Arc::strong_count(&owner), 1);
    for stream in [&stream, &urgent, &Stream::legacy_default(&context)] {
        stream.synchronize()?;
        assert!(stream.query()?);
    }
    Ok(())
}

pub(super) fn events(driver: &Driver) -> Result<()> {
    let (context, stream) = on_stream(driver)?;
    let other = Stream::new(&context, StreamFlags::NON_BLOCKING)?;
    let [first, second] =
        [Event::new(&context, EventFlags::empty())?, Event::new(&context, EventFlags::BLOCKING_SYNC)?];
    assert!(first.query()?, "never recorded");
    assert!(!first.raw().is_null());
    assert_eq!(first.context(), &context);
    stream.record(&first)?;
    other.wait(&first)?;
    other.wait_stream(&stream)?;
    other.wait(&stream.record_uncaptured()?)?;
    other.record(&second)?;
    second.synchronize()?;
    assert!(second.query()?);
    assert!(second.elapsed_us(&first)? >= 0.0);

    // `processes.rs` opens an exported event in another process.
    assert!(attempt(first.export_ipc())?.is_none(), "the event was not made for it");
    let shared = EventFlags::INTERPROCESS | EventFlags::DISABLE_TIMING;
    if context.device().can(Capabilities::IPC_EVENTS)? {
        let event = Event::new(&context, shared)?;
        assert_eq!(event.export_ipc()?, event.export_ipc()?);
    }
    let nobody = IpcEventHandle([0; 64]);
    assert!(attempt(Event::open_ipc(&context, nobody))?.is_none(), "no event has that name");
    Ok(())
}

pub(super) fn host_functions(driver: &Driver) -> Result<()> {
    unsafe extern "C" fn count(data: *mut c_void) {
        // SAFETY: `data` is the static counter.
        unsafe { &*data.cast::<AtomicU32>() }.fetch_add(1, Ordering::SeqCst);
    }
    static COUNTED: AtomicU32 = AtomicU32::new(0);
    let (_context, stream) = on_stream(driver)?;
    let (sender, receiver) = mpsc::channel();
    let before = COUNTED.load(Ordering::SeqCst);
    let here = Arc::new(());
    let there = here.clone();
    stream.launch_host_fn(move || drop((sender.send(()), there)))?;
    let data = (&raw const COUNTED).cast_mut().cast();
    // SAFETY: the function counts in a static.
    unsafe { stream.launch_raw_host_fn(count, data)? };
    stream.synchronize()?;
    assert_eq!(receiver.recv(), Ok(()));
    assert!(COUNTED.load(Ordering::SeqCst) > before);
    Ok(())
}

pub(super) fn words(driver: &Driver) -> Result<()> {
    let (context, stream) = on_stream(driver)?;
    let memory = DeviceMemory::new(&context, 4096)?;
    memory.copy_from_host(0, &[0u64; 8])?;
    let [narrow, wide]: [DevicePtr; 2] = [memory.ptr(), memory.ptr() + 8usize];
    let nor = context.device().can(Capabilities::STREAM_WAIT_NOT_OR)?;
    // SAFETY: the words lie in `memory`, which outlives the work: the section waits for the work, or after an error,
    // freeing the memory does.
    unsafe {
        stream.write_value32(narrow, 3)?;
        stream.write_value64(wide, 1 << 40)?;
        stream.wait_value32(narrow, WaitCondition::Equal, 3)?;
        stream.wait_value32(narrow, WaitCondition::AnyBit, 1)?;
        stream.wait_value64(wide, WaitCondition::GreaterOrEqual, 1 << 39)?;
        if nor {
            stream.wait_value32(narrow, WaitCondition::NotOr, 4)?;
        }
        stream
            .batch(&[MemoryOp::Write32 { at: narrow, value: 5 }, MemoryOp::Write64 { at: wide, value: 6 }])?;
        stream.batch(&[
            MemoryOp::Wait32 { at: narrow, condition: WaitCondition::Equal, value: 5 },
            MemoryOp::Wait64 { at: wide, condition: WaitCondition::Equal, value: 6 },
        ])?;
    }
    stream.synchronize()?;
    let mut found = [0u64; 2];
    memory.copy_to_host(0, &mut found)?;
    assert_eq!(found, [5, 6]);
    Ok(())
}

pub(super) fn copies(driver: &Driver) -> Result<()> {
    let (context, stream) = on_stream(driver)?;
    let memory = DeviceMemory::new(&context, 4096)?;
    let mut pinned = PinnedMemory::new(&context, 1024, PinnedFlags::empty())?;
    pinned.as_mut_slice().fill(9);
    let (start, middle, end) = (memory.ptr(), memory.ptr() + 1024usize, memory.ptr() + 2048usize);
    // SAFETY: both memories outlive the work: the section waits for the work, or after an error, freeing the memories
    // does.
    unsafe {
        stream.copy_from_host(start, pinned.as_ptr().cast(), 1024)?;
        stream.fill_u8(start, 1, 4)?;
        stream.fill_u16(start + 4usize, 0x0202, 2)?;
        stream.fill_u32(start + 8usize, 0x0303_0303, 1)?;
        stream.copy(middle, start, 1024)?;
        stream.copy_peer((end, &context), (middle, &context), 1024)?;
        stream.copy_to_host(pinned.as_ptr().cast(), end, 1024)?;
    }
    stream.synchronize()?;
    assert_eq!(pinned.as_slice()[..16], [1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 9, 9, 9, 9]);
    let mut found = [0u16; 8];
    // SAFETY: the memory belongs to this section, and nothing else uses it.
    unsafe {
        context.fill_u8(start, 4, 1024)?;
        context.fill_u16(start, 5, 4)?;
        context.fill_u32(start, 6, 1)?;
        context.copy(middle, start, 1024)?;
        context.copy_to_host(&mut found, middle)?;
        context.copy_from_host(middle, &[0u8; 8])?;
    }
    assert_eq!(found, [6, 0, 5, 5, 0x0404, 0x0404, 0x0404, 0x0404]);
    Ok(())
}
