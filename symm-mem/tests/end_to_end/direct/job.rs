//! A rank with a direct path and a pool.

use cuda_driver::{DevicePtr, Stream};
use process_group::{
    ProcessGroup,
    comm::DataType,
    group::{Buffer, Work},
};
use symm_mem::{
    CommitOptions, Error, ErrorKind, SymmetricBlock, SymmetricPool,
    direct::{Direct, DirectOptions, DirectReport},
};

use super::rig::{PATIENCE, Rank, far, small};

pub(super) const KIB: usize = 1 << 10;
pub(super) const MIB: usize = 1 << 20;

/// Commits `pool` without windows, so that `group` needs no communicator. Returns the number of new segments, which all
/// members have mapped.
pub(super) fn commit(pool: &SymmetricPool, group: &ProcessGroup) -> usize {
    let options = CommitOptions::default().windows(false).deadline(PATIENCE);
    let report = pool.commit(group, options).unwrap();
    assert_eq!(report.unmapped, None);
    report.new_segments
}

/// A group with a direct path, and a pool.
pub(super) struct Job<'a> {
    pub(super) rank: &'a Rank,
    pub(super) group: ProcessGroup,
    pub(super) direct: Direct,
    pub(super) pool: SymmetricPool,
    pub(super) stream: Stream,
}

impl<'a> Job<'a> {
    pub(super) fn new(rank: &'a Rank) -> Self {
        Self::with(rank, small())
    }

    pub(super) fn with(rank: &'a Rank, options: DirectOptions) -> Self {
        let (group, direct) = rank.direct(rank.builder(), options);
        let (pool, stream) = (rank.pool(&group), rank.stream());
        Self { rank, group, direct, pool, stream }
    }

    pub(super) fn me(&self) -> usize {
        self.rank.rank
    }

    pub(super) fn block(&self, bytes: usize) -> SymmetricBlock {
        self.pool.allocate(bytes as u64).unwrap()
    }

    /// Commits the pool without windows, so that the group needs no communicator. Returns the number of new segments.
    pub(super) fn commit(&self) -> usize {
        commit(&self.pool, &self.group)
    }

    /// Sends from rank 0 to rank 1.
    pub(super) fn message(&self, at: DevicePtr, bytes: usize) -> process_group::group::Result<Work> {
        let buffer = Buffer::new(at, bytes, DataType::U8);
        // SAFETY: the callers keep the memory until the stream is done.
        unsafe {
            match self.me() {
                0 => self.group.raw().send(buffer, 1, &self.stream),
                _ => self.group.raw().recv(buffer, 0, &self.stream),
            }
        }
    }

    /// Calls [`message`](Self::message) on both ranks, on rank `first` before the other.
    pub(super) fn ordered(
        &self,
        first: usize,
        at: DevicePtr,
        bytes: usize,
    ) -> process_group::group::Result<Work> {
        if self.me() != first {
            self.group.barrier(far()).unwrap();
        }
        let work = self.message(at, bytes);
        if self.me() == first {
            self.group.barrier(far()).unwrap();
        }
        work
    }

    /// Sends and receives in one batch, with this peer.
    pub(super) fn swap(&self, peer: usize, from: DevicePtr, to: DevicePtr, bytes: usize) -> Work {
        let batch = self.group.batch(&self.stream, |batch| {
            // SAFETY: the callers keep the memory until the stream is done.
            unsafe {
                batch.send(Buffer::new(from, bytes, DataType::U8), peer)?;
                batch.recv(Buffer::new(to, bytes, DataType::U8), peer)
            }
        });
        batch.unwrap()
    }

    pub(super) fn report(&self) -> (u64, u64) {
        let DirectReport { zero_copy, staged, .. } = self.direct.report().unwrap();
        (zero_copy, staged)
    }

    pub(super) fn leave(self) {
        self.group.destroy(far()).unwrap();
        assert!(matches!(self.direct.report().map_err(Error::into_kind), Ok(_) | Err(ErrorKind::PathEnded)));
    }
}
