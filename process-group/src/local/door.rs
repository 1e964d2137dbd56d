//! Where a process can be visited.

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

/// Strangers that may be connected at one time without having said anything.
const STRANGERS: usize = 64;

/// Where a process listens: a socket in a folder that only its user can enter. Gone with this value.
pub struct Door {
    path: String,
    pub(super) word: Word,
    socket: OwnedFd,
    /// After the socket: who finds no folder knows that nobody listens any more.
    _folder: Folder,
}

impl Door {
    /// A new door, known to nobody yet.
    ///
    /// # Errors
    /// [`LocalError::Folder`] where no folder can be made; [`LocalError::System`].
    pub fn open() -> Result<Self, LocalError> {
        let folder = Folder::create()?;
        let path = folder.socket();
        let socket =
            listening(&folder).map_err(|source| LocalError::Folder { path: path.clone(), source })?;
        Ok(Self { path: path.to_string_lossy().into_owned(), word: fresh_word()?, socket, _folder: folder })
    }

    /// What visitors have to know: for the store, where only members read it.
    #[must_use]
    pub fn card(&self) -> Vec<u8> {
        [&self.word[..], self.path.as_bytes()].concat()
    }
}

impl std::fmt::Debug for Door {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the word.
        write!(f, "Door({})", self.path)
    }
}

fn listening(folder: &Folder) -> io::Result<OwnedFd> {
    let socket = new_socket()?;
    bind(&socket, &folder.address()?)?;
    listen(&socket, 128)?;
    Ok(socket)
}

/// Who stands before a door and has said nothing of use yet.
#[derive(Default)]
pub(super) struct Strangers(Vec<OwnedFd>);

impl Strangers {
    /// Waits for someone who knows the door's word, with the first thing that it said; `None` past the deadline.
    /// Others are sent away, the oldest of too many too.
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
            // From the last to the first: what is taken out does not move the others.
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

    /// Which can be read: 0 is the door, the others follow.
    fn ready(&self, door: &Door, deadline: Deadline) -> io::Result<Vec<usize>> {
        let all = std::iter::once(&door.socket).chain(&self.0);
        let mut all: Vec<_> = all.map(|socket| PollFd::new(socket, PollFlags::IN)).collect();
        poll_all(&mut all, deadline.remaining())?;
        Ok((0..all.len()).filter(|at| !all[*at].revents().is_empty()).collect())
    }
}
