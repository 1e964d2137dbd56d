//! Who has come to a meeting, and whether they agree. No I/O.

/// Ranks of the largest communicator.
pub(crate) const MAX_RANKS: usize = 1024;

/// What a rank says when it comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    /// The process it lives in, for messages.
    pub(crate) pid: u32,
    /// The release that it models, as `ncclGetVersion` gives it.
    pub(crate) release: u32,
    /// Whether its world is faithful rather than strict.
    pub(crate) faithful: bool,
}

/// What a rank that came does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Joined {
    /// Wait for the others.
    Wait,
    /// Everybody is here.
    Complete,
    /// The meeting has failed, for everybody.
    Refused(String),
}

/// The members of one meeting.
#[derive(Debug, Default)]
pub(crate) struct Roster {
    members: Vec<Option<Hello>>,
    failure: Option<String>,
}

impl Roster {
    /// A rank comes.
    pub(crate) fn join(&mut self, hello: Hello) -> Joined {
        if self.failure.is_none() {
            self.failure = self.objection(&hello);
        }
        if let Some(text) = &self.failure {
            return Joined::Refused(text.clone());
        }
        self.members.resize(hello.size, None);
        self.members[hello.rank] = Some(hello);
        if self.members.iter().all(Option::is_some) { Joined::Complete } else { Joined::Wait }
    }

    /// A rank goes away before the meeting is complete: the others wait on, for another one.
    pub(crate) fn leave(&mut self, rank: usize) {
        if let Some(member) = self.members.get_mut(rank) {
            *member = None;
        }
    }

    /// Whether the meeting has failed.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    fn objection(&self, new: &Hello) -> Option<String> {
        let Hello { rank, size, pid, release, faithful } = *new;
        if rank >= size {
            return Some(format!(
                "rank {rank} (process {pid}) lies outside its communicator of {size} ranks"
            ));
        }
        if size > MAX_RANKS {
            return Some(format!("{size} ranks are more than the {MAX_RANKS} that a communicator can have"));
        }
        let other = self.members.iter().flatten().next()?;
        let (from, by) = (other.rank, other.pid);
        if size != other.size {
            return Some(format!(
                "ranks disagree about the rank count: rank {from} (process {by}) says {}, rank {rank} (process {pid}) \
                 says {size}",
                other.size
            ));
        }
        if release != other.release {
            return Some(format!(
                "ranks run different releases: rank {from} (process {by}) has {}, rank {rank} (process {pid}) has \
                 {release}",
                other.release
            ));
        }
        if faithful != other.faithful {
            return Some(format!(
                "strict and faithful worlds cannot meet: rank {from} (process {by}) against rank {rank} (process {pid})"
            ));
        }
        let double = self.members[rank]?;
        Some(format!("rank {rank} came twice: from process {} and from process {pid}", double.pid))
    }
}
