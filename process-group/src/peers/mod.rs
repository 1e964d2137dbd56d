//! Detects processes of this host that have died or stopped.
//!
//! Every process holds one robust lock for each of its peers on the host. The kernel releases these locks when the
//! process dies. The process also increments a heartbeat counter regularly, and keeps a socket to each peer. In each
//! process, one thread per peer waits for the peer's lock, and one more thread checks the heartbeats and the sockets.
//! Each peer is reported at most once, with the failure that was found first.

mod loss;
mod losses;
mod meet;
mod page;
mod robust;

use std::{
    collections::HashSet,
    fmt, io,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

pub use loss::{Loss, PeerError};

pub(crate) use self::losses::Listener;
use self::{
    losses::Losses,
    meet::Peer,
    page::{End, Page},
};
use crate::{
    group::Member,
    store::{Deadline, PrefixStore},
};

/// Interval at which a thread that waits for a lock checks whether the watch has ended.
const TURN: Duration = Duration::from_millis(250);

/// Watches the other processes of this host, and lets them watch this one. Dropping this value marks this process as
/// having left, so the peers do not report a death.
pub(crate) struct Peers {
    shared: Arc<Shared>,
    /// Wakes the thread that holds the locks.
    signal: Option<Arc<OwnedFd>>,
    keeper: Option<thread::JoinHandle<()>>,
}

struct Shared {
    losses: Losses,
    is_over: AtomicBool,
}

impl Shared {
    /// Reports a loss, unless the rank was reported before or the watch has ended.
    fn report(&self, rank: usize, loss: Loss) {
        if !self.is_over.load(Ordering::Acquire) {
            self.losses.report(rank, loss);
        }
    }
}

impl Peers {
    /// Connects to the members that are other processes of this host, and starts to watch them. `place` is the index
    /// of this process in `members`. Collective over the processes of this host. Does nothing if there is only one. A
    /// process that stops running is reported as silent within twice the `heartbeat`.
    pub(crate) fn meet(
        store: &PrefixStore,
        place: usize,
        members: &[Member],
        heartbeat: Duration,
        deadline: Deadline,
    ) -> Result<Self, PeerError> {
        let shared = Arc::new(Shared { losses: Losses::default(), is_over: false.into() });
        let others = meet::others(place, members).count();
        if others == 0 {
            return Ok(Self { shared, signal: None, keeper: None });
        }
        let signal = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).map_err(io::Error::from)?);
        let (memory, page) = Page::create(others)?;
        // The kernel releases the locks when the thread that holds them ends, so a thread that lives as long as the
        // watch takes the locks. It does so before any peer maps them.
        let (say, held) = mpsc::channel();
        let (give, peers) = mpsc::channel::<Vec<Watched>>();
        let keeper = {
            let (shared, signal) = (shared.clone(), signal.clone());
            thread::Builder::new().name("peers".into()).spawn(move || match page.hold() {
                Ok(held) => {
                    let _ = say.send(Ok(()));
                    // If connecting to the peers failed, the channel closes without a value.
                    let peers = peers.recv().unwrap_or_default();
                    keep(&page, &peers, &shared, &signal, heartbeat);
                    // Released before the sockets close. A peer that sees a closed socket then also sees that this
                    // process has left.
                    drop(held);
                    drop(peers);
                }
                Err(error) => {
                    let _ = say.send(Err(error));
                }
            })?
        };
        let watch = Self { shared: shared.clone(), signal: Some(signal), keeper: Some(keeper) };
        // Declared after `watch`, so that an early return drops the channel first. Dropping `watch` joins the thread,
        // and the thread waits for this channel.
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

    /// Calls `listener` at once for every known loss, and from now on for every new loss.
    pub(crate) fn tell(&self, listener: &Arc<Listener>) {
        self.shared.losses.tell(listener);
    }
}

impl fmt::Debug for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peers").field("lost", &self.shared.losses.known()).finish_non_exhaustive()
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Release);
        // The write fails only if the counter is full. The thread has a wake-up pending then.
        if let Some(signal) = &self.signal {
            let _ = rustix::io::write(signal, &1u64.to_ne_bytes());
        }
        if let Some(keeper) =
            self.keeper.take().filter(|keeper| keeper.thread().id() != thread::current().id())
        {
            let _ = keeper.join();
        }
    }
}

/// The data by which the thread that runs `keep` checks a peer.
struct Watched {
    rank: usize,
    page: Arc<Page>,
    socket: OwnedFd,
    process: Option<OwnedFd>,
}

/// Waits for a peer's lock, and reports the peer if it died.
fn wait(page: &Page, slot: usize, rank: usize, shared: &Shared) {
    while !shared.is_over.load(Ordering::Acquire) {
        match page.wait(slot, TURN) {
            Ok(None) => {}
            Ok(Some(End::Died)) => return shared.report(rank, Loss::Died),
            // On an error, the other checks still detect a death.
            Ok(Some(End::Left)) | Err(_) => return,
        }
    }
}

/// Increments this process's heartbeat counter, and checks the heartbeats and sockets of the peers, until the watch
/// ends.
fn keep(page: &Page, peers: &[Watched], shared: &Shared, signal: &OwnedFd, heartbeat: Duration) {
    let began = Instant::now();
    let mut beats: Vec<(u64, Instant)> = peers.iter().map(|peer| (peer.page.beats(), began)).collect();
    // Indices of the peers whose socket has closed or whose process has ended. Their descriptors stay readable for
    // ever, so they are no longer polled.
    let mut ended: HashSet<usize> = HashSet::new();
    let mut last = began;
    while !shared.is_over.load(Ordering::Acquire) {
        page.beat();
        let mut what = vec![PollFd::new(signal, PollFlags::IN)];
        let mut whose = vec![None];
        for (at, peer) in peers.iter().enumerate().filter(|(at, _)| !ended.contains(at)) {
            let ends = std::iter::once(&peer.socket).chain(&peer.process);
            for end in ends {
                what.push(PollFd::new(end, PollFlags::IN));
                whose.push(Some(at));
            }
        }
        let turn = Timespec::try_from(heartbeat / 4).unwrap_or_default();
        if poll(&mut what, Some(&turn)).is_err() {
            thread::sleep(heartbeat / 4);
        }
        for (end, at) in what.iter().zip(&whose).filter(|(end, _)| !end.revents().is_empty()) {
            let (Some(at), false) = (*at, end.revents().is_empty()) else { continue };
            if ended.insert(at) && !peers[at].page.has_left() {
                shared.report(peers[at].rank, Loss::Died);
            }
        }
        // If this process itself was stopped, its view of the others is out of date.
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

    /// [`Peers::meet`] fails within the deadline if a peer does not connect.
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
