//! Exchanges the memory with the processes' locks over [`crate::local`].

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::process::{PidfdFlags, pidfd_open};

use super::{PeerError, page::Page};
use crate::{
    group::Member,
    local::{Door, LocalError, Met, Tag, exchange},
    store::{Deadline, PrefixStore, Store, StoreError, publish},
};

/// A watched process of this host.
pub(super) struct Peer {
    /// Its place in the group.
    pub(super) place: usize,
    pub(super) page: Page,
    /// The index of the lock in its page that this process waits for.
    pub(super) slot: usize,
    /// The connection closes when the peer's process ends, at the latest.
    pub(super) socket: OwnedFd,
    /// The peer's pidfd, if the kernel provides one.
    pub(super) process: Option<OwnedFd>,
}

const LOCKS: Tag = Tag(*b"lock");

/// Returns the places of the members that are other processes of this host. Each of them has one lock in the page of
/// the member at `place`, in this order.
pub(super) fn others(place: usize, members: &[Member]) -> impl Iterator<Item = usize> {
    let me = &members[place];
    (0..members.len()).filter(move |other| me.is_beside(&members[*other]))
}

/// Returns the index of the lock that `waiter` waits for in the page of the member at `owner`.
pub(super) fn slot(waiter: usize, owner: usize, members: &[Member]) -> Option<usize> {
    others(owner, members).position(|other| other == waiter)
}

/// Exchanges pages with the members that are other processes of this host. `own` is the memory of this process's
/// locks.
pub(super) fn meet(
    store: &PrefixStore,
    place: usize,
    members: &[Member],
    own: BorrowedFd<'_>,
    deadline: Deadline,
) -> Result<Vec<Peer>, PeerError> {
    let rank = |place: u64| members.get(place as usize).map_or(usize::MAX, |member| member.rank);
    let told = |error| match error {
        LocalError::Folder { path, source } => PeerError::Folder { path, source },
        LocalError::Unexpected { place, problem } | LocalError::Gone { place, problem } => {
            PeerError::Greeting { rank: rank(place), problem }
        }
        LocalError::Absent { places, waited } => {
            PeerError::Absent { ranks: places.into_iter().map(rank).collect(), waited }
        }
        LocalError::System(error) => PeerError::System(error),
        LocalError::Store(error) => PeerError::Store(error),
    };
    let door = Door::open().map_err(told)?;
    publish(store, &key(place as u64), &door.card())?;
    let expected: Vec<u64> = others(place, members).map(|other| other as u64).collect();
    let mut missing = None;
    let card = |place| {
        let card = store.get(&key(place), deadline);
        if let Err(StoreError::Timeout { waited, .. }) = &card {
            missing = Some(PeerError::Absent { ranks: vec![rank(place)], waited: *waited });
        }
        card
    };
    let met = exchange(&door, place as u64, &expected, card, &[(LOCKS, own)], deadline);
    let peer = |Met { link, descriptors }: Met| {
        let (peer, memory) = (link.place(), descriptors.first());
        let refused = |problem| PeerError::Greeting { rank: rank(peer), problem };
        let (owner, memory) = (peer as usize, memory.ok_or_else(|| refused("no descriptor".into()))?);
        let page = Page::open(memory.as_fd(), others(owner, members).count()).map_err(refused)?;
        let slot = slot(place, owner, members).ok_or_else(|| refused("it is not beside this one".into()))?;
        // Kernels before 5.3 have no pidfd, and sandboxes may refuse it. The end of the socket also shows the peer's
        // death.
        let process = pidfd_open(link.process().map_err(told)?, PidfdFlags::empty()).ok();
        Ok(Peer { place: owner, page, slot, socket: link.into_socket(), process })
    };
    met.map_err(|error| missing.take().unwrap_or_else(|| told(error)))?.into_iter().map(peer).collect()
}

fn key(place: u64) -> String {
    format!("peers/{place}")
}
