//! The places of ranks ([terms](super#terms)), and the keys of an agreement.
//!
//! A rank with several threads may wait in several agreements, so it publishes a list of places. The list is the value
//! of one key, which all threads of the rank change. If the key has no value, or the empty value, the rank waits in no
//! agreement.

use crate::wire::{self, Message, Protocol, wire_struct};

/// The protocol of the messages that agreements of every kind have in common.
pub(super) const COMMON: Protocol = Protocol { magic: *b"AG", version: 1 };

/// The message kind of a list of places. Kind 1 is [`Failure`](super::Failure), and kind 2 is [`Waiting`].
const PLACES: u8 = 0;

/// An agreement in which a rank waits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The name of the agreement, which is the prefix of its keys.
    pub name: String,
    /// The members of the agreement, as ranks of the job.
    pub members: Vec<u32>,
}
wire_struct!(Place { name, members });

impl Place {
    /// Returns the key of this agreement's decision.
    #[must_use]
    pub fn decision_key(&self) -> String {
        result_key(&records(&self.name))
    }
}

/// A rank, and an agreement in which it waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// The rank in the job.
    pub rank: u32,
    /// The agreement in which it waits.
    pub place: Place,
}
wire_struct!(Waiting { rank, place });

/// The message in which a member proposes its rank and its member list. The store keeps the first proposal.
impl Message for Waiting {
    const PROTOCOL: Protocol = COMMON;
    const KIND: u8 = 2;
}

/// Encodes a list of places. An empty list becomes the empty value.
pub(super) fn to_value(places: &[Place]) -> Vec<u8> {
    if places.is_empty() { Vec::new() } else { wire::to_message(COMMON, PLACES, &places.to_vec()) }
}

/// Decodes a list of places. Returns an empty list if the key has no value, if the value is empty, or if the value
/// cannot be decoded because another program or release has written it.
pub(super) fn from_value(value: Option<&[u8]>) -> Vec<Place> {
    value.and_then(|value| wire::from_message(COMMON, PLACES, value).ok()).unwrap_or_default()
}

/// Adds `place` to a list, unless the list contains a place with its name.
pub(super) fn add(places: &mut Vec<Place>, place: &Place) {
    if !is_at(places, place) {
        places.push(place.clone());
    }
}

/// Removes the place with the name of `place` from a list.
pub(super) fn remove(places: &mut Vec<Place>, place: &Place) {
    places.retain(|other| other.name != place.name);
}

/// Returns true if the list contains a place with the name of `place`.
pub(super) fn is_at(places: &[Place], place: &Place) -> bool {
    places.iter().any(|other| other.name == place.name)
}

/// Returns the prefix of the keys of the vote on the records of the agreement with this name.
pub(super) fn records(name: &str) -> String {
    format!("{name}/records")
}

/// Returns the prefix of the keys of the vote on the outcomes of an action. `action` is its number, from 0.
pub(super) fn outcomes(name: &str, action: u32) -> String {
    format!("{name}/outcomes{action}")
}

/// Returns the key of the verdict on an action of the agreement `name`. `action` is the action's number, from 0. See
/// [`Output::Act`](super::Output::Act).
#[must_use]
pub fn verdict_key(name: &str, action: u32) -> String {
    result_key(&outcomes(name, action))
}

/// Returns the key of the result of the vote with this prefix.
pub(super) fn result_key(prefix: &str) -> String {
    format!("{prefix}/result")
}

/// Returns the key of the member list of the agreement with this name.
pub(super) fn members_key(name: &str) -> String {
    format!("{name}/members")
}

/// Returns the key of the acknowledgement of `rank` in the agreement with this name.
pub(super) fn read_key(name: &str, rank: u32) -> String {
    format!("{name}/read/{rank}")
}

/// Returns the key that counts the acknowledgements in the agreement with this name.
pub(super) fn read_count_key(name: &str) -> String {
    format!("{name}/read/count")
}

/// Returns the key of a rank's list of places.
pub(super) fn places_key(rank: u32) -> String {
    format!("places/{rank}")
}
