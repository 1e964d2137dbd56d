//! Slices: views, copies, several streams and devices, captures.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cuda_driver::graph::{BoundMemory, CaptureMode, StreamBound};
use cuda_driver::memory::StreamMemory;
use cuda_driver::{
    DevicePtr, DeviceSlice, DeviceView, Driver, Error, PinnedSlice, Result, Stream, StreamFlags,
};

use super::{note, on_stream};

pub(super) fn slices(driver: &Driver) -> Result<()> {
    let (_context, stream) = on_stream(driver)?;
    let mut slice = stream.clone_htod(&[1u16, 2, 3, 4, 5])?;
    assert_eq!((slice.len(), slice.bytes(), slice.is_empty()), (5, 10, false));
    assert!(slice.stream() == &stream && !slice.device_ptr().is_null());
    let view = slice.slice(1..=3)?;
    assert_eq!((view.len(), view.bytes(), view.is_empty(), view.stream()), (3, 6, false, &stream));
    assert_eq!(view.device_ptr(), slice.device_ptr() + 2usize);
    assert_eq!(stream.clone_dtoh(view.slice(1..)?)?, [3, 4]);
    let mut found = [0; 3];
    stream.memcpy_dtoh(view, &mut found)?;
    assert_eq!(found, [2, 3, 4]);

    let mut whole = slice.as_view_mut();
    assert_eq!((whole.len(), whole.bytes(), whole.is_empty(), whole.stream()), (5, 10, false, &stream));
    let (mut first, second) = whole.split_at_mut(2)?;
    assert_eq!(first.device_ptr() + 4usize, second.device_ptr());
    stream.memcpy_dtod(second.slice(1..)?, &mut first)?;
    assert_eq!(second.as_view().len(), 3);
    stream.memset_zeros(whole.slice_mut(4..)?)?;
    stream.memcpy_htod(&[9], slice.slice_mut(2..3)?)?;
    let copy = stream.clone_dtod(&slice)?;
    assert_eq!(stream.clone_dtoh(&copy)?, [4, 5, 9, 4, 0]);
    let zeros: DeviceSlice<f64> = stream.alloc_zeros(3)?;
    assert_eq!(stream.clone_dtoh(&zeros)?, [0.0; 3]);

    let none: DeviceSlice<u8> = stream.alloc(0)?;
    assert!(none.is_empty() && none.as_view().is_empty() && none.device_ptr() == DevicePtr::NULL);
    assert_eq!(stream.clone_dtoh(&none)?, []);
    Ok(())
}

pub(super) fn on_two_streams(driver: &Driver) -> Result<()> {
    let (context, stream) = on_stream(driver)?;
    let other = Stream::new(&context, StreamFlags::NON_BLOCKING)?;
    let mut slice = stream.clone_htod(&[1u32; 4])?;
    let from = other.clone_htod(&[2u32, 3])?;
    other.memcpy_dtod(&from, slice.slice_mut(1..3)?)?;
    drop(from);
    assert_eq!(stream.clone_dtoh(&slice)?, [1, 2, 3, 1]);
    other.memset_zeros(&mut slice)?;
    assert_eq!(other.clone_dtoh(DeviceView::from(&slice))?, [0; 4]);
    Ok(())
}

pub(super) fn on_two_devices(driver: &Driver) -> Result<()> {
    if driver.device_count()? < 2 {
        note("skipped: copies of slices between devices");
        return Ok(());
    }
    let (_context, stream) = on_stream(driver)?;
    let peer = driver.device(1)?.retain_primary()?;
    let peer = Stream::new(&peer, StreamFlags::NON_BLOCKING)?;
    let from = stream.clone_htod(&[1u8, 2, 3])?;
    let mut to = peer.alloc_zeros::<u8>(3)?;
    stream.memcpy_dtod(&from, &mut to)?;
    assert_eq!(peer.clone_dtoh(&to)?, [1, 2, 3]);
    let back = peer.clone_dtod(&from)?;
    assert_eq!((back.stream(), peer.clone_dtoh(&back)?), (&peer, vec![1, 2, 3]));
    match stream.memset_zeros(&mut to) {
        Err(Error::DifferentDevices { .. }) => Ok(()),
        other => other.map(|()| panic!("the slice is another device's")),
    }
}

/// Memory as an allocator outside of the crate would own it.
struct Owned {
    memory: Option<StreamMemory>,
    stream: Stream,
    is_kept: AtomicBool,
}

// SAFETY: the memory is freed in the order of its stream, and never after `keep_for_ever`.
unsafe impl StreamBound for Owned {
    fn stream(&self) -> &Stream {
        &self.stream
    }

    fn keep_for_ever(&self) {
        self.is_kept.store(true, Ordering::SeqCst);
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if self.is_kept.load(Ordering::SeqCst) {
            std::mem::forget(self.memory.take());
        }
    }
}

pub(super) fn of_an_allocator(driver: &Driver) -> Result<()> {
    let (context, stream) = on_stream(driver)?;
    let memory = StreamMemory::new(&stream, 4096)?;
    let start = memory.ptr();
    let owner: BoundMemory =
        Arc::new(Owned { memory: Some(memory), stream: stream.clone(), is_kept: AtomicBool::new(false) });
    // SAFETY: the elements lie in the memory, which this section uses only through the slice and ordered with it.
    let (mut slice, none) = unsafe {
        (
            DeviceSlice::from_owner(owner.clone(), start, 4),
            DeviceSlice::<u8>::from_owner(owner.clone(), start, 0),
        )
    };
    assert_eq!((none.len(), none.device_ptr()), (0, DevicePtr::NULL));
    assert_eq!(slice.device_ptr(), start);
    stream.memcpy_htod(&[1u32, 2, 3, 4], &mut slice)?;
    let other = Stream::new(&context, StreamFlags::NON_BLOCKING)?;
    // SAFETY: the words lie in the memory.
    other.enqueue_using(std::slice::from_ref(&owner), || unsafe { other.fill_u32(start, 7, 2) })?;
    drop(owner);
    assert_eq!(stream.clone_dtoh(&slice)?, [7, 7, 3, 4]);
    other.memset_zeros(slice.slice_mut(2..)?)?;
    drop(slice);
    stream.synchronize()
}

pub(super) fn pinned(driver: &Driver) -> Result<()> {
    let (context, stream) = on_stream(driver)?;
    let other = Stream::new(&context, StreamFlags::NON_BLOCKING)?;
    let mut pinned: PinnedSlice<i32> = context.alloc_pinned(4)?;
    assert_eq!((pinned.len(), pinned.bytes(), pinned.is_empty()), (4, 16, false));
    assert_eq!(pinned.as_slice()?, [0; 4]);
    pinned.as_mut_slice()?.copy_from_slice(&[-1, 2, -3, 4]);
    let mut slice = stream.alloc::<i32>(8)?;
    stream.memcpy_htod_async(&pinned, slice.slice_mut(..4)?)?;
    other.memcpy_htod_async(&pinned, slice.slice_mut(4..)?)?;
    other.memset_zeros(slice.slice_mut(1..2)?)?;
    stream.memcpy_dtoh_async(slice.slice(..4)?, &mut pinned)?;
    assert_eq!(pinned.as_slice()?, [-1, 0, -3, 4]);
    assert_eq!(stream.clone_dtoh(&slice)?, [-1, 0, -3, 4, -1, 2, -3, 4]);
    // `pinned` is dropped while this copy may still run.
    stream.memcpy_dtoh_async(slice.slice(4..)?, &mut pinned)?;
    let mut none = context.alloc_pinned::<i32>(0)?;
    stream.memcpy_dtoh_async(slice.slice(8..)?, &mut none)?;
    assert!(none.is_empty() && none.as_slice()?.is_empty());
    Ok(())
}

pub(super) fn captured(driver: &Driver) -> Result<()> {
    let (context, stream) = on_stream(driver)?;
    let other = Stream::new(&context, StreamFlags::NON_BLOCKING)?;
    let (mut slice, from) = (stream.alloc::<u32>(2)?, other.clone_htod(&[7u32, 8])?);
    let mut bytes = other.clone_htod(&[1u8])?;
    let capture = stream.begin_capture(CaptureMode::ThreadLocal)?;
    stream.memcpy_dtod(&from, &mut slice)?;
    stream.memset_zeros(slice.slice_mut(1..)?)?;
    drop(slice);
    let refused = [
        stream.alloc::<u8>(1).map(drop),
        stream.clone_dtoh(&from).map(drop),
        stream.memcpy_htod(&[1], &mut bytes),
    ];
    for refused in refused {
        match refused {
            Err(Error::WhileCapturing { .. }) => {}
            other => other.map(|()| panic!("a capture cannot take it"))?,
        }
    }
    drop(from);
    let graph = capture.end()?;
    let exec = graph.instantiate()?;
    drop(graph);
    stream.launch(&exec)?;
    other.launch(&exec)
}
