//! The keys that meetings leave in the store.

use std::collections::{BTreeMap, BTreeSet};

use super::trouble::Trouble;

/// The history of the store's keys.
#[derive(Debug, Default)]
pub(super) struct Keys {
    /// The keys that ranks have removed.
    removed: BTreeSet<String>,
    /// The keys of writes that were sent twice.
    repeated: BTreeSet<String>,
    /// The number of the last meeting in which all members took part. The key of the map is the part of the meeting's
    /// name before that number. This part identifies the pool and the purpose.
    met: BTreeMap<String, u64>,
}

impl Keys {
    /// Records that a rank has removed a key.
    pub(super) fn removed(&mut self, key: String) {
        self.removed.insert(key);
    }

    /// Records that a write of this key is sent twice.
    pub(super) fn repeated(&mut self, key: String) {
        self.repeated.insert(key);
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

    /// Returns one of the `keys` in the store that should have been removed by the end of a run with this trouble, or
    /// `None` if there is none.
    pub(super) fn left(&self, trouble: Trouble, keys: Vec<String>) -> Option<String> {
        // Keys of a rank that dies, stops or loses the store may stay.
        if trouble.silences() {
            return None;
        }
        // If a rank is late or absent, the keys of a meeting stay until a later meeting of all members removes them.
        let other_domain = matches!(trouble, Trouble::OtherDomain { .. });
        let any_stay = trouble.delays() || other_domain;
        let is_left = |key: &String| {
            // The second of two equal writes may arrive after a rank has removed the key. This write creates the key
            // again, and no rank reads or removes the key after that.
            if self.repeated.contains(key) && self.removed.contains(key) {
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
        keys.into_iter().find(is_left)
    }
}
