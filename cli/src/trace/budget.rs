//! Limits the memory that reading a file may take. A small file can describe a large value.
//!
//! A reader charges an upper bound of the memory for each value before it makes the value. Bounds include what the
//! growth of vectors costs, so the process stays below about twice the limit.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use crate::values;

/// The limit for small files.
const LIMIT: u64 = 256 << 20;

/// The limit for large ones, in bytes for each byte of the file: more than dumps and snapshots of PyTorch need.
const PER_BYTE: u64 = 32;

/// Bytes of the limit for each value that may be read. Values that are dropped at once take no memory, but time.
const PER_VALUE: u64 = 8;

/// Bytes of a text that count as another value.
const VALUE: u64 = 64;

/// Bytes that are read at a time.
const PIECE: u64 = 1 << 20;

/// The option of commands that read files.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(crate) struct ReadLimit {
    /// Memory limit for reading the input, in MiB [default: 256, or 32 times the size of the files if that is more]
    #[arg(long, value_name = "MIB", value_parser = values::whole::<u64>("a number of MiB", 1..=u64::MAX), allow_negative_numbers = true)]
    read_memory: Option<u64>,
}

/// The budget is spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "reading it takes more than the budget of {} MiB of memory, or than {} values; raise it with --read-memory MIB if you \
     trust the file", .limit >> 20, .limit / PER_VALUE
)]
pub(crate) struct Spent {
    limit: u64,
}

/// Memory that is left for reading one file or one folder.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: u64,
    used: Cell<u64>,
    values: Cell<u64>,
    is_spent: Cell<bool>,
}

impl ReadLimit {
    /// Creates a budget of `mib` MiB.
    #[cfg(test)]
    pub(crate) fn of_mib(mib: u64) -> Self {
        Self { read_memory: Some(mib) }
    }

    /// The budget for files of so many bytes.
    pub(crate) fn budget(self, file_bytes: u64) -> Budget {
        let default = LIMIT.max(file_bytes.saturating_mul(PER_BYTE));
        let limit = self.read_memory.map_or(default, |mib| mib.saturating_mul(1 << 20));
        Budget { limit, used: Cell::new(0), values: Cell::new(0), is_spent: Cell::new(false) }
    }

    /// The budget for the file at `path`.
    pub(crate) fn budget_for(self, path: &Path) -> io::Result<Budget> {
        Ok(self.budget(path.metadata()?.len()))
    }
}

impl Budget {
    /// Charges memory before it is taken.
    pub(crate) fn charge(&self, bytes: u64) -> Result<(), Spent> {
        let used = self.used.get().saturating_add(bytes);
        if used > self.limit {
            return Err(self.spent());
        }
        self.used.set(used);
        Ok(())
    }

    /// Refunds memory that was charged.
    pub(crate) fn refund(&self, bytes: u64) {
        self.used.set(self.used.get().saturating_sub(bytes));
    }

    /// Bytes that are charged now.
    pub(crate) fn used(&self) -> u64 {
        self.used.get()
    }

    /// Counts a value that is read, of so many bytes if it is a text.
    pub(crate) fn count_value(&self, bytes: u64) -> Result<(), Spent> {
        self.values.set(self.values.get() + 1 + bytes / VALUE);
        if self.values.get() > self.limit / PER_VALUE { Err(self.spent()) } else { Ok(()) }
    }

    /// Returns the error if any charge has failed. Parsers convert errors to text, so this keeps the original.
    pub(crate) fn error(&self) -> Option<Spent> {
        self.is_spent.get().then_some(Spent { limit: self.limit })
    }

    fn spent(&self) -> Spent {
        self.is_spent.set(true);
        Spent { limit: self.limit }
    }

    /// Reads to the end. After an error, `bytes` keeps the part that was read.
    pub(crate) fn read_to_end(&self, mut source: impl Read, bytes: &mut Vec<u8>) -> io::Result<()> {
        loop {
            let count = source.by_ref().take(PIECE).read_to_end(bytes)? as u64;
            self.charge(count).map_err(io::Error::other)?;
            if count < PIECE {
                return Ok(());
            }
        }
    }

    /// Reads the file at `path`.
    pub(crate) fn read_file(&self, path: &Path) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.read_to_end(File::open(path)?, &mut bytes)?;
        Ok(bytes)
    }

    /// Charges the most memory that the values of a JSON text can take: each value follows one of these characters.
    pub(crate) fn charge_json(&self, text: &[u8]) -> Result<(), Spent> {
        let cost = |byte: &u8| match byte {
            b'{' => CONTAINER,
            b'[' | b',' => TEXT,
            _ => 1,
        };
        self.charge(text.iter().map(cost).sum())
    }
}

/// Memory for a list, or for a map and the structure made from it.
pub(crate) const CONTAINER: u64 = 256;
/// Memory for a text besides its bytes.
pub(crate) const TEXT: u64 = 96;
/// Memory for another value.
pub(crate) const SCALAR: u64 = 24;
