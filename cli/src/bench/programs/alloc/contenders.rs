//! The contenders: our allocator, the driver's pool, and a simple best-fit allocator.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::error::Error;
use std::sync::{Mutex, MutexGuard, PoisonError};

use caching_alloc::core::{AllocError, Allocator, Attachment, Block, StreamId};
use cuda_driver::Stream;
use cuda_driver::memory::StreamMemory;

/// Streams that the cases use.
pub(super) const STREAMS: usize = 8;

/// An allocator; dropping a block frees it.
pub(crate) trait Contender: Sync {
    type Block<'a>: Send
    where
        Self: 'a;
    type Error: Error + Send + Sync + 'static;

    /// Allocates memory for use on stream number `stream`, below [`STREAMS`].
    fn allocate(&self, bytes: u64, stream: usize) -> Result<Self::Block<'_>, Self::Error>;

    /// Returns the contender if it is our allocator.
    fn ours(&self) -> Option<&Ours> {
        None
    }
}

pub(crate) struct Ours {
    pub(crate) allocator: Allocator,
    pub(crate) streams: Vec<StreamId>,
    pub(crate) _attachment: Option<Attachment>,
}

impl Contender for Ours {
    type Block<'a> = Block;
    type Error = AllocError;

    #[inline]
    fn allocate(&self, bytes: u64, stream: usize) -> Result<Block, AllocError> {
        self.allocator.allocate(bytes, self.streams[stream])
    }

    fn ours(&self) -> Option<&Ours> {
        Some(self)
    }
}

pub(crate) struct StreamPool {
    pub(crate) streams: Vec<Stream>,
}

impl Contender for StreamPool {
    type Block<'a> = StreamMemory;
    type Error = cuda_driver::Error;

    fn allocate(&self, bytes: u64, stream: usize) -> Result<StreamMemory, Self::Error> {
        StreamMemory::new(&self.streams[stream], bytes as usize)
    }
}

/// Best fit with immediate merging, for each stream, in ordered maps behind one mutex: no statistics, no trace, no
/// record of owners.
#[derive(Default)]
pub(crate) struct BestFit(Mutex<HashMap<usize, Free>>);

/// The free blocks of a stream.
struct Free {
    by_length: BTreeSet<(u64, u64)>,
    by_address: BTreeMap<u64, u64>,
}

pub(crate) struct FitBlock<'a> {
    map: &'a BestFit,
    stream: usize,
    address: u64,
    bytes: u64,
}

/// Address space of a stream. It is never exhausted here, so the comparison covers only cache hits.
const REGION: u64 = 1 << 42;

impl BestFit {
    fn lock(&self) -> MutexGuard<'_, HashMap<usize, Free>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Free {
    fn insert(&mut self, address: u64, bytes: u64) {
        self.by_length.insert((bytes, address));
        self.by_address.insert(address, bytes);
    }

    fn remove(&mut self, address: u64, bytes: u64) {
        self.by_length.remove(&(bytes, address));
        self.by_address.remove(&address);
    }
}

impl Contender for BestFit {
    type Block<'a> = FitBlock<'a>;
    type Error = std::fmt::Error;

    fn allocate(&self, bytes: u64, stream: usize) -> Result<FitBlock<'_>, Self::Error> {
        let bytes = bytes.next_multiple_of(512);
        let mut streams = self.lock();
        let free = streams.entry(stream).or_insert_with(|| {
            let mut free = Free { by_length: BTreeSet::new(), by_address: BTreeMap::new() };
            free.insert(REGION * (stream as u64 + 1), REGION);
            free
        });
        let (found, address) = *free.by_length.range((bytes, 0)..).next().ok_or(std::fmt::Error)?;
        free.remove(address, found);
        if found > bytes {
            free.insert(address + bytes, found - bytes);
        }
        Ok(FitBlock { map: self, stream, address, bytes })
    }
}

impl Drop for FitBlock<'_> {
    fn drop(&mut self) {
        let mut streams = self.map.lock();
        let Some(free) = streams.get_mut(&self.stream) else { return };
        let (mut address, mut bytes) = (self.address, self.bytes);
        if let Some((&next, &length)) = free.by_address.range(address..).next()
            && next == address + bytes
        {
            free.remove(next, length);
            bytes += length;
        }
        if let Some((&before, &length)) = free.by_address.range(..address).next_back()
            && before + length == address
        {
            free.remove(before, length);
            address = before;
            bytes += length;
        }
        free.insert(address, bytes);
    }
}
