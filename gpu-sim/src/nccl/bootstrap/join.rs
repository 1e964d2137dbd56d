//! A rank's side of a bootstrap over the socket, and the messages of both sides.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::{IoSlice, IoSliceMut};
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType,
};

use super::{Hello, JoinError, MAGIC, UniqueId};
use crate::nccl::shm::Shared;

const HELLO_BYTES: usize = 48;
const REPLY_BYTES: usize = 1024;
const WELCOME: u8 = 1;
const REFUSAL: u8 = 2;

/// A connection to the root.
#[derive(Debug)]
pub(crate) struct Joining {
    socket: OwnedFd,
}

impl Joining {
    /// Connects to the root of an id.
    ///
    /// # Errors
    /// [`JoinError::NoRoot`] if no root listens.
    pub(crate) fn connect(id: UniqueId) -> Result<Self, JoinError> {
        let socket = seqpacket().map_err(|e| JoinError::System("socket", e))?;
        let address = address(id).map_err(|e| JoinError::System("socket address", e))?;
        net::connect(&socket, &address).map_err(|e| JoinError::NoRoot(e.into()))?;
        Ok(Self { socket })
    }

    /// Sends this rank's hello and waits until all ranks have joined.
    ///
    /// # Errors
    /// [`JoinError::Refused`] when the members disagree, [`JoinError::Lost`] when the root dies or
    /// [`Joining::cancel`] is called.
    pub(crate) fn finish(&self, hello: Hello) -> Result<Shared, JoinError> {
        let Hello { rank, size, .. } = hello;
        let lost = || JoinError::Lost { rank, size };
        net::send(&self.socket, &encode(&hello), SendFlags::NOSIGNAL).map_err(|_| lost())?;
        let mut reply = [0; REPLY_BYTES];
        let (len, fd) = receive(self.socket.as_fd(), &mut reply).map_err(|_| lost())?;
        match (reply[..len].first(), fd) {
            (Some(&WELCOME), Some(fd)) => Shared::open(&fd, size).map_err(|e| JoinError::System("mmap", e)),
            (Some(&REFUSAL), _) => {
                Err(JoinError::Refused(String::from_utf8_lossy(&reply[1..len]).into_owned()))
            }
            _ => Err(lost()),
        }
    }

    /// Makes a [`Joining::finish`] on another thread return.
    pub(crate) fn cancel(&self) {
        // Fails only if the root has hung up already, which ends the wait too.
        let _ = net::shutdown(&self.socket, Shutdown::Both);
    }
}

pub(super) fn seqpacket() -> io::Result<OwnedFd> {
    Ok(net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

pub(super) fn address(id: UniqueId) -> io::Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new_abstract_name(id.socket_name().as_bytes())?)
}

fn encode(hello: &Hello) -> [u8; HELLO_BYTES] {
    let words = [
        u64::from_le_bytes(MAGIC),
        hello.rank as u64,
        hello.size as u64,
        u64::from(hello.pid),
        u64::from(hello.release),
        u64::from(hello.faithful),
    ];
    let mut bytes = [0; HELLO_BYTES];
    for (chunk, word) in bytes.chunks_exact_mut(8).zip(words) {
        chunk.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// Reads the hello of a connection; `None` for any other message.
pub(super) fn read_hello(socket: BorrowedFd<'_>) -> Option<Hello> {
    let mut bytes = [0; HELLO_BYTES + 1];
    let (len, _) = net::recv(socket, &mut bytes, RecvFlags::DONTWAIT).ok()?;
    if len != HELLO_BYTES {
        return None;
    }
    let word = |i: usize| u64::from_le_bytes(std::array::from_fn(|k| bytes[8 * i + k]));
    (word(0) == u64::from_le_bytes(MAGIC)).then_some(())?;
    Some(Hello {
        rank: word(1).try_into().ok()?,
        size: word(2).try_into().ok()?,
        pid: word(3).try_into().ok()?,
        release: word(4).try_into().ok()?,
        faithful: word(5) != 0,
    })
}

/// Sends a member the communicator's memory. If the member has ended already, the others will notice its absence.
pub(super) fn welcome(socket: BorrowedFd<'_>, memory: BorrowedFd<'_>) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [memory];
    control.push(SendAncillaryMessage::ScmRights(&fds));
    let _ = net::sendmsg(socket, &[IoSlice::new(&[WELCOME])], &mut control, SendFlags::NOSIGNAL);
}

/// Sends a member the reason why there is no communicator.
pub(super) fn refuse(socket: BorrowedFd<'_>, text: &str) {
    let mut message = vec![REFUSAL];
    message.extend(text.as_bytes().iter().take(REPLY_BYTES - 1));
    let _ = net::send(socket, &message, SendFlags::NOSIGNAL);
}

fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message = loop {
        let mut parts = [IoSliceMut::new(bytes)];
        match net::recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => continue,
            other => break other?,
        }
    };
    let mut fd = None;
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut fds) = part {
            fd = fds.next();
        }
    }
    Ok((message.bytes, fd))
}
