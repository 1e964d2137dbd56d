//! Settings that a group passes on to the groups made from it.

use std::time::Duration;

use super::GroupSettings;

/// Settings that a group passes on to groups split from it.
#[derive(Debug, Clone)]
pub(super) struct SharedSettings {
    pub(super) heartbeat: Duration,
    /// True if calls are compared before they are launched.
    pub(super) checked: bool,
    /// True if the communicator is made later than the group; see `Builder::lazy`.
    pub(super) lazy: bool,
    /// The settings that a group split from this one may replace.
    pub(super) own: GroupSettings,
}

impl SharedSettings {
    /// Returns the settings of a group that is split from this one: `own`, and for settings that `own` does
    /// not set, those of this group.
    pub(super) fn of_subgroup(&self, own: GroupSettings) -> Self {
        Self { own: own.or(&self.own), ..self.clone() }
    }
}
