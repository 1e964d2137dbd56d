//! Removal of the keys that an agreement has left in the store.

use super::place::{Place, members_key, read_count_key, read_key, records};
use crate::store::Store;

/// Returns the keys that the agreement at `place` may have left in the store, in two groups: its decision and its
/// member list, and the rest. Remove the keys of each group in order, and stop if the first key of a group does not
/// exist. See [`remove_left`].
fn left_keys(place: &Place) -> [Vec<String>; 2] {
    let Place { name, members } = place;
    let records = records(name);
    // The counter comes first, because it exists if any record does.
    let mut rest = vec![format!("{records}/count")];
    rest.extend(members.iter().map(|rank| format!("{records}/{rank}")));
    rest.extend(members.iter().map(|rank| read_key(name, *rank)));
    rest.push(read_count_key(name));
    [vec![place.decision_key(), members_key(name)], rest]
}

/// Removes the keys that the agreement at `place` has left in the store. It leaves keys if a member has not taken part
/// in it, or has not acknowledged its result, or if [`Protocol::KEEPS_RESULT`](super::Protocol::KEEPS_RESULT) is true.
/// The keys of outcomes and verdicts stay.
///
/// Call this only if every member has since posted its record in another agreement that it joins after this one, so
/// that none will read the keys. Any number of members may call it. Errors of the store are ignored, because keys that
/// remain cost only memory of the store.
pub fn remove_left(store: &dyn Store, place: &Place) {
    let _ = left_keys(place).iter().all(|keys| remove_keys(store, keys));
}

/// Removes keys in order, such as those of [`Conclusion::read`](super::Conclusion::read). Returns false if the first
/// key does not exist, or if the store fails. Another member then has removed the keys, or removes them.
pub fn remove_keys(store: &dyn Store, keys: &[String]) -> bool {
    let Some((first, rest)) = keys.split_first() else { return false };
    matches!(store.delete(first), Ok(true)) && rest.iter().all(|key| store.delete(key).is_ok())
}
