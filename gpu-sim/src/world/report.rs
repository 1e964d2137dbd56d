//! What a world says at its end.

use std::collections::BTreeMap;

/// Something that was made and never unmade.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leak {
    /// What kind of thing: "allocation", "mapping", "stream", "communicator"….
    pub kind: &'static str,
    /// Which one, for a person.
    pub what: String,
}

/// The account of a world that has ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// What was left behind.
    pub leaks: Vec<Leak>,
    /// What hardware would have passed over in silence.
    pub misuse: Vec<String>,
    /// Explanations of faults, of refused calls, of panics: not an error by themselves, the calls said so.
    pub notes: Vec<String>,
    /// How often each function was called.
    pub calls: BTreeMap<String, u64>,
}

impl Report {
    /// Whether nothing leaked and nothing was misused.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.leaks.is_empty() && self.misuse.is_empty()
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} leaks, {} cases of misuse", self.leaks.len(), self.misuse.len())?;
        for leak in &self.leaks {
            write!(f, "\n  leaked {}: {}", leak.kind, leak.what)?;
        }
        for misuse in &self.misuse {
            write!(f, "\n  misuse: {misuse}")?;
        }
        Ok(())
    }
}

/// Why a world did not start or did not end well.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorldError {
    /// There can be one in a process.
    #[error("a world is alive in this process; finish it before starting another")]
    AlreadyAlive,
    /// It is gone already.
    #[error("the world has ended")]
    NoWorld,
    /// A setting makes no sense.
    #[error("{setting} cannot be {value}: {rule}")]
    BadSetting {
        /// The builder's method.
        setting: &'static str,
        /// What it was given.
        value: String,
        /// What it must be.
        rule: &'static str,
    },
    /// The operating system refused something.
    #[error("starting the world: {what}: {source}")]
    Host {
        /// What was tried.
        what: &'static str,
        /// The system's error.
        source: rustix::io::Errno,
    },
    /// Strict mode: the world did not end as it began.
    #[error("the world ended with {0}")]
    Unclean(Box<Report>),
}
