//! Gradient buckets in one symmetric pool: committed for each group, reduced from the windows, checked.

use std::time::Instant;

use anyhow::{Context as _, Result};
use caching_alloc::core::symmetric::Geometry;
use cuda_driver::graph::CaptureMode;
use cuda_driver::memory::{DeviceMemory, DevicePtr, PinnedFlags, PinnedMemory};
use process_group::comm::ReduceOp;
use process_group::group::{Buffer, Work};
use symm_mem::{CommitOptions, Domain, SymmetricBlock, SymmetricPool, commit_all};

use super::buckets::Bucket;
use super::groups::Group;
use super::job::{Job, Member};
use super::protocol::{Committed, Message, Mode, Reduced, Reporter};

/// Number of the demo's one symmetry domain, which contains all ranks.
const DOMAIN: u64 = 1;

/// A bucket in the pool.
struct Placed {
    bucket: Bucket,
    block: SymmetricBlock,
    /// Offset in [`Reducer::copies`], in bytes, of a group of one's result.
    copy: u64,
}

/// The pool with its buckets, and buffers to fill and check them.
pub(super) struct Reducer {
    pool: SymmetricPool,
    placed: Vec<Placed>,
    /// Results of groups of one.
    copies: DeviceMemory,
    staging: PinnedMemory,
}

impl Reducer {
    /// Places `buckets`, the same on every rank, in a pool that all groups share.
    pub(super) fn place(job: &Job<'_>, buckets: &[Bucket]) -> Result<Self> {
        let domain = Domain::new(job.store.clone(), DOMAIN, job.options.rank, 0..job.options.ranks)?;
        let pool = SymmetricPool::new(&domain, job.context, Geometry::default())?;
        let mut placed = Vec::new();
        let mut total = 0;
        for &bucket in buckets {
            placed.push(Placed { bucket, block: pool.allocate(bucket.bytes())?, copy: total });
            total += bucket.bytes();
        }
        let largest = buckets.iter().map(Bucket::bytes).max().context("at least one bucket")? as usize;
        Ok(Self {
            pool,
            placed,
            copies: DeviceMemory::new(job.context, total as usize)?,
            staging: PinnedMemory::new(job.context, largest, PinnedFlags::empty())?,
        })
    }

    pub(super) fn pool(&self) -> &SymmetricPool {
        &self.pool
    }

    /// Registers the pool's segments as windows of every group.
    pub(super) fn commit(&mut self, job: &Job<'_>, reporter: &mut Reporter) -> Result<()> {
        let commits: Vec<_> =
            job.members.iter().map(|member| (&self.pool, &member.process_group as _)).collect();
        let options = CommitOptions::default().deadline(job.options.deadline);
        for (member, outcome) in job.members.iter().zip(commit_all(&commits, options)) {
            let report = outcome.with_context(|| format!("cannot commit the pool for {}", member.group))?;
            reporter.send(&Message::Committed(Committed {
                group: member.number,
                windows: report.windows as u64,
                no_windows: report.without.map(|reason| reason.to_string()),
                milliseconds: report.elapsed.as_secs_f64() * 1e3,
            }))?;
        }
        Ok(())
    }

    /// All-reduces every bucket in every group.
    pub(super) fn eager(&mut self, job: &Job<'_>, reporter: &mut Reporter) -> Result<()> {
        for member in &job.members {
            self.pass(job, member, Mode::Eager, reporter)?;
        }
        Ok(())
    }

    /// Repeats the eager reductions for the groups that still agree.
    pub(super) fn go_on(&mut self, job: &Job<'_>, agreeing: &[u32], reporter: &mut Reporter) -> Result<()> {
        for member in job.members.iter().filter(|member| agreeing.contains(&member.number)) {
            self.pass(job, member, Mode::GoOn, reporter)?;
        }
        Ok(())
    }

    fn pass(&mut self, job: &Job<'_>, member: &Member, mode: Mode, reporter: &mut Reporter) -> Result<()> {
        self.fill(job, member, mode)?;
        self.meet(job, member)?;
        let begun = Instant::now();
        let work = self.enqueue(job, member)?;
        work.wait_until(job.deadline())?;
        let milliseconds = begun.elapsed().as_secs_f64() * 1e3;
        self.verify(job, member, mode, milliseconds, reporter)
    }

    /// Captures the reductions of every group in a graph, and launches it on new values.
    pub(super) fn graph(&mut self, job: &Job<'_>, reporter: &mut Reporter) -> Result<()> {
        for member in &job.members {
            let mut pin = self.pool.begin_capture();
            let capture = job.stream.begin_capture(CaptureMode::ThreadLocal)?;
            self.enqueue(job, member)?;
            let graph = capture.end()?;
            self.placed.iter().for_each(|placed| pin.uses(&placed.block));
            // Declared after the graph, so that it is dropped after it.
            let pin = pin.finish();
            let exec = graph.instantiate()?;

            self.fill(job, member, Mode::Graph)?;
            self.meet(job, member)?;
            let begun = Instant::now();
            job.stream.launch(&exec)?;
            job.finish_graph(member)?;
            let milliseconds = begun.elapsed().as_secs_f64() * 1e3;
            self.verify(job, member, Mode::Graph, milliseconds, reporter)?;
            drop((exec, graph));
            drop(pin);
        }
        Ok(())
    }

    /// Enqueues one reduction per bucket; returns the last work.
    fn enqueue(&self, job: &Job<'_>, member: &Member) -> Result<Work> {
        let mut last = None;
        for placed in &self.placed {
            let Bucket { elements, data_type, .. } = placed.bucket;
            let send = Buffer::new(placed.block.ptr(), elements as usize, data_type);
            let receive = Buffer::new(self.result(&member.group, placed), elements as usize, data_type);
            // SAFETY: the block and the copy are device memory of at least that length, and live until this rank
            // is done; the stream orders the reductions, which alone touch them meanwhile.
            last = Some(unsafe {
                member.process_group.raw().all_reduce(send, receive, ReduceOp::Sum, &job.stream)?
            });
        }
        last.context("at least one bucket")
    }

    /// Returns the address of the reduced bucket. Groups reduce in place; a group of one copies instead.
    fn result(&self, group: &Group, placed: &Placed) -> DevicePtr {
        if group.ranks.len() > 1 { placed.block.ptr() } else { DevicePtr(self.copies.ptr().0 + placed.copy) }
    }

    /// Writes this rank's values for one pass into every bucket.
    fn fill(&mut self, job: &Job<'_>, member: &Member, mode: Mode) -> Result<()> {
        let round = round(member, mode);
        for placed in &self.placed {
            let bytes = placed.bucket.bytes() as usize;
            placed.bucket.fill(job.options.rank, round, &mut self.staging.as_mut_slice()[..bytes]);
            // SAFETY: both are of that length, and neither is touched by others until the stream is done.
            unsafe { job.stream.copy_from_host(placed.block.ptr(), self.staging.as_ptr().cast(), bytes)? };
            job.stream.synchronize()?;
        }
        Ok(())
    }

    /// Waits for the group's members, so that the measured time excludes their delays.
    fn meet(&self, job: &Job<'_>, member: &Member) -> Result<()> {
        Ok(member.process_group.barrier(job.deadline())?)
    }

    fn verify(
        &mut self,
        job: &Job<'_>,
        member: &Member,
        mode: Mode,
        milliseconds: f64,
        reporter: &mut Reporter,
    ) -> Result<()> {
        let mut verified_bytes = 0;
        for placed in &self.placed {
            let bytes = placed.bucket.bytes() as usize;
            let from = self.result(&member.group, placed);
            // SAFETY: both are of that length, and neither is touched by others until the stream is done.
            unsafe { job.stream.copy_to_host(self.staging.as_ptr().cast(), from, bytes)? };
            job.stream.synchronize()?;
            placed
                .bucket
                .check(&member.group.ranks, round(member, mode), &self.staging.as_slice()[..bytes])
                .with_context(|| format!("{} in {}", mode.describe(), member.group))?;
            verified_bytes += bytes as u64;
        }
        reporter.send(&Message::Reduced(Reduced {
            group: member.number,
            mode,
            verified_bytes,
            milliseconds,
        }))?;
        Ok(())
    }
}

/// Returns a pass's number, the same on all members. It selects the values, so that no old result can pass for a new
/// one.
fn round(member: &Member, mode: Mode) -> u32 {
    member.number * 3 + mode as u32
}
