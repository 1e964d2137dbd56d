//! How the processes of a host get each other's locks: over sockets in a folder that only this user can enter.
//!
//! Each listens in a folder of its own and says in the store where; of two, the one with the lower rank connects. A
//! message is a greeting with the memory of the sender's locks attached. Who is not the same user, or does not know the
//! word that was said in the store, gets nothing; and who sends something else keeps nobody waiting.

use std::{
    fs,
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::DirBuilderExt,
    },
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect,
        listen, recvmsg, sendmsg, socket_with, sockopt::socket_peercred,
    },
    process::{PidfdFlags, geteuid, pidfd_open},
    rand::{GetRandomFlags, getrandom},
};

use super::{PeerError, page::Page};
use crate::{
    group::Member,
    store::{Deadline, PrefixStore, Store, StoreError},
};

/// A process of this host that is watched.
pub(super) struct Peer {
    /// Its place in the group.
    pub(super) place: usize,
    pub(super) page: Page,
    /// Ends with its process, at the latest.
    pub(super) socket: OwnedFd,
    /// The process itself, where the kernel gives it.
    pub(super) process: Option<OwnedFd>,
}

/// A word that only those know who can read the store.
type Word = [u8; 16];

/// What is said over a socket: the word of who listens, and the place of who speaks.
const GREETING: usize = size_of::<Word>() + size_of::<u64>();

/// Strangers that may be connected at one time without having said anything.
const STRANGERS: usize = 64;

/// The places of members that are other processes of this host.
pub(super) fn others(place: usize, members: &[Member]) -> impl Iterator<Item = usize> {
    let me = &members[place];
    (0..members.len()).filter(move |other| me.is_beside(&members[*other]))
}

/// Meets the processes of this host that are members; `own` is the memory of this one's locks.
pub(super) fn meet(
    store: &PrefixStore,
    place: usize,
    members: &[Member],
    own: BorrowedFd<'_>,
    deadline: Deadline,
) -> Result<Vec<Peer>, PeerError> {
    let others: Vec<usize> = others(place, members).collect();
    let size = members.len();
    let door = Door::open(place)?;
    store.set(&key(place), &door.card())?;
    let mut peers = Vec::new();
    for other in others.iter().copied().filter(|other| *other > place) {
        let fail = |problem: String| PeerError::Greeting { rank: members[other].rank, problem };
        let card = store.get(&key(other), deadline).map_err(|error| match error {
            StoreError::Timeout { waited, .. } => {
                PeerError::Absent { ranks: vec![members[other].rank], waited }
            }
            other => other.into(),
        })?;
        let (word, path) =
            card.split_first_chunk::<16>().ok_or_else(|| fail("no word in the store".into()))?;
        let path = std::str::from_utf8(path).map_err(|_| fail("no path in the store".into()))?;
        let socket = new_socket()?;
        connect(&socket, &SocketAddrUnix::new(path).map_err(io::Error::from)?)
            .map_err(|error| fail(format!("connecting to {path}: {error}")))?;
        say(&socket, word, place, own)?;
        let heard = wait_for(&socket, deadline).and_then(|()| hear(&socket)).map_err(fail)?;
        peers.push(heard.into_peer(other, size, door.word, socket).map_err(fail)?);
    }
    let mut expected: Vec<_> = others.into_iter().filter(|other| *other < place).collect();
    let mut strangers: Vec<OwnedFd> = Vec::new();
    while !expected.is_empty() {
        let ready = ready_of(&door.socket, &strangers, deadline)?;
        if ready.is_empty() && deadline.expired() {
            let ranks = expected.iter().map(|place| members[*place].rank).collect();
            return Err(PeerError::Absent { ranks, waited: deadline.waited() });
        }
        // From the last to the first: what is taken out does not move the others.
        for at in ready.into_iter().rev() {
            let Some(stranger) = at.checked_sub(1) else {
                if let Ok(socket) = accept_with(&door.socket, SocketFlags::CLOEXEC)
                    && socket_peercred(&socket).is_ok_and(|who| who.uid == geteuid())
                {
                    if strangers.len() == STRANGERS {
                        strangers.remove(0);
                    }
                    strangers.push(socket);
                }
                continue;
            };
            let socket = strangers.remove(stranger);
            let Ok(heard) = hear(&socket) else { continue };
            let Some(at) = expected.iter().position(|place| *place == heard.place) else { continue };
            let Ok(peer) = heard.into_peer(expected[at], size, door.word, socket) else { continue };
            let card = store.get(&key(peer.place), deadline)?;
            let Some((word, _)) = card.split_first_chunk::<16>() else { continue };
            say(&peer.socket, word, place, own)?;
            expected.swap_remove(at);
            peers.push(peer);
        }
    }
    Ok(peers)
}

fn key(place: usize) -> String {
    format!("peers/{place}")
}

/// Where this process listens: gone with it.
struct Door {
    folder: PathBuf,
    path: String,
    word: Word,
    socket: OwnedFd,
}

impl Door {
    fn open(place: usize) -> Result<Self, PeerError> {
        let name: String = fresh_word()?.iter().map(|byte| format!("{byte:02x}")).collect();
        let folder = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|folder| folder.is_dir());
        let folder = folder.unwrap_or_else(std::env::temp_dir).join(format!("process-group-{name}"));
        let no_folder = |source| PeerError::Folder { path: folder.clone(), source };
        fs::DirBuilder::new().mode(0o700).create(&folder).map_err(no_folder)?;
        let path = folder.join(place.to_string());
        let opened = Self::listen(&path);
        let path = path.to_string_lossy().into_owned();
        match opened {
            Ok(socket) => Ok(Self { folder, path, word: fresh_word()?, socket }),
            Err(error) => {
                let _ = fs::remove_dir_all(&folder);
                Err(no_folder(error))
            }
        }
    }

    fn listen(path: &Path) -> io::Result<OwnedFd> {
        let socket = new_socket()?;
        bind(&socket, &SocketAddrUnix::new(path)?)?;
        listen(&socket, 128)?;
        Ok(socket)
    }

    /// What the others have to know.
    fn card(&self) -> Vec<u8> {
        [&self.word[..], self.path.as_bytes()].concat()
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn fresh_word() -> io::Result<Word> {
    let mut word = Word::default();
    getrandom(&mut word, GetRandomFlags::empty())?;
    Ok(word)
}

fn new_socket() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Greets with the memory of this process's locks.
fn say(socket: &OwnedFd, word: &Word, place: usize, own: BorrowedFd<'_>) -> io::Result<()> {
    let greeting = [&word[..], &(place as u64).to_le_bytes()].concat();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let attached = [own];
    control.push(SendAncillaryMessage::ScmRights(&attached));
    sendmsg(socket, &[IoSlice::new(&greeting)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// What was said over a socket.
struct Heard {
    word: Word,
    place: usize,
    memory: OwnedFd,
}

fn hear(socket: &OwnedFd) -> Result<Heard, String> {
    let mut greeting = [0; GREETING + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let got = recvmsg(socket, &mut [IoSliceMut::new(&mut greeting)], &mut control, flags)
        .map_err(|error| format!("hearing its greeting: {error}"))?;
    let mut attached = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(memory) = message {
            attached.extend(memory);
        }
    }
    let (1, GREETING) = (attached.len(), got.bytes) else {
        return Err(format!(
            "it said {} bytes with {} descriptors; expected {GREETING} with 1",
            got.bytes,
            attached.len()
        ));
    };
    let memory = attached.pop().ok_or("no descriptor")?;
    let (word, place) = greeting[..GREETING].split_first_chunk::<16>().ok_or("no word")?;
    let place = <[u8; 8]>::try_from(place).map_err(|_| "no place")?;
    Ok(Heard { word: *word, place: usize::try_from(u64::from_le_bytes(place)).unwrap_or(usize::MAX), memory })
}

impl Heard {
    /// The peer at that place, if it is this one, and knows the word.
    fn into_peer(self, place: usize, size: usize, word: Word, socket: OwnedFd) -> Result<Peer, String> {
        let differs = self.word.iter().zip(word).fold(0, |differs, (a, b)| differs | (a ^ b));
        if differs != 0 || self.place != place {
            return Err("it does not know what was said in the store".into());
        }
        let page = Page::open(self.memory.as_fd(), size)?;
        let who = socket_peercred(&socket).map_err(|error| format!("its process: {error}"))?;
        // Kernels before 5.3 have none, and sandboxes may refuse it: the socket's end is a witness too.
        let process = pidfd_open(who.pid, PidfdFlags::empty()).ok();
        Ok(Peer { place, page, socket, process })
    }
}

/// Waits until something can be read.
fn wait_for(socket: &OwnedFd, deadline: Deadline) -> Result<(), String> {
    match poll_all(&mut [PollFd::new(socket, PollFlags::IN)], deadline.remaining()) {
        Ok(true) => Ok(()),
        Ok(false) => Err(format!("it did not answer within {:?}", deadline.waited())),
        Err(error) => Err(format!("waiting for its answer: {error}")),
    }
}

/// Which can be read: 0 is the door, the others follow.
fn ready_of(door: &OwnedFd, strangers: &[OwnedFd], deadline: Deadline) -> io::Result<Vec<usize>> {
    let all = std::iter::once(door).chain(strangers);
    let mut all: Vec<_> = all.map(|socket| PollFd::new(socket, PollFlags::IN)).collect();
    poll_all(&mut all, deadline.remaining())?;
    Ok((0..all.len()).filter(|at| !all[*at].revents().is_empty()).collect())
}

/// Polls; whether there is anything.
pub(super) fn poll_all(what: &mut [PollFd<'_>], patience: Duration) -> io::Result<bool> {
    let patience = Timespec::try_from(patience.min(Duration::from_secs(3600))).unwrap_or_default();
    match poll(what, Some(&patience)) {
        Ok(count) => Ok(count > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
