//! A segment source of host memory, and checks of the owners of that memory. An owner marks its block with *ownership
//! words*: words with the owner's number.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::HashMap;
use std::ops::Range;
use std::ptr::with_exposed_provenance_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use caching_alloc::core::{Block, MemoryInfo, SegmentMemory, SegmentSource, SourceError};

/// Smallest unit of placement, in bytes: no two blocks share one.
const UNIT: u64 = 512;
/// The distance between the ownership words of a block that is longer than this, in bytes. Such a block also has a word
/// in its last unit. Any other block has a word in every unit.
const STRIDE: u64 = 64 * UNIT;

/// A source that allocates segments on the heap. AddressSanitizer then finds accesses to released segments.
#[derive(Debug)]
pub(crate) struct HeapSource {
    capacity: u64,
    segments: Mutex<HashMap<u64, Allocation>>,
}

#[derive(Debug)]
struct Allocation {
    /// Exposed address of the allocation that the segment lies in.
    base: usize,
    layout: Layout,
    bytes: u64,
}

impl HeapSource {
    pub(crate) fn new(capacity: u64) -> Self {
        Self { capacity, segments: Mutex::default() }
    }
}

impl SegmentSource for HeapSource {
    fn device(&self) -> u32 {
        0
    }

    fn allocate(&self, bytes: u64) -> Result<SegmentMemory, SourceError> {
        let mut segments = self.segments.lock().unwrap();
        let live: u64 = segments.values().map(|segment| segment.bytes).sum();
        if live + bytes > self.capacity {
            return Err(SourceError::out_of_memory(bytes));
        }
        // Aligned by hand: with a larger alignment in the layout, `alloc_zeroed` would write zeros to every page,
        // instead of requesting zeroed pages from the kernel.
        let layout = Layout::from_size_align((bytes + UNIT) as usize, 16).expect("a small size");
        // SAFETY: the layout has a size that is not 0.
        let base = unsafe { alloc_zeroed(layout) }.expose_provenance();
        assert_ne!(base, 0, "the host is out of memory");
        let address = (base as u64).next_multiple_of(UNIT);
        segments.insert(address, Allocation { base, layout, bytes });
        Ok(SegmentMemory { address, bytes, token: address })
    }

    fn release(&self, memory: &SegmentMemory) -> Result<(), SourceError> {
        let gone = self.segments.lock().unwrap().remove(&memory.address);
        let gone = gone.expect("only segments of this source are released, and once");
        // SAFETY: `allocate` has allocated the memory with this layout. The entry was taken out of the table, so the
        // memory is freed only once. The stress test checks that nobody uses it any more.
        unsafe { dealloc(with_exposed_provenance_mut(gone.base), gone.layout) };
        Ok(())
    }

    fn memory_info(&self) -> Result<MemoryInfo, SourceError> {
        let live: u64 = self.segments.lock().unwrap().values().map(|segment| segment.bytes).sum();
        Ok(MemoryInfo { free: self.capacity - live, total: self.capacity })
    }
}

/// The addresses of a block. Each unit has at most one owner at a time. An ownership word is 0 if its unit has no
/// owner.
#[derive(Clone, Debug)]
pub(crate) struct Span(Range<u64>);

impl Span {
    pub(crate) fn of(block: &Block) -> Self {
        Self(block.address()..block.address() + block.bytes())
    }

    /// Changes the owner; panics if the former one is not `from`.
    pub(crate) fn pass(&self, from: u64, to: u64) {
        let step = if self.0.end - self.0.start <= STRIDE { UNIT } else { STRIDE };
        let last = (self.0.end - UNIT).max(self.0.start);
        for at in self.0.clone().step_by(step as usize).chain([last]) {
            // SAFETY: the word is aligned, and only these atomics access it. It lies in a live segment, unless the
            // allocator has released the segment too early, which is a bug that this test looks for.
            let word = unsafe { AtomicU64::from_ptr(with_exposed_provenance_mut(at as usize)) };
            let found = word.swap(to, Ordering::Relaxed);
            let again = at == last && found == to;
            assert!(found == from || again, "unit {at:#x} of {self:x?} has owner {found:#x}, not {from:#x}");
        }
    }
}
