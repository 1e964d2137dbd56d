//! Tests that the crate refuses a call on objects of two drivers, and that a driver that is loaded twice counts as
//! one.

use cuda_driver::graph::CaptureMode;
use cuda_driver::memory::{DeviceMemory, MemoryPool, StreamMemory};
use cuda_driver::module::{JitOptions, LaunchConfig, Module};
use cuda_driver::sys::CUresult;
use cuda_driver::vmm::{Access, Granularity, HandleTypes, PageTable, PhysicalMemory, Reservation};
use cuda_driver::{Driver, Error, Event, EventFlags, Result, Stream, StreamFlags};
use gpu_sim::World;

use super::kernels::{self, PTX};
use super::{context, driver, on_devices};

/// Returns a second driver of the same [`World`], the simulated machine. The crate identifies a driver by the address
/// of its `cuInit`, and only that function differs from the first driver's. A call that the crate failed to refuse
/// would therefore succeed, and the test would notice.
fn second_driver(world: &World) -> Driver {
    unsafe extern "C" fn another(_: u32) -> CUresult {
        CUresult::CUDA_SUCCESS
    }
    let mut table = world.cuda();
    table.cuInit = Some(another);
    driver(table)
}

#[track_caller]
fn refused<T>(result: Result<T>) {
    match result {
        Err(Error::DifferentDrivers { what, user }) => assert_ne!(what, user),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("objects of two drivers were taken together"),
    }
}

#[test]
fn a_driver_that_is_loaded_twice_is_one() {
    on_devices(1, |world, first| {
        let second = driver(world.cuda());
        assert_eq!(first.device(0).unwrap(), second.device(0).unwrap());
        let (ours, theirs) = (context(first, 0), context(&second, 0));
        assert_eq!(ours, theirs);
        let event = Event::new(&theirs, EventFlags::empty()).unwrap();
        let stream = Stream::new(&ours, StreamFlags::NON_BLOCKING).unwrap();
        stream.record(&event).unwrap();
        stream.wait(&event).unwrap();
        stream.synchronize().unwrap();
        let open = || [first, &second].map(|driver| driver.open_captures().get());
        let capture = stream.begin_capture(CaptureMode::ThreadLocal).unwrap();
        assert_eq!(open(), [1, 1], "a capture counts for both handles");
        capture.end().unwrap();
        assert_eq!(open(), [0, 0]);
    });
}

#[test]
fn contexts_and_devices_of_two_drivers_do_not_mix() {
    on_devices(2, |world, first| {
        let second = second_driver(world);
        let (ours, theirs) = (first.device(0).unwrap(), second.device(0).unwrap());
        assert_ne!(ours, theirs);
        refused(ours.can_access_peer(&theirs));
        refused(ours.link_to(&theirs));
        let (ours, theirs, peer) = (context(first, 0), context(&second, 0), context(&second, 1));
        // Both drivers return the same handle for the device's primary context.
        assert_eq!(ours.raw(), theirs.raw());
        assert_ne!(ours, theirs);
        refused(ours.enable_peer_access(&peer));
        refused(ours.disable_peer_access(&peer));
        let memory = DeviceMemory::new(&ours, 4096).unwrap();
        // SAFETY: the call is refused.
        refused(unsafe { ours.copy_to_peer((memory.ptr(), &peer), memory.ptr(), 1) });
    });
}

#[test]
fn streams_and_events_of_two_drivers_do_not_mix() {
    on_devices(1, |world, first| {
        let second = second_driver(world);
        let (ours, theirs) = (context(first, 0), context(&second, 0));
        let stream = Stream::new(&ours, StreamFlags::NON_BLOCKING).unwrap();
        let other = Stream::new(&theirs, StreamFlags::NON_BLOCKING).unwrap();
        let [own, event] = [&ours, &theirs].map(|context| Event::new(context, EventFlags::empty()).unwrap());
        refused(stream.record(&event));
        refused(stream.wait(&event));
        refused(own.elapsed_us(&event));
        let memory = DeviceMemory::new(&ours, 4096).unwrap();
        // SAFETY: the call is refused.
        refused(unsafe { stream.copy_peer((memory.ptr(), &ours), (memory.ptr(), &theirs), 1) });
        // SAFETY: the call is refused.
        refused(unsafe { stream.copy_peer((memory.ptr(), &theirs), (memory.ptr(), &ours), 1) });
        // SAFETY: `stream` outlives the new handle.
        let same_handle = unsafe { Stream::borrowed(&theirs, stream.raw()) };
        assert_ne!(stream, same_handle);
        refused(StreamMemory::new(&stream, 4096).unwrap().move_to(&other));
        let pool = MemoryPool::default_of(&theirs).unwrap();
        assert_ne!(pool, MemoryPool::default_of(&ours).unwrap());
        refused(StreamMemory::from_pool(&pool, &stream, 4096));
        refused(pool.access(ours.device()));
        refused(pool.set_access(&[(ours.device(), Access::ReadWrite)]));
    });
}

#[test]
fn kernels_and_graphs_of_two_drivers_do_not_mix() {
    on_devices(1, |world, first| {
        kernels::register(world);
        let second = second_driver(world);
        let (ours, theirs) = (context(first, 0), context(&second, 0));
        let module = Module::load_ptx(&theirs, PTX, &JitOptions::new()).unwrap();
        let function = module.function("reverse").unwrap();
        let stream = Stream::new(&ours, StreamFlags::NON_BLOCKING).unwrap();
        let other = Stream::new(&theirs, StreamFlags::NON_BLOCKING).unwrap();
        let (config, null) = (LaunchConfig::new(1, 1), cuda_driver::DevicePtr::NULL);
        // SAFETY: the call is refused.
        refused(unsafe { stream.launch_kernel(&function, &config, (null, 0u32)) });
        let graph = |stream: &Stream| stream.begin_capture(CaptureMode::Relaxed).unwrap().end().unwrap();
        let mut exec = graph(&other).instantiate().unwrap();
        refused(stream.launch(&exec));
        refused(exec.upload(&stream));
        refused(exec.update(&graph(&stream)));
    });
}

#[test]
fn slices_of_two_drivers_do_not_mix() {
    on_devices(1, |world, first| {
        kernels::register(world);
        let second = second_driver(world);
        let (ours, theirs) = (context(first, 0), context(&second, 0));
        let [stream, other] = [&ours, &theirs].map(|c| Stream::new(c, StreamFlags::NON_BLOCKING).unwrap());
        let (mut slice, mut foreign) =
            (stream.clone_htod(&[1u8; 4]).unwrap(), other.clone_htod(&[2u8; 4]).unwrap());
        let (mut pinned, mut foreign_pinned) =
            (ours.alloc_pinned::<u8>(4).unwrap(), theirs.alloc_pinned::<u8>(4).unwrap());
        refused(stream.memset_zeros(&mut foreign));
        refused(stream.memcpy_htod(&[0; 4], &mut foreign));
        refused(stream.clone_dtoh(&foreign));
        refused(stream.memcpy_dtod(&foreign, &mut slice));
        refused(stream.memcpy_dtod(&slice, &mut foreign));
        refused(stream.clone_dtod(&foreign));
        refused(stream.memcpy_htod_async(&pinned, &mut foreign));
        refused(stream.memcpy_dtoh_async(&foreign, &mut pinned));
        refused(stream.memcpy_htod_async(&foreign_pinned, &mut slice));
        refused(stream.memcpy_dtoh_async(&slice, &mut foreign_pinned));
        let reverse = Module::load_ptx(&ours, PTX, &JitOptions::new()).unwrap().function("reverse").unwrap();
        // SAFETY: the call is refused.
        refused(unsafe { stream.launch_builder(&reverse).arg(&mut foreign).arg(&0u32).launch() });
        // SAFETY: the call is refused.
        refused(unsafe { other.launch_builder(&reverse).arg(&mut foreign).arg(&0u32).launch() });
        let capture = other.begin_capture(CaptureMode::ThreadLocal).unwrap();
        other.memset_zeros(&mut foreign).unwrap();
        let exec = capture.end().unwrap().instantiate().unwrap();
        refused(stream.launch(&exec));
    });
}

#[test]
fn memory_and_reservations_of_two_drivers_do_not_mix() {
    on_devices(1, |world, first| {
        let second = second_driver(world);
        let (ours, theirs) = (context(first, 0), context(&second, 0));
        let bytes = Granularity::of(ours.device(), HandleTypes::empty()).unwrap().round_up(1);
        let memory = PhysicalMemory::create(&theirs, bytes, HandleTypes::empty()).unwrap();
        let reservation = Reservation::new(first, bytes, 0).unwrap();
        refused(reservation.map(0, &memory, 0, bytes));
        refused(PageTable::new(reservation.clone()).map(0, &memory));
        refused(reservation.access(0, theirs.device()));
        refused(reservation.set_access(0, bytes, &[(theirs.device(), Access::ReadWrite)]));
    });
}
