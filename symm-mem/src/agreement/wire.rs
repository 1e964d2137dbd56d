//! The binary form of the ranks' messages: little-endian, self-delimiting, one form for each value.
//!
//! The decoder is strict. Unknown tags, lengths beyond the input, invalid UTF-8 and trailing bytes are errors and
//! never panics. Memory is allocated only for bytes that are present, and never for an announced length alone.

use std::fmt;

/// The version of the whole protocol: records, decisions, order of votes. Ranks of different versions refuse to work
/// together.
pub const PROTOCOL_VERSION: u16 = 5;

/// The first bytes of every message, before its version.
pub(super) const MAGIC: [u8; 2] = *b"SY";

/// Bytes that are not a message of this protocol and version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// The input does not begin like a message.
    #[error("no message of the commit protocol: it begins with {found:02x?}")]
    NotAMessage {
        /// The first bytes.
        found: Vec<u8>,
    },
    /// A message of another protocol version.
    #[error(
        "protocol version {found}, this rank speaks {PROTOCOL_VERSION}; run the same release on every rank"
    )]
    Version {
        /// The version that was found.
        found: u16,
    },
    /// The message has another kind than expected.
    #[error("message kind {found} where kind {wanted} was expected")]
    Kind {
        /// The kind that was expected.
        wanted: u8,
        /// The kind that was found.
        found: u8,
    },
    /// The input ends inside a value.
    #[error("ends at byte {at}, inside a value")]
    Short {
        /// The position of the value's first byte.
        at: usize,
    },
    /// A byte that is not a valid tag of a variant.
    #[error("{tag} at byte {at} is no {of}")]
    Tag {
        /// The position of the byte.
        at: usize,
        /// The byte.
        tag: u8,
        /// The type that was being decoded.
        of: &'static str,
    },
    /// Text that is not UTF-8.
    #[error("text at byte {at} is not UTF-8")]
    Text {
        /// The position of the text's first byte.
        at: usize,
    },
    /// A list of ranks that is not in the canonical form, or is too long.
    #[error("the ranks at byte {at} are not runs of at most {most} ranks, each as long as can be")]
    Ranks {
        /// The position of the list's first byte.
        at: usize,
        /// The greatest number of ranks in a list.
        most: u32,
    },
    /// Bytes after the end of the message.
    #[error("{left} bytes after the end of the message")]
    Trailing {
        /// The number of bytes.
        left: usize,
    },
}

/// A read position in bytes.
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// The number of bytes read so far.
    pub(crate) fn position(&self) -> usize {
        self.at
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let taken = self.bytes.get(self.at..).and_then(|rest| rest.get(..count));
        let taken = taken.ok_or(Malformed::Short { at: self.at })?;
        self.at += count;
        Ok(taken)
    }

    /// The error for a tag that was just read.
    pub(crate) fn bad_tag(&self, tag: u8, of: &'static str) -> Malformed {
        Malformed::Tag { at: self.at.saturating_sub(1), tag, of }
    }

    pub(super) fn left(&self) -> usize {
        self.bytes.len() - self.at
    }
}

/// A value with a binary form.
pub trait Wire: Clone + fmt::Debug + Eq {
    fn write(&self, out: &mut Vec<u8>);
    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed>;
}

/// A value that can be sent as a message of its own.
pub trait Message: Wire {
    const KIND: u8;

    fn to_bytes(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        PROTOCOL_VERSION.write(&mut out);
        Self::KIND.write(&mut out);
        self.write(&mut out);
        out
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self, Malformed> {
        if !bytes.starts_with(&MAGIC) {
            return Err(Malformed::NotAMessage { found: bytes.iter().take(8).copied().collect() });
        }
        let mut reader = Reader { bytes, at: MAGIC.len() };
        let found = u16::read(&mut reader)?;
        if found != PROTOCOL_VERSION {
            return Err(Malformed::Version { found });
        }
        let found = u8::read(&mut reader)?;
        if found != Self::KIND {
            return Err(Malformed::Kind { wanted: Self::KIND, found });
        }
        let value = Self::read(&mut reader)?;
        match reader.left() {
            0 => Ok(value),
            left => Err(Malformed::Trailing { left }),
        }
    }
}

macro_rules! wire_integer {
    ($($integer:ty),*) => {$(
        impl Wire for $integer {
            fn write(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }

            fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
                let mut bytes = [0; size_of::<$integer>()];
                bytes.copy_from_slice(from.take(size_of::<$integer>())?);
                Ok(<$integer>::from_le_bytes(bytes))
            }
        }
    )*};
}
wire_integer!(u8, u16, u32, u64);

impl Wire for bool {
    fn write(&self, out: &mut Vec<u8>) {
        u8::from(*self).write(out);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        match u8::read(from)? {
            0 => Ok(false),
            1 => Ok(true),
            tag => Err(from.bad_tag(tag, "truth value")),
        }
    }
}

impl Wire for String {
    fn write(&self, out: &mut Vec<u8>) {
        (self.len() as u32).write(out);
        out.extend_from_slice(self.as_bytes());
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let length = u32::read(from)? as usize;
        let at = from.at;
        let text = std::str::from_utf8(from.take(length)?).map_err(|_| Malformed::Text { at })?;
        Ok(text.to_owned())
    }
}

impl<T: Wire> Wire for Option<T> {
    fn write(&self, out: &mut Vec<u8>) {
        self.is_some().write(out);
        if let Some(value) = self {
            value.write(out);
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(if bool::read(from)? { Some(T::read(from)?) } else { None })
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn write(&self, out: &mut Vec<u8>) {
        (self.len() as u32).write(out);
        for value in self {
            value.write(out);
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let length = u32::read(from)? as usize;
        // Every element takes at least one byte, so a length beyond the input is rejected before any element is read.
        if length > from.left() {
            return Err(Malformed::Short { at: from.at });
        }
        let mut values = Vec::new();
        for _ in 0..length {
            values.push(T::read(from)?);
        }
        Ok(values)
    }
}

/// Implements the binary form of a struct: its fields, one after the other.
macro_rules! wire_struct {
    ($name:ident $(<$parameter:ident>)? { $($field:ident),* $(,)? }) => {
        impl $(<$parameter: $crate::agreement::wire::Wire>)? $crate::agreement::wire::Wire
            for $name $(<$parameter>)?
        {
            fn write(&self, out: &mut Vec<u8>) {
                $($crate::agreement::wire::Wire::write(&self.$field, out);)*
            }

            fn read(
                from: &mut $crate::agreement::wire::Reader<'_>,
            ) -> Result<Self, $crate::agreement::wire::Malformed> {
                Ok(Self { $($field: $crate::agreement::wire::Wire::read(from)?),* })
            }
        }
    };
}

/// Implements the binary form of an enum with struct-like and unit variants: a tag, and the variant's fields.
macro_rules! wire_enum {
    (
        $name:ident $(<$parameter:ident: $bound:ident>)?
        { $($tag:literal => $variant:ident { $($field:ident),* }),* $(,)? }
    ) => {
        impl $(<$parameter: $bound>)? $crate::agreement::wire::Wire for $name $(<$parameter>)? {
            fn write(&self, out: &mut Vec<u8>) {
                match self {
                    $(Self::$variant { $($field),* } => {
                        $crate::agreement::wire::Wire::write(&($tag as u8), out);
                        $($crate::agreement::wire::Wire::write($field, out);)*
                    })*
                }
            }

            fn read(
                from: &mut $crate::agreement::wire::Reader<'_>,
            ) -> Result<Self, $crate::agreement::wire::Malformed> {
                match <u8 as $crate::agreement::wire::Wire>::read(from)? {
                    $($tag => Ok(Self::$variant {
                        $($field: $crate::agreement::wire::Wire::read(from)?),*
                    }),)*
                    tag => Err(from.bad_tag(tag, stringify!($name))),
                }
            }
        }
    };
}

pub(crate) use {wire_enum, wire_struct};
