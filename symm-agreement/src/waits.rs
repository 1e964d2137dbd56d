//! Texts for errors of an agreement. They say which ranks wait for each other in a circle, and in which other
//! agreements the missing ranks wait.

use bootstrap::agreement::{Absentee, Waiting};

use super::{ValuesByRank, meeting_id::describe_place};

/// Returns text to append to an error message. It describes a circular wait: for each rank in `circle`, it names the
/// agreement in which the rank waits. The text is empty if `circle` is empty.
pub(crate) fn describe_circle(circle: &[Waiting]) -> String {
    if circle.is_empty() {
        return String::new();
    }
    let places = ValuesByRank::of(circle.iter().map(|waiting| (waiting.rank, &waiting.place)));
    format!(
        "; ranks wait for each other ({})",
        places.describe(|place| format!("in {}", describe_place(place)))
    )
}

/// Describes the ranks that are missing in an agreement: for each, the other agreements in which it waits. The text is
/// `in no meeting` if it waits in none.
pub(crate) fn describe_missing(missing: &[Absentee]) -> String {
    let places = ValuesByRank::of(missing.iter().map(|absentee| (absentee.rank, &absentee.elsewhere)));
    places.describe(|places| match places.iter().map(describe_place).collect::<Vec<_>>() {
        names if names.is_empty() => "in no meeting".to_owned(),
        names => format!("in {}", names.join(" and ")),
    })
}
