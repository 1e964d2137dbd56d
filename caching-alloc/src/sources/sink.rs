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

/// Writes a line of CSV for each call, by one `write_all`. Threads write one after the other.
///
/// The columns are those of [`LoggedCall::CSV_HEADER`]. The sink does not flush the writer. To get each line at once,
/// pass a writer that does not hold complete lines in a buffer, such as a `File` or `LineWriter`.
pub struct CsvSink<W> {
    writer: Mutex<W>,
}

impl<W: Write> CsvSink<W> {
    /// Writes the header, and makes a sink.
    ///
    /// # Errors
    /// The writer's error.
    pub fn new(mut writer: W) -> io::Result<Self> {
        writeln!(writer, "{}", LoggedCall::CSV_HEADER)?;
        Ok(Self { writer: Mutex::new(writer) })
    }

    /// Returns the writer.
    pub fn into_inner(self) -> W {
        self.writer.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<W: Write + Send> CallSink for CsvSink<W> {
    fn record(&self, call: &LoggedCall) -> Result<(), SinkError> {
        let line = format!("{call}\n");
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(writer.write_all(line.as_bytes())?)
    }
}

impl<W> fmt::Debug for CsvSink<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CsvSink").finish_non_exhaustive()
    }
}
