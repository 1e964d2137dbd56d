//! Makes texts from files and other processes safe to print.

use std::fmt::{self, Write as _};

/// A text in one line, without effects on the terminal. Characters that move the cursor, change colours or change the
/// writing direction are shown as numbers.
pub(crate) struct Plain<'a>(pub(crate) &'a str);

impl fmt::Display for Plain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .chars()
            .try_for_each(|c| if acts(c) { write!(f, "{}", c.escape_unicode()) } else { f.write_char(c) })
    }
}

/// The same for a text of several lines.
pub(crate) fn lines(text: &str) -> String {
    text.split('\n').map(|line| Plain(line).to_string()).collect::<Vec<_>>().join("\n")
}

/// Returns true for a character that controls the terminal.
fn acts(c: char) -> bool {
    let turns = matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    turns || (c.is_control() && c != '\t')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_to_the_terminal_are_shown_by_their_numbers() {
        let text = "\u{1b}[31m\u{9b}2J\r\u{202e}ü\t日本\n";
        assert_eq!(Plain(text).to_string(), r"\u{1b}[31m\u{9b}2J\u{d}\u{202e}ü	日本\u{a}");
        assert_eq!(lines("a\u{7}\nb"), "a\\u{7}\nb");
    }
}
