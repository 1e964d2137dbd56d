//! The members of a bootstrap, and the check that they agree. No I/O.

/// Ranks of the largest communicator.
pub(crate) const MAX_RANKS: usize = 1024;

/// The first message of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    /// Its process, for messages.
    pub(crate) pid: u32,
    /// The release that it models, as `ncclGetVersion` returns it.
    pub(crate) release: u32,
    /// True if its world is faithful, false if it is strict.
    pub(crate) faithful: bool,
}

/// Result of a rank's arrival.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Joined {
    /// Wait for the others.
    Wait,
    /// All ranks have joined.
    Complete,
    /// The bootstrap has failed, for all ranks.
    Refused(String),
}

/// The members of one bootstrap.
#[derive(Debug, Default)]
pub(crate) struct Roster {
    members: Vec<Option<Hello>>,
    failure: Option<String>,
}

impl Roster {
    /// Adds a rank.
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

    /// Removes a rank before the bootstrap is complete. The others keep waiting, for another process with that rank.
    pub(crate) fn leave(&mut self, rank: usize) {
        if let Some(member) = self.members.get_mut(rank) {
            *member = None;
        }
    }

    /// Returns the reason if the bootstrap has failed.
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
