//! Checks a library's file before the system's loader maps it.
//!
//! The checks are needed because the loader trusts the file: a truncated file makes it fault, and a pipe makes it
//! block. The code inside the file is not checked.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// The reason why a file was refused before it was loaded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FileFault {
    /// The path leads to something other than a regular file, for example to a folder, a pipe or a device.
    #[error("not a regular file")]
    NotRegular,
    /// The file does not start like an ELF file.
    #[error("not an ELF file: it starts with {start:02x?}")]
    NotElf {
        /// The first bytes, at most four.
        start: Vec<u8>,
    },
    /// The file is for another kind of machine.
    #[error(
        "built for another machine: ELF class {}, byte order {}, machine {}; expected {}, {}, {}",
        found.class, found.byte_order, found.machine, expected.class, expected.byte_order, expected.machine
    )]
    OtherMachine {
        /// The machine that the file is for.
        found: Target,
        /// The machine of this process.
        expected: Target,
    },
    /// The file is an ELF file whose type is not "shared object" (`ET_DYN`). It is, for example, an object file, a
    /// core dump, or an executable that is not position-independent.
    #[error("ELF type {found}; expected 3, a shared object")]
    NotShared {
        /// The type of the file (`e_type`).
        found: u16,
    },
    /// The file ends before the data that its headers describe.
    #[error("cut off: {found} bytes; its headers place data up to byte {expected}")]
    Truncated {
        /// The length in bytes that the headers require. If the file ends inside its headers, this is a lower bound.
        expected: u64,
        /// The actual length of the file in bytes.
        found: u64,
    },
}

/// The kind of machine that an ELF file is for. The numbers are those of the ELF header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Target {
    /// Word size: 1 for 32 bits, 2 for 64.
    pub class: u8,
    /// Byte order: 1 for little-endian, 2 for big-endian.
    pub byte_order: u8,
    /// Processor: 62 for x86-64, 183 for AArch64.
    pub machine: u16,
}

/// The reason why a file is not usable: it could not be read, or a check refused it.
pub(crate) enum Unfit {
    Unreadable(io::Error),
    Fault(FileFault),
}

impl From<io::Error> for Unfit {
    fn from(error: io::Error) -> Self {
        Self::Unreadable(error)
    }
}

impl From<FileFault> for Unfit {
    fn from(fault: FileFault) -> Self {
        Self::Fault(fault)
    }
}

const MAGIC: &[u8] = b"\x7fELF";
/// The size in bytes of the ELF header of a 64-bit file.
const HEADER: usize = 64;
/// The size in bytes of a program header of a 64-bit file.
const SEGMENT: u64 = 56;
/// The ELF type of shared objects, `ET_DYN`.
const SHARED_OBJECT: u16 = 3;

/// Checks that the loader can map `path`. It must be a regular file and an ELF shared object for this machine, and at
/// least as long as its headers say.
pub(crate) fn check(path: &Path) -> Result<(), Unfit> {
    // Checked before the file is opened, because opening a pipe blocks until another process opens it for writing.
    let metadata = path.metadata()?;
    if !metadata.is_file() {
        return Err(FileFault::NotRegular.into());
    }
    let (file, size) = (File::open(path)?, metadata.len());
    let header = Header::read(&file, size)?;
    let found = header.target();
    // If /proc is not available, this check passes. The loader makes the same check.
    let expected = target(Path::new("/proc/self/exe")).unwrap_or(found);
    if found != expected {
        return Err(FileFault::OtherMachine { found, expected }.into());
    }
    match header.number::<2>(16) as u16 {
        SHARED_OBJECT => {}
        found => return Err(FileFault::NotShared { found }.into()),
    }
    match header.end(&file, size)? {
        expected if expected > size => Err(FileFault::Truncated { expected, found: size }.into()),
        _ => Ok(()),
    }
}

/// Returns the machine that the ELF file at `path` is for; `None` if the file is not an ELF file or cannot be read.
pub(crate) fn target(path: &Path) -> Option<Target> {
    let metadata = path.metadata().ok().filter(|metadata| metadata.is_file())?;
    Some(Header::read(&File::open(path).ok()?, metadata.len()).ok()?.target())
}

struct Header([u8; HEADER]);

impl Header {
    fn read(file: &File, size: u64) -> Result<Self, Unfit> {
        let mut bytes = Vec::new();
        file.take(HEADER as u64).read_to_end(&mut bytes)?;
        if !bytes.starts_with(MAGIC) {
            bytes.truncate(MAGIC.len());
            return Err(FileFault::NotElf { start: bytes }.into());
        }
        let header = bytes.try_into();
        Ok(Self(header.map_err(|_| FileFault::Truncated { expected: HEADER as u64, found: size })?))
    }

    fn target(&self) -> Target {
        Target { class: self.0[4], byte_order: self.0[5], machine: self.number::<2>(18) as u16 }
    }

    /// Returns the number in the `N` bytes at offset `at`.
    fn number<const N: usize>(&self, at: usize) -> u64 {
        number(&self.0[at..at + N], self.0[5])
    }

    /// Returns the length in bytes that the file must have, so that it contains everything that the loader reads: the
    /// table of program headers, and each segment. If the file, which has `size` bytes, ends inside that table,
    /// returns a lower bound that is greater than `size`. Returns 0 for a file that is not 64-bit, because this
    /// function knows only the 64-bit layout.
    fn end(&self, file: &File, size: u64) -> io::Result<u64> {
        const CLASS_64: u8 = 2;
        if self.0[4] != CLASS_64 {
            return Ok(0);
        }
        let (table, each, count) = (self.number::<8>(32), self.number::<2>(54), self.number::<2>(56));
        let mut end = table.saturating_add(each * count);
        for index in 0..count {
            let mut segment = [0; SEGMENT as usize];
            match file.read_exact_at(&mut segment, table.saturating_add(index * each)) {
                Ok(()) => {}
                // The file ends inside the table of program headers.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                    return Ok(end.max(size.saturating_add(1)));
                }
                Err(error) => return Err(error),
            }
            let (offset, bytes) = (number(&segment[8..16], self.0[5]), number(&segment[32..40], self.0[5]));
            end = end.max(offset.saturating_add(bytes));
        }
        Ok(end)
    }
}

/// Returns the number in `bytes`. `byte_order` is that of the ELF header: 2 is big-endian, any other value
/// little-endian.
fn number(bytes: &[u8], byte_order: u8) -> u64 {
    let join = |number: u64, byte: &u8| number << 8 | u64::from(*byte);
    if byte_order == 2 { bytes.iter().fold(0, join) } else { bytes.iter().rev().fold(0, join) }
}
