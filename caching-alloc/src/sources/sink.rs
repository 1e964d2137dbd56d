//! Receivers of logged calls.

use std::error::Error;
use std::fmt;
use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};

use super::call::LoggedCall;

/// An error of a sink. [`LoggingSource`](super::LoggingSource) counts it. The logged call is not affected.
pub type SinkError = Box<dyn Error + Send + Sync>;

/// Receives records of the calls of a [`LoggingSource`](super::LoggingSource).
///
/// Every `Fn(&LoggedCall)` that is `Send + Sync` is a sink.
pub trait CallSink: Send + Sync {
    /// Records a call that the source has completed. This method runs on the thread that made the call, before that
    /// thread gets the result, and may run on several threads at the same time. An allocator that made the call may
    /// hold a lock meanwhile, so this method must not call the allocator.
    ///
    /// # Errors
    /// Any error. The record then counts as lost.
    fn record(&self, call: &LoggedCall) -> Result<(), SinkError>;
}

impl<F: Fn(&LoggedCall) + Send + Sync> CallSink for F {
    fn record(&self, call: &LoggedCall) -> Result<(), SinkError> {
        self(call);
        Ok(())
    }
}

/// Writes a line of CSV for each call, by one `write_all`. Threads write one after the other. If the writer fails, a
/// part of the line may be written; the next call then begins a new line.
///
/// The columns are those of [`LoggedCall::CSV_HEADER`]. The sink does not flush the writer. To get each line at once,
/// pass a writer that does not hold complete lines in a buffer, such as a `File` or `LineWriter`.
pub struct CsvSink<W> {
    state: Mutex<SinkState<W>>,
}

struct SinkState<W> {
    writer: W,
    /// True if the writer has failed in the latest line, so that the line may be incomplete.
    has_failed: bool,
}

impl<W: Write> CsvSink<W> {
    /// Writes the header, and makes a sink.
    ///
    /// # Errors
    /// The writer's error.
    pub fn new(mut writer: W) -> io::Result<Self> {
        writeln!(writer, "{}", LoggedCall::CSV_HEADER)?;
        Ok(Self { state: Mutex::new(SinkState { writer, has_failed: false }) })
    }

    /// Returns the writer.
    pub fn into_inner(self) -> W {
        self.state.into_inner().unwrap_or_else(PoisonError::into_inner).writer
    }
}

impl<W: Write + Send> CallSink for CsvSink<W> {
    fn record(&self, call: &LoggedCall) -> Result<(), SinkError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let line = format!("{}{call}\n", if state.has_failed { "\n" } else { "" });
        let written = state.writer.write_all(line.as_bytes());
        state.has_failed = written.is_err();
        Ok(written?)
    }
}

impl<W> fmt::Debug for CsvSink<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CsvSink").finish_non_exhaustive()
    }
}
