//! Which communicators can have windows.

use std::env;

use cuda_driver::sys;
use nccl_sys::{Feature, Missing, Version};

use crate::comm::{CommError, Nccl};

/// What decides whether a communicator can have windows, besides the release and the driver. `None`: not known.
///
/// Windows are collective, so every member must come to the same answer: put facts here that all members share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WindowFacts {
    /// Whether all members are on one host.
    pub one_host: Option<bool>,
    /// Whether every member's device can reach every other member's memory.
    pub peer_access: Option<bool>,
    /// Whether every member's environment leaves windows on (`NCCL_WIN_ENABLE` is not 0).
    pub window_enable: Option<bool>,
    /// Whether every member's environment leaves NCCL's virtual memory on (`NCCL_CUMEM_ENABLE` is not 0).
    pub cumem_enable: Option<bool>,
}

impl WindowFacts {
    /// What this process's environment says; the rest stays unknown.
    #[must_use]
    pub fn from_environment() -> Self {
        let on = |name| env::var(name).ok().is_none_or(|value| value.trim() != "0");
        Self {
            one_host: None,
            peer_access: None,
            window_enable: Some(on("NCCL_WIN_ENABLE")),
            cumem_enable: Some(on("NCCL_CUMEM_ENABLE")),
        }
    }

    /// These facts, and the environment's where there are none.
    #[must_use]
    pub fn or_environment(self) -> Self {
        let here = Self::from_environment();
        Self {
            window_enable: self.window_enable.or(here.window_enable),
            cumem_enable: self.cumem_enable.or(here.cumem_enable),
            ..self
        }
    }

    /// Whether a communicator of `size` ranks can have windows, with a driver of version `driver` and the release
    /// and functions that `nccl` has. The same facts give the same answer on every rank.
    ///
    /// An unknown fact counts as good from 2.29 on, where NCCL itself answers null; before that nothing would
    /// tell, and the answer is no.
    ///
    /// # Errors
    /// The reason why not.
    pub fn decide(&self, nccl: &Nccl, driver: sys::Version, size: usize) -> Result<(), WindowsUnsupported> {
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
        if driver < sys::Version::new(12, 0) {
            return Err(WindowsUnsupported::Driver { found: driver });
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

/// From here on NCCL answers null where a communicator cannot have windows.
const NULL_WHEN_UNSUPPORTED: Version = Version::new(2, 29, 0);

/// Why a communicator has no windows. The plain path works all the same.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WindowsUnsupported {
    /// The release has none, or does them wrong.
    #[error(transparent)]
    Release(#[from] Missing),
    /// A communicator of one rank copies, and needs none.
    #[error("a communicator of one rank needs no windows")]
    Alone,
    /// An environment variable forbids what windows need.
    #[error("{variable} is 0 on a member")]
    Disabled {
        /// Which variable.
        variable: &'static str,
    },
    /// The driver cannot share virtual memory as NCCL needs it.
    #[error("windows need a driver of CUDA 12.0, but a member has {found}")]
    Driver {
        /// The driver's version.
        found: sys::Version,
    },
    /// Two members' devices cannot reach each other's memory.
    #[error("not every member's device can reach every other's memory directly")]
    NoPeerAccess,
    /// The members are on several hosts.
    #[error("the members are on several hosts, and NCCL {release} has windows on one host only")]
    SeveralHosts {
        /// The loaded release.
        release: Version,
    },
    /// Nobody said, and the release would not tell.
    #[error(
        "it is not known {fact}, and NCCL {release} answers success either way; state it in the configuration"
    )]
    Unknown {
        /// What is not known.
        fact: &'static str,
        /// The loaded release.
        release: Version,
    },
    /// Some members are another program's, and have not said what decides on windows.
    #[error("the group was joined from PyTorch, whose ranks do not say whether they can have windows")]
    Strangers,
    /// NCCL answered success without a window.
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
