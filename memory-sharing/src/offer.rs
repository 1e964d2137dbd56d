//! The memory that this rank offers to the other members of an [agreement](bootstrap::agreement), and the transfer of
//! file descriptors between the processes of a host. The members describe their memory to each other by [`Export`]s. To
//! open memory means to map it.

use std::{
    collections::HashMap,
    fs::File,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use bootstrap::{
    error_text,
    link::{Link, LinkError, Listener, Peer, Tag, exchange_between},
    store::Deadline,
};

use crate::{
    Export, OpeningOutcome, Shareable, Site,
    local_registry::{LocalRegistry, LocalToken},
};

/// Tag of the first message on a connection of two processes. Every message must carry a file descriptor. This one only
/// establishes the connection, so it carries a descriptor of `/dev/null`.
pub(crate) const HELLO: Tag = Tag(*b"helo");

/// Tag of a message that carries the file descriptor of memory.
pub(crate) const MEMORY: Tag = Tag(*b"memo");

/// A member of an agreement: its rank, its location, and the memory that it shares.
#[derive(Debug, Clone)]
pub struct Party<'a> {
    /// The rank of the member.
    pub rank: u32,
    /// Its location.
    pub site: &'a Site,
    /// The memory that it shares.
    pub exports: Vec<&'a Export>,
}

/// Allocations of this rank that the other members can open until this value is dropped. Ranks of other processes of
/// this host connect to the listener, and get the file descriptors of the allocations.
///
/// Ranks of this process do not wait for each other when they [open](crate::open) memory. So the offers of all members
/// must exist before the first of them opens memory, and live until all members have opened theirs.
pub struct Offer {
    listener: Listener,
    exports: Exports,
}

/// Memory of this rank that the others can open until this value is dropped. Ranks of this process find it in
/// `registry`. This type has no listener. Without the listener of an [`Offer`], ranks of other processes can open the
/// memory only by its [`Handle`](crate::Handle).
#[doc(hidden)]
pub struct Exports {
    registry: Arc<LocalRegistry>,
    exported: Vec<ExportedMemory>,
}

impl Exports {
    /// Creates a value without exports.
    pub fn new(registry: Arc<LocalRegistry>) -> Self {
        Self { registry, exported: Vec::new() }
    }

    /// Adds memory. Exports its [`Handle`](crate::Handle), but no file descriptor.
    ///
    /// # Errors
    /// The reason why the memory has no handle.
    pub fn add(&mut self, memory: Shareable) -> Result<Export, String> {
        let (handle, bytes) = (memory.handle()?, memory.bytes());
        let local = self.registry.register(memory.clone());
        let token = local.token;
        self.exported.push(ExportedMemory { memory, descriptor: None, _local: local });
        Ok(Export { bytes: bytes as u64, handle, token })
    }

    /// The exported memory of this rank.
    pub(crate) fn memory(&self) -> impl Iterator<Item = &Shareable> {
        self.exported.iter().map(|exported| &exported.memory)
    }

    /// Returns the memory that another rank of this process exports with this token, or `None` if the rank no longer
    /// exports it.
    pub(crate) fn find(&self, token: u64) -> Option<Shareable> {
        self.registry.find(token)
    }
}

struct ExportedMemory {
    memory: Shareable,
    /// The file descriptor of the memory. `None` in these cases:
    /// - The memory cannot be exported as a file descriptor.
    /// - It was added by [`Offer::export_later`] or [`Exports::add`], and not by [`Offer::export`].
    ///   [`Offer::exchange_descriptors`] then exports a new descriptor for each peer.
    descriptor: Option<OwnedFd>,
    _local: LocalToken,
}

impl Offer {
    /// Opens a listener. The offer has no exports yet.
    ///
    /// # Errors
    /// The error of the system that prevents a listener.
    pub fn new() -> Result<Self, String> {
        let listener = Listener::open().map_err(|error| error_text(&error))?;
        Ok(Self { listener, exports: Exports::new(LocalRegistry::of_process()) })
    }

    /// Adds memory to the offer. Exports its handles and its file descriptor, if it has one. Returns the description
    /// that this rank posts in the agreement.
    ///
    /// # Errors
    /// The reason why the memory cannot be exported.
    pub fn export(&mut self, memory: Shareable) -> Result<Export, String> {
        let export = self.export_later(memory)?;
        if let (true, Some(last)) = (export.handle.has_descriptor(), self.exports.exported.last_mut()) {
            last.descriptor = Some(last.memory.descriptor()?);
        }
        Ok(export)
    }

    /// Like [`export`](Self::export), but exports the file descriptor only when it is sent to a peer, and then closes
    /// it. For callers that may have more exports than a process can have open file descriptors.
    ///
    /// # Errors
    /// As [`export`](Self::export).
    pub fn export_later(&mut self, memory: Shareable) -> Result<Export, String> {
        self.exports.add(memory)
    }

    pub(crate) fn exports(&self) -> &Exports {
        &self.exports
    }

    /// The endpoint of the listener, for this rank's [`Site`].
    pub fn endpoint(&self) -> Vec<u8> {
        self.listener.endpoint()
    }

    /// Exchanges file descriptors with the ranks of other processes of this host. Returns the received descriptors. The
    /// key of each is a pair: the index of the owner in `parties`, and the index of the export among the owner's
    /// exports. On failure, returns the outcome that this rank posts for the others.
    ///
    /// `own` is the index of this rank in `parties`. `wanted(from, to)` returns the exports of member `from` that
    /// member `to` opens, as indices into the exports of `from`. `from` and `to` are indices into `parties`.
    pub(crate) fn exchange_descriptors(
        &self,
        own: usize,
        parties: &[Party<'_>],
        wanted: &impl Fn(usize, usize) -> Vec<usize>,
        deadline: Deadline,
    ) -> Result<HashMap<(usize, usize), OwnedFd>, OpeningOutcome> {
        member(own, parties)?;
        let sent = |from, to| sent_exports(parties, wanted, from, to);
        let rank = |at: &u64| parties.get(*at as usize).map_or(u32::MAX, |party| party.rank);
        let mut received = HashMap::new();
        let is_peer = |at: &usize| *at != own && !(sent(own, *at).is_empty() && sent(*at, own).is_empty());
        let peers: Vec<usize> = (0..parties.len()).filter(is_peer).collect();
        // Each rank exchanges descriptors with its peers in ascending order of their indices. In each pair of ranks,
        // the rank with the lower index sends first. This avoids a deadlock.
        let connected = self.connect(own, parties, &peers, rank, deadline)?;
        for Peer { link, .. } in &connected {
            let at = link.place() as usize;
            if own < at {
                self.send_descriptors(link, &sent(own, at), rank, deadline)?;
            }
            for number in sent(at, own) {
                let descriptor = link.receive(MEMORY, deadline);
                received.insert((at, number), descriptor.map_err(|error| outcome_of(&error, rank))?);
            }
            if own > at {
                self.send_descriptors(link, &sent(own, at), rank, deadline)?;
            }
        }
        Ok(received)
    }

    /// Connects to the processes of the members `peers`, which are indices into `parties`. Returns the connections in
    /// ascending order of these indices. `rank` converts an index to a rank.
    fn connect(
        &self,
        own: usize,
        parties: &[Party<'_>],
        peers: &[usize],
        rank: impl Fn(&u64) -> u32,
        deadline: Deadline,
    ) -> Result<Vec<Peer>, OpeningOutcome> {
        if peers.is_empty() {
            return Ok(Vec::new());
        }
        let endpoints: Vec<(u64, &[u8])> =
            peers.iter().map(|at| (*at as u64, &*parties[*at].site.endpoint)).collect();
        let null = File::open("/dev/null")
            .map_err(|error| OpeningOutcome::Failed { cause: format!("/dev/null: {error}") })?;
        let hello = [(HELLO, null.as_fd())];
        let connected = exchange_between(&self.listener, own as u64, &endpoints, &hello, deadline);
        let mut connected = connected.map_err(|error| outcome_of(&error, rank))?;
        connected.sort_by_key(|peer| peer.link.place());
        Ok(connected)
    }

    /// Sends the file descriptors of the exports `numbers` to the process at the other end of `link`.
    fn send_descriptors(
        &self,
        link: &Link,
        numbers: &[usize],
        rank: impl Fn(&u64) -> u32,
        deadline: Deadline,
    ) -> Result<(), OpeningOutcome> {
        let failed = |cause: String| OpeningOutcome::Failed { cause };
        for number in numbers {
            let exported = self.exports.exported.get(*number);
            let exported = exported.ok_or_else(|| failed(format!("there is no export {number}")))?;
            let sent = match &exported.descriptor {
                Some(descriptor) => link.send(MEMORY, descriptor.as_fd(), deadline),
                None => {
                    let descriptor = exported.memory.descriptor().map_err(failed)?;
                    link.send(MEMORY, descriptor.as_fd(), deadline)
                }
            };
            sent.map_err(|error| outcome_of(&error, &rank))?;
        }
        Ok(())
    }
}

/// Returns the member with the index `own`.
pub(crate) fn member<'a, 'b>(own: usize, parties: &'a [Party<'b>]) -> Result<&'a Party<'b>, OpeningOutcome> {
    let cause = || format!("the decision speaks of {} members, this is {own}", parties.len());
    parties.get(own).ok_or_else(|| OpeningOutcome::Failed { cause: cause() })
}

/// Returns the exports whose file descriptors member `from` sends to member `to`, as indices into the exports of
/// `from`: the exports that `to` wants and that have a descriptor. Empty if the members run on different hosts, or in
/// one process.
fn sent_exports(
    parties: &[Party<'_>],
    wanted: &impl Fn(usize, usize) -> Vec<usize>,
    from: usize,
    to: usize,
) -> Vec<usize> {
    let (sender, receiver) = (&parties[from], &parties[to]);
    if sender.site.host != receiver.site.host || sender.site.shares_process(receiver.site) {
        return Vec::new();
    }
    let mut sent = wanted(from, to);
    sent.retain(|at| sender.exports.get(*at).is_some_and(|export| export.handle.has_descriptor()));
    sent
}

/// Converts an error of a [link](bootstrap::link) to the outcome that this rank posts. `rank` converts an index of
/// a party to its rank.
fn outcome_of(error: &LinkError, rank: impl Fn(&u64) -> u32) -> OpeningOutcome {
    match error {
        LinkError::Gone { place, .. } => OpeningOutcome::Alone { gone: vec![rank(place)] },
        LinkError::Absent { places, .. } => OpeningOutcome::Alone { gone: places.iter().map(rank).collect() },
        LinkError::Unexpected { place, problem } => {
            OpeningOutcome::Failed { cause: format!("rank {}: {problem}", rank(place)) }
        }
        other => OpeningOutcome::Failed { cause: other.to_string() },
    }
}
