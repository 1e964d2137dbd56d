//! Descriptions of ranks that wait for each other.

use bootstrap::agreement::Waiting;

use super::ValuesByRank;

/// Describes the waits of a circle, for the end of an error's text. Returns an empty text if there is no circle.
pub(crate) fn describe_circle(circle: &[Waiting]) -> String {
    if circle.is_empty() {
        return String::new();
    }
    let names = ValuesByRank::of(circle.iter().map(|waiting| (waiting.rank, waiting.place.name.as_str())));
    format!("; ranks wait for each other ({})", names.describe(|name| format!("in {name}")))
}
