//! The keys that meetings leave in the store.

use std::collections::{BTreeMap, BTreeSet};

use bootstrap::agreement::{Memory, Request};

use super::{trouble::Trouble, violation::Violation, world::World};

/// The keys of the store, and their history.
#[derive(Debug, Default)]
pub(super) struct Keys {
    pub(super) values: Memory,
    /// The keys that ranks have removed.
    removed: BTreeSet<String>,
    /// The keys of writes that were sent twice.
    repeated: BTreeSet<String>,
    /// For the meetings of each pool and purpose, by the start of their keys, the number of the last one in which all
    /// members took part.
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
            // The lists of places stay.
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

    /// Returns true if the key belongs to a meeting before one in which all members took part.
    fn is_of_earlier(&self, key: &str) -> bool {
        let parts: Vec<&str> = key.split('/').collect();
        let Some((round, subject)) = parts.get(..5).and_then(<[_]>::split_last) else { return false };
        let last = self.met.get(&subject.join("/"));
        last.is_some_and(|last| round.parse::<u64>().is_ok_and(|round| round < *last))
    }
}

impl World {
    /// Checks for leftover keys of agreements.
    pub(super) fn left_keys(&self) -> Result<(), Violation> {
        let trouble = self.scenario.trouble;
        let keys = &self.store.keys;
        // Keys of a rank that dies or loses the store may stay.
        if trouble.silences() {
            return Ok(());
        }
        // Ranks that are late or absent leave keys until all members meet again.
        let other_domain = matches!(trouble, Trouble::OtherDomain { .. });
        let any_stay = trouble.delays() || other_domain;
        let is_left = |key: &&String| {
            // The second of two equal writes may come after the key was removed. No rank reads that key.
            if keys.repeated.contains(*key) && keys.removed.contains(*key) {
                return false;
            }
            let parts: Vec<&str> = key.split('/').collect();
            match parts.as_slice() {
                ["symm", _, "generation" | "instance", ..] => false,
                ["symm", _, _, _, _, "plain", ..] => !any_stay,
                // A rank does not remove the keys of ranks that are not in its domain.
                ["symm", _, _, "retire" | "length", ..] if other_domain => false,
                // The next meeting removes what the last one has left.
                ["symm", _, "0", "retire" | "length", _, "members" | "records", ..] => {
                    keys.is_of_earlier(key)
                }
                ["symm", ..] => !any_stay || keys.is_of_earlier(key),
                ["exchange", _, _, what, ..] => !any_stay && *what != "closed",
                _ => false,
            }
        };
        match keys.values.0.keys().find(is_left) {
            Some(key) => Err(Violation(format!("under {trouble:?}: the store is left with {key}"))),
            None => Ok(()),
        }
    }
}
