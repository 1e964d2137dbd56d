//! Exchanges, over [`crate::link`], the shared memory that contains each process's locks.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::{PeerError, page::Page};
use crate::{
    group::Member,
    link::{self, LinkError, Listener, Tag, exchange},
    store::{Deadline, PrefixStore, Store, StoreError, publish},
};

/// A watched process of this host.
pub(super) struct Peer {
    /// Index of the peer in the group's list of members.
    pub(super) place: usize,
    pub(super) page: Page,
    /// Index of the lock, in the peer's page, that this process waits for.
    pub(super) slot: usize,
    /// The connection closes when the peer's process ends, at the latest.
    pub(super) socket: OwnedFd,
    /// The peer's pidfd, if the kernel provides one.
    pub(super) process: Option<OwnedFd>,
}

const LOCKS: Tag = Tag(*b"lock");

/// Returns the indices of the members that run on the same host as member `place`, in other processes. Member `place`'s
/// page has one lock for each returned member, in the same order.
pub(super) fn others(place: usize, members: &[Member]) -> impl Iterator<Item = usize> {
    let me = &members[place];
    (0..members.len()).filter(move |other| me.is_beside(&members[*other]))
}

/// Returns the index of the lock that the member at index `waiter` waits for, in the page of the member at index
/// `owner`.
pub(super) fn slot(waiter: usize, owner: usize, members: &[Member]) -> Option<usize> {
    others(owner, members).position(|other| other == waiter)
}

/// Exchanges pages with the members that are other processes of this host. `place` is the index of this process in
/// `members`. `own` is the shared memory of this process's page.
pub(super) fn meet(
    store: &PrefixStore,
    place: usize,
    members: &[Member],
    own: BorrowedFd<'_>,
    deadline: Deadline,
) -> Result<Vec<Peer>, PeerError> {
    let rank = |place: u64| members.get(place as usize).map_or(usize::MAX, |member| member.rank);
    let told = |error| match error {
        LinkError::Folder { path, source } => PeerError::Folder { path, source },
        LinkError::Unexpected { place, problem } | LinkError::Gone { place, problem } => {
            PeerError::Greeting { rank: rank(place), problem }
        }
        LinkError::Absent { places, waited } => {
            PeerError::Absent { ranks: places.into_iter().map(rank).collect(), waited }
        }
        LinkError::System(error) => PeerError::System(error),
        LinkError::Store(error) => PeerError::Store(error),
        other => PeerError::System(std::io::Error::other(other)),
    };
    let listener = Listener::open().map_err(told)?;
    publish(store, &key(place as u64), &listener.endpoint())?;
    let expected: Vec<u64> = others(place, members).map(|other| other as u64).collect();
    let mut missing = None;
    let endpoint = |place| {
        let endpoint = store.get(&key(place), deadline);
        if let Err(StoreError::Timeout { waited, .. }) = &endpoint {
            missing = Some(PeerError::Absent { ranks: vec![rank(place)], waited: *waited });
        }
        endpoint
    };
    let met = exchange(&listener, place as u64, &expected, endpoint, &[(LOCKS, own)], deadline);
    let peer = |link::Peer { link, descriptors }: link::Peer| {
        let (peer, memory) = (link.place(), descriptors.first());
        let refused = |problem| PeerError::Greeting { rank: rank(peer), problem };
        let (owner, memory) = (peer as usize, memory.ok_or_else(|| refused("no descriptor".into()))?);
        let page = Page::open(memory.as_fd(), others(owner, members).count()).map_err(refused)?;
        let slot = slot(place, owner, members).ok_or_else(|| refused("it is not beside this one".into()))?;
        // `None` if the kernel has no pidfds. The closing of the socket then shows the peer's death.
        let process = link.open_process().map_err(told)?;
        Ok(Peer { place: owner, page, slot, socket: link.into_socket(), process })
    };
    met.map_err(|error| missing.take().unwrap_or_else(|| told(error)))?.into_iter().map(peer).collect()
}

fn key(place: u64) -> String {
    format!("peers/{place}")
}
