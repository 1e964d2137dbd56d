//! Communication between the ranks of a communicator: exchange of cards, and barriers.

use std::sync::atomic::Ordering;

use super::comm::Comm;
use super::error::Interrupted;
use super::shm::{CARD_WORDS, Plane, RankMessage};

impl Comm {
    /// Sends `card` to all ranks and returns all ranks' cards, by rank.
    ///
    /// There are two slots for cards. The cards of a phase stay until a rank enters the phase after the next; by then
    /// every rank has arrived at the next phase and so has read them. No card is overwritten while it is read.
    pub(crate) fn exchange(
        &self,
        plane: Plane,
        what: &str,
        card: &RankMessage,
    ) -> Result<Vec<RankMessage>, Interrupted> {
        let shared = self.shared();
        let layout = shared.layout();
        let phase = self.phase(plane) + 1;
        let own = layout.card(plane, self.rank, phase);
        for (i, word) in card.iter().enumerate() {
            shared.word(own + 8 * i).store(*word, Ordering::Relaxed);
        }
        self.arrive(plane, phase);
        self.await_all(plane, phase, what)?;
        Ok((0..self.size)
            .map(|rank| {
                let at = layout.card(plane, rank, phase);
                let mut card = [0; CARD_WORDS];
                for (i, word) in card.iter_mut().enumerate() {
                    *word = shared.word(at + 8 * i).load(Ordering::Relaxed);
                }
                card
            })
            .collect())
    }

    /// Waits until every rank has arrived.
    pub(crate) fn barrier(&self, plane: Plane, what: &str) -> Result<(), Interrupted> {
        let phase = self.phase(plane) + 1;
        self.arrive(plane, phase);
        self.await_all(plane, phase, what)
    }

    fn phase(&self, plane: Plane) -> u64 {
        let shared = self.shared();
        shared.word(shared.layout().phase(plane, self.rank)).load(Ordering::Relaxed)
    }

    /// Only the last to arrive wakes the others. Stores and loads are sequentially consistent, so among ranks that
    /// arrive at the same time at least one sees that all have arrived.
    fn arrive(&self, plane: Plane, phase: u64) {
        let shared = self.shared();
        shared.word(shared.layout().phase(plane, self.rank)).store(phase, Ordering::SeqCst);
        if self.missing(plane, phase).is_none() {
            shared.signal().notify();
        }
    }

    /// Returns the first rank that has not arrived at a phase.
    fn missing(&self, plane: Plane, phase: u64) -> Option<usize> {
        let shared = self.shared();
        let layout = shared.layout();
        (0..self.size).find(|&rank| shared.word(layout.phase(plane, rank)).load(Ordering::SeqCst) < phase)
    }

    fn await_all(&self, plane: Plane, phase: u64, what: &str) -> Result<(), Interrupted> {
        let mut gone = None;
        self.wait(
            plane,
            || {
                let shared = self.shared();
                let word = |rank| shared.word(shared.layout().phase(plane, rank));
                let absent: Vec<usize> =
                    (0..self.size).filter(|&rank| word(rank).load(Ordering::SeqCst) < phase).collect();
                format!("ranks {absent:?} to come to {what} of {self}")
            },
            || {
                let missing = self.missing(plane, phase);
                // A rank may arrive and leave after the check above, so check again: a rank that has left never
                // arrives later.
                gone =
                    missing.filter(|&rank| self.has_departed(rank) && self.missing(plane, phase) == missing);
                missing.is_none() || gone.is_some()
            },
        )?;
        gone.map_or(Ok(()), |rank| Err(Interrupted::Departed(rank)))
    }
}

/// Finds a rank whose card differs from the majority. Returns that rank, and one rank of the majority.
pub(crate) fn find_minority(cards: &[RankMessage]) -> Option<(usize, usize)> {
    let like = |card: &RankMessage| cards.iter().filter(|other| *other == card).count();
    let (usual, card) =
        cards.iter().enumerate().max_by_key(|(rank, card)| (like(card), usize::MAX - rank))?;
    let odd = cards.iter().position(|other| other != card)?;
    Some((odd, usual))
}
