//! The store of a rank, which a fault makes silent or lets fail.

use std::{
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU8, Ordering::SeqCst},
    },
    time::Duration,
};

use bootstrap::runtime::{self, Event};
use process_group::store::{
    Deadline, HashStore, Store, StoreError,
    machine::{Reply, Request},
};

use super::plan::Random;

type Result<T> = std::result::Result<T, StoreError>;

/// How the store answers a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Answers {
    Always,
    /// Calls block, and fail after a minute: the process of the rank is gone, or its host is cut off.
    Never,
    /// Calls fail.
    WithErrors,
}

/// The store of one rank. Every call takes up to a millisecond.
pub(super) struct RankStore {
    inner: HashStore,
    answers: AtomicU8,
    changed: Event,
    random: Mutex<Random>,
}

impl RankStore {
    pub(super) fn new(inner: &HashStore, random: Random) -> Arc<Self> {
        Arc::new(Self {
            inner: inner.clone(),
            answers: AtomicU8::new(Answers::Always as u8),
            changed: Event::new("an answer of a store that is silent"),
            random: Mutex::new(random),
        })
    }

    pub(super) fn set(&self, answers: Answers) {
        self.answers.store(answers as u8, SeqCst);
        self.changed.notify_all();
    }

    fn ready(&self) -> Result<()> {
        let deadline = Deadline::after(Duration::from_secs(60));
        loop {
            let seen = self.changed.count();
            let answers = self.answers.load(SeqCst);
            if answers == Answers::Always as u8 {
                return Ok(());
            }
            let is_blocked = answers == Answers::Never as u8 && !deadline.expired();
            if !is_blocked || !runtime::wait(&self.changed, seen, deadline.remaining()) {
                return Err(StoreError::HostDied {
                    address: "a test".into(),
                    operation: "a call".into(),
                    source: Arc::new(io::ErrorKind::ConnectionReset.into()),
                });
            }
        }
    }

    fn answer<T>(&self, call: impl FnOnce(&HashStore) -> Result<T>) -> Result<T> {
        self.ready()?;
        let time = self.random.lock().unwrap().below(1000);
        runtime::sleep(Duration::from_micros(time));
        let result = call(&self.inner);
        self.ready()?;
        result
    }
}

impl Store for RankStore {
    fn call(&self, request: Request) -> Result<Option<Reply>> {
        self.answer(|store| store.call(request))
    }

    fn call_when_there(
        &self,
        keys: Vec<Vec<u8>>,
        request: Option<Request>,
        deadline: Deadline,
    ) -> Result<Option<Reply>> {
        self.answer(|store| store.call_when_there(keys, request, deadline))
    }
}
