//! Meetings of all ranks, each under a name. If some ranks do not come, all others get the same list of them.
//!
//! Each rank has its own deadline: without further rules, one rank might give up on a meeting that another sees
//! succeed. So the outcome is written to the store once, by compare-and-set. The last rank to arrive writes it, or
//! the first rank whose deadline passes. All ranks follow the stored outcome.

use std::time::Duration;

use super::{Deadline, Result, Store, StoreError, publish};

/// Waits until all ranks of a job have come to the meeting `name`: ranks 0 to `world` - 1. Publishes this rank's
/// `card` (an address, a device, any small value) and returns the cards of all ranks, in the order of ranks. The
/// earliest of the ranks' deadlines applies to all. After a meeting that fails, blocks for up to 3 s more, until
/// the others have read the outcome.
///
/// Use a name for one meeting only.
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
/// - [`StoreError::Absent`] if ranks did not come. Every rank that came gets the same list, and so does a listed rank
///   that comes too late. If the world sizes of the ranks differ, each rank lists the cards that it misses.
/// - [`StoreError::RankTaken`] if two processes use one rank: on every rank that came, or only on the second
///   process if the meeting had its outcome already.
/// - [`StoreError::Argument`] if `rank` is not below `world`.
/// - Those of the store.
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

/// Waits until all ranks have come to the meeting `name`: [`rendezvous`] without cards.
///
/// # Errors
/// Those of [`rendezvous`].
pub fn barrier(store: &dyn Store, name: &str, rank: usize, world: usize, deadline: Deadline) -> Result<()> {
    let meeting = Meeting { store, name, rank, world, deadline };
    meeting.arrive(b"")?;
    meeting.outcome()
}

/// The longest time that a rank waits after a failed meeting until the others have read the outcome, because the
/// store may end with its process.
const FAREWELL: Duration = Duration::from_secs(3);

const COMPLETE: &[u8] = b"complete";
const ABSENT: &str = "absent ";
/// The prefix of the outcome of a meeting to which two processes came with one rank.
const TAKEN: &str = "taken ";

struct Meeting<'a> {
    store: &'a dyn Store,
    name: &'a str,
    rank: usize,
    world: usize,
    deadline: Deadline,
}

impl Meeting<'_> {
    fn key(&self, what: &str) -> String {
        format!("{}/{what}", self.name)
    }

    fn card(&self, rank: usize) -> String {
        format!("{}/card/{rank}", self.name)
    }

    fn arrive(&self, card: &[u8]) -> Result<()> {
        let (rank, world) = (self.rank, self.world);
        if rank >= world {
            return Err(StoreError::Argument(format!("rank {rank} is not below the world size {world}")));
        }
        if self.store.add(&format!("{}/rank/{rank}", self.name), 1)? != 1 {
            // It is not known which of the two processes is the right one, so the meeting fails.
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
            // All ranks have come. The last one is about to write the outcome, or has died before it could.
            Ok(COMPLETE.to_vec())
        } else {
            Ok(format!("{ABSENT}{}", absent.join(",")).into())
        }
    }

    /// Returns the ranks that have not come so far.
    fn without_card(&self) -> Result<Vec<usize>> {
        let mut absent = Vec::new();
        for rank in 0..self.world {
            if !self.store.check(&[&self.card(rank)])? {
                absent.push(rank);
            }
        }
        Ok(absent)
    }

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

    /// Waits until `present` ranks have read the outcome, for at most [`FAREWELL`]. Errors are ignored, because
    /// the outcome is decided.
    fn part(&self, present: usize) {
        let all = self.key("told/all");
        let told = self.store.add(&self.key("told"), 1);
        if told.is_ok_and(|told| usize::try_from(told).is_ok_and(|told| told >= present)) {
            let _ = self.store.set(&all, b"");
        } else {
            let _ = self.store.wait(&[&all], Deadline::after(FAREWELL));
        }
    }
}
