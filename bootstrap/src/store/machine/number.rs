//! Parses the decimal integer at the start of a value.

/// A parser for the decimal integer at the start of a value that arrives in pieces. The format is that of C's
/// `strtoll`: optional white space, an optional sign, and digits. No piece is kept. Bytes after the number are ignored.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Number {
    part: Part,
    negative: bool,
    /// The value of the digits, negated: an `i64` can hold -2^63 but not 2^63. `None` before the first digit, and after
    /// an overflow.
    sum: Option<i64>,
}

/// The part of the value that the next byte belongs to.
#[derive(Debug, Clone, Copy, Default)]
enum Part {
    /// White space, a sign, or the first digit.
    #[default]
    Blanks,
    /// A digit, or the first byte after the number. A sign or a digit has been read.
    Digits,
    /// The number has ended, or there is none. Further bytes are ignored.
    End,
    /// The negated value of the digits does not fit in an `i64`. Further bytes are ignored.
    TooLarge,
}

impl Number {
    /// Returns the integer at the start of `value`; `None` if there is none, or if it does not fit in an `i64`.
    pub(super) fn of(value: &[u8]) -> Option<i64> {
        let mut number = Self::default();
        number.take(value);
        number.value()
    }

    /// Parses the next bytes of the value.
    pub(super) fn take(&mut self, mut bytes: &[u8]) {
        while let Some((&byte, rest)) = bytes.split_first() {
            bytes = rest;
            match (self.part, byte) {
                (Part::End | Part::TooLarge, _) => return,
                (Part::Blanks, b' ' | 9..=13) => bytes = beyond(byte, rest),
                (Part::Blanks, b'+' | b'-') => {
                    self.negative = byte == b'-';
                    self.part = Part::Digits;
                }
                (Part::Blanks | Part::Digits, b'0'..=b'9') => {
                    let shifted = self.sum.unwrap_or(0).checked_mul(10);
                    self.sum = shifted.and_then(|sum| sum.checked_sub(i64::from(byte - b'0')));
                    self.part = if self.sum.is_some() { Part::Digits } else { Part::TooLarge };
                    if self.sum == Some(0) {
                        bytes = beyond(b'0', rest);
                    }
                }
                (Part::Blanks | Part::Digits, _) => self.part = Part::End,
            }
        }
    }

    /// Returns the integer in the bytes so far; `None` if there is no digit, or if the integer does not fit in an
    /// `i64`.
    pub(super) fn value(&self) -> Option<i64> {
        if self.negative { self.sum } else { self.sum?.checked_neg() }
    }
}

/// Skips the leading blocks of 64 bytes that consist of `byte` alone, and returns the rest. A client can send millions
/// of blanks or zeros before a number, and comparing blocks is faster than parsing single bytes.
fn beyond(byte: u8, bytes: &[u8]) -> &[u8] {
    let run = [byte; 64];
    let (pieces, _) = bytes.as_chunks();
    &bytes[pieces.iter().take_while(|piece| **piece == run).count() * run.len()..]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Parses the integer at the start of a complete value with the standard library.
    fn whole(value: &[u8]) -> Option<i64> {
        let blanks = value.iter().take_while(|byte| matches!(byte, b' ' | 9..=13)).count();
        let text = &value[blanks..];
        let sign = usize::from(matches!(text.first(), Some(b'+' | b'-')));
        let digits = text[sign..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        std::str::from_utf8(&text[..sign + digits]).ok()?.parse().ok()
    }

    proptest! {
        #[test]
        fn pieces_give_what_the_whole_gives(
            value in "[ \\x09-\\x0d]{0,3} {0,100}[-+]?0{0,200}[0-9]{0,20}[-+a-z 0]{0,3}",
            cut in any::<prop::sample::Index>(),
        ) {
            let value = value.as_bytes();
            let (first, second) = value.split_at(cut.index(value.len() + 1));
            let mut number = Number::default();
            number.take(first);
            prop_assert_eq!(number.value(), whole(first));
            number.take(second);
            prop_assert_eq!(number.value(), whole(value));
        }
    }

    #[test]
    fn the_extremes_are_numbers() {
        for number in [i64::MIN, -1, 0, 1, i64::MAX] {
            assert_eq!(Number::of(number.to_string().as_bytes()), Some(number));
        }
        for text in ["9223372036854775808", "-9223372036854775809", "", "-", " +x", "1e", "\u{a0}1"] {
            assert_eq!(Number::of(text.as_bytes()), whole(text.as_bytes()), "{text:?}");
        }
    }
}
