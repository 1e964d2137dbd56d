//! From bytes to a checked [`Trace`].

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::MultiGzDecoder;

use super::{Event, Origin, Trace, TraceError};

pub(super) const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
/// The recorder counted memory in this unit, and so does "peak active".
const ROUNDING: u64 = 512;
/// A line of the format has four short fields; more than this is not a trace.
const LONGEST_LINE: u64 = 256;

/// Reads and checks a trace, gzipped or plain.
pub(super) fn read(source: impl Read, origin: Origin) -> Result<Trace, TraceError> {
    let mut source = BufReader::new(source);
    let head = source.fill_buf().map_err(|source| TraceError::Read { origin: origin.clone(), source })?;
    if head.starts_with(&GZIP_MAGIC) {
        lines(BufReader::new(MultiGzDecoder::new(source)), origin, true)
    } else {
        lines(source, origin, false)
    }
}

fn lines(mut text: impl BufRead, origin: Origin, gzipped: bool) -> Result<Trace, TraceError> {
    let mut builder = Builder::default();
    let (mut number, mut read) = (0, 0);
    let mut line = Vec::new();
    loop {
        line.clear();
        let length = match text.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line) {
            Ok(0) => break,
            Ok(length) => length as u64,
            Err(source) if gzipped && source.kind() != io::ErrorKind::Interrupted => {
                return Err(TraceError::Gzip { origin, read, source });
            }
            Err(source) => return Err(TraceError::Read { origin, source }),
        };
        number += 1;
        read += length;
        let found = String::from_utf8_lossy(&line);
        if let Err(expected) = builder.line(found.trim_end()) {
            let found = found.trim_end().chars().take(80).collect();
            return Err(TraceError::Line { origin, line: number, expected, found });
        }
    }
    builder.finish(&origin).ok_or(TraceError::Empty { origin })
}

/// A block between its `a` and its `f`.
struct Live {
    block: u32,
    rounded: u64,
    free_requested: bool,
}

#[derive(Default)]
pub(super) struct Builder {
    events: Vec<Event>,
    live: HashMap<u64, Live>,
    allocations: u32,
    streams: u32,
    active: u64,
    peak_active: u64,
}

impl Builder {
    /// Takes one line, or says what was expected in its place.
    fn line(&mut self, line: &str) -> Result<(), &'static str> {
        let mut fields = line.split_ascii_whitespace();
        let (Some(code), Some(address), Some(bytes), Some(stream), None) =
            (fields.next(), fields.next(), fields.next(), fields.next(), fields.next())
        else {
            return Err("four fields");
        };
        let address = u64::from_str_radix(address, 16).map_err(|_| "an address in hexadecimal")?;
        let bytes: u64 = bytes.parse().map_err(|_| "a size in bytes")?;
        let stream: u32 = stream.parse().map_err(|_| "a stream number")?;
        match code {
            "a" => self.allocate(address, bytes, stream),
            "r" => self.request_free(address),
            "f" => self.complete_free(address),
            "S" | "D" | "M" | "U" => Ok(()),
            _ => Err("one of the codes a r f S D M U"),
        }
    }

    pub(super) fn allocate(&mut self, address: u64, bytes: u64, stream: u32) -> Result<(), &'static str> {
        if stream >= 1024 {
            return Err("a stream number below 1024");
        }
        let rounded = bytes.checked_next_multiple_of(ROUNDING).ok_or("a size below 2^64 - 512")?;
        let block = self.allocations;
        let live = Live { block, rounded, free_requested: false };
        if self.live.insert(address, live).is_some() {
            return Err("an address that is not allocated already");
        }
        self.allocations = block.checked_add(1).ok_or("fewer than 2^32 allocations")?;
        self.streams = self.streams.max(stream + 1);
        self.active = self.active.checked_add(rounded).ok_or("fewer than 2^64 live bytes")?;
        self.peak_active = self.peak_active.max(self.active);
        self.events.push(Event::Allocate { block, bytes, stream });
        Ok(())
    }

    pub(super) fn request_free(&mut self, address: u64) -> Result<(), &'static str> {
        let live = self.live.get_mut(&address).ok_or("an address that is allocated")?;
        if std::mem::replace(&mut live.free_requested, true) {
            return Err("an address whose free was not requested already");
        }
        self.events.push(Event::RequestFree { block: live.block });
        Ok(())
    }

    pub(super) fn complete_free(&mut self, address: u64) -> Result<(), &'static str> {
        let live = self.live.remove(&address).ok_or("an address that is allocated")?;
        if !live.free_requested {
            return Err("an address whose free was requested");
        }
        self.active -= live.rounded;
        self.events.push(Event::CompleteFree { block: live.block });
        Ok(())
    }

    pub(super) fn finish(self, origin: &Origin) -> Option<Trace> {
        let Self { events, allocations, streams, peak_active, .. } = self;
        (allocations > 0).then(|| Trace { origin: origin.clone(), events, allocations, streams, peak_active })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn plain(text: &str) -> Result<Trace, TraceError> {
        read(text.as_bytes(), Origin::BuiltIn)
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
            ("a 10 1000", 1, "four fields"),
            ("a 10 1000 0\na zz 1 0", 2, "an address in hexadecimal"),
            ("a 10 -1 0", 1, "a size in bytes"),
            ("r 10 1000 0", 1, "an address that is allocated"),
            ("a 10 1 0\na 10 1 0", 2, "an address that is not allocated already"),
            ("a 10 1 0\nf 10 1 0", 2, "an address whose free was requested"),
            ("hello there general kenobi", 1, "an address in hexadecimal"),
        ] {
            match plain(text) {
                Err(TraceError::Line { line: l, expected: e, .. }) => {
                    assert_eq!((l, e), (line, expected), "{text}");
                }
                other => panic!("{text}: {other:?}"),
            }
        }
        assert!(matches!(plain(""), Err(TraceError::Empty { .. })));
    }

    proptest! {
        #[test]
        fn a_truncated_gzip_is_an_error(keep in 0.0..1.0f64) {
            let whole = super::super::GPT2_TRAIN;
            let cut = &whole[..(whole.len() as f64 * keep) as usize];
            prop_assert!(read(cut, Origin::BuiltIn).is_err());
        }

        #[test]
        fn garbage_is_an_error_and_never_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            prop_assert!(read(&bytes[..], Origin::BuiltIn).is_err());
        }
    }
}
