//! An in-memory store for the tests in `model`, `seeds` and `circles`.

use std::collections::BTreeMap;

use super::super::{
    Answer, Request,
    place::{self, Place},
};

/// A store in memory that executes the requests of a state machine. It maps each key to its value.
#[derive(Debug, Clone, Default)]
pub(super) struct Memory(pub(super) BTreeMap<String, Vec<u8>>);

impl Memory {
    /// Executes a request. Returns `None` for a wait for a key that has no value.
    pub(super) fn execute(&mut self, request: &Request) -> Option<Answer> {
        let Self(values) = self;
        Some(match request {
            Request::Enter { key, place } => {
                let mut places = self.places(key);
                place::add(&mut places, place);
                self.0.insert(key.clone(), place::to_value(&places));
                Answer::Stored
            }
            Request::Leave { key, place } => {
                let mut places = self.places(key);
                place::remove(&mut places, place);
                self.0.insert(key.clone(), place::to_value(&places));
                Answer::Stored
            }
            Request::Post { key, value } => {
                let stands = values.entry(key.clone()).or_insert_with(|| value.clone());
                if stands == value { Answer::Stored } else { Answer::Taken }
            }
            Request::Add { key } => {
                let count = values.get(key).map_or(0, |value| value[0]) + 1;
                values.insert(key.clone(), vec![count]);
                Answer::Count(count.into())
            }
            Request::Fetch { keys } => {
                Answer::Values(keys.iter().map(|key| values.get(key).cloned()).collect())
            }
            Request::Check { keys } => Answer::All(keys.iter().all(|key| values.contains_key(key))),
            Request::Propose { key, value } => {
                Answer::Result(values.entry(key.clone()).or_insert_with(|| value.clone()).clone())
            }
            Request::Await { key, .. } => Answer::Result(values.get(key)?.clone()),
        })
    }

    /// Returns the agreements in which a rank waits, from the rank's list under `key`. Returns none if the key has no
    /// value.
    pub(super) fn places(&self, key: &str) -> Vec<Place> {
        place::from_value(self.0.get(key).map(|value| &**value))
    }

    /// Removes keys. If the first one does not exist, another member has removed them, and this does nothing.
    pub(super) fn remove(&mut self, keys: &[String]) {
        if keys.first().is_some_and(|first| !self.0.contains_key(first)) {
            return;
        }
        keys.iter().for_each(|key| _ = self.0.remove(key));
    }
}
