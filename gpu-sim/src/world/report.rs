//! The report of a world at its end.

use std::collections::BTreeMap;
use std::panic::catch_unwind;

/// An object that was created and never destroyed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leak {
    /// Kind of object: "allocation", "mapping", "stream", "communicator"….
    pub kind: &'static str,
    /// Description of the object.
    pub what: String,
}

/// The report of a world that has ended. `Debug` leaves out `calls`.
#[derive(Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Objects that were not destroyed: memory first, contexts last.
    pub leaks: Vec<Leak>,
    /// Misuse that hardware would ignore.
    pub misuse: Vec<String>,
    /// Explanations of faults, refused calls and panics. They are no errors by themselves: the calls returned those. A
    /// fault that no call has returned is a misuse too.
    pub notes: Vec<String>,
    /// Number of calls of each function.
    pub calls: BTreeMap<String, u64>,
}

impl Report {
    /// True if nothing leaked and nothing was misused.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.leaks.is_empty() && self.misuse.is_empty()
    }

    /// Prints misuse and notes to standard error, where a test's harness captures them.
    pub(super) fn print_notes(&self) {
        let lines: Vec<String> =
            self.misuse.iter().chain(&self.notes).map(|note| format!("\n  {note}")).collect();
        if !lines.is_empty() {
            // `eprintln` panics if the stream is closed, and a panic that leaves a destructor aborts the process.
            let _ = catch_unwind(|| eprintln!("notes of the embedded device:{}", lines.concat()));
        }
    }
}

// The many calls would hide the leaks.
impl std::fmt::Debug for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { leaks, misuse, notes, calls: _ } = self;
        let mut report = f.debug_struct("Report");
        report.field("leaks", leaks).field("misuse", misuse).field("notes", notes).finish_non_exhaustive()
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

/// Why a world did not start, or ended with errors. `Debug` prints the same text as `Display`.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum WorldError {
    /// The process has a world already, or this thread runs a seeded world already.
    #[error("a world is alive in this process or on this thread; finish it before starting another")]
    AlreadyAlive,
    /// The world has ended already.
    #[error("the world has ended")]
    NoWorld,
    /// A setting is out of range.
    #[error("{setting} cannot be {value}: {rule}")]
    BadSetting {
        /// The builder's method.
        setting: &'static str,
        /// The value given.
        value: String,
        /// The rule for the setting.
        rule: &'static str,
    },
    /// The operating system refused a request.
    #[error("starting the world: {what}: {source}")]
    Host {
        /// The operation that failed.
        what: &'static str,
        /// The system's error.
        source: rustix::io::Errno,
    },
    /// Strict mode: something leaked or was misused.
    #[error("the world ended with {0}")]
    Unclean(Box<Report>),
}

// `main` prints the error that it returns in this form, and so do `unwrap` and `expect`.
impl std::fmt::Debug for WorldError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}
