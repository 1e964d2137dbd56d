//! An in-memory store that executes the requests of a state machine, for simulations and tests.

use std::collections::BTreeMap;

use super::{
    Answer, Request,
    place::{self, Place},
};

/// A store in memory for simulations that drive [`Agreement`](super::Agreement) themselves. It maps each key to its
/// value. Numbers are decimal texts, as in the stores of [`store`](crate::store).
#[derive(Debug, Clone, Default)]
pub struct Memory(pub BTreeMap<String, Vec<u8>>);

impl Memory {
    /// Executes a request. Returns `None` for a wait for a key that has no value.
    pub fn execute(&mut self, request: &Request) -> Option<Answer> {
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
                let text = values.get(key).map(|value| String::from_utf8_lossy(value).into_owned());
                let count = text.and_then(|text| text.parse().ok()).unwrap_or(0) + 1;
                values.insert(key.clone(), u64::to_string(&count).into_bytes());
                Answer::Count(count)
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

    /// Returns the list of places under `key`. It is empty if the key has no value.
    #[must_use]
    pub fn places(&self, key: &str) -> Vec<Place> {
        place::from_value(self.0.get(key).map(|value| &**value))
    }

    /// Removes from the list under `key` the places whose agreements are decided. [`run`](super::run) does this when a
    /// rank arrives at its next agreement, except for agreements in which other threads of the rank take part.
    pub fn leave_decided(&mut self, key: &str) {
        let mut places = self.places(key);
        places.retain(|place| !self.0.contains_key(&place.decision_key()));
        self.0.insert(key.to_owned(), place::to_value(&places));
    }

    /// Removes keys. If the first one does not exist, another member has removed them, and this does nothing.
    pub fn remove(&mut self, keys: &[String]) {
        if keys.first().is_some_and(|first| !self.0.contains_key(first)) {
            return;
        }
        keys.iter().for_each(|key| _ = self.0.remove(key));
    }
}
