//! The listening socket of a process.

use std::{io, os::fd::OwnedFd};

use rustix::{
    event::{PollFd, PollFlags},
    net::{SocketFlags, accept_with, bind, listen, sockopt::socket_peercred},
    process::geteuid,
};

use super::{
    LocalError, Word,
    folder::Folder,
    fresh_word,
    link::{Heard, hear, knows, new_socket},
    poll_all,
};
use crate::store::Deadline;

/// Maximum number of connections that have not identified themselves.
const STRANGERS: usize = 64;

/// A listening socket in a folder that only its user can enter. Both are removed when this value is dropped.
pub struct Door {
    path: String,
    pub(super) word: Word,
    socket: OwnedFd,
    /// Dropped after the socket: a peer that finds no folder knows that the process no longer listens.
    _folder: Folder,
}

impl Door {
    /// Makes a listening socket. No other process knows it yet.
    ///
    /// # Errors
    /// [`LocalError::Folder`] if the folder cannot be made; [`LocalError::System`].
    pub fn open() -> Result<Self, LocalError> {
        let folder = Folder::create()?;
        let path = folder.socket();
        let socket =
            listening(&folder).map_err(|source| LocalError::Folder { path: path.clone(), source })?;
        Ok(Self { path: path.to_string_lossy().into_owned(), word: fresh_word()?, socket, _folder: folder })
    }

    /// Returns the endpoint that peers need to connect: token and path. Publish it only in a store that only members
    /// read.
    #[must_use]
    pub fn card(&self) -> Vec<u8> {
        [&self.word[..], self.path.as_bytes()].concat()
    }
}

impl std::fmt::Debug for Door {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The token is a secret.
        write!(f, "Door({})", self.path)
    }
}

fn listening(folder: &Folder) -> io::Result<OwnedFd> {
    let socket = new_socket()?;
    bind(&socket, &folder.address()?)?;
    listen(&socket, 128)?;
    Ok(socket)
}

/// Accepted connections that have not sent a valid message yet.
#[derive(Default)]
pub(super) struct Strangers(Vec<OwnedFd>);

impl Strangers {
    /// Waits for a connection that knows the token, and returns it with its first message; `None` past the deadline.
    /// Other connections are closed, and so is the oldest if there are too many.
    pub(super) fn next(
        &mut self,
        door: &Door,
        deadline: Deadline,
    ) -> Result<Option<(OwnedFd, Heard)>, LocalError> {
        loop {
            let ready = self.ready(door, deadline)?;
            if ready.is_empty() && deadline.expired() {
                return Ok(None);
            }
            // From the last to the first, so that a removal does not shift indices that are still needed.
            for at in ready.into_iter().rev() {
                let Some(stranger) = at.checked_sub(1) else {
                    self.let_in(door);
                    continue;
                };
                let socket = self.0.remove(stranger);
                match hear(&socket) {
                    Ok(Some(heard)) if knows(&heard, door.word) => return Ok(Some((socket, heard))),
                    _ => {}
                }
            }
        }
    }

    fn let_in(&mut self, door: &Door) {
        if let Ok(socket) = accept_with(&door.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
            && socket_peercred(&socket).is_ok_and(|who| who.uid == geteuid())
        {
            if self.0.len() == STRANGERS {
                self.0.remove(0);
            }
            self.0.push(socket);
        }
    }

    /// Returns the readable sockets: 0 is the listening socket, the others follow.
    fn ready(&self, door: &Door, deadline: Deadline) -> io::Result<Vec<usize>> {
        let all = std::iter::once(&door.socket).chain(&self.0);
        let mut all: Vec<_> = all.map(|socket| PollFd::new(socket, PollFlags::IN)).collect();
        poll_all(&mut all, deadline.remaining())?;
        Ok((0..all.len()).filter(|at| !all[*at].revents().is_empty()).collect())
    }
}
