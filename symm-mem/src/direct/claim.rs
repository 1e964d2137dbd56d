//! Claims decide which of the two ends of a message, its sender or its receiver, comes first.
//!
//! Each end first writes an entry for the message into its log, which the other end can read. Then it claims the
//! message by a compare-exchange on a word that both ends share. With its claim, the end that comes first also *offers*
//! its buffer, if the buffer lies in a pool segment that all members have mapped. The end that comes second compares
//! the other end's entry with its own. Then it *takes* the offer, if there is one: it will copy the message between the
//! two buffers.
//!
//! A launch is the work for the messages of one call. After an abort or a failed launch, a receiver withdraws its
//! offers that the sender has not taken, except those of captured messages. Except in one rare case (see the comment in
//! [`take`]), no offer is both taken and withdrawn. So the sender does not copy into a buffer whose offer was
//! withdrawn. A sender does not withdraw its offers, because the receiver only reads the offered buffer.

use std::{
    hint,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use process_group::group::path::Way;

// States of a claim.
const SENDER_FIRST: u64 = 0;
const RECEIVER_FIRST: u64 = 1;
/// The second end has taken the offer.
const TAKEN: u64 = 2;
/// The receiver came first, and has withdrawn its offer.
const WITHDRAWN: u64 = 3;

/// Returns the value of the shared word for a message in a state. The lower two bits are the state, and the upper bits
/// the number of the message plus one. The number is needed because later messages reuse the word. It is increased by
/// one because the word is 0 before its first use.
fn word(number: u64, state: u64) -> u64 {
    (number + 1) << 2 | state
}

/// Claims message `number` for its sender or its receiver, as `way` says. Returns true if this end comes first, and
/// false if the other end came first. Each end calls this function once for each message.
pub(super) fn claim(shared: &AtomicU64, number: u64, way: Way) -> bool {
    let own = match way {
        Way::Send => SENDER_FIRST,
        Way::Receive => RECEIVER_FIRST,
    };
    let claimed = shared.fetch_update(Ordering::AcqRel, Ordering::Acquire, |current| {
        (current >> 2 != number + 1).then_some(word(number, own))
    });
    claimed.is_ok()
}

/// Spins until an end has claimed message `number` or `is_over` returns true, but for at most `limit`.
pub(super) fn await_claim(shared: &AtomicU64, number: u64, limit: Duration, is_over: impl Fn() -> bool) {
    let begun = Instant::now();
    while shared.load(Ordering::Acquire) >> 2 != number + 1 && !is_over() && begun.elapsed() < limit {
        hint::spin_loop();
    }
}

/// Takes the other end's offer of message `number`. Returns false if the offer was withdrawn.
pub(super) fn take(shared: &AtomicU64, number: u64) -> bool {
    let offers = [word(number, SENDER_FIRST), word(number, RECEIVER_FIRST)];
    let taken = shared.fetch_update(Ordering::AcqRel, Ordering::Acquire, |current| {
        offers.contains(&current).then_some(word(number, TAKEN))
    });
    // Message n + 1024 of a direction shares this word with message n, and may have overwritten it. A launch claims all
    // its messages before it takes the first offer. Meanwhile the other end may claim up to 512 messages beyond them.
    // So only a launch of more than 512 messages can find an overwritten word.
    //
    // If the word was overwritten, this function returns true and `withdraw` returns false, so both ends treat the
    // offer as taken. Exception: if the receiver had withdrawn the offer before the word was overwritten, the sender
    // copies although the receiver may reuse the buffer. Nothing prevents this, but it is rare: the receiver begins no
    // new claims after it has withdrawn an offer. So only the sender, or a claim that the receiver had begun before,
    // can overwrite `WITHDRAWN`.
    taken.map_or_else(|current| current != word(number, WITHDRAWN), |_| true)
}

/// Withdraws this end's offer to receive message `number`. Returns true if this call or an earlier one has withdrawn
/// the offer. Returns false if the sender has taken it, or if the word holds no offer to receive this message.
pub(super) fn withdraw(shared: &AtomicU64, number: u64) -> bool {
    let (offered, withdrawn) = (word(number, RECEIVER_FIRST), word(number, WITHDRAWN));
    match shared.compare_exchange(offered, withdrawn, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => true,
        Err(current) => current == withdrawn,
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Barrier, thread};

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// One end is first, and its offer is taken or withdrawn. An earlier message may have left any state in the
        /// word.
        #[test]
        fn one_end_is_first(laps in 0u64..5, before in 0u64..4, sender_first: bool, withdraws: bool) {
            let number = laps * 1024;
            let shared = AtomicU64::new(if laps == 0 { 0 } else { word(number - 1024, before) });
            let ways = if sender_first { [Way::Send, Way::Receive] } else { [Way::Receive, Way::Send] };
            prop_assert!(claim(&shared, number, ways[0]));
            let withdrawn = withdraws && withdraw(&shared, number);
            prop_assert_eq!(withdrawn, withdraws && !sender_first);
            prop_assert!(!claim(&shared, number, ways[1]));
            prop_assert_eq!(take(&shared, number), !withdrawn);
            prop_assert_eq!(withdraw(&shared, number), withdrawn, "a decision stays");
        }
    }

    #[test]
    fn an_offer_is_taken_or_withdrawn() {
        for number in 0..2000 {
            let shared = AtomicU64::new(0);
            assert!(claim(&shared, number, Way::Receive));
            let begin = Barrier::new(2);
            let [taken, withdrawn] = thread::scope(|scope| {
                let taken = scope.spawn(|| {
                    begin.wait();
                    take(&shared, number)
                });
                begin.wait();
                let withdrawn = withdraw(&shared, number);
                [taken.join().unwrap(), withdrawn]
            });
            assert_ne!(taken, withdrawn, "message {number}");
        }
    }

    #[test]
    fn a_sender_that_waits_comes_second() {
        const LONG: Duration = Duration::from_secs(60);
        for number in 0..200 {
            let shared = AtomicU64::new(0);
            let begin = Barrier::new(2);
            thread::scope(|scope| {
                scope.spawn(|| {
                    begin.wait();
                    assert!(claim(&shared, number, Way::Receive));
                });
                begin.wait();
                await_claim(&shared, number, LONG, || false);
                assert!(!claim(&shared, number, Way::Send));
            });
        }
    }

    #[test]
    fn a_sender_that_waits_in_vain_comes_first() {
        for (limit, ends) in [(Duration::from_millis(1), false), (Duration::MAX, true)] {
            let shared = AtomicU64::new(word(3, TAKEN));
            await_claim(&shared, 1027, limit, || ends);
            assert!(claim(&shared, 1027, Way::Send));
        }
    }

    #[test]
    fn two_ends_at_once_have_one_first_and_see_each_other() {
        const MESSAGES: usize = 2000;
        let shared: Vec<_> = (0..MESSAGES).map(|_| AtomicU64::new(0)).collect();
        let entries: [Vec<AtomicU64>; 2] =
            std::array::from_fn(|_| (0..MESSAGES).map(|_| AtomicU64::new(0)).collect());
        let begin = Barrier::new(2);
        let end = |at: usize| {
            let mut firsts = Vec::new();
            for (number, shared) in shared.iter().enumerate() {
                begin.wait();
                entries[at][number].store(number as u64 + 1, Ordering::Relaxed);
                let is_first = claim(shared, number as u64, [Way::Send, Way::Receive][at]);
                if !is_first {
                    assert_eq!(entries[1 - at][number].load(Ordering::Relaxed), number as u64 + 1);
                }
                firsts.push(is_first);
            }
            firsts
        };
        let [sender, receiver] = thread::scope(|scope| {
            [scope.spawn(|| end(0)), scope.spawn(|| end(1))].map(|thread| thread.join().unwrap())
        });
        assert!(sender.iter().zip(&receiver).all(|(sender, receiver)| sender != receiver));
    }
}
