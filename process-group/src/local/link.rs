//! A connection to one process, and the messages on it.

use std::{
    fmt,
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    thread,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags},
    io::Errno,
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, SocketFlags, SocketType, connect, recvmsg, sendmsg, socket_with,
        sockopt::socket_peercred,
    },
    process::geteuid,
};

use super::{
    LocalError, Tag, Word,
    folder::{PeerFolder, Unfit},
    poll_all,
};
use crate::store::Deadline;

/// Size of a message in bytes: the receiver's token, the tag of the descriptor, the sender's place.
const MESSAGE: usize = size_of::<Word>() + size_of::<Tag>() + size_of::<u64>();

/// Interval between attempts to connect while the peer's queue is full.
const CROWDED: Duration = Duration::from_millis(1);

/// A connection to a process. Each side knows the other's token.
pub struct Link {
    socket: OwnedFd,
    me: u64,
    place: u64,
    own: Word,
    theirs: Word,
}

/// Omits the tokens.
impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { socket, me, place, .. } = self;
        write!(f, "Link({socket:?}, from place {me} to place {place})")
    }
}

/// A received message. Its token is not checked yet.
pub(super) struct Heard {
    pub(super) word: Word,
    pub(super) tag: Tag,
    pub(super) place: u64,
    pub(super) descriptor: OwnedFd,
}

/// Splits an endpoint into the token and the path of the socket.
pub(super) fn read_card(card: &[u8]) -> Result<(Word, &str), String> {
    let (word, path) = card.split_first_chunk::<16>().ok_or("no word on its card")?;
    let path = std::str::from_utf8(path).map_err(|_| "no path on its card")?;
    Ok((*word, path))
}

impl Link {
    /// Connects to the process at `place`, whose endpoint is `card`.
    pub(super) fn connect(
        me: u64,
        own: Word,
        place: u64,
        card: &[u8],
        deadline: Deadline,
    ) -> Result<Self, LocalError> {
        let fail = |problem: String| LocalError::Unexpected { place, problem };
        let (theirs, path) = read_card(card).map_err(fail)?;
        let gone = || LocalError::Gone { place, problem: format!("nobody listens at {path}") };
        let folder = match PeerFolder::open(path) {
            Ok(folder) => folder,
            Err(Unfit::Absent) => return Err(gone()),
            Err(Unfit::Refused(problem)) => return Err(fail(format!("its path {path}: {problem}"))),
        };
        let address = folder.address()?;
        let socket = new_socket()?;
        loop {
            match connect(&socket, &address) {
                Ok(()) => {
                    let (user, own_user) = (socket_peercred(&socket)?.uid, geteuid());
                    if user != own_user {
                        let (user, own_user) = (user.as_raw(), own_user.as_raw());
                        return Err(fail(format!(
                            "the listener at {path} is user {user}, expected {own_user}"
                        )));
                    }
                    return Ok(Self { socket, me, place, own, theirs });
                }
                Err(Errno::INTR) => {}
                // The listener's queue is full.
                Err(Errno::AGAIN) if !deadline.expired() => thread::sleep(CROWDED),
                Err(Errno::AGAIN) => {
                    return Err(LocalError::Absent { places: vec![place], waited: deadline.waited() });
                }
                Err(Errno::CONNREFUSED | Errno::NOENT) => return Err(gone()),
                Err(error) => return Err(fail(format!("connecting to {path}: {error}"))),
            }
        }
    }

    /// Wraps an accepted connection of the process at `place`, whose endpoint is `card`.
    pub(super) fn answered(
        socket: OwnedFd,
        me: u64,
        own: Word,
        place: u64,
        card: &[u8],
    ) -> Result<Self, LocalError> {
        let (theirs, _) = read_card(card).map_err(|problem| LocalError::Unexpected { place, problem })?;
        Ok(Self { socket, me, place, own, theirs })
    }

    /// Returns the place of the process at the other end.
    #[must_use]
    pub fn place(&self) -> u64 {
        self.place
    }

    /// Returns the id of the process at the other end, as the kernel reports it.
    ///
    /// # Errors
    /// [`LocalError::System`].
    pub(crate) fn process(&self) -> Result<rustix::process::Pid, LocalError> {
        Ok(socket_peercred(&self.socket)?.pid)
    }

    /// Returns the socket. It is closed at the other end when that process ends, at the latest.
    #[must_use]
    pub fn into_socket(self) -> OwnedFd {
        self.socket
    }

    /// Sends a descriptor. This process keeps its own.
    ///
    /// # Errors
    /// [`LocalError::Gone`]; [`LocalError::Absent`] if the other end does not read it; [`LocalError::System`].
    pub fn send(&self, tag: Tag, descriptor: BorrowedFd<'_>, deadline: Deadline) -> Result<(), LocalError> {
        let message = [&self.theirs[..], &tag.0, &self.me.to_le_bytes()].concat();
        loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            let attached = [descriptor];
            control.push(SendAncillaryMessage::ScmRights(&attached));
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match sendmsg(&self.socket, &[IoSlice::new(&message)], &mut control, flags) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.until(PollFlags::OUT, deadline)?,
                Err(error @ (Errno::PIPE | Errno::CONNRESET)) => return Err(self.gone(&error.to_string())),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Receives the next descriptor, which must have this tag.
    ///
    /// # Errors
    /// [`LocalError::Gone`]; [`LocalError::Absent`] if none arrives; [`LocalError::Unexpected`].
    pub fn receive(&self, tag: Tag, deadline: Deadline) -> Result<OwnedFd, LocalError> {
        let fail = |problem: String| LocalError::Unexpected { place: self.place, problem };
        loop {
            match hear(&self.socket) {
                Ok(Some(heard)) => {
                    if !knows(&heard, self.own) || heard.place != self.place {
                        return Err(fail("it does not know what was said in the store".into()));
                    }
                    if heard.tag != tag {
                        return Err(fail(format!("it sent {}, expected {tag}", heard.tag)));
                    }
                    return Ok(heard.descriptor);
                }
                Ok(None) => return Err(self.gone("its connection has ended")),
                Err(Silence::Yet) => self.until(PollFlags::IN, deadline)?,
                Err(Silence::Broken(error)) => return Err(self.gone(&error.to_string())),
                Err(Silence::Nonsense(problem)) => return Err(fail(problem)),
            }
        }
    }

    fn gone(&self, problem: &str) -> LocalError {
        LocalError::Gone { place: self.place, problem: problem.to_owned() }
    }

    fn until(&self, what: PollFlags, deadline: Deadline) -> Result<(), LocalError> {
        if deadline.expired() {
            return Err(LocalError::Absent { places: vec![self.place], waited: deadline.waited() });
        }
        poll_all(&mut [PollFd::new(&self.socket, what)], deadline.remaining())?;
        Ok(())
    }
}

/// Returns true if the sender knows `word`. The comparison takes the same time for every input.
pub(super) fn knows(heard: &Heard, word: Word) -> bool {
    heard.word.iter().zip(word).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

pub(super) fn new_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// The reason why there is no message.
pub(super) enum Silence {
    /// Nothing has arrived yet.
    Yet,
    /// The data is not a valid message.
    Nonsense(String),
    /// The connection failed.
    Broken(io::Error),
}

/// Receives the next message without waiting; `None` if the connection has ended. All received descriptors that are
/// not returned are closed.
pub(super) fn hear(socket: &OwnedFd) -> Result<Option<Heard>, Silence> {
    let mut message = [0; MESSAGE + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let got = loop {
        match recvmsg(socket.as_fd(), &mut [IoSliceMut::new(&mut message)], &mut control, flags) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Err(Silence::Yet),
            Err(error) => return Err(Silence::Broken(error.into())),
            Ok(got) => break got,
        }
    };
    let mut attached = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = part {
            attached.extend(descriptors);
        }
    }
    if (got.bytes, attached.len()) == (0, 0) {
        return Ok(None);
    }
    let nonsense = || {
        let (said, count) = (got.bytes, attached.len());
        Silence::Nonsense(format!("it said {said} bytes with {count} descriptors; expected {MESSAGE} with 1"))
    };
    if got.bytes != MESSAGE || attached.len() != 1 {
        return Err(nonsense());
    }
    let parts = || {
        let (word, rest) = message[..MESSAGE].split_first_chunk::<16>()?;
        let (tag, place) = rest.split_first_chunk::<4>()?;
        Some((*word, Tag(*tag), u64::from_le_bytes(<[u8; 8]>::try_from(place).ok()?)))
    };
    let (word, tag, place) = parts().ok_or_else(nonsense)?;
    let descriptor = attached.pop().ok_or(Silence::Yet)?;
    Ok(Some(Heard { word, tag, place, descriptor }))
}
