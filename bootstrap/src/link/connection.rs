//! A connection to one process, and the messages on it.

use std::{
    fmt,
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
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
    process::{PidfdFlags, geteuid, pidfd_open},
};

use super::{LinkError, Tag, Token, folder::PeerFolder, poll_all};
use crate::{runtime, store::Deadline};

/// The size of a message in bytes: the receiver's token, the tag of the descriptor, and the sender's place. A place
/// is the number of a process, as the callers of [`exchange`](super::exchange()) assign it.
const MESSAGE_BYTES: usize = size_of::<Token>() + size_of::<Tag>() + size_of::<u64>();

/// The pause between attempts to connect while the listener's accept queue is full.
const CROWDED: Duration = Duration::from_millis(1);

/// A connection to a process. Each side knows the other's token.
pub struct Link {
    /// Non-blocking, of type `SOCK_SEQPACKET`.
    socket: OwnedFd,
    /// The place of this process.
    me: u64,
    /// The place of the process at the other end.
    place: u64,
    /// This process's token, which every received message must contain.
    own: Token,
    /// The other process's token, which every sent message contains.
    theirs: Token,
}

/// Omits the tokens.
impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { socket, me, place, .. } = self;
        write!(f, "Link({socket:?}, from place {me} to place {place})")
    }
}

/// A received message. Its token is not checked yet.
pub(super) struct Message {
    pub(super) token: Token,
    pub(super) tag: Tag,
    /// The sender's place, according to the sender.
    pub(super) place: u64,
    pub(super) descriptor: OwnedFd,
}

/// Splits an endpoint into the token and the path of the socket. Returns the problem if the endpoint is malformed.
pub(super) fn parse_endpoint(endpoint: &[u8]) -> Result<(Token, &str), String> {
    let (token, path) =
        endpoint.split_first_chunk::<16>().ok_or("malformed endpoint: missing 16-byte token")?;
    let path = std::str::from_utf8(path).map_err(|_| "malformed endpoint: its path is not UTF-8")?;
    Ok((*token, path))
}

impl Link {
    /// Connects to the process at `place`, whose endpoint is `endpoint`. `me` and `own` are the place and the token of
    /// this process. Blocks while the accept queue of the other process is full, at most until `deadline`.
    ///
    /// # Errors
    /// - [`LinkError::Gone`] if no process listens, or the socket or its folder does not exist.
    /// - [`LinkError::Absent`] if the queue is still full at the deadline.
    /// - [`LinkError::Unexpected`] if the endpoint is malformed, the folder of its socket exists but cannot be opened,
    ///   or is not this user's alone, another user listens, or connecting fails for another reason.
    /// - [`LinkError::System`] if another system call fails, for example because this process can make no socket.
    pub(super) fn connect(
        me: u64,
        own: Token,
        place: u64,
        endpoint: &[u8],
        deadline: Deadline,
    ) -> Result<Self, LinkError> {
        let fail = |problem: String| LinkError::Unexpected { place, problem };
        let (theirs, path) = parse_endpoint(endpoint).map_err(fail)?;
        let folder = PeerFolder::open(place, path)?;
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
                // The listener's accept queue is full.
                Err(Errno::AGAIN) if !deadline.expired() => runtime::sleep(CROWDED),
                Err(Errno::AGAIN) => {
                    return Err(LinkError::Absent { places: vec![place], waited: deadline.waited() });
                }
                Err(Errno::CONNREFUSED | Errno::NOENT) => return Err(LinkError::nobody(place, path)),
                Err(error) => return Err(fail(format!("connecting to {path}: {error}"))),
            }
        }
    }

    /// Wraps an accepted connection of the process at `place`, whose endpoint is `endpoint`. The caller must have
    /// checked the token in the first message, and that the message's place is `place`.
    ///
    /// # Errors
    /// [`LinkError::Unexpected`] if the endpoint is malformed.
    pub(super) fn accepted(
        socket: OwnedFd,
        me: u64,
        own: Token,
        place: u64,
        endpoint: &[u8],
    ) -> Result<Self, LinkError> {
        let (theirs, _) =
            parse_endpoint(endpoint).map_err(|problem| LinkError::Unexpected { place, problem })?;
        Ok(Self { socket, me, place, own, theirs })
    }

    /// Returns the place of the process at the other end.
    #[must_use]
    pub fn place(&self) -> u64 {
        self.place
    }

    /// Opens a descriptor of the process at the other end (a pidfd). It becomes readable when that process ends.
    /// Returns `None` if the kernel does not open it: Linux before 5.3 has no pidfds, the process no longer exists, or
    /// this process has reached its limit on open descriptors.
    ///
    /// # Errors
    /// [`LinkError::System`] if the kernel does not return the process id of the other end.
    pub fn open_process(&self) -> Result<Option<OwnedFd>, LinkError> {
        let id = socket_peercred(&self.socket)?.pid;
        Ok(pidfd_open(id, PidfdFlags::empty()).ok())
    }

    /// Returns the socket, for `poll`: it reports a hang-up once the other process has closed its end, or has ended.
    #[must_use]
    pub fn into_socket(self) -> OwnedFd {
        self.socket
    }

    /// Sends a descriptor, which stays open in this process. Blocks while the socket's buffer is full, at most until
    /// `deadline`.
    ///
    /// # Errors
    /// [`LinkError::Gone`] if the other end is closed; [`LinkError::Absent`] if the buffer is still full at the
    /// deadline; [`LinkError::System`] if a system call fails otherwise.
    pub fn send(&self, tag: Tag, descriptor: BorrowedFd<'_>, deadline: Deadline) -> Result<(), LinkError> {
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

    /// Receives the next descriptor, which must have this tag. Blocks until it arrives, at most until `deadline`.
    ///
    /// # Errors
    /// [`LinkError::Gone`] if the connection has ended or failed; [`LinkError::Absent`] if no descriptor has arrived
    /// at the deadline; [`LinkError::Unexpected`] for another tag, another token, another sender or a malformed
    /// message; [`LinkError::System`] if waiting fails.
    pub fn receive(&self, tag: Tag, deadline: Deadline) -> Result<OwnedFd, LinkError> {
        let fail = |problem: String| LinkError::Unexpected { place: self.place, problem };
        loop {
            match receive_message(&self.socket) {
                Ok(Some(message)) => {
                    if !has_token(&message, self.own) || message.place != self.place {
                        return Err(fail("handshake token mismatch".into()));
                    }
                    if message.tag != tag {
                        return Err(fail(format!("it sent {}, expected {tag}", message.tag)));
                    }
                    return Ok(message.descriptor);
                }
                Ok(None) => return Err(self.gone("its connection has ended")),
                Err(ReceiveError::Nothing) => self.until(PollFlags::IN, deadline)?,
                Err(ReceiveError::Broken(error)) => return Err(self.gone(&error.to_string())),
                Err(ReceiveError::Malformed(problem)) => return Err(fail(problem)),
            }
        }
    }

    fn gone(&self, problem: &str) -> LinkError {
        LinkError::Gone { place: self.place, problem: problem.to_owned() }
    }

    /// Waits until the socket is ready for `what`, the deadline passes, or a signal arrives. The caller then repeats
    /// its attempt. Returns [`LinkError::Absent`] if the deadline had passed before the call.
    fn until(&self, what: PollFlags, deadline: Deadline) -> Result<(), LinkError> {
        if deadline.expired() {
            return Err(LinkError::Absent { places: vec![self.place], waited: deadline.waited() });
        }
        poll_all(&mut [PollFd::new(&self.socket, what)], deadline.remaining())?;
        Ok(())
    }
}

/// Returns true if the message contains `token`. The comparison takes the same time for every input, so that its
/// duration tells a sender nothing about the token.
pub(super) fn has_token(message: &Message, token: Token) -> bool {
    message.token.iter().zip(token).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

pub(super) fn new_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// The reason why no message was received.
pub(super) enum ReceiveError {
    /// Nothing has arrived yet.
    Nothing,
    /// The received bytes or descriptors are not a valid message. The text says what was found.
    Malformed(String),
    /// The connection failed.
    Broken(io::Error),
}

/// Receives the next message without waiting. Returns `None` if the other end is closed, or has sent an empty message
/// without descriptors. Closes all received descriptors that it does not return.
pub(super) fn receive_message(socket: &OwnedFd) -> Result<Option<Message>, ReceiveError> {
    let mut message = [0; MESSAGE_BYTES + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let got = loop {
        match recvmsg(socket.as_fd(), &mut [IoSliceMut::new(&mut message)], &mut control, flags) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Err(ReceiveError::Nothing),
            Err(error) => return Err(ReceiveError::Broken(error.into())),
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
    let malformed = || {
        let (bytes, count) = (got.bytes, attached.len());
        ReceiveError::Malformed(format!(
            "it sent {bytes} bytes with {count} descriptors; expected {MESSAGE_BYTES} with 1"
        ))
    };
    if got.bytes != MESSAGE_BYTES || attached.len() != 1 {
        return Err(malformed());
    }
    let parts = || {
        let (token, rest) = message[..MESSAGE_BYTES].split_first_chunk::<16>()?;
        let (tag, place) = rest.split_first_chunk::<4>()?;
        Some((*token, Tag(*tag), u64::from_le_bytes(<[u8; 8]>::try_from(place).ok()?)))
    };
    let (token, tag, place) = parts().ok_or_else(malformed)?;
    let descriptor = attached.pop().ok_or(ReceiveError::Nothing)?;
    Ok(Some(Message { token, tag, place, descriptor }))
}
