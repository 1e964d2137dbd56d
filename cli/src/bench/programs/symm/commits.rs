//! Commits for two groups, compared with the registrations that they consist of. With every contender, windows stay
//! until their communicator ends.

use std::sync::Arc;

use caching_alloc::{
    core::SegmentSource,
    driver::{Sharing, VirtualMemorySource},
};
use cuda_driver::DevicePtr;
use process_group::comm::WindowRequest;
use symm_mem::{CommitOptions, Domain, Geometry, SymmetricBlock, SymmetricGroup, SymmetricPool, commit_all};

use super::rank::Rank;
use crate::bench::programs::support::{Result, far, timed};

const SEGMENT: u64 = 2 << 20;
const COUNTS: [usize; 4] = [0, 1, 4, 16];

pub(crate) struct Commits {
    domain: Domain,
    source: Arc<VirtualMemorySource>,
}

impl Commits {
    pub(crate) fn new(rank: &Rank<'_>) -> Result<Self> {
        let source = Arc::new(VirtualMemorySource::new(rank.context, Sharing::by_descriptor())?);
        let commits = Self { domain: Domain::of(&rank.world)?, source };
        // Keeps the source's memory until the communicators are gone.
        rank.groups.iter().for_each(|group| group.communicator().keep(commits.source.clone()));
        // The first window of a communicator costs more than the later ones.
        commits.register(rank, &commits.segments(1)?)?;
        Ok(commits)
    }

    pub(crate) fn round(&self, rank: &Rank<'_>, round: usize) -> Result<()> {
        for count in COUNTS {
            let segments = self.segments(count)?;
            let (pool, _blocks) = self.pool(rank, count)?;
            let (unmapped, _other_blocks) = self.pool(rank, count)?;
            let bare = || -> Result<()> {
                rank.barrier.wait();
                let (us, ()) = timed(|| self.register(rank, &segments))?;
                rank.say(|| format!("{}\tbare registration\t{:.0}", name(count), us * 1e3));
                Ok(())
            };
            let ours = || -> Result<()> {
                // Without a mapping, a commit does the work of the bare registration, and votes.
                for (pool, maps, contender) in
                    [(&unmapped, false, "commit_all, unmapped"), (&pool, true, "commit_all")]
                {
                    rank.barrier.wait();
                    let (us, ()) = timed(|| commit(rank, pool, maps))?;
                    rank.say(|| format!("{}\t{contender}\t{:.0}", name(count), us * 1e3));
                }
                Ok(())
            };
            match (count, round % 2) {
                (0, _) => ours()?,
                (_, 0) => (bare()?, ours()?).1,
                _ => (ours()?, bare()?).1,
            }
        }
        Ok(())
    }

    fn segments(&self, count: usize) -> Result<Vec<WindowRequest>> {
        let segment = |_| {
            let memory = self.source.allocate(SEGMENT)?;
            Ok(WindowRequest::symmetric(DevicePtr(memory.address), SEGMENT as usize))
        };
        (0..count).map(segment).collect()
    }

    /// Registers the segments with the communicators of both groups, one after the other.
    fn register(&self, rank: &Rank<'_>, segments: &[WindowRequest]) -> Result<()> {
        for group in &rank.groups {
            // SAFETY: the communicator keeps the source, which keeps the memory.
            unsafe { group.communicator().register_windows(segments, far()) }?;
        }
        Ok(())
    }

    /// A pool with `count` segments, each full.
    fn pool(&self, rank: &Rank<'_>, count: usize) -> Result<(SymmetricPool, Vec<SymmetricBlock>)> {
        let geometry = Geometry { first_segment: SEGMENT, largest_segment: SEGMENT };
        let pool = SymmetricPool::new(&self.domain, rank.context, geometry)?;
        let blocks = (0..count).map(|_| pool.allocate(SEGMENT)).collect::<Result<_, _>>()?;
        Ok((pool, blocks))
    }
}

fn commit(rank: &Rank<'_>, pool: &SymmetricPool, maps: bool) -> Result<()> {
    let commits = rank.groups.each_ref().map(|group| (pool, group as &dyn SymmetricGroup));
    commit_all(&commits, CommitOptions::default().map_peers(maps).verify(true))
        .into_iter()
        .try_for_each(|report| report.map(drop))?;
    Ok(())
}

fn name(count: usize) -> String {
    match count {
        0 => "commit of nothing new".to_owned(),
        1 => "commit of 1 segment".to_owned(),
        _ => format!("commit of {count} segments"),
    }
}
