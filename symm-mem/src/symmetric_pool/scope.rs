//! [`PoolScope`]: a region of a program, at whose end the new segments of a pool are committed. [`PoolSource`]: a
//! symmetric pool as the segment source of a caching allocator.

use std::{
    collections::BTreeMap,
    fmt, mem,
    sync::{Arc, Mutex},
    thread,
};

use caching_alloc::core::{
    MemoryInfo, Pool, SegmentMemory, SegmentSource, SourceError, ThreadRoute, symmetric::SymmetricError,
};

use super::{SymmetricPool, several::commit_all};
use crate::{
    error::Error,
    lock::lock,
    membership::{CommitOptions, CommitReport, SymmetricGroup},
    pool::SymmetricBlock,
};

/// A region of a program, which begins with [`SymmetricPool::scope`]. The end of the scope
/// [commits](SymmetricPool::commit) the pool's new segments for the scope's groups.
///
/// [`finish`](Self::finish) ends the scope and returns the results of the commits. Dropping the scope runs the same
/// commits and discards their results, so the drop is collective too, and can block for as long as the commits can
/// ([`CommitOptions::deadline`]). If such a commit fails, the new segments stay without windows. The next commit tries
/// again, and reports a failure that persists, such as a difference between the members' requests or a
/// [poisoned](crate::Poison) group.
///
/// The drop commits because the other members wait in their own commits for this rank. For example, an allocation in
/// the scope fails for lack of memory, and the rank leaves the scope by `?`. The commit in the drop then reports the
/// failed request to the other members at once. Without this commit, they would wait for 3/8 of their deadline.
///
/// If the scope is dropped because the thread panics, nothing is committed, and the drop does not block. The other
/// members, which wait in their commits for this rank, get [`Refusal::SyncTimeout`](crate::Refusal::SyncTimeout). If
/// the panic ends this rank's process, they may notice the loss of the rank before this timeout.
#[must_use = "the scope ends, and commits, when it is dropped"]
pub struct PoolScope<'a> {
    pool: &'a SymmetricPool,
    groups: Vec<&'a dyn SymmetricGroup>,
    options: CommitOptions,
    route: Option<ThreadRoute>,
}

impl<'a> PoolScope<'a> {
    /// Until the end of the scope, `pool` serves the requests that this thread makes of a caching allocator. `pool` is
    /// a pool of that allocator, and the source of its segments must be a [`PoolSource`] of the scope's symmetric pool.
    /// A second call of this method replaces the pool of the first call.
    pub fn route(mut self, pool: &Pool) -> Self {
        self.route = Some(pool.use_on_this_thread());
        self
    }

    /// Sets the options of the commits.
    pub fn options(mut self, options: CommitOptions) -> Self {
        self.options = options;
        self
    }

    /// Ends the scope, and commits the pool's new segments for the scope's groups, as [`commit_all`] does. Collective
    /// over each group: all members end the scope at the same point of the program. Returns one result for each group,
    /// in the order of the groups in [`SymmetricPool::scope`].
    ///
    /// # Errors
    /// Those of [`SymmetricPool::commit`], for each group.
    #[must_use = "each result may be an error"]
    pub fn finish(mut self) -> Vec<Result<CommitReport, Error>> {
        self.commit()
    }

    /// Ends the [route](Self::route), and commits for the groups of the scope. Later calls commit for no group.
    fn commit(&mut self) -> Vec<Result<CommitReport, Error>> {
        drop(self.route.take());
        let groups = mem::take(&mut self.groups);
        let commits: Vec<_> = groups.into_iter().map(|group| (self.pool, group)).collect();
        commit_all(&commits, self.options)
    }
}

impl Drop for PoolScope<'_> {
    fn drop(&mut self) {
        if !thread::panicking() {
            drop(self.commit());
        }
    }
}

impl fmt::Debug for PoolScope<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let groups: Vec<_> = self.groups.iter().map(|group| group.id().to_string()).collect();
        write!(out, "PoolScope({:?}, groups {groups:?})", self.pool)
    }
}

impl SymmetricPool {
    /// Begins a region of the program. [`PoolScope::finish`], or dropping the scope, ends the region and commits the
    /// pool's new segments for `groups`.
    ///
    /// ```no_run
    /// # use process_group::ProcessGroup;
    /// # use symm_mem::SymmetricPool;
    /// # fn rank(pool: &SymmetricPool, tp: &ProcessGroup, world: &ProcessGroup) -> Result<(), Box<dyn std::error::Error>> {
    /// let scope = pool.scope(&[tp, world]);
    /// let activations = pool.allocate(64 << 20)?;
    /// for report in scope.finish() {
    ///     println!("{} new windows", report?.new_windows);
    /// }
    /// # drop(activations);
    /// # Ok(())
    /// # }
    /// ```
    pub fn scope<'a>(&'a self, groups: &[&'a dyn SymmetricGroup]) -> PoolScope<'a> {
        PoolScope { pool: self, groups: groups.to_vec(), options: CommitOptions::default(), route: None }
    }
}

/// A symmetric pool as the segment source of a pool of a caching allocator. The allocator's pool is called the *routed
/// pool* below. Each segment of the routed pool is a block of the symmetric pool.
///
/// The ranks must request and free the same segments of the routed pool in the same order. They do so if all ranks
/// allocate and drop the same blocks of the routed pool in the same order, and use them on one stream. If they do not,
/// the placement of blocks may differ between ranks. Then the next commit reports the difference, or a collective
/// reports it, because the members compare the placements of the collective's buffers.
///
/// The allocator releases unused segments that it caches, including those of the routed pool, in these cases:
/// - `Allocator::empty_cache` is called. All ranks must call it at the same points of the program.
/// - A request of more than 1 MiB needs a new segment, and the unused segments of the routed pool are too short for it
///   ([`Settings::replace_idle`](caching_alloc::core::Settings::replace_idle), on by default). If the ranks use the
///   routed pool as described above, all of them release the same segments.
/// - The allocator has reserved more memory than a threshold
///   ([`Settings::collect_above`](caching_alloc::core::Settings::collect_above)).
/// - The allocator lacks memory for a request, and would otherwise refuse it. If the routed pool is its only pool and
///   no [`memory_limit`](caching_alloc::core::Settings::memory_limit) is set, this happens only if the symmetric pool
///   itself is out of memory.
///
/// The last two cases may occur on some ranks only. Only these ranks then free blocks of the symmetric pool, so the
/// ranks' requests differ.
///
/// A request for a new segment blocks the calling thread until the work that uses dropped slices
/// ([`SymmetricPool::alloc`]) has ended. The request fails if the thread cannot wait for this work, for example because
/// a slice's stream has been capturing since before the slice was dropped. The symmetric pool's
/// [log](SymmetricPool::log) then contains an allocation and a free, so it differs from the logs of ranks on which the
/// request succeeded.
///
/// Captured graphs: if the allocator's events are [`DriverEvents`](caching_alloc::driver::DriverEvents), a graph keeps
/// the blocks of the routed pool that captured work of this library uses. The memory of these blocks goes to no other
/// block until the graph and its executables are dropped. For other captured work, call
/// [`Allocator::used_by_graph`](caching_alloc::core::Allocator::used_by_graph). All ranks must drop their graphs at the
/// same points of the program, because the placement of later blocks depends on it.
///
/// ```no_run
/// # use std::sync::Arc;
/// # use caching_alloc::core::{Allocator, PoolSettings, StreamId};
/// # use process_group::ProcessGroup;
/// # use symm_mem::{PoolSource, SymmetricPool};
/// # fn rank(pool: Arc<SymmetricPool>, allocator: &Allocator, world: &ProcessGroup) -> Result<(), Box<dyn std::error::Error>> {
/// let source = Arc::new(PoolSource::new(pool.clone()));
/// let routed = allocator.pool(PoolSettings { source: Some(source), ..PoolSettings::default() })?;
/// let scope = pool.scope(&[world]).route(&routed);
/// let block = allocator.allocate(1 << 20, StreamId(1))?;
/// scope.finish().into_iter().collect::<Result<Vec<_>, _>>()?;
/// # drop(block);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct PoolSource {
    pool: Arc<SymmetricPool>,
    /// The blocks that are segments of the routed pool, by address.
    blocks: Mutex<BTreeMap<u64, SymmetricBlock>>,
}

impl PoolSource {
    /// Makes a source of segments in `pool`.
    #[must_use]
    pub fn new(pool: Arc<SymmetricPool>) -> Self {
        Self { pool, blocks: Mutex::default() }
    }

    fn source(&self) -> Arc<dyn SegmentSource> {
        self.pool.memory().arena().source().clone()
    }
}

impl SegmentSource for PoolSource {
    fn device(&self) -> u32 {
        self.source().device()
    }

    fn allocate(&self, bytes: u64) -> Result<SegmentMemory, SourceError> {
        let block =
            self.pool.allocate_tagged(bytes, "segment of an allocator").map_err(|error| match error {
                SymmetricError::OutOfMemory { .. } => {
                    SourceError::OutOfMemory { wanted: bytes, source: Some(Box::new(error)) }
                }
                error => SourceError::Failed { call: "SymmetricPool::allocate", source: Box::new(error) },
            })?;
        // The allocator may use the memory on any stream, so all work that uses dropped slices must have ended.
        if !self.pool.memory().dropped_on().wait() {
            let source = "the work on dropped slices of the pool cannot be waited for: a stream of theirs captures, or failed";
            return Err(SourceError::Failed { call: "SymmetricPool::allocate", source: source.into() });
        }
        let memory = SegmentMemory { address: block.ptr().0, bytes, token: 0 };
        lock(&self.blocks).insert(memory.address, block);
        Ok(memory)
    }

    fn release(&self, memory: &SegmentMemory) -> Result<(), SourceError> {
        let block = lock(&self.blocks).remove(&memory.address);
        match block {
            Some(block) => {
                drop(block);
                Ok(())
            }
            None => Err(SourceError::Failed {
                call: "releasing a segment",
                source: format!("{memory:?} is no segment of this source").into(),
            }),
        }
    }

    fn memory_info(&self) -> Result<MemoryInfo, SourceError> {
        self.source().memory_info()
    }
}
