//! One rank allocates a segment that the others do not; every member of its groups gets an error.

use anyhow::{Context as _, Result, ensure};
use caching_alloc::core::symmetric::Geometry;
use symm_mem::{CommitOptions, ErrorKind, Refusal, SymmetricPool};

use super::groups::diverging_rank;
use super::job::Job;
use super::protocol::{Message, Reporter, monotonic_nanoseconds};

/// Makes the diverging rank diverge and has every group commit. Returns the numbers of the groups that agree.
pub(super) fn run(job: &Job<'_>, pool: &SymmetricPool, reporter: &mut Reporter) -> Result<Vec<u32>> {
    let before = pool.segments();
    let extra = if job.options.rank == diverging_rank(job.options.ranks) {
        // The largest segment size, so that no existing segment has room for the block.
        let bytes = Geometry::default().largest_segment;
        let block = pool.allocate(bytes).context("the diverging rank's segment")?;
        ensure!(pool.segments() == before + 1, "a block of {bytes} bytes did not need a segment of its own");
        Some(block)
    } else {
        None
    };
    job.members[0].process_group.barrier(job.deadline())?;
    if extra.is_some() {
        reporter.send(&Message::Diverging { nanoseconds: monotonic_nanoseconds() })?;
    }
    let mut agreeing = Vec::new();
    // Only one rank has a new segment, so the others vote only if they verify.
    let options = CommitOptions::default().deadline(job.options.deadline).verify(true);
    for member in &job.members {
        match pool.commit(&member.process_group, options) {
            Ok(_) => agreeing.push(member.number),
            Err(error) if matches!(error.kind(), ErrorKind::Refused(_)) => {
                let nanoseconds = monotonic_nanoseconds();
                let (kind, text) = (error.name().to_owned(), error.to_string());
                let ahead = error.refusal().map(ahead).unwrap_or_default();
                reporter.send(&Message::Refused { group: member.number, kind, text, ahead, nanoseconds })?;
            }
            Err(error) => return Err(error).with_context(|| format!("the commit of {}", member.group)),
        }
    }
    Ok(agreeing)
}

/// Returns the ranks that have a segment which others lack.
fn ahead(refusal: &Refusal) -> Vec<u32> {
    let Refusal::SegmentCountMismatch { shapes, .. } = refusal else { return Vec::new() };
    let having = shapes.entries.iter().filter(|side| side.value.is_some());
    having.flat_map(|side| side.ranks.iter().copied()).collect()
}
