//! The [zero-copy messages](super#zero-copy-messages) of a [lane](super::lane) that the sender copies into the
//! receiver's buffer. For such a message, the receiver has offered its buffer. The sender takes the offer before it
//! copies, unless the receiver withdraws the offer first ([claim](super::claim)). The receiver may reuse its buffer
//! once its abort has returned. So an abort first gives these copies time to complete, and then ends the waits of the
//! ranks' streams for each other. Messages that are not captured are *eager*.

use std::collections::VecDeque;

/// The messages of one lane that the sender copies into the receiver's buffer, and whose copies may not be complete
/// yet.
#[derive(Debug, Default)]
pub(super) struct Pushes {
    /// Numbers of the eager messages, ascending. A stream of this rank has *passed* a message once it has executed this
    /// rank's operations for the message. The next [`note`](Self::note) of an eager message removes passed messages.
    eager: VecDeque<u64>,
    /// Number of captured messages. They are not removed after a run, because their graphs may run again at any time.
    captured: usize,
}

impl Pushes {
    /// Notes message `number`. If the message is eager, also forgets the eager messages that this rank's streams have
    /// passed. `passed` is the result of [`FlagPage::passed`].
    ///
    /// [`FlagPage::passed`]: super::flag_page::FlagPage::passed
    pub(super) fn note(&mut self, number: u64, captured: bool, passed: u32) {
        if captured {
            self.captured += 1;
            return;
        }
        while self.eager.front().is_some_and(|first| is_passed(*first, passed)) {
            self.eager.pop_front();
        }
        self.eager.push_back(number);
    }

    /// Forgets message `number`, the last one noted. Called if the sender will not copy it into the receiver's buffer.
    pub(super) fn forget(&mut self, number: u64, captured: bool) {
        if captured {
            self.captured -= 1;
        } else {
            let last = self.eager.pop_back();
            debug_assert_eq!(last, Some(number));
        }
    }

    /// Returns whether the sender may still copy a message into the receiver's buffer: a captured message if `captured`
    /// is true, and an eager one if it is false.
    ///
    /// If `captured` is false, calls `is_taken` for every eager message that this rank's streams have not passed, the
    /// last one first. The sender may still copy a message if `is_taken` returns true for it:
    /// - On the receiver, `is_taken` tries to withdraw the message's offer. It returns false if that succeeds, and true
    ///   if the sender has taken the offer already.
    /// - On the sender, `is_taken` does nothing, and returns true.
    ///
    /// The sender takes offers in ascending order, and the receiver withdraws the last offer first. So the sender takes
    /// no offer that follows a withdrawn one. If it did, its copy could begin too early. All eager messages of a lane
    /// share the word *ready* (the buffer may be written), for which the copy waits. The receiver's stream sets this
    /// word for a withdrawn message too.
    pub(super) fn has_any(&self, captured: bool, passed: u32, is_taken: impl Fn(u64) -> bool) -> bool {
        if captured {
            return self.captured > 0;
        }
        let outstanding = self.eager.iter().rev().filter(|number| !is_passed(**number, passed));
        let mut has_any = false;
        for number in outstanding {
            has_any |= is_taken(*number);
        }
        has_any
    }

    /// Called if a launch (the work for the messages of one call) has failed. Forgets the eager messages from number
    /// `first` on, except those for which `is_taken` returns true. Returns the numbers of these exceptions, ascending.
    /// Calls `is_taken` for the last message first, for the reason given at [`has_any`](Self::has_any).
    pub(super) fn fail(&mut self, first: u64, is_taken: impl Fn(u64) -> bool) -> Vec<u64> {
        let begin = self.eager.partition_point(|number| *number < first);
        let failed = self.eager.split_off(begin);
        let mut taken: Vec<_> = failed.into_iter().rev().filter(|number| is_taken(*number)).collect();
        taken.reverse();
        self.eager.extend(&taken);
        taken
    }
}

/// Returns whether a stream has passed message `number`: whether `number` is less than the full value of `passed`, of
/// which only the lower 32 bits are known. The full value and `number` must differ by less than 2^31.
fn is_passed(number: u64, passed: u32) -> bool {
    (passed.wrapping_sub(number as u32).wrapping_sub(1) as i32) >= 0
}

#[cfg(test)]
mod tests {
    use std::{
        cell::RefCell,
        sync::{Barrier, atomic::AtomicU64},
        thread,
    };

    use process_group::group::path::Way;

    use super::{
        super::claim::{claim, take, withdraw},
        *,
    };

    /// Makes offers to receive the messages 0 to `count` - 1. Returns the shared words of the messages, and the
    /// [`Pushes`] in which they are noted.
    fn offers(count: u64) -> (Vec<AtomicU64>, Pushes) {
        let mut pushes = Pushes::default();
        let offer = |number| {
            pushes.note(number, false, 0);
            let shared = AtomicU64::new(0);
            claim(&shared, number, Way::Receive);
            shared
        };
        ((0..count).map(offer).collect(), pushes)
    }

    #[test]
    fn numbers_pass_in_order_also_when_their_lower_bits_wrap() {
        for number in [0, 1, 5, u64::from(u32::MAX) - 1, u64::from(u32::MAX), 1 << 32, 3 << 40] {
            assert!(!is_passed(number, number as u32));
            assert!(is_passed(number, (number as u32).wrapping_add(1)));
            assert!(is_passed(number, (number as u32).wrapping_add(600)));
            assert!(!is_passed(number + 600, number as u32));
        }
    }

    #[test]
    fn an_abort_withdraws_every_open_offer_the_last_one_first() {
        for taken in 0..4 {
            let (shared, pushes) = offers(4);
            assert!((0..taken).all(|number| take(&shared[number as usize], number)));
            let asked = RefCell::new(Vec::new());
            let is_taken = |number: u64| {
                asked.borrow_mut().push(number);
                !withdraw(&shared[number as usize], number)
            };
            assert_eq!(pushes.has_any(false, 0, is_taken), taken > 0);
            assert_eq!(*asked.borrow(), [3, 2, 1, 0]);
            for number in taken..4 {
                assert!(!take(&shared[number as usize], number), "{taken} were taken, and {number} is open");
            }
        }
    }

    /// A peer takes offers while this end withdraws them. Once the peer has come to an offer that is withdrawn, all
    /// later ones are withdrawn too.
    #[test]
    fn the_offers_that_a_peer_takes_come_first() {
        for _ in 0..2000 {
            let (shared, pushes) = offers(6);
            let begin = Barrier::new(2);
            let taken = thread::scope(|scope| {
                let peer = scope.spawn(|| {
                    begin.wait();
                    let taken = (0..).zip(&shared).map(|(number, shared)| take(shared, number));
                    taken.collect::<Vec<_>>()
                });
                begin.wait();
                pushes.has_any(false, 0, |number| !withdraw(&shared[number as usize], number));
                peer.join().unwrap()
            });
            assert!(taken.is_sorted_by(|earlier, later| earlier >= later), "{taken:?}");
        }
    }

    #[test]
    fn a_failed_launch_keeps_the_messages_that_are_taken() {
        let (shared, mut pushes) = offers(5);
        assert!((0..4).all(|number| take(&shared[number as usize], number)));
        assert_eq!(pushes.fail(2, |number| !withdraw(&shared[number as usize], number)), [2, 3]);
        assert!(!take(&shared[4], 4), "it is withdrawn");
        assert!(pushes.has_any(false, 3, |number| number == 3), "it may still be copied");
        assert_eq!(pushes.fail(1, |_| false), [0_u64; 0]);
        assert!(pushes.has_any(false, 0, |number| number == 0) && !pushes.has_any(false, 1, |_| true));
    }
}
