//! Settings that each group may have of its own.

use std::{fmt, sync::Arc, time::Duration};

use super::GroupError;
use crate::comm::{self, Config, Nccl};

/// Pause between two checks of groups whose settings give none.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Called when a group ends by itself; see [`GroupSettings::on_end`].
pub(super) type EndCallback = Arc<dyn Fn(GroupError) + Send + Sync>;

/// Settings of one group, for [`Builder::settings`](super::Builder::settings),
/// [`ProcessGroup::split_with`](super::ProcessGroup::split_with) and
/// [`ProcessGroup::shrink_with`](super::ProcessGroup::shrink_with). A group that is split or shrunk from another
/// inherits every setting that is not set here. The other settings of a [`Builder`](super::Builder), for example the
/// heartbeat, are the same for the group and all groups made from it.
///
/// ```
/// use process_group::{comm::Config, group::GroupSettings};
/// use std::time::Duration;
///
/// // Use few thread blocks, treat work as overdue after a minute, and log the end of the group.
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
    /// Returns settings of which none is set: each is inherited, or has its default.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the configuration of the group's communicator. The group fills in the communicator's name, and
    /// [window facts](Config::window_facts) from the members' records. All members should pass the same configuration.
    pub fn config(self, config: Config) -> Self {
        Self { config: Some(config), ..self }
    }

    /// Sets the configuration of the additional communicators that carry messages (default: the configuration of the
    /// group's communicator, with a limit on thread blocks so that all communicators fit on the device at once). The
    /// group fills in their names and window facts.
    pub fn p2p_config(self, config: Config) -> Self {
        Self { p2p_config: Some(config), ..self }
    }

    /// Sets the default deadline of the group's calls that take none (default: 10 minutes).
    /// [`Builder::build`](super::Builder::build) waits as long for the other ranks.
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self }
    }

    /// Sets how long work may take, counted from when it is the oldest work of its stream, whether or not a thread
    /// waits for it (default: the [timeout](Self::timeout)). The same limit applies to calls on a [path](super::Path)
    /// that do not return. When it passes, the group ends on every member with
    /// [`GroupErrorKind::Overdue`](super::GroupErrorKind::Overdue), which names the ranks that have not joined the
    /// operation, and the flight recorders write their dumps. Work that a graph captured is not watched, unless
    /// [`track_graph_launch`](super::ProcessGroup::track_graph_launch) marks the graph's launches.
    pub fn work_timeout(self, timeout: Duration) -> Self {
        Self { work_timeout: Some(timeout), ..self }
    }

    /// Sets the longest pause between two checks of the group by the watchdog (default: 100 ms; at least 1 ms). A check
    /// finds overdue work, asynchronous errors of NCCL and errors of the driver. The pause is never longer than 1/16 of
    /// the [work timeout](Self::work_timeout). One thread checks all groups of the process, at the shortest of their
    /// pauses. Members may have different values.
    pub fn check_interval(self, interval: Duration) -> Self {
        Self { check_interval: Some(interval), ..self }
    }

    /// Measures the duration of every operation on the device (default: off, unless `PROCESS_GROUP_TIMING` is 1). Each
    /// operation then uses two events with timestamps, in place of one event without.
    /// [`Work::elapsed_us`](super::Work::elapsed_us) and the flight recorder report the durations. The recorder also
    /// distinguishes the operation that a stream is running from operations that wait behind it. Ranks may have
    /// different values.
    pub fn timing(self, timing: bool) -> Self {
        Self { timing: Some(timing), ..self }
    }

    /// Checks that the buffers passed to the group are memory of the group's device (default: on). Each allocation is
    /// checked when it is first seen. If it is freed later and its addresses are reused, the check does not notice.
    /// Without the check, [`ProcessGroup::registration_report`](super::ProcessGroup::registration_report) counts
    /// nothing.
    pub fn check_buffers(self, check: bool) -> Self {
        Self { check_buffers: Some(check), ..self }
    }

    /// Calls `callback` once, with the reason, when the group ends for one of these reasons:
    /// [`GroupErrorKind::Lost`](super::GroupErrorKind::Lost),
    /// [`GroupErrorKind::MemberFailed`](super::GroupErrorKind::MemberFailed) (an NCCL error, or
    /// [`ProcessGroup::fail`](super::ProcessGroup::fail)), [`GroupErrorKind::Overdue`](super::GroupErrorKind::Overdue),
    /// [`GroupErrorKind::CollectiveDiverged`](super::GroupErrorKind::CollectiveDiverged),
    /// [`GroupErrorKind::MessagesDiffer`](super::GroupErrorKind::MessagesDiffer), or
    /// [`GroupErrorKind::Left`](super::GroupErrorKind::Left) when another member has left the group. The callback is
    /// not called when this rank destroys, drops or aborts the group. It is not called either when making the group
    /// fails, because the caller then gets the error.
    ///
    /// The callback runs on a thread of its own that holds no lock, so the callback may block, use the group and end
    /// the process. It runs concurrently with the abort of the communicators and the flight recorder's dump. A panic in
    /// the callback ends only that thread. A callback that owns the group keeps the group alive; give the callback a
    /// [`Weak`](std::sync::Weak) instead.
    ///
    /// The groups of a job end separately: after the loss of a rank, the callback is called for the group and for each
    /// subgroup with that rank. The error names the group that has ended.
    pub fn on_end(self, callback: impl Fn(GroupError) + Send + Sync + 'static) -> Self {
        Self { on_end: Some(Arc::new(callback)), ..self }
    }

    /// Returns these settings. Settings that are not set here are taken from `inherited`.
    pub(super) fn or(self, inherited: &Self) -> Self {
        // No `..` in this pattern, so that no setting is forgotten.
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

    /// Checks the settings of communicators. Done before `call` meets the other ranks, because they would wait for this
    /// rank if the settings failed later.
    pub(super) fn check(&self, call: &'static str, nccl: &Nccl) -> comm::Result<()> {
        comm::settings(call, nccl, &self.communicator())?;
        self.p2p_config.as_ref().map_or(Ok(()), |config| comm::settings(call, nccl, config).map(drop))
    }

    /// Returns the default time limit of waits for other members.
    pub(super) fn time_limit(&self) -> Duration {
        self.timeout.unwrap_or(Duration::from_secs(600))
    }

    /// Returns the time limit of work that is the oldest of its stream.
    pub(super) fn work_limit(&self) -> Duration {
        self.work_timeout.unwrap_or(self.time_limit())
    }

    /// Returns the longest pause between two checks by the watchdog.
    pub(super) fn pause(&self) -> Duration {
        /// Overdue work is found at most 1/16 of the work timeout after its deadline.
        const SHARE: u32 = 16;
        self.check_interval.unwrap_or(CHECK_INTERVAL).min(self.work_limit() / SHARE)
    }

    /// Returns true if operations are timed.
    pub(super) fn times(&self) -> bool {
        self.timing.unwrap_or(false)
    }

    /// Returns true if buffers are checked.
    pub(super) fn checks_buffers(&self) -> bool {
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
            (second(60), second(60), CHECK_INTERVAL)
        );
        // Without a work timeout, the limit of work is the group's timeout.
        let short = GroupSettings::new().timeout(second(1)).timing(false).or(&world);
        assert_eq!((short.work_limit(), short.pause(), short.times()), (second(1), second(1) / 16, false));
        let child = GroupSettings::new().work_timeout(second(32)).check_interval(second(1)).or(&world);
        assert_eq!((child.time_limit(), child.work_limit(), child.times()), (second(60), second(32), true));
        let grandchild = GroupSettings::new().check_buffers(false).or(&child);
        assert_eq!((grandchild.work_limit(), grandchild.pause()), (second(32), second(1)));
        assert_eq!((child.checks_buffers(), grandchild.checks_buffers()), (true, false));
        let none = GroupSettings::new();
        assert_eq!((none.time_limit(), none.times(), none.checks_buffers()), (second(600), false, true));
    }
}
