//! The keys that meetings leave in the store.

use std::collections::{BTreeMap, BTreeSet};

use bootstrap::agreement::{Memory, Request};

use super::trouble::Trouble;

/// The keys of the store, and their history.
#[derive(Debug, Default)]
pub(super) struct Keys {
    pub(super) values: Memory,
    /// The keys that ranks have removed.
    removed: BTreeSet<String>,
    /// The keys of writes that were sent twice.
    repeated: BTreeSet<String>,
    /// The number of the last meeting in which all members took part. The key of the map is the part of the meeting's
    /// name before that number. This part identifies the pool and the purpose.
    met: BTreeMap<String, u64>,
}

impl Keys {
    /// Removes keys in order, or none if the first one does not exist.
    pub(super) fn remove(&mut self, keys: &[String]) {
        let exists = |values: &Memory, key: &String| values.0.contains_key(key);
        let existed: Vec<&String> = keys.iter().filter(|key| exists(&self.values, key)).collect();
        self.values.remove(keys);
        self.removed.extend(existed.into_iter().filter(|key| !exists(&self.values, key)).cloned());
    }

    /// Records that a request is sent twice.
    pub(super) fn repeat(&mut self, request: &Request) {
        match request {
            Request::Post { key, .. } | Request::Add { key } | Request::Propose { key, .. } => {
                self.repeated.insert(key.clone());
            }
            // These write a rank's list of the agreements in which it takes part (`places/RANK`), which is never
            // removed.
            Request::Enter { .. } | Request::Leave { .. } => {}
            Request::Fetch { .. } | Request::Check { .. } | Request::Await { .. } => {}
        }
    }

    /// Records that all members have taken part in the meeting whose agreement has this name.
    pub(super) fn meet(&mut self, name: &str) {
        if let Some((subject, Ok(round))) =
            name.rsplit_once('/').map(|(subject, round)| (subject, round.parse()))
        {
            let last = self.met.entry(subject.to_owned()).or_insert(round);
            *last = round.max(*last);
        }
    }

    /// Returns true if the key belongs to a meeting, and all members took part in a later meeting of the same pool and
    /// purpose.
    fn is_of_earlier(&self, key: &str) -> bool {
        let parts: Vec<&str> = key.split('/').collect();
        let Some((round, subject)) = parts.get(..5).and_then(<[_]>::split_last) else { return false };
        let last = self.met.get(&subject.join("/"));
        last.is_some_and(|last| round.parse::<u64>().is_ok_and(|round| round < *last))
    }

    /// Returns a key that should have been removed by the end of a run with this trouble, or `None` if there is none.
    pub(super) fn left(&self, trouble: Trouble) -> Option<&String> {
        // Keys of a rank that dies, stops or loses the store may stay.
        if trouble.silences() {
            return None;
        }
        // Ranks that are late or absent leave keys until all members meet again.
        let other_domain = matches!(trouble, Trouble::OtherDomain { .. });
        let any_stay = trouble.delays() || other_domain;
        let is_left = |key: &&String| {
            // The second of two equal writes may come after the key was removed. No rank reads that key.
            if self.repeated.contains(*key) && self.removed.contains(*key) {
                return false;
            }
            let parts: Vec<&str> = key.split('/').collect();
            match parts.as_slice() {
                ["symm", _, "generation" | "instance", ..] => false,
                ["symm", _, _, _, _, "plain", ..] => !any_stay,
                // A rank does not remove the keys of ranks that are not in its domain.
                ["symm", _, _, "retire" | "length", ..] if other_domain => false,
                // The keys of the last meeting may stay. Only the next meeting would remove them.
                ["symm", _, "0", "retire" | "length", _, "members" | "records", ..] => {
                    self.is_of_earlier(key)
                }
                ["symm", ..] => !any_stay || self.is_of_earlier(key),
                ["exchange", _, _, what, ..] => !any_stay && *what != "closed",
                _ => false,
            }
        };
        self.values.0.keys().find(is_left)
    }
}
