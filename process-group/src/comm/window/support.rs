//! The conditions under which a communicator supports windows.

use std::env;

use nccl_sys::{Feature, Missing, Version};

use crate::comm::{CommError, Nccl};

/// Facts that decide, together with the NCCL release, whether a communicator supports windows. `None` means unknown.
///
/// Windows are collective, so every member must reach the same decision. Set only facts that all members share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WindowFacts {
    /// True if all members are on one host.
    pub one_host: Option<bool>,
    /// True if every member's device can access every other member's memory.
    pub peer_access: Option<bool>,
    /// True if every member's environment leaves windows on (`NCCL_WIN_ENABLE` is not 0).
    pub window_enable: Option<bool>,
    /// True if every member's environment leaves NCCL's virtual memory on (`NCCL_CUMEM_ENABLE` is not 0).
    pub cumem_enable: Option<bool>,
    /// The oldest version of the CUDA driver among all members.
    pub oldest_driver: Option<Version>,
}

impl WindowFacts {
    /// Returns the facts that this process's environment variables decide. The other facts are unknown.
    #[must_use]
    pub fn from_environment() -> Self {
        let on = |name| env::var(name).ok().is_none_or(|value| value.trim() != "0");
        Self {
            one_host: None,
            peer_access: None,
            window_enable: Some(on("NCCL_WIN_ENABLE")),
            cumem_enable: Some(on("NCCL_CUMEM_ENABLE")),
            oldest_driver: None,
        }
    }

    /// Returns these facts. Takes unknown facts from this process's environment variables, if those decide them.
    #[must_use]
    pub fn or_environment(self) -> Self {
        let here = Self::from_environment();
        Self {
            window_enable: self.window_enable.or(here.window_enable),
            cumem_enable: self.cumem_enable.or(here.cumem_enable),
            ..self
        }
    }

    /// Checks that a communicator of `size` ranks supports windows, with the release and functions of `nccl`. `driver` is
    /// the version of this rank's driver, which decides only if [`oldest_driver`](Self::oldest_driver) is unknown. If it
    /// is known, the same facts give the same result on every rank.
    ///
    /// From 2.29 on, an unknown fact counts as favourable, because NCCL returns a null handle if windows are not
    /// supported. Older releases do not report that, so [`one_host`](Self::one_host) and
    /// [`peer_access`](Self::peer_access) must be known. The facts about environment variables count as favourable in
    /// every release if they are unknown.
    ///
    /// # Errors
    /// The reason why windows are not supported.
    pub fn decide(&self, nccl: &Nccl, driver: Version, size: usize) -> Result<(), WindowsUnsupported> {
        nccl.api().require(Feature::WINDOWS)?;
        if size < 2 {
            return Err(WindowsUnsupported::Alone);
        }
        let release = nccl.release();
        let answers_null = release >= NULL_WHEN_UNSUPPORTED;
        for (variable, on) in
            [("NCCL_WIN_ENABLE", self.window_enable), ("NCCL_CUMEM_ENABLE", self.cumem_enable)]
        {
            if on == Some(false) {
                return Err(WindowsUnsupported::Disabled { variable });
            }
        }
        let found = self.oldest_driver.unwrap_or(driver);
        if found < Version::new(12, 0, 0) {
            return Err(WindowsUnsupported::Driver { found });
        }
        match self.peer_access {
            Some(true) => {}
            Some(false) => return Err(WindowsUnsupported::NoPeerAccess),
            None if answers_null => {}
            None => {
                return Err(WindowsUnsupported::Unknown { fact: "peer access between all devices", release });
            }
        }
        match self.one_host {
            Some(true) => Ok(()),
            _ if answers_null => Ok(()),
            Some(false) => Err(WindowsUnsupported::SeveralHosts { release }),
            None => Err(WindowsUnsupported::Unknown { fact: "that all ranks are on one host", release }),
        }
    }
}

/// From this release on, NCCL returns a null handle if a communicator does not support windows.
const NULL_WHEN_UNSUPPORTED: Version = Version::new(2, 29, 0);

/// The reason why a communicator does not support windows. Its operations still work, without windows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WindowsUnsupported {
    /// The release has no windows, or has them with a known bug.
    #[error(transparent)]
    Release(#[from] Missing),
    /// A communicator of one rank only copies, and needs no windows.
    #[error("a communicator of one rank needs no windows")]
    Alone,
    /// An environment variable disables a feature that windows need.
    #[error("{variable} is 0 on a member")]
    Disabled {
        /// Name of the variable.
        variable: &'static str,
    },
    /// A member's driver is older than CUDA 12.0, and cannot share memory in the way that windows need.
    #[error("windows need a driver of CUDA 12.0, but a member has {found}")]
    Driver {
        /// The driver's version.
        found: Version,
    },
    /// Two members' devices cannot access each other's memory.
    #[error("not every member's device can reach every other's memory directly")]
    NoPeerAccess,
    /// The members are on several hosts.
    #[error("the members are on several hosts, and NCCL {release} has windows on one host only")]
    SeveralHosts {
        /// The loaded release.
        release: Version,
    },
    /// A fact is unknown, and the loaded release would report success even if windows were not supported.
    #[error(
        "it is not known {fact}, and NCCL {release} answers success either way; state it in the configuration"
    )]
    Unknown {
        /// The unknown fact.
        fact: &'static str,
        /// The loaded release.
        release: Version,
    },
    /// Some members belong to another program, and did not publish the facts that decide on windows.
    #[error("the group was joined from PyTorch, whose ranks do not say whether they can have windows")]
    Strangers,
    /// NCCL returned success, but wrote no window handle.
    #[error(
        "NCCL {release} answered success without a window, so it cannot map the members' memory into each other"
    )]
    NoHandle {
        /// The loaded release.
        release: Version,
    },
}

impl From<WindowsUnsupported> for CommError {
    fn from(reason: WindowsUnsupported) -> Self {
        match reason {
            WindowsUnsupported::Release(missing) => missing.into(),
            other => Self::Setting { setting: "windows", problem: other.to_string() },
        }
    }
}
