//! Decides which keys may be left in the store at the end of a run. Most keys belong to a meeting (an agreement among
//! ranks), and its members should remove them after it. The other terms are defined in [`super`].

use std::collections::{BTreeMap, BTreeSet};

use crate::trouble::Trouble;

/// The history of the store's keys, recorded for [`Keys::left`].
#[derive(Debug, Default)]
pub(crate) struct Keys {
    /// The keys that ranks have removed.
    pub(crate) removed: BTreeSet<String>,
    /// The keys of writes whose answer gets lost because the simulation breaks the connection. The rank then sends the
    /// write again.
    pub(crate) repeated: BTreeSet<String>,
    /// The last successful meeting of each pool and purpose. All members took part in it. A purpose is: to retire
    /// segments, to agree on the length of an allocation, or to commit for one group. The map's key is the name of the
    /// meeting without its number: `symm`, the domain, the pool and the purpose. The value is the number.
    met: BTreeMap<String, u64>,
}

impl Keys {
    /// Records that the meeting with this name has succeeded, so all members have taken part in it.
    pub(crate) fn meet(&mut self, name: &str) {
        if let Some((subject, round)) = name.rsplit_once('/')
            && let Ok(round) = round.parse()
        {
            let last = self.met.entry(subject.to_owned()).or_insert(round);
            *last = round.max(*last);
        }
    }

    /// Returns true if the key belongs to a meeting of a pool, and all members took part in a later meeting of the same
    /// pool and purpose. The first five parts of the key of such a meeting are the meeting's name: `symm`, the domain,
    /// the pool, the purpose and the number.
    fn is_of_earlier(&self, key: &str) -> bool {
        let parts: Vec<&str> = key.split('/').collect();
        let Some((round, subject)) = parts.get(..5).and_then(<[_]>::split_last) else { return false };
        let last = self.met.get(&subject.join("/"));
        last.is_some_and(|last| round.parse::<u64>().is_ok_and(|round| round < *last))
    }

    /// Returns one of the `keys` in the store that should have been removed by the end of a run with this trouble, or
    /// `None` if there is none.
    pub(crate) fn left(&self, trouble: Trouble, keys: Vec<String>) -> Option<String> {
        // A rank that dies, stops or loses the store may be unable to remove keys.
        if trouble.silences() {
            return None;
        }
        // If a rank comes late to a meeting or misses it, the keys of the meeting stay until a later meeting of all
        // members removes them. This can happen if the trouble delays ranks, and under `OtherDomain`.
        let other_domain = matches!(trouble, Trouble::OtherDomain { .. });
        let any_stay = trouble.delays() || other_domain;
        let is_left = |key: &String| {
            // A repeated write may arrive after a rank has removed the key. The write then creates the key again, and
            // no rank reads or removes it after that.
            if self.repeated.contains(key) && self.removed.contains(key) {
                return false;
            }
            let parts: Vec<&str> = key.split('/').collect();
            match parts.as_slice() {
                ["symm", _, "generation" | "instance", ..] => false,
                ["symm", _, _, _, _, "plain", ..] => !any_stay,
                // Some keys may stay: under `OtherDomain`, the ranks have different lists of the members of the domain,
                // and each removes only the keys of the ranks in its own list. Only retirements and agreements on a
                // length have the ranks of the domain as members.
                ["symm", _, _, "retire" | "length", ..] if other_domain => false,
                // The member list and the result of a retirement, or of an agreement on a length, stay until the next
                // meeting of the same purpose removes them. So those of the last meeting of a purpose may stay.
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
