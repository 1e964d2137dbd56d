//! minimalloc's CSV: a header `id,lower,upper,size`, then a buffer per line, alive from time `lower` up to but not
//! including `upper`. At each time the buffers that end are freed before those that begin are allocated, both in the
//! file's order; sizes are bytes. All are on one stream.

use std::collections::HashSet;

use super::builder::Builder;
use super::text::{Expected, charge_lines, each_line};
use super::types::{Origin, Trace, TraceError};
use crate::trace::budget::Budget;

/// Memory for a buffer's name, its two moments and its three events.
const BUFFER: u64 = 768;

const COLUMNS: [&str; 4] = ["id", "lower", "upper", "size"];
const SHAPE: &str = "the header names the columns id, lower, upper and size, in any order, and no other; \
                     then a buffer a line, `lower` below `upper`";

/// True if a file that begins with `head` has this format.
pub(super) fn is_header(head: &[u8]) -> bool {
    let line = head.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line).to_ascii_lowercase();
    line.contains(',') && COLUMNS.iter().any(|column| line.split(',').any(|field| field.trim() == *column))
}

/// The begin or the end of a buffer.
struct Moment {
    time: u64,
    begins: bool,
    buffer: u64,
    bytes: u64,
}

/// Reads and checks a file.
pub(super) fn read(text: &[u8], origin: Origin, budget: &Budget) -> Result<Trace, TraceError> {
    let mut table = Table::default();
    charge_lines(text, BUFFER, &origin, budget)?;
    each_line(text, &origin, SHAPE, |line| table.take(line).map_err(Expected::Form))?;
    let Table { mut moments, .. } = table;
    moments.sort_by_key(|moment| (moment.time, moment.begins));
    let mut builder = Builder::default();
    for Moment { begins, buffer, bytes, .. } in moments {
        let taken = if begins {
            builder.allocate(buffer, bytes, 0)
        } else {
            builder.request_free(buffer).and_then(|()| builder.complete_free(buffer))
        };
        if let Err(expected) = taken {
            let found = format!("{bytes} bytes of the buffer in line {}", buffer + 2);
            return Err(TraceError::Line { origin, line: buffer + 2, expected, found, shape: SHAPE });
        }
    }
    builder.finish(origin)
}

#[derive(Default)]
struct Table {
    /// The field of each column in [`COLUMNS`].
    columns: Option<[usize; 4]>,
    ids: HashSet<String>,
    moments: Vec<Moment>,
    buffers: u64,
}

impl Table {
    fn take(&mut self, line: &str) -> Result<(), &'static str> {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        if fields.len() != COLUMNS.len() {
            return Err("four fields with commas between them");
        }
        let Some(columns) = self.columns else {
            let place = |column| fields.iter().position(|field| field.eq_ignore_ascii_case(column));
            let [Some(id), Some(lower), Some(upper), Some(size)] = COLUMNS.map(place) else {
                return Err("the columns id, lower, upper and size");
            };
            self.columns = Some([id, lower, upper, size]);
            return Ok(());
        };
        let [id, lower, upper, size] = columns.map(|column| fields[column]);
        let lower: u64 = lower.parse().map_err(|_| "a time in `lower`, in decimal digits, such as 10")?;
        let upper: u64 = upper.parse().map_err(|_| "a time in `upper`, in decimal digits, such as 10")?;
        let bytes: u64 = size.parse().map_err(|_| "a size in bytes, in decimal digits, such as 1024")?;
        if lower >= upper {
            return Err("an `upper` beyond `lower`");
        }
        if !self.ids.insert(id.to_owned()) {
            return Err("an id that no other buffer has");
        }
        let buffer = self.buffers;
        self.buffers += 1;
        for (time, begins) in [(lower, true), (upper, false)] {
            self.moments.push(Moment { time, begins, buffer, bytes });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Event;
    use crate::trace::budget::ReadLimit;

    fn csv(text: &str) -> Result<Trace, TraceError> {
        read(text.as_bytes(), Origin::BuiltIn, &ReadLimit::default().budget(0))
    }

    #[test]
    fn buffers_that_end_make_room_for_those_that_begin() {
        let trace = csv("id,lower,upper,size\nb0,0,10,1024\nb1,10,20,1024\nb2,5,20,512\n").unwrap();
        assert_eq!((trace.allocations, trace.peak_active), (3, 1536));
        assert_eq!(
            trace.events,
            [
                Event::Allocate { block: 0, bytes: 1024, stream: 0 },
                Event::Allocate { block: 1, bytes: 512, stream: 0 },
                Event::RequestFree { block: 0 },
                Event::CompleteFree { block: 0 },
                Event::Allocate { block: 2, bytes: 1024, stream: 0 },
                Event::RequestFree { block: 2 },
                Event::CompleteFree { block: 2 },
                Event::RequestFree { block: 1 },
                Event::CompleteFree { block: 1 },
            ]
        );
        let moved = csv("size,id,upper,lower\n1024,b0,10,0\n1024,b1,20,10\n512,b2,20,5\n").unwrap();
        assert_eq!(moved.events, trace.events);
    }

    #[test]
    fn broken_rows_are_named() {
        for (text, line, expected) in [
            ("id,lower,upper,size\nb0,0,10", 2, "four fields with commas between them"),
            ("id,lower,upper,gaps\n", 1, "the columns id, lower, upper and size"),
            ("id,lower,upper,size\nb0,3,3,1", 2, "an `upper` beyond `lower`"),
            ("id,lower,upper,size\nb0,0,1,1\nb0,0,1,1", 3, "an id that no other buffer has"),
            ("id,lower,upper,size\nb0,0,1,-1", 2, "a size in bytes, in decimal digits, such as 1024"),
            ("id,lower,upper,size\nb0,0,1,0x400", 2, "a size in bytes, in decimal digits, such as 1024"),
            ("id,lower,upper,size\nb0,0x0,1,8", 2, "a time in `lower`, in decimal digits, such as 10"),
            ("id,lower,upper,size\nb0,0,1,18446744073709551615", 2, "a size below 2^64 - 512"),
            ("id,lower,upper,size\na,0,1,2000\nb0,0,1,18446744073709550000", 3, "fewer than 2^64 live bytes"),
        ] {
            match csv(text) {
                Err(TraceError::Line { line: l, expected: e, .. }) => {
                    assert_eq!((l, e), (line, expected), "{text}")
                }
                other => panic!("{text}: {other:?}"),
            }
        }
        assert!(matches!(csv("id,lower,upper,size\n"), Err(TraceError::Empty { .. })));
    }
}
