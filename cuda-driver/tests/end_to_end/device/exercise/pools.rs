//! Stream-ordered memory and its pools.

use std::os::fd::{AsFd as _, OwnedFd};

use cuda_driver::memory::{MemoryPool, PoolPointer, PoolReuse, StreamMemory};
use cuda_driver::vmm::{Access, HandleTypes};
use cuda_driver::{Driver, Error, Event, EventFlags, Result, Stream, StreamFlags};

use super::{attempt, note, on_stream};

pub(super) fn stream_ordered(driver: &Driver) -> Result<()> {
    let (context, stream) = on_stream(driver)?;
    let memory = StreamMemory::new(&stream, 4096)?;
    assert!(!memory.ptr().is_null());
    assert_eq!((memory.bytes(), memory.stream()), (4096, &stream));
    // SAFETY: the memory is freed in the stream's order, after the work.
    unsafe { stream.fill_u8(memory.ptr(), 1, 4096)? };
    let other = Stream::new(&context, StreamFlags::NON_BLOCKING)?;
    let filled = Event::new(&context, EventFlags::DISABLE_TIMING)?;
    stream.record(&filled)?;
    other.wait(&filled)?;
    let memory = memory.move_to(&other)?;
    assert_eq!(memory.stream(), &other);
    memory.free()?;
    drop(StreamMemory::new(&stream, 4096)?);
    stream.synchronize()?;
    other.synchronize()
}

pub(super) fn pools(driver: &Driver) -> Result<()> {
    let (context, stream) = on_stream(driver)?;
    let default = MemoryPool::default_of(&context)?;
    assert_eq!(default.context(), &context);
    assert!(!default.raw().is_null());
    let pool = MemoryPool::new(&context, HandleTypes::empty(), 0)?;
    assert_ne!(pool, default);

    assert_eq!(pool.release_threshold()?, 0);
    pool.set_release_threshold(64 << 20)?;
    assert_eq!(pool.release_threshold()?, 64 << 20);
    assert_eq!(pool.reuse()?, PoolReuse::all());
    pool.set_reuse(PoolReuse::AFTER_EVENTS)?;
    assert_eq!(pool.reuse()?, PoolReuse::AFTER_EVENTS);

    let memory = StreamMemory::from_pool(&pool, &stream, 1 << 20)?;
    let usage = pool.usage()?;
    assert!(usage.used >= 1 << 20 && usage.reserved >= usage.used, "{usage:?}");
    assert!(usage.used_peak >= usage.used && usage.reserved_peak >= usage.reserved, "{usage:?}");
    memory.free()?;
    stream.synchronize()?;
    assert_eq!(pool.usage()?.used, 0);
    pool.trim(0)?;
    assert_eq!(pool.usage()?.reserved, 0);
    pool.reset_peaks()?;
    assert_eq!(pool.usage()?.used_peak, 0);

    assert_eq!(pool.access(context.device())?, Access::ReadWrite);
    if driver.device_count()? > 1 {
        let peer = driver.device(1)?;
        if peer.can_access_peer(context.device())? {
            assert_eq!(pool.access(&peer)?, Access::None);
            pool.set_access(&[(&peer, Access::ReadWrite)])?;
            assert_eq!(pool.access(&peer)?, Access::ReadWrite);
        }
    } else {
        note("skipped: access to pools from a second device");
        pool.set_access(&[(context.device(), Access::ReadWrite)])?;
    }

    assert!(default.is_current()? && !pool.is_current()?);
    pool.make_current()?;
    let of_ours = pool.is_current().and_then(|is| Ok((is, StreamMemory::new(&stream, 4096)?, pool.usage()?)));
    // The current pool holds for the whole process, so it is restored before any error is returned.
    default.make_current()?;
    let (is_current, memory, usage) = of_ours?;
    assert!(is_current && usage.used >= 4096);
    memory.free()?;
    stream.synchronize()
}

/// Calls the functions that share a pool. `processes.rs` opens a shared pool in another process.
pub(super) fn shared(driver: &Driver) -> Result<()> {
    let (context, stream) = on_stream(driver)?;
    let types = context.device().pool_handle_types()? & HandleTypes::POSIX_FD;
    let pool = MemoryPool::new(&context, types, 0)?;
    let memory = StreamMemory::from_pool(&pool, &stream, 4096)?;
    let (descriptor, pointer) = if types.is_empty() {
        note("skipped: this device's pools cannot be shared");
        assert!(attempt(pool.export_fd())?.is_none() && attempt(memory.export_pointer())?.is_none());
        let file = std::fs::File::open("/dev/null").unwrap();
        (OwnedFd::from(file), PoolPointer([0; 64]))
    } else {
        (pool.export_fd()?, memory.export_pointer()?)
    };
    // The driver may or may not let the exporting process itself import the pool.
    drop(attempt(MemoryPool::import_fd(&context, descriptor.as_fd()))?);
    let own = StreamMemory::import(&pool, &stream, pointer, 4096);
    assert!(attempt(own)?.is_none(), "only imported pools open memory");
    memory.free()?;
    stream.synchronize()?;
    Ok::<_, Error>(())
}
