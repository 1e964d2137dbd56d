//! Requests for blocks, and the names and call sites that trace entries show for them.

use std::collections::HashMap;
use std::fmt;
use std::panic::Location;
use std::sync::{LazyLock, Mutex, PoisonError};

use super::size::Units;

/// A name for allocations, shown in trace entries and snapshots.
///
/// Cheap to copy and to compare. The memory of a name's text is never freed, so use a limited number of names.
///
/// ```
/// use caching_alloc::core::Name;
/// assert_eq!(Name::new("weights"), Name::new("weights"));
/// assert_eq!(Name::new("weights").as_str(), "weights");
/// ```
#[derive(Clone, Copy)]
pub struct Name(&'static &'static str);

impl Name {
    /// Returns the name with this text. Takes a process-wide lock, so store the result for frequent use.
    #[must_use]
    pub fn new(text: &str) -> Self {
        static NAMES: LazyLock<Mutex<HashMap<&'static str, Name>>> = LazyLock::new(Mutex::default);
        let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(name) = names.get(text) {
            return *name;
        }
        let text: &'static str = Box::leak(text.into());
        *names.entry(text).or_insert(Self(Box::leak(Box::new(text))))
    }

    /// Returns the text of the name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.0
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl Eq for Name {}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// The origin of a request. It is shown in snapshots and in the trace entries of the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RequestInfo {
    /// The source location of the request.
    pub call_site: &'static Location<'static>,
    /// The name that was passed with the request.
    pub name: Option<Name>,
}

impl RequestInfo {
    /// Returns the information for a request without a name that was made at the caller's location.
    #[track_caller]
    #[inline]
    pub(super) fn here() -> Self {
        Self { call_site: Location::caller(), name: None }
    }
}

/// A request whose size was checked and rounded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    /// The rounded size.
    pub(super) units: Units,
    /// The size that the program asked for.
    pub(super) bytes: u64,
    pub(super) info: RequestInfo,
}
