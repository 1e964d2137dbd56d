//! Records of the calls that are made to a source.

use std::fmt::{self, Write as _};
use std::thread::ThreadId;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::core::{SourceError, chain};

/// A method of [`SegmentSource`](crate::core::SegmentSource) or [`PageSource`](crate::core::PageSource) whose calls are
/// logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the methods' names")]
pub enum SourceMethod {
    Allocate,
    Release,
    Export,
    Reserve,
    Unreserve,
    Create,
    Discard,
    Map,
    Enable,
    Unmap,
}

impl SourceMethod {
    /// Returns the method's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Allocate => "allocate",
            Self::Release => "release",
            Self::Export => "export",
            Self::Reserve => "reserve",
            Self::Unreserve => "unreserve",
            Self::Create => "create",
            Self::Discard => "discard",
            Self::Map => "map",
            Self::Enable => "enable",
            Self::Unmap => "unmap",
        }
    }
}

impl fmt::Display for SourceMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The result of a call.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum CallOutcome {
    /// The call succeeded.
    Success,
    /// The call failed with [`SourceError::OutOfMemory`].
    OutOfMemory,
    /// The call failed with another error: its message, followed by those of its causes.
    Failed(String),
}

impl CallOutcome {
    pub(super) fn of<T>(result: &Result<T, SourceError>) -> Self {
        match result {
            Ok(_) => Self::Success,
            Err(SourceError::OutOfMemory { .. }) => Self::OutOfMemory,
            Err(error) => Self::Failed(chain(error)),
        }
    }

    /// Returns true for [`Success`](Self::Success).
    #[must_use]
    pub fn is_success(&self) -> bool {
        *self == Self::Success
    }
}

/// A completed call to a source.
///
/// `Display` writes it as a line of CSV without a line break. The columns are those of
/// [`CSV_HEADER`](Self::CSV_HEADER).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoggedCall {
    /// The method.
    pub method: SourceMethod,
    /// Ordinal of the source's device.
    pub device: u32,
    /// The calling thread.
    pub thread: ThreadId,
    /// Wall-clock time at the start of the call.
    pub start: SystemTime,
    /// The duration of the call.
    pub duration: Duration,
    /// The first address of the memory or range that was passed to the call or returned by it. `None` if the method has
    /// no address, or returns one and failed.
    pub address: Option<u64>,
    /// The size that was passed to the call, in bytes.
    pub bytes: u64,
    /// The token of the segment or page that was passed to the call or returned by it. `None` if the method has no
    /// token, or returns one and failed.
    pub token: Option<u64>,
    /// The result of the call.
    pub outcome: CallOutcome,
}

impl LoggedCall {
    /// The names of the columns.
    ///
    /// - `time`: Unix time in seconds at the start of the call, with six decimals
    /// - `address`, `token`: hexadecimal, or empty if there is none
    /// - `result`: `ok`, `out of memory` or `failed`
    /// - `error`: the error of a `failed` call in quotes, otherwise empty
    pub const CSV_HEADER: &str = "time,thread,device,method,address,bytes,token,duration_ns,result,error";
}

impl fmt::Display for LoggedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A time before 1970 is written as 0.
        let time = self.start.duration_since(UNIX_EPOCH).unwrap_or_default();
        // `ThreadId` has no stable accessor for its number, but `Debug` shows it.
        let thread = format!("{:?}", self.thread);
        let thread: String = thread.chars().filter(char::is_ascii_digit).collect();
        let Self { method, device, bytes, .. } = self;
        write!(f, "{}.{:06},{thread},{device},{method},", time.as_secs(), time.subsec_micros())?;
        hexadecimal(f, self.address)?;
        write!(f, ",{bytes},")?;
        hexadecimal(f, self.token)?;
        write!(f, ",{},", self.duration.as_nanos())?;
        match &self.outcome {
            CallOutcome::Success => f.write_str("ok,"),
            CallOutcome::OutOfMemory => f.write_str("out of memory,"),
            CallOutcome::Failed(error) => {
                f.write_str("failed,")?;
                quoted(f, error)
            }
        }
    }
}

fn hexadecimal(f: &mut fmt::Formatter<'_>, number: Option<u64>) -> fmt::Result {
    number.map_or(Ok(()), |number| write!(f, "{number:#x}"))
}

/// Writes a quoted CSV field. Control characters, such as line breaks, become spaces.
fn quoted(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    f.write_char('"')?;
    for character in text.chars() {
        match character {
            '"' => f.write_str("\"\"")?,
            control if control.is_control() => f.write_char(' ')?,
            other => f.write_char(other)?,
        }
    }
    f.write_char('"')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Splits a line of CSV into its fields, by the rules of RFC 4180.
    fn fields(line: &str) -> Vec<String> {
        let (mut fields, mut quoted) = (vec![String::new()], false);
        let mut characters = line.chars().peekable();
        while let Some(character) = characters.next() {
            let field = fields.last_mut().expect("there is always one");
            match character {
                '"' if quoted && characters.peek() == Some(&'"') => field.extend(characters.next()),
                '"' => quoted = !quoted,
                ',' if !quoted => fields.push(String::new()),
                other => field.push(other),
            }
        }
        assert!(!quoted, "{line}");
        fields
    }

    fn outcome() -> impl Strategy<Value = CallOutcome> {
        let text = prop::collection::vec(any::<char>(), 0..40).prop_map(String::from_iter);
        prop_oneof![
            Just(CallOutcome::Success),
            Just(CallOutcome::OutOfMemory),
            text.prop_map(CallOutcome::Failed),
        ]
    }

    proptest! {
        #[test]
        fn a_line_has_the_columns_of_the_header(
            address: Option<u64>,
            token: Option<u64>,
            bytes: u64,
            nanos in 0..u64::MAX / 2,
            outcome in outcome(),
        ) {
            let call = LoggedCall {
                method: SourceMethod::Map,
                device: 3,
                thread: std::thread::current().id(),
                start: UNIX_EPOCH + Duration::from_nanos(nanos),
                duration: Duration::from_nanos(nanos),
                address,
                bytes,
                token,
                outcome: outcome.clone(),
            };
            let line = call.to_string();
            prop_assert!(!line.contains(['\n', '\r']));
            let fields = fields(&line);
            prop_assert_eq!(fields.len(), LoggedCall::CSV_HEADER.split(',').count());
            let hexadecimal = |field: &str| {
                (!field.is_empty()).then(|| u64::from_str_radix(field.trim_start_matches("0x"), 16).unwrap())
            };
            let (seconds, micros) = fields[0].split_once('.').unwrap();
            let time = seconds.parse::<u64>().unwrap() * 1_000_000 + micros.parse::<u64>().unwrap();
            prop_assert_eq!((time, micros.len()), (nanos / 1000, 6));
            prop_assert!(fields[1].parse::<u64>().is_ok());
            prop_assert_eq!((&*fields[2], &*fields[3]), ("3", "map"));
            prop_assert_eq!(hexadecimal(&fields[4]), address);
            prop_assert_eq!(fields[5].parse::<u64>().unwrap(), bytes);
            prop_assert_eq!(hexadecimal(&fields[6]), token);
            prop_assert_eq!(fields[7].parse::<u64>().unwrap(), nanos);
            let (result, error) = match outcome {
                CallOutcome::Success => ("ok", String::new()),
                CallOutcome::OutOfMemory => ("out of memory", String::new()),
                CallOutcome::Failed(text) => ("failed", text.replace(char::is_control, " ")),
            };
            prop_assert_eq!((&*fields[8], &*fields[9]), (result, &*error));
        }
    }
}
