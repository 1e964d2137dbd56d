//! A page of robust futexes that shows a process's death to its peers.
//!
//! Each futex word holds the id of the thread that [holds](Page::hold) the page. When that thread ends, the kernel
//! marks the word and wakes the word's waiter. The kernel does this before the driver frees the process's CUDA
//! resources. A peer learns of a death within a millisecond. A closed socket shows the death after 0.2 s. A process
//! descriptor shows it after 1.5 s if the process had pinned 16 GiB of host memory. Each peer has its own word,
//! because the kernel wakes one waiter.
//!
//! Only the owner can write to the page. A peer maps it read-only and assumes nothing about the values. A peer reads
//! from a word only whether the owner lives, has left or has died. The words are never passed to the C library.

use std::{
    io,
    os::fd::{BorrowedFd, OwnedFd},
    ptr::NonNull,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use rustix::{
    io::Errno,
    thread::{
        futex::{self, OWNER_DIED, WAITERS},
        gettid,
    },
};

use super::robust::RobustList;
use crate::link::SharedMemory;

/// Identifies the layout of the page.
const MAGIC: u64 = 0x7067_7065_6572_0003;

/// The bits of a word that hold the owner's thread id.
const OWNER: u32 = !(WAITERS | OWNER_DIED);

/// The start of a page. All fields are atomics, because a peer's page may hold any value and may change at any time.
#[repr(C, align(64))]
struct Head {
    magic: AtomicU64,
    slots: AtomicU64,
    /// Number of heartbeats of the owner.
    beats: AtomicU64,
    /// Nonzero once the owner has left on purpose.
    has_left: AtomicU32,
}

/// A peer's futex word, in its own cache line.
#[repr(C, align(64))]
pub(super) struct Slot(AtomicU32);

/// The futex words of one process, mapped by that process or, read-only, by a peer.
pub(super) struct Page {
    memory: SharedMemory,
    slots: usize,
}

/// The reason why a wait for a futex word ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// The owner released the word on purpose.
    Left,
    /// The owner's thread has ended without releasing the word.
    Died,
}

impl Page {
    fn bytes(slots: usize) -> usize {
        size_of::<Head>() + slots * size_of::<Slot>()
    }

    /// Makes a page, and the descriptor by which peers map it. One thread [holds](Self::hold) all words. The kernel
    /// marks at most 2,048 words per thread, so `slots` counts the peers on this host, not those of the job.
    pub(super) fn create(slots: usize) -> io::Result<(OwnedFd, Self)> {
        let (descriptor, memory) = SharedMemory::create_read_only(Self::bytes(slots))?;
        let page = Self { memory, slots };
        page.head().slots.store(slots as u64, Ordering::Relaxed);
        page.head().magic.store(MAGIC, Ordering::Relaxed);
        Ok((descriptor, page))
    }

    /// Maps the page of a peer.
    ///
    /// # Errors
    /// A text: why the memory cannot be mapped, or the found and the expected start of the page.
    pub(super) fn open(memory: BorrowedFd<'_>, slots: usize) -> Result<Self, String> {
        let page = Self { memory: SharedMemory::open_read_only(memory, Self::bytes(slots))?, slots };
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
        // SAFETY: the memory is mapped as long as `self` lives, and aligned to a memory page. All fields are atomics,
        // so every value is valid, and another process may write at the same time. A page made by `open` is only
        // read.
        unsafe { self.base().as_ref() }
    }

    fn words(&self) -> &[Slot] {
        // SAFETY: the mapping holds the head and then `slots` slots (see `bytes`). The rest is as for `head`.
        unsafe { std::slice::from_raw_parts(self.base().add(1).cast().as_ptr(), self.slots) }
    }

    /// Marks all words as held by this thread, until the thread ends or the returned value is dropped.
    pub(super) fn hold(&self) -> io::Result<Held<'_>> {
        let owner = gettid().as_raw_nonzero().get().cast_unsigned();
        // The kernel wakes a waiter only if the word has the bit `WAITERS`. A waiting peer cannot set the bit,
        // because its mapping is read-only, so the owner sets it here.
        self.words().iter().for_each(|Slot(word)| word.store(owner | WAITERS, Ordering::Release));
        let list = RobustList::install(self.words())?;
        Ok(Held { page: self, _list: list })
    }

    /// Waits at most `patience` until the owner releases the word or dies. Returns `None` if the owner holds the word
    /// after that time.
    pub(super) fn wait(&self, slot: usize, patience: Duration) -> io::Result<Option<End>> {
        let until = Instant::now() + patience;
        let Slot(word) = &self.words()[slot];
        loop {
            let seen = word.load(Ordering::Acquire);
            if seen & OWNER_DIED != 0 {
                return Ok(Some(End::Died));
            }
            if seen & OWNER == 0 {
                // The word is free. If `has_left` is not set, the owner's thread has ended, even if the process still
                // runs.
                return Ok(Some(if self.has_left() { End::Left } else { End::Died }));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let left = left.try_into().map_err(io::Error::other)?;
            match futex::wait(word, futex::Flags::empty(), seen, Some(&left)) {
                Ok(()) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Returns true if the owner has left on purpose.
    pub(super) fn has_left(&self) -> bool {
        self.head().has_left.load(Ordering::Acquire) != 0
    }

    /// Increments the owner's heartbeat count.
    pub(super) fn beat(&self) {
        self.head().beats.fetch_add(1, Ordering::Release);
    }

    /// Returns the owner's heartbeat count.
    pub(super) fn beats(&self) -> u64 {
        self.head().beats.load(Ordering::Acquire)
    }
}

/// The words that this thread holds. Dropping this value tells the peers that the process has left on purpose.
pub(super) struct Held<'a> {
    page: &'a Page,
    /// Dropped after the words are released, so that the kernel marks none of them.
    _list: RobustList,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.page.head().has_left.store(1, Ordering::Release);
        for Slot(word) in self.page.words() {
            word.store(0, Ordering::Release);
            // Fails only for an invalid address.
            let _ = futex::wake(word, futex::Flags::empty(), 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{mem, os::fd::AsFd, sync::mpsc, thread};

    use proptest::prelude::*;

    use super::*;
    use crate::{group::Member, peers::meet};

    const SOON: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(60);

    /// How a thread that holds locks ends: the thread drops or forgets them.
    type Fate = fn(Held<'static>);

    /// Starts a thread that holds the locks of a page until it receives a [`Fate`].
    fn peer(slots: usize) -> (Page, mpsc::Sender<Fate>, thread::JoinHandle<()>) {
        let (memory, page) = Page::create(slots).unwrap();
        let (tell, told) = mpsc::channel::<Fate>();
        let (ready, is_ready) = mpsc::channel();
        // Leaked, so that the page is still mapped when the thread dies.
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

    /// More ranks than the number of locks that the kernel releases for one thread.
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

    /// For any page content, a page can at worst report its owner's own death.
    #[test]
    fn a_hostile_page_harms_nobody() {
        proptest!(|(words in any::<[u32; 4]>(), left: u32, later: u32)| {
            let (memory, hostile) = SharedMemory::create(Page::bytes(4)).unwrap();
            let forged = Page { memory: hostile, slots: 4 };
            forged.head().magic.store(MAGIC, Ordering::Relaxed);
            forged.head().slots.store(4, Ordering::Relaxed);
            forged.head().has_left.store(left, Ordering::Relaxed);
            forged.words().iter().zip(words).for_each(|(Slot(word), value)| word.store(value, Ordering::Relaxed));
            let page = Page::open(memory.as_fd(), 4).unwrap();
            for (slot, value) in words.into_iter().enumerate() {
                let lives = value & OWNER_DIED == 0 && value & OWNER != 0;
                prop_assert_eq!(page.wait(slot, Duration::ZERO).unwrap().is_none(), lives);
            }
            // The word also changes while a thread waits.
            thread::scope(|scope| {
                let waiter = scope.spawn(|| page.wait(0, Duration::from_millis(1)));
                forged.words()[0].0.store(later, Ordering::Relaxed);
                waiter.join().unwrap().map(drop)
            }).unwrap();
        });
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
