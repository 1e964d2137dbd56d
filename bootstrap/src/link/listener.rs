//! The listening socket of a process.

use std::{io, os::fd::OwnedFd};

use rustix::{
    event::{PollFd, PollFlags},
    net::{SocketFlags, accept_with, bind, listen, sockopt::socket_peercred},
    process::geteuid,
};

use super::{
    LinkError, Token,
    connection::{Message, has_token, new_socket, receive_message},
    folder::Folder,
    poll_all,
};
use crate::{random::random, store::Deadline};

/// The maximum number of open connections that have sent nothing yet.
const MAX_UNIDENTIFIED: usize = 64;

/// A listening socket, in a folder that only its user can enter. The socket and its folder are removed when this value
/// is dropped.
pub struct Listener {
    /// The path of the socket.
    path: String,
    /// The secret in the endpoint. Every message to this process must contain it.
    pub(super) token: Token,
    socket: OwnedFd,
    /// Dropped after the socket, so that a missing folder means that the process no longer listens.
    _folder: Folder,
}

impl Listener {
    /// Makes a listening socket. Other processes can connect once they know its [endpoint](Self::endpoint). The
    /// first call in a process also [removes](super::sweep) the folders of killed processes.
    ///
    /// # Errors
    /// [`LinkError::Folder`] if the folder or the socket cannot be made; [`LinkError::System`] if the system has no
    /// random numbers.
    pub fn open() -> Result<Self, LinkError> {
        let folder = Folder::create()?;
        let path = folder.socket();
        let socket = listening(&folder).map_err(|source| LinkError::Folder { path: path.clone(), source })?;
        Ok(Self { path: path.to_string_lossy().into_owned(), token: random()?, socket, _folder: folder })
    }

    /// Returns the endpoint that peers need to connect: the 16 bytes of the token, then the path of the socket. The
    /// token is a secret. Publish the endpoint only in a store that only members read.
    #[must_use]
    pub fn endpoint(&self) -> Vec<u8> {
        [&self.token[..], self.path.as_bytes()].concat()
    }
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The token is a secret.
        write!(f, "Listener({})", self.path)
    }
}

fn listening(folder: &Folder) -> io::Result<OwnedFd> {
    let socket = new_socket()?;
    bind(&socket, &folder.address()?)?;
    listen(&socket, 128)?;
    Ok(socket)
}

/// Accepted connections that have sent nothing yet.
#[derive(Default)]
pub(super) struct Unidentified(Vec<OwnedFd>);

impl Unidentified {
    /// Waits for a connection whose first message has the listener's token, and returns the connection and the message.
    /// Returns `None` once the deadline has passed and the sockets that are readable have been served. Closes
    /// connections whose first message is anything else. Connections that have sent nothing stay open after the call,
    /// at most [`MAX_UNIDENTIFIED`] of them: a further one replaces the oldest.
    pub(super) fn next(
        &mut self,
        listener: &Listener,
        deadline: Deadline,
    ) -> Result<Option<(OwnedFd, Message)>, LinkError> {
        // After the deadline, readable sockets are still served, but only for this many rounds. So new connections
        // cannot prolong the call without end.
        let mut rounds = 2 * MAX_UNIDENTIFIED;
        loop {
            let ready = self.ready(listener, deadline)?;
            if deadline.expired() {
                if ready.is_empty() || rounds == 0 {
                    return Ok(None);
                }
                rounds -= 1;
            }
            // From the last to the first, so that a removal does not shift indices that are still needed.
            for at in ready.into_iter().rev() {
                let Some(other) = at.checked_sub(1) else {
                    self.accept(listener);
                    continue;
                };
                let socket = self.0.remove(other);
                match receive_message(&socket) {
                    Ok(Some(message)) if has_token(&message, listener.token) => {
                        return Ok(Some((socket, message)));
                    }
                    _ => {}
                }
            }
        }
    }

    /// Accepts one connection, if it can. Closes it at once if it is from another user.
    fn accept(&mut self, listener: &Listener) {
        if let Ok(socket) = accept_with(&listener.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
            && socket_peercred(&socket).is_ok_and(|who| who.uid == geteuid())
        {
            if self.0.len() == MAX_UNIDENTIFIED {
                self.0.remove(0);
            }
            self.0.push(socket);
        }
    }

    /// Waits until a socket is readable, at most until the deadline and at most an hour, and returns the indices of all
    /// readable ones. The listening socket has index 0, and the connections follow. Returns no index if the time ends
    /// or a signal arrives first. After the deadline, does not wait, but still returns what is readable.
    fn ready(&self, listener: &Listener, deadline: Deadline) -> io::Result<Vec<usize>> {
        let all = std::iter::once(&listener.socket).chain(&self.0);
        let mut all: Vec<_> = all.map(|socket| PollFd::new(socket, PollFlags::IN)).collect();
        poll_all(&mut all, deadline.remaining())?;
        Ok((0..all.len()).filter(|at| !all[*at].revents().is_empty()).collect())
    }
}
