//! A request for a block, as it travels through the allocator.

use std::collections::HashMap;
use std::fmt;
use std::panic::Location;
use std::sync::{LazyLock, Mutex, PoisonError};

use super::size::Units;

/// A name of allocations, for trace entries and snapshots.
///
/// Cheap to copy and to compare. Its text is kept until the process ends, so use a limited number of names.
///
/// ```
/// use caching_alloc::core::Name;
/// assert_eq!(Name::new("weights"), Name::new("weights"));
/// assert_eq!(Name::new("weights").as_str(), "weights");
/// ```
#[derive(Clone, Copy)]
pub struct Name(&'static &'static str);

impl Name {
    /// The name with this text. Takes a lock of the process, so keep the result for frequent use.
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

    /// Its text.
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

/// The origin of a request. Trace entries of the block and snapshots show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RequestInfo {
    /// The source location of the request.
    pub call_site: &'static Location<'static>,
    /// The name that the request gave.
    pub name: Option<Name>,
}

impl RequestInfo {
    /// The information of a request without a name, at the caller's location.
    #[track_caller]
    #[inline]
    pub(super) fn here() -> Self {
        Self { call_site: Location::caller(), name: None }
    }
}

/// A request, checked and rounded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) units: Units,
    /// The size that the program asked for.
    pub(super) bytes: u64,
    pub(super) info: RequestInfo,
}
