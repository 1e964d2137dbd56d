//! The root of a bootstrap: a thread that collects the ranks and sends them the shared memory.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::net;

use super::join::{address, read_hello, refuse, seqpacket, welcome};
use super::roster::{Joined, Roster};
use super::{Hello, UniqueId};
use crate::nccl::shm::Shared;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;

/// A running root; it ends when its bootstrap ends, or when this is dropped.
#[derive(Debug)]
pub(crate) struct Root {
    pub(crate) id: UniqueId,
    /// Owned by the bootstrap; a weak reference, so this keeps nothing of a finished bootstrap.
    stop: Weak<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Root {
    /// Listens under the id.
    ///
    /// # Errors
    /// The operating system's error if it cannot create the socket or the thread.
    pub(crate) fn start(id: UniqueId) -> io::Result<Self> {
        let listener = seqpacket()?;
        net::bind(&listener, &address(id)?)?;
        net::listen(&listener, BACKLOG)?;
        let stop = Arc::new(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let told = Arc::downgrade(&stop);
        let meeting = Meeting { id, listener, stop, callers: Vec::new(), roster: Roster::default() };
        let thread = std::thread::Builder::new().name("nccl-root".into()).spawn(move || meeting.run())?;
        Ok(Self { id, stop: told, thread: Some(thread) })
    }

    /// True if the bootstrap has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.upgrade() {
            // The counter cannot overflow from one write.
            let _ = rustix::io::write(&*stop, &1u64.to_ne_bytes());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Caller {
    socket: OwnedFd,
    hello: Option<Hello>,
}

struct Meeting {
    id: UniqueId,
    listener: OwnedFd,
    stop: Arc<OwnedFd>,
    callers: Vec<Caller>,
    roster: Roster,
}

impl Meeting {
    fn run(mut self) {
        let mut refused = 0;
        let mut expected = usize::MAX;
        // After a failure, stay for ranks that have not joined yet: they get the same error.
        while self.roster.failure().is_none() || refused < expected {
            let Some(ready) = self.wait() else { return };
            for index in ready.into_iter().rev() {
                let Some(hello) = self.hear(index) else { continue };
                if !self.forget_gone(index) {
                    continue;
                }
                match self.roster.join(hello) {
                    Joined::Wait => {}
                    Joined::Complete => return self.complete(hello.size),
                    Joined::Refused(text) => {
                        expected = hello.size.max(self.callers.iter().filter(|c| c.hello.is_some()).count());
                        for caller in self.callers.extract_if(.., |caller| caller.hello.is_some()) {
                            refuse(caller.socket.as_fd(), &text);
                            refused += 1;
                        }
                        break;
                    }
                }
            }
        }
    }

    /// Waits for connections and messages. Returns the indices of callers with a message, or `None` when told to
    /// stop.
    fn wait(&mut self) -> Option<Vec<usize>> {
        let mut polled =
            vec![PollFd::new(&*self.stop, PollFlags::IN), PollFd::new(&self.listener, PollFlags::IN)];
        polled.extend(self.callers.iter().map(|caller| PollFd::new(&caller.socket, PollFlags::IN)));
        match rustix::event::poll(&mut polled, None) {
            Err(rustix::io::Errno::INTR) => return Some(Vec::new()),
            Err(_) => return None,
            Ok(_) => {}
        }
        let ready: Vec<bool> = polled.iter().map(|fd| !fd.revents().is_empty()).collect();
        if ready[0] {
            return None;
        }
        let accept = || net::accept_with(&self.listener, net::SocketFlags::CLOEXEC);
        if ready[1]
            && let Ok(socket) = accept()
            && net::sockopt::socket_peercred(&socket).is_ok_and(|peer| peer.uid == rustix::process::getuid())
        {
            self.callers.push(Caller { socket, hello: None });
        }
        Some((2..ready.len()).filter(|&i| ready[i]).map(|i| i - 2).collect())
    }

    /// Reads a caller's message: its hello, or the end of its connection.
    fn hear(&mut self, index: usize) -> Option<Hello> {
        let caller = &mut self.callers[index];
        let known = caller.hello;
        let heard = if known.is_none() { read_hello(caller.socket.as_fd()) } else { None };
        if heard.is_some() {
            caller.hello = heard;
        } else {
            self.callers.remove(index);
            if let Some(gone) = known {
                self.roster.leave(gone.rank);
            }
        }
        heard
    }

    /// Frees the ranks of callers that have hung up, so that others can join with these ranks. The hang-up may not
    /// have been read yet. Returns true if the caller at `newest`, which has no rank yet, is still connected.
    fn forget_gone(&mut self, newest: usize) -> bool {
        for (index, caller) in self.callers.iter_mut().enumerate() {
            if caller.hello.is_some()
                && has_hung_up(&caller.socket)
                && let Some(gone) = caller.hello.take()
                && index != newest
            {
                self.roster.leave(gone.rank);
            }
        }
        self.callers[newest].hello.is_some()
    }

    fn complete(self, size: usize) {
        // An id serves once: stop listening before any rank continues.
        drop(self.listener);
        let members = self.callers.iter().filter(|caller| caller.hello.is_some());
        match Shared::create(size, self.id.hash()) {
            Ok((memory, _mapping)) => {
                members.for_each(|caller| welcome(caller.socket.as_fd(), memory.as_fd()));
            }
            Err(error) => {
                let text =
                    format!("the root could not make the memory of a communicator of {size} ranks: {error}");
                members.for_each(|caller| refuse(caller.socket.as_fd(), &text));
            }
        }
    }
}

fn has_hung_up(socket: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(socket, PollFlags::empty())];
    rustix::event::poll(&mut polled, Some(&Timespec::default())).is_ok()
        && polled[0].revents().contains(PollFlags::HUP)
}
