//! The text form: one event per line.

use super::builder::{Builder, REQUESTED};
use super::types::{Origin, Trace, TraceError};
use crate::trace::budget::Budget;

/// Memory for an event and for a block that it allocates.
pub(super) const EVENT: u64 = 160;

const SHAPE: &str = "neither a snapshot nor minimalloc's CSV, so read as text: a line is \
                     `CODE ADDRESS(hex) SIZE(bytes) STREAM`, CODE one of a r f S D M U";

/// The expected content of a line that is invalid.
pub(super) enum Expected {
    /// The line has another form, so the file may be of another kind.
    Form(&'static str),
    /// The line is an event that is not possible after those before it.
    Event(&'static str),
}

/// Reads and checks a trace.
pub(super) fn read(text: &[u8], origin: Origin, budget: &Budget) -> Result<Trace, TraceError> {
    let mut builder = Builder::default();
    charge_lines(text, EVENT, &origin, budget)?;
    each_line(text, &origin, SHAPE, |line| take(&mut builder, line))?;
    builder.finish(origin)
}

/// Charges a fixed amount of memory for each line of a text.
pub(super) fn charge_lines(
    text: &[u8],
    each: u64,
    origin: &Origin,
    budget: &Budget,
) -> Result<(), TraceError> {
    let lines = text.iter().filter(|byte| **byte == b'\n').count() as u64 + 1;
    let charged = budget.charge(lines.saturating_mul(each));
    charged.map_err(|source| TraceError::Spent { origin: origin.clone(), source })
}

/// Passes each line to `take`, which returns the expected content if a line is invalid.
pub(super) fn each_line(
    text: &[u8],
    origin: &Origin,
    shape: &'static str,
    mut take: impl FnMut(&str) -> Result<(), Expected>,
) -> Result<(), TraceError> {
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    let lines = text.split(|byte| *byte == b'\n').filter(|_| !text.is_empty());
    for (line, number) in lines.zip(1..) {
        let found = String::from_utf8_lossy(line);
        if let Err(expected) = take(found.trim_end()) {
            let (origin, found) = (origin.clone(), found.trim_end().chars().take(40).collect());
            return Err(match expected {
                Expected::Form(expected) => TraceError::Line { origin, line: number, expected, found, shape },
                Expected::Event(expected) => TraceError::Event { origin, line: number, expected, found },
            });
        }
    }
    Ok(())
}

/// Parses one line.
fn take(builder: &mut Builder, line: &str) -> Result<(), Expected> {
    let mut fields = line.split_ascii_whitespace();
    let (Some(code), Some(address), Some(bytes), Some(stream), None) =
        (fields.next(), fields.next(), fields.next(), fields.next(), fields.next())
    else {
        return Err(Expected::Form("four fields"));
    };
    let address = u64::from_str_radix(address, 16)
        .map_err(|_| Expected::Form("an address in hexadecimal without `0x`, such as 7fa80c000000"))?;
    let bytes: u64 = bytes.parse().map_err(|_| {
        Expected::Form("a size in bytes, in decimal digits and below 2^64, such as 154389504")
    })?;
    let stream: u32 =
        stream.parse().map_err(|_| Expected::Form("a stream number in decimal digits, such as 0"))?;
    let taken = match code {
        "a" => builder.allocate(address, bytes, stream),
        "r" => builder.request_free(address),
        "f" => builder.complete_free(address).map_err(|expected| match expected {
            REQUESTED => "an `r` line with this address before its `f`",
            expected => expected,
        }),
        "S" | "D" | "M" | "U" => Ok(()),
        _ => return Err(Expected::Form("one of the codes a r f S D M U")),
    };
    taken.map_err(Expected::Event)
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::trace::Event;
    use crate::trace::budget::ReadLimit;

    fn plain(text: &str) -> Result<Trace, TraceError> {
        read(text.as_bytes(), Origin::BuiltIn, &ReadLimit::default().budget(0))
    }

    #[test]
    fn the_built_in_trace_has_the_figures_it_was_recorded_with() {
        let trace = Trace::load(None).unwrap();
        assert_eq!((trace.allocations, trace.peak_active), (17_285, 13_064_811_520));
    }

    #[test]
    fn a_free_counts_when_it_completes() {
        let trace = plain("a 10 1000 0\nr 10 1000 0\na 20 512 1\nf 10 1000 0\na 30 512 0\n").unwrap();
        assert_eq!((trace.allocations, trace.streams, trace.peak_active), (3, 2, 1024 + 512));
        assert_eq!(
            trace.events[1..4],
            [
                Event::RequestFree { block: 0 },
                Event::Allocate { block: 1, bytes: 512, stream: 1 },
                Event::CompleteFree { block: 0 },
            ]
        );
    }

    #[test]
    fn broken_lines_are_named() {
        for (text, line, expected) in [
            ("a 10 1 0\nr 10 1 0\nr 10 1 0", 3, "an address whose free was not requested already"),
            ("a 10 18446744073709551615 0", 1, "a size below 2^64 - 512"),
            ("a 10 18446744073709550000 0\na 20 2000 0", 2, "fewer than 2^64 live bytes"),
            ("a 10 1 4096", 1, "a stream number below 1024"),
            ("x 10 1 0", 1, "one of the codes a r f S D M U"),
            ("a 10 1000", 1, "four fields"),
            ("a 10 1000 0\na zz 1 0", 2, "an address in hexadecimal without `0x`, such as 7fa80c000000"),
            ("a 0x7fa80c000000 512 0", 1, "an address in hexadecimal without `0x`, such as 7fa80c000000"),
            ("a 10 -1 0", 1, "a size in bytes, in decimal digits and below 2^64, such as 154389504"),
            (
                "a 10 99999999999999999999 0",
                1,
                "a size in bytes, in decimal digits and below 2^64, such as 154389504",
            ),
            ("a 10 0x200 0", 1, "a size in bytes, in decimal digits and below 2^64, such as 154389504"),
            ("a 10 512 0x0", 1, "a stream number in decimal digits, such as 0"),
            ("r 10 1000 0", 1, "an address that is allocated"),
            ("a 10 1 0\na 10 1 0", 2, "an address that is not allocated already"),
            ("a 10 1 0\nf 10 1 0", 2, "an `r` line with this address before its `f`"),
            ("hello there general kenobi", 1, "an address in hexadecimal without `0x`, such as 7fa80c000000"),
        ] {
            match plain(text) {
                Err(
                    TraceError::Line { line: l, expected: e, .. }
                    | TraceError::Event { line: l, expected: e, .. },
                ) => {
                    assert_eq!((l, e), (line, expected), "{text}");
                }
                other => panic!("{text}: {other:?}"),
            }
        }
        assert!(matches!(plain(""), Err(TraceError::Empty { .. })));
    }

    /// A line of the right form is that of a trace, so the forms of other files would mislead.
    #[test]
    fn only_a_line_of_another_form_is_followed_by_the_form() {
        let form = "neither a snapshot nor minimalloc's CSV";
        let text = plain("a 1000 512 0\nf 1000 512 0").unwrap_err().to_string();
        let expected =
            "line 2: expected an `r` line with this address before its `f`, found \"f 1000 512 0\"";
        assert!(text.ends_with(expected), "{text}");
        for event in ["r 10 1 0", "a 10 1 0\na 10 1 0", "a 10 1 4096"] {
            let text = plain(event).unwrap_err().to_string();
            assert!(!text.contains(form), "{text}");
        }
        for other in ["hello", "a 10 -1 0", "x 10 1 0", "a zz 1 0"] {
            let text = plain(other).unwrap_err().to_string();
            assert!(text.contains(form), "{text}");
        }
    }
}
