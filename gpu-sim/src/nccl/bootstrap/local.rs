//! Bootstraps inside one thread: in a seeded world ranks are actors, and no wait may block in the operating system.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::roster::{Joined, Roster};
use super::{Hello, JoinError, UniqueId};
use crate::nccl::shm::Shared;

/// The bootstraps of a seeded world.
#[derive(Debug, Default)]
pub(crate) struct Meetings {
    open: Mutex<HashMap<UniqueId, Arc<Mutex<Meeting>>>>,
    made: Mutex<u64>,
}

#[derive(Debug, Default)]
struct Meeting {
    roster: Roster,
    memory: Option<Arc<Shared>>,
    failure: Option<String>,
}

impl Meetings {
    /// Opens a bootstrap under the next id.
    pub(crate) fn open(&self) -> UniqueId {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        *made += 1;
        let id = UniqueId::numbered(*made);
        self.open.lock().unwrap_or_else(PoisonError::into_inner).insert(id, Arc::default());
        id
    }

    /// Joins a bootstrap and waits, by `wait`, until all ranks have joined.
    ///
    /// # Errors
    /// The same as over a socket; [`JoinError::Lost`] if `wait` returns false to give up.
    pub(crate) fn join(
        &self,
        id: UniqueId,
        hello: Hello,
        wait: impl FnOnce(&mut dyn FnMut() -> bool) -> bool,
    ) -> Result<Arc<Shared>, JoinError> {
        let lock = |meeting: &Mutex<Meeting>| -> (Option<Arc<Shared>>, Option<String>) {
            let meeting = meeting.lock().unwrap_or_else(PoisonError::into_inner);
            (meeting.memory.clone(), meeting.failure.clone())
        };
        let meeting = self.open.lock().unwrap_or_else(PoisonError::into_inner).get(&id).cloned();
        let meeting =
            meeting.ok_or_else(|| JoinError::NoRoot(std::io::ErrorKind::ConnectionRefused.into()))?;
        {
            let mut meeting = meeting.lock().unwrap_or_else(PoisonError::into_inner);
            match meeting.roster.join(hello) {
                Joined::Wait => {}
                Joined::Refused(text) => meeting.failure = Some(text),
                Joined::Complete => {
                    let made = Shared::create(hello.size, id.hash());
                    let (_, memory) = made.map_err(|e| JoinError::System("memfd", e))?;
                    meeting.memory = Some(Arc::new(memory));
                    self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
                }
            }
        }
        let arrived = wait(&mut || {
            let (memory, failure) = lock(&meeting);
            memory.is_some() || failure.is_some()
        });
        match lock(&meeting) {
            (Some(memory), _) => Ok(memory),
            (None, Some(text)) => Err(JoinError::Refused(text)),
            (None, None) => {
                debug_assert!(!arrived, "the wait ended although nothing had happened");
                meeting.lock().unwrap_or_else(PoisonError::into_inner).roster.leave(hello.rank);
                Err(JoinError::Lost { rank: hello.rank, size: hello.size })
            }
        }
    }
}
