//! Settings that must be equal on all members. Each member sends them with its record when it joins.

use super::Disagreement;

/// A member's settings: names with values as text, in one order on all members.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Agreed(Vec<(&'static str, String)>);

/// Separates the record and the settings. No value contains it.
const END: char = '\n';

impl Agreed {
    /// Adds a setting, with its value as users read it.
    pub(super) fn with(mut self, name: &'static str, value: impl ToString) -> Self {
        self.0.push((name, value.to_string().replace(END, " ")));
        self
    }

    /// Appends the settings to a member's record.
    pub(super) fn behind(&self, record: &str) -> String {
        self.0.iter().fold(record.to_owned(), |card, (name, value)| card + &format!("{END}{name}={value}"))
    }
}

/// Splits the cards of all members, checks that their settings are equal, and returns the records.
pub(super) fn agree(cards: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, Disagreement> {
    let parts: Vec<Vec<&[u8]>> =
        cards.iter().map(|card| card.split(|byte| *byte == END as u8).collect()).collect();
    let record = |parts: &Vec<&[u8]>| parts.first().map_or_else(Vec::new, |record| record.to_vec());
    let Some(first) = parts.first() else { return Ok(Vec::new()) };
    for (rank, own) in parts.iter().enumerate() {
        for at in 1..own.len().max(first.len()) {
            let (Some(found), Some(wanted)) = (own.get(at), first.get(at)) else {
                let problem =
                    format!("it has {} settings, that of rank 0 has {}", own.len() - 1, first.len() - 1);
                return Err(Disagreement::Record { rank, problem });
            };
            if found != wanted {
                let (setting, value) = read(found);
                let (_, other_value) = read(wanted);
                return Err(Disagreement::Setting { setting, rank, value, other: 0, other_value });
            }
        }
    }
    Ok(parts.iter().map(record).collect())
}

/// A setting's name and value.
fn read(setting: &[u8]) -> (String, String) {
    let text = String::from_utf8_lossy(setting);
    let (name, value) = text.split_once('=').unwrap_or((&text, ""));
    (name.to_owned(), value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn card(record: &str, first: u8, second: u8) -> Vec<u8> {
        Agreed::default().with("first", first).with("second", second).behind(record).into_bytes()
    }

    proptest! {
        #[test]
        fn the_first_that_differs_is_named_with_both_values(
            first in 0u8..2, second in 0u8..2, rank in 1usize..4,
        ) {
            let mut cards = vec![card("r", 0, 0); 4];
            cards[rank] = card("r", first, second);
            let differs = [("first", first), ("second", second)].into_iter().find(|(_, value)| *value != 0);
            match (agree(&cards), differs) {
                (Ok(records), None) => prop_assert_eq!(records, vec![b"r".to_vec(); 4]),
                (Err(error), Some((name, value))) => prop_assert_eq!(error, Disagreement::Setting {
                    setting: name.into(), rank, value: value.to_string(), other: 0, other_value: "0".into(),
                }),
                (found, wanted) => prop_assert!(false, "{:?} for {:?}", found, wanted),
            }
        }

        #[test]
        fn whatever_stands_in_the_store_is_read_or_refused(
            cards in prop::collection::vec(prop::collection::vec(prop::sample::select(b"a=\n\xff".to_vec()), 0..5), 0..4),
        ) {
            let parts = cards.iter().map(|card| {
                let end = card.iter().position(|byte| *byte == b'\n').unwrap_or(card.len());
                card.split_at(end)
            });
            let (records, settings): (Vec<_>, Vec<_>) = parts.unzip();
            let alike = settings.windows(2).all(|pair| pair[0] == pair[1]);
            prop_assert_eq!(agree(&cards).ok(), alike.then(|| records.iter().map(|record| record.to_vec()).collect()));
        }
    }
}
