//! The parts of a job that one rank's stages share.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use cuda_driver::{Context, Stream};
use process_group::ProcessGroup;
use process_group::store::{Deadline, Store};

use super::groups::Group;
use super::options::RankOptions;

/// A group of this rank, with its communicator.
pub(super) struct Member {
    /// Its index in the layout, which the launcher knows too.
    pub(super) number: u32,
    pub(super) group: Group,
    pub(super) process_group: ProcessGroup,
}

/// The state shared by all stages of a rank.
pub(super) struct Job<'a> {
    pub(super) options: &'a RankOptions,
    pub(super) context: &'a Context,
    pub(super) store: Arc<dyn Store>,
    pub(super) stream: Stream,
    /// The world first, then the others in the order of their communicators' numbers.
    pub(super) members: Vec<Member>,
}

impl Job<'_> {
    pub(super) fn deadline(&self) -> Deadline {
        Deadline::after(self.options.deadline)
    }

    /// Returns the reason why a group has ended, if one has: `error` is a consequence then. Returns `error` otherwise.
    pub(super) fn cause(&self, error: anyhow::Error) -> anyhow::Error {
        let ended = self.members.iter().find_map(|member| member.process_group.check().err());
        ended.map_or(error, anyhow::Error::from)
    }

    /// Waits until the stream has finished a graph of `member`'s group, which has no work handles of its own. An error if the group has ended meanwhile: what was enqueued is then cut short.
    pub(super) fn finish_graph(&self, member: &Member) -> Result<()> {
        let deadline = self.deadline();
        while !self.stream.query()? {
            member.process_group.check()?;
            ensure!(
                !deadline.expired(),
                "{}: the graph of its all-reduces is not done after {:.1?}; on a busy host, raise --deadline",
                member.group,
                deadline.waited()
            );
            std::thread::sleep(Duration::from_micros(50));
        }
        Ok(member.process_group.check()?)
    }
}
