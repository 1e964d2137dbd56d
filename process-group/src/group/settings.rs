//! The settings that every group may have of its own.

use std::{fmt, sync::Arc, time::Duration};

use super::GroupError;
use crate::{
    comm::{self, Config, Nccl},
    watch::Watchdog,
};

/// Called when a group ends by itself; see [`GroupSettings::on_end`].
pub(super) type EndCallback = Arc<dyn Fn(GroupError) + Send + Sync>;

/// Settings of one group, for [`Builder::settings`](super::Builder::settings),
/// [`ProcessGroup::split_with`](super::ProcessGroup::split_with) and
/// [`ProcessGroup::shrink_with`](super::ProcessGroup::shrink_with). A group that is split or shrunk from another
/// inherits the settings that it is not given. The other settings of a [`Builder`](super::Builder) hold for the group
/// and all groups made from it: the heartbeat, for example, is that of the process.
///
/// ```
/// use process_group::{comm::Config, group::GroupSettings};
/// use std::time::Duration;
///
/// // The communicator of a split uses few thread blocks. Its work is late after a minute, and its end is logged.
/// let settings = GroupSettings::new()
///     .config(Config::new().ctas(1, 4))
///     .work_timeout(Duration::from_secs(60))
///     .on_end(|error| eprintln!("{error}"));
/// # drop(settings);
/// ```
#[derive(Clone, Default)]
#[must_use = "settings do nothing until a group is made with them"]
pub struct GroupSettings {
    pub(super) config: Option<Config>,
    pub(super) p2p_config: Option<Config>,
    timeout: Option<Duration>,
    work_timeout: Option<Duration>,
    check_interval: Option<Duration>,
    pub(super) timing: Option<bool>,
    check_buffers: Option<bool>,
    pub(super) on_end: Option<EndCallback>,
}

impl GroupSettings {
    /// Returns settings that are all inherited, or have their defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Settings of the communicator. The group sets its name, and the members set its window facts. All members
    /// should give the same ones.
    pub fn config(self, config: Config) -> Self {
        Self { config: Some(config), ..self }
    }

    /// Settings of the communicators that carry messages besides the group's own (default: the group's
    /// settings, with a limit on thread blocks so that all communicators fit on the device at once). The
    /// group sets their names and window facts.
    pub fn p2p_config(self, config: Config) -> Self {
        Self { p2p_config: Some(config), ..self }
    }

    /// The group's default deadline for calls that take none (default 10 minutes), and the time that
    /// [`Builder::build`](super::Builder::build) waits for the other ranks.
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self }
    }

    /// The time that work may take once it is the oldest of its stream, whether or not a thread waits for it
    /// (default: the [timeout](Self::timeout)). It also limits how long a call on a [path](super::Path) may
    /// take to return. After it, the group ends on every member with [`GroupError::Overdue`], which names the
    /// ranks that have not joined, and the flight recorders have written their dumps. Work that a graph
    /// captured is not watched, unless [`track_graph_launch`](super::ProcessGroup::track_graph_launch) marks the graph's launches.
    pub fn work_timeout(self, timeout: Duration) -> Self {
        Self { work_timeout: Some(timeout), ..self }
    }

    /// The longest pause between two checks of the group by the watchdog (default 100 ms, at least 1 ms). A
    /// check finds late work, asynchronous errors and errors of the driver. The pause is at most 1/16 of the
    /// [work timeout](Self::work_timeout). One thread checks all groups of the process, at the shortest of
    /// their intervals. Each member may choose for itself.
    pub fn check_interval(self, interval: Duration) -> Self {
        Self { check_interval: Some(interval), ..self }
    }

    /// Times every operation on the device (default: off, unless `PROCESS_GROUP_TIMING` is 1). An operation
    /// then has two events with timestamps in place of one without.
    /// [`Work::elapsed_us`](super::Work::elapsed_us) and the flight recorder report how long an operation
    /// took. The recorder also distinguishes the operation that a stream is running from those that wait
    /// behind it. Each rank may choose for itself.
    pub fn timing(self, timing: bool) -> Self {
        Self { timing: Some(timing), ..self }
    }

    /// Checks that the buffers given to the group are memory of its device (default: on). Each allocation is
    /// checked when it is first seen. Memory that was freed and reused since is not noticed. Without the
    /// check, [`ProcessGroup::registration_report`](super::ProcessGroup::registration_report) counts nothing.
    pub fn check_buffers(self, check: bool) -> Self {
        Self { check_buffers: Some(check), ..self }
    }

    /// Calls `callback` once, with the reason, when the group ends by itself: [`GroupError::Lost`],
    /// [`GroupError::MemberFailed`] (an NCCL error, or [`ProcessGroup::fail`](super::ProcessGroup::fail)),
    /// [`GroupError::Overdue`], [`GroupError::CollectiveDiverged`], [`GroupError::MessagesDiffer`], or
    /// [`GroupError::Left`] when another member has dropped or aborted the group. It is not called when this
    /// rank destroys, drops or aborts the group, nor for a group that is not made yet, whose error the caller
    /// gets.
    ///
    /// The callback runs on a thread of its own that holds no lock, so it may block, use the group and end
    /// the process. It runs beside the abort of the communicators and the flight recorder's dump, and waits
    /// for neither. A panic inside it ends only that thread. A callback that owns the group keeps it alive;
    /// give it a [`Weak`](std::sync::Weak).
    ///
    /// Every group of a job has its own end: after a loss, the callback is called for the group and for each
    /// subgroup with the lost rank. The error names the group.
    pub fn on_end(self, callback: impl Fn(GroupError) + Send + Sync + 'static) -> Self {
        Self { on_end: Some(Arc::new(callback)), ..self }
    }

    /// Returns these settings, with those of `inherited` that are not set here.
    pub(super) fn or(self, inherited: &Self) -> Self {
        // Without `..`, so that no setting is forgotten.
        let Self { config, p2p_config, timeout, work_timeout, check_interval, timing, check_buffers, on_end } =
            self;
        Self {
            config: config.or_else(|| inherited.config.clone()),
            p2p_config: p2p_config.or_else(|| inherited.p2p_config.clone()),
            timeout: timeout.or(inherited.timeout),
            work_timeout: work_timeout.or(inherited.work_timeout),
            check_interval: check_interval.or(inherited.check_interval),
            timing: timing.or(inherited.timing),
            check_buffers: check_buffers.or(inherited.check_buffers),
            on_end: on_end.or_else(|| inherited.on_end.clone()),
        }
    }

    /// Returns the settings of the communicator.
    pub(super) fn communicator(&self) -> Config {
        self.config.clone().unwrap_or_default()
    }

    /// Checks the settings of communicators before `call` meets the other ranks, which would wait for this one.
    pub(super) fn check(&self, call: &'static str, nccl: &Nccl) -> comm::Result<()> {
        comm::settings(call, nccl, &self.communicator())?;
        self.p2p_config.as_ref().map_or(Ok(()), |config| comm::settings(call, nccl, config).map(drop))
    }

    /// Returns the default time limit of waits for the members.
    pub(super) fn time_limit(&self) -> Duration {
        self.timeout.unwrap_or(Duration::from_secs(600))
    }

    /// Returns the time limit of work that is the oldest of its stream.
    pub(super) fn work_limit(&self) -> Duration {
        self.work_timeout.unwrap_or(self.time_limit())
    }

    /// Returns the longest pause between two checks by the watchdog.
    pub(super) fn pause(&self) -> Duration {
        /// Overdue work is found at most 1/16 of its timeout after its deadline.
        const SHARE: u32 = 16;
        self.check_interval.unwrap_or(Watchdog::PAUSE).min(self.work_limit() / SHARE)
    }

    /// Returns true if operations are timed.
    pub(super) fn times(&self) -> bool {
        self.timing.unwrap_or(false)
    }

    /// Returns true if buffers are checked.
    pub(super) fn looks(&self) -> bool {
        self.check_buffers.unwrap_or(true)
    }
}

impl From<Config> for GroupSettings {
    fn from(config: Config) -> Self {
        Self::new().config(config)
    }
}

impl fmt::Debug for GroupSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupSettings")
            .field("config", &self.config)
            .field("timeout", &self.timeout)
            .field("work_timeout", &self.work_timeout)
            .field("check_interval", &self.check_interval)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_set_is_inherited_and_then_has_its_default() {
        let second = Duration::from_secs;
        let world = GroupSettings::new().timeout(second(60)).timing(true);
        assert_eq!(
            (world.time_limit(), world.work_limit(), world.pause()),
            (second(60), second(60), Watchdog::PAUSE)
        );
        // The limit of work follows the timeout, unless it is set.
        let short = GroupSettings::new().timeout(second(1)).timing(false).or(&world);
        assert_eq!((short.work_limit(), short.pause(), short.times()), (second(1), second(1) / 16, false));
        let child = GroupSettings::new().work_timeout(second(32)).check_interval(second(1)).or(&world);
        assert_eq!((child.time_limit(), child.work_limit(), child.times()), (second(60), second(32), true));
        let grandchild = GroupSettings::new().check_buffers(false).or(&child);
        assert_eq!((grandchild.work_limit(), grandchild.pause()), (second(32), second(1)));
        assert_eq!((child.looks(), grandchild.looks()), (true, false));
        let none = GroupSettings::new();
        assert_eq!((none.time_limit(), none.times(), none.looks()), (second(600), false, true));
    }
}
