//! The watchdog's checks of a group, and its actions when a check fails.

use std::{
    sync::{Arc, OnceLock, PoisonError},
    time::Duration,
};

use bootstrap::runtime::{self, Instant};

use super::{
    GroupErrorKind, MessageDifference, calls::Pending, health::GroupHealth, work_monitor::WorkMonitor,
};
use crate::{
    record::Progress,
    store::{Deadline, Store},
    watch::{Divergence, Trouble},
};

impl GroupHealth {
    /// Ends the group on all members, because the sender and the receiver of a message have made different
    /// calls. Does not block.
    pub(super) fn differ(self: &Arc<Self>, difference: MessageDifference) {
        let group = self.monitor().map_or(String::new(), |monitor| monitor.id.clone());
        let trouble = Trouble::MessagesDiffer { group, difference };
        self.signal.tell(trouble.clone());
        self.trouble(trouble);
    }

    /// Ends the group because its members' calls differ. Every member that takes part in the comparison calls this. Returns
    /// the error that ended the group.
    pub(super) fn diverged(self: &Arc<Self>, divergence: Divergence) -> GroupErrorKind {
        let group = self.monitor().map_or(String::new(), |monitor| monitor.id.clone());
        let trouble = Trouble::Diverged { group, divergence };
        let error = GroupErrorKind::of_trouble(trouble.clone());
        // One notice is enough for members that no longer take part.
        if self.place == 0 {
            self.signal.tell(trouble.clone());
        }
        self.trouble(trouble);
        self.reason(error)
    }

    /// Runs the watchdog's check of this group once.
    pub(crate) fn look(self: &Arc<Self>, now: Instant) {
        let Some(monitor) = self.monitor().filter(|_| !self.is_over()) else {
            self.report_end();
            return self.settle(now);
        };
        let _ = self.check_background();
        self.resolve(now);
        let late = monitor.look(now);
        let mut asked = monitor.asked.lock().unwrap_or_else(PoisonError::into_inner);
        match (*asked, late) {
            (None, Some(late)) => {
                *asked = Some((now, late.sequence));
                let health = self.clone();
                let ask = move || health.accuse(late);
                let _ = runtime::spawn("overdue", ask);
            }
            // There is no answer. The thread that asks is blocked, could not be started, or left asking to
            // another member.
            (Some((since, of)), late) if now.saturating_duration_since(since) > self.patience() * 2 => {
                match late.filter(|late| late.sequence == of) {
                    Some(late) => {
                        let nobody = Progress { group: self.name.to_string(), members: Vec::new() };
                        self.trouble(self.overdue(monitor, late, nobody));
                    }
                    // The work that was late is done by now. The next check asks about the next late work.
                    None => *asked = None,
                }
            }
            _ => {}
        }
    }

    /// Returns how long to wait for other members to report their progress, or the reason why they have left
    /// the group.
    pub(super) fn patience(&self) -> Duration {
        const ANSWER: Duration = Duration::from_secs(2);
        ANSWER + self.heartbeat
    }

    /// Asks all members for their progress on a separate thread, so that a store that does not answer blocks
    /// no caller. Returns the `OnceLock` that the thread sets to the answer.
    pub(super) fn ask_aside(&self, deadline: Deadline) -> Arc<OnceLock<Progress>> {
        let answer = Arc::<OnceLock<_>>::default();
        if let Some(monitor) = self.monitor() {
            let (progress_rpc, id, name, ranks) =
                (monitor.progress_rpc.clone(), monitor.id.clone(), self.name.clone(), self.ranks.clone());
            let answer = answer.clone();
            let ask = move || {
                if let Ok(progress) = progress_rpc.ask(&id, &name, &ranks, deadline) {
                    let _ = answer.set(progress);
                }
            };
            // If the thread cannot be started, the error of the wait names no rank.
            let _ = runtime::spawn("progress", ask);
        }
        answer
    }

    fn overdue(&self, monitor: &WorkMonitor, late: Pending, progress: Progress) -> Trouble {
        let Pending { operation, sequence, waited } = late;
        let (group, operation) = (monitor.id.clone(), operation.to_owned());
        Trouble::Overdue { group, rank: self.rank(), operation, sequence, waited, progress }
    }

    /// Asks all members for their progress, and reports to all members which ranks have not joined. Only one
    /// member of the group does this: the first to write its rank to the key `overdue`.
    fn accuse(&self, late: Pending) {
        let Some(monitor) = self.monitor() else { return };
        self.recorder.trouble();
        let own = self.rank().to_string();
        let claim = monitor.store.compare_set("overdue", b"", own.as_bytes());
        if claim.is_ok_and(|claimed| claimed != own.as_bytes()) {
            return;
        }
        let deadline = Deadline::after(self.patience());
        match monitor.progress_rpc.ask(&monitor.id, &self.name, self.ranks(), deadline) {
            Ok(progress) => self.signal.tell(self.overdue(monitor, late, progress)),
            // Clears the key, so that another member may ask, now or for later work.
            Err(_) => drop(monitor.store.compare_set("overdue", own.as_bytes(), b"")),
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::thread;

    use gpu_sim::{Action, Injection};
    use rusty_fork::rusty_fork_test;

    use super::{super::GroupSettings, *};
    use crate::comm::wait_for_dropped;
    use crate::embedded_machine::{far, hold, machine};

    const LONG: Duration = Duration::from_secs(3600);

    /// Returns a function that runs the watchdog's check so many times, at times later than all earlier
    /// checks.
    fn looks(health: &Arc<GroupHealth>) -> impl FnMut(u64) + use<> {
        looks_after(health, WorkMonitor::STEP)
    }

    /// Like [`looks`], with this pause before each check.
    fn looks_after(health: &Arc<GroupHealth>, pause: Duration) -> impl FnMut(u64) + use<> {
        let (health, mut now) = (health.clone(), Instant::now() + LONG);
        move |times| {
            for _ in 0..times {
                now = now + pause;
                health.look(now);
            }
        }
    }

    rusty_fork_test! {
        /// For example, a member of this host dies while NCCL destroys the communicator.
        #[test]
        fn a_wait_for_a_blocked_destruction_ends_with_the_group() {
            let machine = machine(1);
            let hang = Duration::from_secs(60);
            machine.world.faults().inject(Injection::new("ncclCommDestroy", Action::Delay(hang))).unwrap();
            machine.ranks(1, |rank| {
                let group = rank.world();
                let health = group.counter.health.clone();
                let begun = Instant::now();
                let error = thread::scope(|scope| {
                    let destroying = scope.spawn(|| group.destroy(far()));
                    while machine.world.calls("ncclCommDestroy") == 0 {
                        thread::yield_now();
                    }
                    health.fail("a test".into());
                    destroying.join().unwrap().unwrap_err()
                });
                assert!(matches!(error.kind(), GroupErrorKind::MemberFailed { .. }), "{error}");
                assert!(begun.elapsed() < hang, "it waited until the call returned");
                // A communicator must not be aborted while another call frees it.
                assert_eq!(machine.world.calls("ncclCommAbort"), 0);
            });
        }

        /// The work about which the other members were asked completes. Work that is late afterwards is asked
        /// about again.
        #[test]
        fn work_that_is_late_afterwards_is_asked_about_again() {
            let machine = machine(1);
            machine.ranks(1, |rank| {
                let group = rank.builder().work_timeout(LONG).build().unwrap();
                let health = &group.counter.health;
                health.monitor().unwrap().store.set("overdue", b"1").unwrap();
                let mut look = looks(health);
                let answer = (health.patience() * 2).as_secs() + 2;
                let held = || {
                    let stream = rank.stream();
                    let open = hold(&stream);
                    (group.track_graph_launch(&stream).unwrap(), open)
                };
                let first = held();
                look(3);
                let (_second, open) = held();
                look(LONG.as_secs());
                drop(first.1);
                first.0.wait_until(far()).unwrap();
                look(answer);
                group.check().unwrap();
                look(answer);
                let error = group.check().unwrap_err();
                assert!(matches!(error.kind(), GroupErrorKind::Overdue { sequence: 2, .. }), "{error}");
                drop(open);
                rank.context.synchronize().unwrap();
                group.abort(far()).unwrap();
            });
            assert!(wait_for_dropped(far()));
            machine.world.finish().unwrap();
        }

        #[test]
        fn a_long_pause_between_checks_does_not_delay_the_report_of_late_work() {
            let machine = machine(1);
            machine.ranks(1, |rank| {
                let (timeout, pause) = (LONG, LONG / 16);
                let settings = GroupSettings::new().work_timeout(timeout).check_interval(pause);
                let group = rank.builder().settings(settings).build().unwrap();
                let health = &group.counter.health;
                health.monitor().unwrap().store.set("overdue", b"1").unwrap();
                let stream = rank.stream();
                let open = hold(&stream);
                let _work = group.track_graph_launch(&stream).unwrap();
                // The first check sees the work. After 16 more the work is late, and the next one has waited for an
                // answer of the other members.
                assert!(pause > health.patience() * 2);
                looks_after(health, pause)(1 + 16 + 1);
                let error = group.check().unwrap_err();
                assert!(matches!(error.kind(), GroupErrorKind::Overdue { sequence: 1, .. }), "{error}");
                drop(open);
                stream.synchronize().unwrap();
                group.abort(far()).unwrap();
            });
            assert!(wait_for_dropped(far()));
            machine.world.finish().unwrap();
        }

        /// This member does not ask the others, because the store says that another member asks. That member
        /// never reports a result.
        #[test]
        fn a_member_that_gets_no_answer_ends_the_group_for_late_work() {
            let machine = machine(1);
            machine.ranks(1, |rank| {
                let group = rank.builder().work_timeout(LONG).build().unwrap();
                let health = &group.counter.health;
                health.monitor().unwrap().store.set("overdue", b"1").unwrap();
                let stream = rank.stream();
                let mut look = looks(health);
                let answer = (health.patience() * 2).as_secs() + 2;
                for is_done in [true, false] {
                    let open = hold(&stream);
                    let work = group.track_graph_launch(&stream).unwrap();
                    look(LONG.as_secs() + 1);
                    group.check().unwrap();
                    if is_done {
                        drop(open);
                        work.wait_until(far()).unwrap();
                        look(answer);
                        group.check().unwrap();
                        continue;
                    }
                    look(answer);
                    let error = group.check().unwrap_err();
                    assert!(
                        matches!(error.kind(), GroupErrorKind::Overdue { operation, sequence: 2, .. } if operation == "graph"),
                        "{error}"
                    );
                    drop(open);
                }
                stream.synchronize().unwrap();
                group.abort(far()).unwrap();
            });
            // The abort at the end of a group runs in the background.
            assert!(wait_for_dropped(far()));
            machine.world.finish().unwrap();
        }
    }
}
