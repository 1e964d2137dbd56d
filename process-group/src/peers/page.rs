//! Locks that a process holds as long as it lives, in memory that its peers map.
//!
//! The kernel lets go of a process's robust locks when its threads end, before it takes apart what the process had on the
//! device: a peer that waits for one knows of a death within a millisecond, where a socket's end takes 0.2 s and a
//! process descriptor 1.5 s when the dead one had pinned 16 GiB of host memory. A waiter has a lock of its own, since the
//! kernel wakes one.

use std::{
    cell::UnsafeCell,
    io,
    marker::PhantomData,
    mem::MaybeUninit,
    os::fd::{BorrowedFd, OwnedFd},
    ptr::NonNull,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use crate::local::SharedMemory;

/// Changes with the layout; the size of a lock is part of it, since that is the C library's.
const MAGIC: u64 = 0x7067_7065_6572_0002 ^ (size_of::<libc::pthread_mutex_t>() as u64) << 32;

/// Atomics alone: whoever has the memory may write to it at any time.
#[repr(C, align(64))]
struct Head {
    magic: AtomicU64,
    slots: AtomicU64,
    /// How often the owner has said that it is running.
    beats: AtomicU64,
    /// The owner has let go on purpose.
    has_left: AtomicU32,
}

#[repr(C, align(64))]
struct Slot(UnsafeCell<libc::pthread_mutex_t>);

/// One process's locks, mapped by it or by a peer.
///
/// What is in the memory are atomics, and locks that are made for several processes.
pub(super) struct Page {
    memory: SharedMemory,
    slots: usize,
}

/// How a wait for a lock ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// Its owner let go of it.
    Left,
    /// Its owner's thread is gone.
    Died,
}

impl Page {
    fn bytes(slots: usize) -> usize {
        size_of::<Head>() + slots * size_of::<Slot>()
    }

    /// New locks, held by nobody, and what others map them by. One thread [holds](Self::hold) all of them, of which the
    /// kernel releases 2,048 at most: so there are as many as there are peers on this host, not in the job.
    pub(super) fn create(slots: usize) -> io::Result<(OwnedFd, Self)> {
        let (descriptor, memory) = SharedMemory::create(Self::bytes(slots))?;
        let page = Self { memory, slots };
        // SAFETY: the mapping is that long, aligned to pages, and nobody else's yet.
        unsafe {
            page.base().write(Head {
                magic: AtomicU64::new(MAGIC),
                slots: AtomicU64::new(slots as u64),
                beats: AtomicU64::new(0),
                has_left: AtomicU32::new(0),
            });
        }
        (0..slots).try_for_each(|slot| page.make(slot))?;
        Ok((descriptor, page))
    }

    /// A peer's locks.
    ///
    /// # Errors
    /// What the descriptor is instead.
    pub(super) fn open(memory: BorrowedFd<'_>, slots: usize) -> Result<Self, String> {
        let page = Self { memory: SharedMemory::open(memory, Self::bytes(slots))?, slots };
        let [magic, has] = [&page.head().magic, &page.head().slots].map(|word| word.load(Ordering::Relaxed));
        if (magic, has) != (MAGIC, slots as u64) {
            return Err(format!("its memory begins with {magic:#x}, {has}; expected {MAGIC:#x}, {slots}"));
        }
        Ok(page)
    }

    fn base(&self) -> NonNull<Head> {
        self.memory.start().cast()
    }

    fn head(&self) -> &Head {
        // SAFETY: mapped as long as `self` is; all of it are atomics, for which every value is valid, so that others may
        // write to it meanwhile.
        unsafe { self.base().as_ref() }
    }

    fn lock(&self, slot: usize) -> *mut libc::pthread_mutex_t {
        assert!(slot < self.slots, "slot {slot} of {}", self.slots);
        // SAFETY: inside the mapping, by the assertion.
        unsafe { UnsafeCell::raw_get(&raw const (*self.base().add(1).cast::<Slot>().add(slot).as_ptr()).0) }
    }

    fn make(&self, slot: usize) -> io::Result<()> {
        let mut attributes = MaybeUninit::uninit();
        // SAFETY: the attributes are made before they are set, used and destroyed; the lock is in nobody's use yet.
        unsafe {
            let attributes = attributes.as_mut_ptr();
            check(libc::pthread_mutexattr_init(attributes))?;
            let made = check(libc::pthread_mutexattr_setpshared(attributes, libc::PTHREAD_PROCESS_SHARED))
                .and_then(|()| {
                    check(libc::pthread_mutexattr_setrobust(attributes, libc::PTHREAD_MUTEX_ROBUST))
                })
                .and_then(|()| check(libc::pthread_mutex_init(self.lock(slot), attributes)));
            libc::pthread_mutexattr_destroy(attributes);
            made
        }
    }

    /// Takes all locks, for this thread.
    pub(super) fn hold(&self) -> io::Result<Held<'_>> {
        let mut held = Held { page: self, slots: 0, _thread: PhantomData };
        for slot in 0..self.slots {
            // SAFETY: the lock was made by `create`.
            check(unsafe { libc::pthread_mutex_trylock(self.lock(slot)) })?;
            held.slots = slot + 1;
        }
        Ok(held)
    }

    /// Waits until the lock's owner lets go of it, or is gone; `None` if it has it still.
    pub(super) fn wait(&self, slot: usize, patience: Duration) -> io::Result<Option<End>> {
        let until = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default() + patience;
        let until = libc::timespec {
            tv_sec: until.as_secs().try_into().unwrap_or(libc::time_t::MAX),
            tv_nsec: until.subsec_nanos().into(),
        };
        // SAFETY: the lock was made by its owner, before this process got to know of it.
        let code = unsafe { libc::pthread_mutex_timedlock(self.lock(slot), &until) };
        let end = match code {
            libc::ETIMEDOUT => return Ok(None),
            libc::EOWNERDEAD => End::Died,
            0 if self.has_left() => End::Left,
            // Let go without a word: the thread has ended, whatever has become of the process.
            0 => End::Died,
            // Somebody has seen the owner's death before.
            libc::ENOTRECOVERABLE => return Ok(Some(End::Died)),
            other => return Err(io::Error::from_raw_os_error(other)),
        };
        // SAFETY: this thread has just taken it.
        unsafe { libc::pthread_mutex_unlock(self.lock(slot)) };
        Ok(Some(end))
    }

    /// Whether the owner has let go on purpose.
    pub(super) fn has_left(&self) -> bool {
        self.head().has_left.load(Ordering::Acquire) != 0
    }

    /// Says that the owner is running.
    pub(super) fn beat(&self) {
        self.head().beats.fetch_add(1, Ordering::Release);
    }

    /// How often the owner has said so.
    pub(super) fn beats(&self) -> u64 {
        self.head().beats.load(Ordering::Acquire)
    }
}

/// Locks of this thread. Dropping it says that the process goes on and the peers need not watch it any more.
pub(super) struct Held<'a> {
    page: &'a Page,
    slots: usize,
    /// Who takes a lock lets go of it.
    _thread: PhantomData<*const ()>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.page.head().has_left.store(1, Ordering::Release);
        for slot in 0..self.slots {
            // SAFETY: this thread took it.
            unsafe { libc::pthread_mutex_unlock(self.page.lock(slot)) };
        }
    }
}

fn check(code: libc::c_int) -> io::Result<()> {
    if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(code)) }
}

#[cfg(test)]
mod tests {
    use std::{mem, os::fd::AsFd, sync::mpsc, thread};

    use super::*;
    use crate::{group::Member, peers::meet};

    const SOON: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(60);

    /// What becomes of locks that are held.
    type Fate = fn(Held<'static>);

    /// A peer that holds its locks until it is told what to do with them.
    fn peer(slots: usize) -> (Page, mpsc::Sender<Fate>, thread::JoinHandle<()>) {
        let (memory, page) = Page::create(slots).unwrap();
        let (tell, told) = mpsc::channel::<Fate>();
        let (ready, is_ready) = mpsc::channel();
        // Mapped as long as the thread lives: who dies takes nothing down before.
        let page: &'static Page = Box::leak(Box::new(page));
        let thread = thread::spawn(move || {
            let held = page.hold().unwrap();
            ready.send(()).unwrap();
            told.recv().unwrap()(held);
        });
        is_ready.recv().unwrap();
        (Page::open(memory.as_fd(), slots).unwrap(), tell, thread)
    }

    #[test]
    fn a_death_is_seen_by_every_waiter() {
        let (page, tell, thread) = peer(3);
        assert_eq!(page.wait(1, SOON).unwrap(), None);
        let ends = thread::scope(|scope| {
            let waiters: Vec<_> = (0..3)
                .map(|slot| {
                    scope.spawn({
                        let page = &page;
                        move || page.wait(slot, LONG)
                    })
                })
                .collect();
            tell.send(mem::forget).unwrap();
            waiters.into_iter().map(|waiter| waiter.join().unwrap().unwrap()).collect::<Vec<_>>()
        });
        thread.join().unwrap();
        assert_eq!(ends, [Some(End::Died); 3]);
        assert_eq!(page.wait(1, SOON).unwrap(), Some(End::Died), "and again");
    }

    /// More ranks than the kernel releases locks of a thread.
    #[test]
    fn a_death_is_seen_by_every_peer_in_a_job_of_many_ranks() {
        let members: Vec<_> = (0..3000).map(|rank| Member::example(rank, rank as u64 % 1000)).collect();
        let (owner, peers) = (2007, [7, 1007]);
        let (page, tell, thread) = peer(meet::others(owner, &members).count());
        let slots = peers.map(|place| meet::slot(place, owner, &members).unwrap());
        assert_eq!(slots.map(|slot| page.wait(slot, SOON).unwrap()), [None; 2]);
        tell.send(mem::forget).unwrap();
        thread.join().unwrap();
        assert_eq!(slots.map(|slot| page.wait(slot, LONG).unwrap()), [Some(End::Died); 2]);
    }

    #[test]
    fn who_leaves_is_not_dead() {
        let (page, tell, thread) = peer(2);
        tell.send(drop).unwrap();
        assert_eq!(page.wait(0, LONG).unwrap(), Some(End::Left));
        assert_eq!(page.wait(1, LONG).unwrap(), Some(End::Left));
        thread.join().unwrap();
    }

    #[test]
    fn who_runs_says_so() {
        let (memory, page) = Page::create(1).unwrap();
        let seen = Page::open(memory.as_fd(), 1).unwrap();
        page.beat();
        page.beat();
        assert_eq!(seen.beats(), 2);
    }

    #[test]
    fn what_is_not_a_page_is_refused() {
        let (memory, _page) = Page::create(2).unwrap();
        let wrong = Page::open(memory.as_fd(), 3).err().unwrap();
        assert!(wrong.contains("expected 256"), "{wrong}");
        let file = tempfile::tempfile().unwrap();
        let wrong = Page::open(file.as_fd(), 2).err().unwrap();
        assert!(wrong.starts_with("its memory"), "{wrong}");
        let (blank, _) = SharedMemory::create(192).unwrap();
        assert!(Page::open(blank.as_fd(), 2).err().unwrap().contains("begins with 0x0"));
    }
}
