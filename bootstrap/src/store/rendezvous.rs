//! Meetings of all ranks, each under a name. If some ranks do not arrive, all ranks that arrived get the same list of
//! missing ranks.
//!
//! Each rank has its own deadline. If each rank decided alone, one could fail while another succeeds. So the store
//! keeps one outcome, which is set by compare-and-set: the first proposal stays, and all ranks follow it. The last rank
//! to arrive proposes success. A rank whose deadline passes proposes the list of missing ranks, or success if none is
//! missing. If a process arrives as a rank that has already arrived, it proposes failure, and fails even if the stored
//! outcome is success.

use std::time::Duration;

use super::{Deadline, Result, Store, StoreError, publish};

/// Waits until all ranks of a job, 0 to `world` - 1, have arrived at the meeting `name`. Publishes this rank's `card`
/// (an address, a device, any small value) and returns the cards of all ranks, in the order of ranks. The earliest
/// deadline of the ranks that have arrived applies to all. If the meeting fails, may block for up to 3 s more, until
/// the others have read the outcome.
///
/// Use a name for one meeting only. The meeting uses the keys that begin with `name` and `/`.
///
/// ```
/// use bootstrap::store::{Deadline, HashStore, rendezvous};
/// use std::{thread, time::Duration};
///
/// let store = HashStore::new();
/// let deadline = Deadline::after(Duration::from_secs(30));
/// let other = store.clone();
/// let rank1 = thread::spawn(move || rendezvous(&other, "start", 1, 2, b"gpu 1", deadline));
/// assert_eq!(rendezvous(&store, "start", 0, 2, b"gpu 0", deadline).unwrap(), [b"gpu 0", b"gpu 1"]);
/// assert!(rank1.join().unwrap().is_ok());
/// ```
///
/// # Errors
/// - [`StoreError::Absent`] if ranks did not arrive. Every rank that arrived gets the same list of the missing ranks. A
///   missing rank that arrives too late gets it too. If the ranks expect different world sizes, a rank may get a list
///   of its own: the ranks whose cards were missing at its deadline.
/// - [`StoreError::RankTaken`] if two processes use one rank. If the meeting has no outcome yet when the second one
///   arrives, every rank that arrived gets this error. Otherwise only the second process gets it.
/// - [`StoreError::Argument`] if `rank` is not below `world`, or if the stored outcome was not written by a meeting or
///   lists more than `world` ranks, because the ranks expect different world sizes.
/// - [`StoreError::Taken`] if another process has written to the key of this rank's card.
/// - The errors of the store's operations.
pub fn rendezvous(
    store: &dyn Store,
    name: &str,
    rank: usize,
    world: usize,
    card: &[u8],
    deadline: Deadline,
) -> Result<Vec<Vec<u8>>> {
    let meeting = Meeting { store, name, rank, world, deadline };
    meeting.arrive(card)?;
    meeting.outcome()?;
    let cards: Vec<_> = (0..world).map(|rank| meeting.card(rank)).collect();
    match store.multi_get(&cards.iter().map(String::as_str).collect::<Vec<_>>(), deadline) {
        // Cards are missing although the meeting is complete: the ranks have different world sizes.
        Err(StoreError::Timeout { waited, .. }) => {
            Err(StoreError::Absent { ranks: meeting.without_card()?, world, at: name.to_owned(), waited })
        }
        cards => cards,
    }
}

/// Waits until all ranks have arrived at the meeting `name`, like a [`rendezvous`] with empty cards. Returns no cards.
///
/// # Errors
/// Those of [`rendezvous`].
pub fn barrier(store: &dyn Store, name: &str, rank: usize, world: usize, deadline: Deadline) -> Result<()> {
    let meeting = Meeting { store, name, rank, world, deadline };
    meeting.arrive(b"")?;
    meeting.outcome()
}

/// The longest time that a rank waits, after a failed meeting, until the others have read the outcome. Its process may
/// host the store, and the others could not read the outcome after the end of the process.
const STAY_LIMIT: Duration = Duration::from_secs(3);

/// The outcome of a meeting at which all ranks arrived.
const COMPLETE: &[u8] = b"complete";
/// The prefix of the outcome of a meeting with missing ranks. The ranks follow, separated by commas.
const ABSENT: &str = "absent ";
/// The prefix of the outcome of a meeting at which two processes arrived as one rank. The rank follows.
const TAKEN: &str = "taken ";

/// The arguments of [`rendezvous`] or [`barrier`], except the card.
struct Meeting<'a> {
    store: &'a dyn Store,
    name: &'a str,
    rank: usize,
    world: usize,
    deadline: Deadline,
}

impl Meeting<'_> {
    /// Returns the store's key of one item of this meeting. `what` names the item, for example `outcome`.
    fn key(&self, what: &str) -> String {
        format!("{}/{what}", self.name)
    }

    /// Returns the store's key for the card of `rank`.
    fn card(&self, rank: usize) -> String {
        format!("{}/card/{rank}", self.name)
    }

    /// Publishes this rank's card and counts the rank. The last rank to arrive writes the outcome, unless there is one
    /// already. Fails if a process has already arrived as this rank.
    fn arrive(&self, card: &[u8]) -> Result<()> {
        let (rank, world) = (self.rank, self.world);
        if rank >= world {
            return Err(StoreError::Argument(format!("rank {rank} is not below the world size {world}")));
        }
        if self.store.add(&format!("{}/rank/{rank}", self.name), 1)? != 1 {
            // Nothing tells which of the two processes should have this rank, so the meeting fails.
            self.decide(format!("{TAKEN}{rank}").as_bytes())?;
            return Err(self.taken(rank));
        }
        publish(self.store, &self.card(rank), card)?;
        let arrived = self.store.add(&self.key("arrived"), 1)?;
        if usize::try_from(arrived) == Ok(world) {
            self.decide(COMPLETE)?;
        }
        Ok(())
    }

    fn taken(&self, rank: usize) -> StoreError {
        StoreError::RankTaken { rank, at: self.name.to_owned() }
    }

    /// Writes the outcome, unless there is one already. Returns the outcome in the store.
    fn decide(&self, outcome: &[u8]) -> Result<Vec<u8>> {
        self.store.compare_set(&self.key("outcome"), b"", outcome)
    }

    /// Waits for the outcome until the deadline, and then proposes one. Returns `Ok` if all ranks arrived. If the
    /// meeting failed, waits until the others have read the outcome, for at most [`STAY_LIMIT`], and returns the error.
    fn outcome(&self) -> Result<()> {
        let outcome = match self.store.get(&self.key("outcome"), self.deadline) {
            Err(StoreError::Timeout { .. }) => self.decide(&self.opinion()?)?,
            outcome => outcome?,
        };
        if outcome == COMPLETE {
            return Ok(());
        }
        let taken = outcome.strip_prefix(TAKEN.as_bytes()).map(String::from_utf8_lossy);
        if let Some(rank) = taken.and_then(|rank| rank.parse().ok()) {
            self.part(self.world - self.without_card()?.len());
            return Err(self.taken(rank));
        }
        let ranks = self.absent(&outcome)?;
        let waited = self.deadline.waited();
        self.part(self.world - ranks.len());
        Err(StoreError::Absent { ranks, world: self.world, at: self.name.to_owned(), waited })
    }

    /// Returns the outcome that this rank proposes when its deadline has passed.
    fn opinion(&self) -> Result<Vec<u8>> {
        let absent: Vec<_> = self.without_card()?.iter().map(usize::to_string).collect();
        if absent.is_empty() {
            // All ranks have arrived. The last one is about to write the outcome, or has died before it could.
            Ok(COMPLETE.to_vec())
        } else {
            Ok(format!("{ABSENT}{}", absent.join(",")).into())
        }
    }

    /// Returns the ranks whose card is not in the store, in ascending order.
    fn without_card(&self) -> Result<Vec<usize>> {
        let mut absent = Vec::new();
        for rank in 0..self.world {
            if !self.store.check(&[&self.card(rank)])? {
                absent.push(rank);
            }
        }
        Ok(absent)
    }

    /// Returns the missing ranks that `outcome` lists. Fails if `outcome` is not such a list, or lists more than
    /// `world` ranks.
    fn absent(&self, outcome: &[u8]) -> Result<Vec<usize>> {
        std::str::from_utf8(outcome)
            .ok()
            .and_then(|text| text.strip_prefix(ABSENT))
            .and_then(|ranks| ranks.split(',').map(|rank| rank.parse().ok()).collect::<Option<Vec<usize>>>())
            .filter(|ranks| ranks.len() <= self.world)
            .ok_or_else(|| {
                let (key, found) = (self.key("outcome"), String::from_utf8_lossy(outcome));
                StoreError::Argument(format!("{key:?} holds {found:?}, which no rendezvous has written"))
            })
    }

    /// Counts this rank as one that has read the outcome. Then waits, for at most [`STAY_LIMIT`], until `present` ranks
    /// have read it. Errors are ignored, because the outcome is decided.
    fn part(&self, present: usize) {
        let all = self.key("told/all");
        let told = self.store.add(&self.key("told"), 1);
        if told.is_ok_and(|told| usize::try_from(told).is_ok_and(|told| told >= present)) {
            let _ = self.store.set(&all, b"");
        } else {
            let _ = self.store.wait(&[&all], Deadline::after(STAY_LIMIT));
        }
    }
}
