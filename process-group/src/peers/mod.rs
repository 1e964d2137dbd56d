//! Which processes of this host are still there.
//!
//! Every process holds a lock for each of its peers on the host, which the kernel lets go of when the process dies; says regularly
//! that it runs; and keeps a socket to each of them. A thread waits for each peer's lock, and one looks after all the
//! rest. What is found is told once: the first word on a peer counts.

mod meet;
mod page;
mod robust;

use std::{
    collections::HashSet,
    fmt, io,
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};

use self::{
    meet::Peer,
    page::{End, Page},
};
use crate::{
    group::Member,
    local::poll_all,
    store::{Deadline, PrefixStore, StoreError},
};

/// How a thread that waits for a lock looks whether it still has to.
const TURN: Duration = Duration::from_millis(250);

/// What is wrong with a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Loss {
    /// Its process has ended without leaving the group.
    Died,
    /// Its process is there, but has not run for so long: it was stopped, or its host is overloaded.
    Silent(Duration),
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Died => f.write_str("has died"),
            Self::Silent(time) => write!(f, "has not run for {time:.1?} (stopped?)"),
        }
    }
}

/// Why the processes of a host cannot watch each other.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PeerError {
    /// The folder for this process's socket cannot be made.
    #[error("no socket {}: {source}; XDG_RUNTIME_DIR or TMPDIR must name a folder that can be written to", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A rank's greeting is not what it should be.
    #[error("rank {rank} of this host: {problem}")]
    Greeting {
        /// The rank.
        rank: usize,
        /// What was expected and what was found.
        problem: String,
    },
    /// Ranks of this host that did not come.
    #[error("ranks {ranks:?} of this host did not greet within {waited:.1?}")]
    Absent {
        /// The ranks.
        ranks: Vec<usize>,
        /// How long they were waited for.
        waited: Duration,
    },
    /// The system refused something.
    #[error("watching the ranks of this host: {0}")]
    System(#[from] io::Error),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Who is told of a loss: the rank of the job, and what is wrong with it. Called once a rank, on a thread of the watch;
/// it must not block.
pub(crate) type Listener = dyn Fn(usize, Loss) + Send + Sync;

/// The watch over the processes of this host, and of this process by them. Dropping it says that the process goes on
/// without: peers see it leave, not die.
pub(crate) struct Peers {
    shared: Arc<Shared>,
    /// Wakes the thread that holds the locks.
    bell: Option<Arc<OwnedFd>>,
    keeper: Option<thread::JoinHandle<()>>,
}

struct Shared {
    listeners: Mutex<Vec<Weak<Listener>>>,
    /// The ranks that are lost.
    lost: Mutex<Vec<(usize, Loss)>>,
    is_over: AtomicBool,
}

impl Shared {
    fn lost(&self) -> MutexGuard<'_, Vec<(usize, Loss)>> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells of a loss, unless it is known.
    fn report(&self, rank: usize, loss: Loss) {
        if self.is_over.load(Ordering::Acquire) {
            return;
        }
        {
            let mut lost = self.lost();
            if lost.iter().any(|(other, _)| *other == rank) {
                return;
            }
            lost.push((rank, loss));
        }
        let listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner).clone();
        listeners.iter().filter_map(Weak::upgrade).for_each(|listener| listener(rank, loss));
    }
}

impl Peers {
    /// Meets the members of this host that are other processes, and begins to watch them. Collective over them; with
    /// none there is nothing to do. A process is silent when it has not run for twice the `heartbeat`.
    pub(crate) fn meet(
        store: &PrefixStore,
        place: usize,
        members: &[Member],
        heartbeat: Duration,
        deadline: Deadline,
    ) -> Result<Self, PeerError> {
        let shared =
            Arc::new(Shared { listeners: Mutex::default(), lost: Mutex::default(), is_over: false.into() });
        let others = meet::others(place, members).count();
        if others == 0 {
            return Ok(Self { shared, bell: None, keeper: None });
        }
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).map_err(io::Error::from)?);
        let (memory, page) = Page::create(others)?;
        // The locks are held, by a thread that lives as long as the watch, before anybody else knows of them.
        let (say, held) = mpsc::channel();
        let (give, peers) = mpsc::channel::<Vec<Watched>>();
        let keeper = {
            let (shared, bell) = (shared.clone(), bell.clone());
            thread::Builder::new().name("peers".into()).spawn(move || match page.hold() {
                Ok(held) => {
                    let _ = say.send(Ok(()));
                    // Without an answer the meeting has failed.
                    let peers = peers.recv().unwrap_or_default();
                    keep(&page, &peers, &shared, &bell, heartbeat);
                    // Before the sockets end: who sees that has to know why.
                    drop(held);
                    drop(peers);
                }
                Err(error) => {
                    let _ = say.send(Err(error));
                }
            })?
        };
        let watch = Self { shared: shared.clone(), bell: Some(bell), keeper: Some(keeper) };
        // Goes before the watch, which waits for the keeper, which waits for this.
        let give = give;
        held.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))?;
        let mut watched = Vec::new();
        for peer in meet::meet(store, place, members, memory.as_fd(), deadline)? {
            let Peer { place: other, page, slot, socket, process } = peer;
            let (rank, page) = (members[other].rank, Arc::new(page));
            let peer = Watched { rank, page: page.clone(), socket, process };
            let shared = shared.clone();
            thread::Builder::new()
                .name(format!("peer {rank}"))
                .stack_size(64 << 10)
                .spawn(move || wait(&page, slot, rank, &shared))?;
            watched.push(peer);
        }
        let _ = give.send(watched);
        Ok(watch)
    }

    /// Tells `listener` of losses from now on, and at once of those that are known.
    pub(crate) fn tell(&self, listener: &Arc<Listener>) {
        let mut listeners = self.shared.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        listeners.retain(|listener| listener.strong_count() > 0);
        listeners.push(Arc::downgrade(listener));
        drop(listeners);
        let known = self.shared.lost().clone();
        known.into_iter().for_each(|(rank, loss)| listener(rank, loss));
    }
}

impl fmt::Debug for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peers").field("lost", &*self.shared.lost()).finish_non_exhaustive()
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Release);
        // Fails only when the counter is full, and then the thread wakes too.
        if let Some(bell) = &self.bell {
            let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
        }
        if let Some(keeper) =
            self.keeper.take().filter(|keeper| keeper.thread().id() != thread::current().id())
        {
            let _ = keeper.join();
        }
    }
}

/// A peer, as the thread that looks after all of them has it.
struct Watched {
    rank: usize,
    page: Arc<Page>,
    socket: OwnedFd,
    process: Option<OwnedFd>,
}

/// Waits for a peer's lock.
fn wait(page: &Page, slot: usize, rank: usize, shared: &Shared) {
    while !shared.is_over.load(Ordering::Acquire) {
        match page.wait(slot, TURN) {
            Ok(None) => {}
            Ok(Some(End::Died)) => return shared.report(rank, Loss::Died),
            // Or the other witnesses have to do.
            Ok(Some(End::Left)) | Err(_) => return,
        }
    }
}

/// Says that this process runs, and sees whether the others do, until the watch is over.
fn keep(page: &Page, peers: &[Watched], shared: &Shared, bell: &OwnedFd, heartbeat: Duration) {
    let began = Instant::now();
    let mut beats: Vec<(u64, Instant)> = peers.iter().map(|peer| (peer.page.beats(), began)).collect();
    // Whose socket or process has ended: both are told for ever.
    let mut ended: HashSet<usize> = HashSet::new();
    let mut last = began;
    while !shared.is_over.load(Ordering::Acquire) {
        page.beat();
        let mut what = vec![PollFd::new(bell, PollFlags::IN)];
        let mut whose = vec![None];
        for (at, peer) in peers.iter().enumerate().filter(|(at, _)| !ended.contains(at)) {
            let ends = std::iter::once(&peer.socket).chain(&peer.process);
            for end in ends {
                what.push(PollFd::new(end, PollFlags::IN));
                whose.push(Some(at));
            }
        }
        if poll_all(&mut what, heartbeat / 4).is_err() {
            thread::sleep(heartbeat / 4);
        }
        for (end, at) in what.iter().zip(&whose).filter(|(end, _)| !end.revents().is_empty()) {
            let (Some(at), false) = (*at, end.revents().is_empty()) else { continue };
            if ended.insert(at) && !peers[at].page.has_left() {
                shared.report(peers[at].rank, Loss::Died);
            }
        }
        // A process that was stopped itself knows nothing of the others yet.
        let now = Instant::now();
        let was_stopped = now - std::mem::replace(&mut last, now) > heartbeat;
        for ((count, since), (at, peer)) in beats.iter_mut().zip(peers.iter().enumerate()) {
            let found = peer.page.beats();
            if found != *count || was_stopped {
                (*count, *since) = (found, now);
            } else if now - *since > heartbeat * 3 / 2 && !ended.contains(&at) && !peer.page.has_left() {
                shared.report(peer.rank, Loss::Silent(now - *since));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::HashStore;

    /// Neither a peer that does not come nor anything else that fails there keeps this process waiting.
    #[test]
    fn a_meeting_that_fails_says_so() {
        let store = PrefixStore::new("alone", Arc::new(HashStore::new()));
        let mut members: Vec<_> = (0..2).map(|rank| Member::example(rank, 1)).collect();
        members[0].process = std::process::id();
        let deadline = Deadline::after(Duration::from_millis(200));
        let error = Peers::meet(&store, 0, &members, Duration::from_secs(1), deadline).unwrap_err();
        assert!(matches!(error, PeerError::Absent { .. } | PeerError::Store(_)), "{error}");
    }
}
