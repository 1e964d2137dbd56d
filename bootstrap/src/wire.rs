//! The binary form of the messages that ranks exchange through a store. It is little-endian and self-delimiting,
//! and each value has exactly one form.
//!
//! A type usually gets its form from [`wire_struct!`](crate::wire_struct) or [`wire_enum!`](crate::wire_enum), beside
//! its definition. A type that is sent by itself is a [`Message`]: a header with the protocol, its version and the kind
//! of the message comes first.
//!
//! The decoder is strict and never panics. It returns an error for unknown tags, lengths beyond the input, invalid
//! UTF-8, map entries out of order, and bytes after a message. It allocates memory only for bytes that are present, and
//! never for an announced length alone.
//!
//! ```
//! use bootstrap::wire::{Malformed, Message, Protocol};
//!
//! #[derive(Debug, Clone, PartialEq, Eq)]
//! struct Vote {
//!     rank: u32,
//!     problem: Option<String>,
//! }
//! bootstrap::wire_struct!(Vote { rank, problem });
//!
//! impl Message for Vote {
//!     const PROTOCOL: Protocol = Protocol { magic: *b"VO", version: 1 };
//!     const KIND: u8 = 0;
//! }
//!
//! let vote = Vote { rank: 3, problem: None };
//! assert_eq!(vote.to_bytes(), [b'V', b'O', 1, 0, 0, 3, 0, 0, 0, 0]);
//! assert_eq!(Vote::from_bytes(&vote.to_bytes()), Ok(vote));
//! assert_eq!(Vote::from_bytes(b"VO\x01\0\0\x03"), Err(Malformed::Short { at: 5 }));
//! ```

use std::{collections::BTreeMap, convert::Infallible, fmt, time::Duration};

/// Identifies a protocol and its version. Every message begins with these two fields, four bytes in
/// total.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Protocol {
    /// The first bytes of every message.
    pub magic: [u8; 2],
    /// The version of the messages and of the order in which they are sent. It follows the magic in every message.
    pub version: u16,
}

/// The reason why bytes are not a message of the expected protocol, version and kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// The input does not begin with the magic of the protocol.
    #[error("no message of this protocol: it begins with {found:02x?}")]
    NotAMessage {
        /// The first bytes of the input, at most eight.
        found: Vec<u8>,
    },
    /// The message has another protocol version.
    #[error("protocol version {found}, this rank speaks {spoken}; run the same release on every rank")]
    Version {
        /// The version that was found.
        found: u16,
        /// The version of this rank.
        spoken: u16,
    },
    /// The message has another kind than expected.
    #[error("message kind {found} where kind {wanted} was expected")]
    Kind {
        /// The kind that was expected.
        wanted: u8,
        /// The kind that was found.
        found: u8,
    },
    /// The input ends inside the header or a value.
    #[error("ends at byte {at}, inside a value")]
    Short {
        /// The position of the incomplete integer. If the length of a text or list exceeds the number of bytes left,
        /// the position after that length.
        at: usize,
    },
    /// A tag byte has an unknown value. Enums, `bool` and `Option` have tags.
    #[error("{tag} at byte {at} is no {of}")]
    Tag {
        /// The position of the byte.
        at: usize,
        /// The byte.
        tag: u8,
        /// The type that was being decoded.
        of: &'static str,
    },
    /// The bytes have the right length but encode no value: a size that this machine cannot represent, a duration with
    /// too many nanoseconds, or a map with entries out of order or a repeated key. Reading a type that has no values
    /// ([`Infallible`]) always returns this error.
    #[error("the value at byte {at} is no {of}")]
    Value {
        /// The position of the value's first byte.
        at: usize,
        /// The type that was being decoded.
        of: &'static str,
    },
    /// A text is not UTF-8.
    #[error("text at byte {at} is not UTF-8")]
    Text {
        /// The position of the text's first byte.
        at: usize,
    },
    /// A list of ranks has too many ranks, contains `u32::MAX`, or is not encoded as runs of consecutive ranks that are
    /// non-empty and as long as possible. Only types of other crates return this error.
    #[error("the ranks at byte {at} are not runs of at most {most} ranks, each as long as can be")]
    Ranks {
        /// The position of the list's first byte.
        at: usize,
        /// The maximum number of ranks in a list.
        most: u32,
    },
    /// There are bytes after the end of the message.
    #[error("{left} bytes after the end of the message")]
    Trailing {
        /// The number of these bytes.
        left: usize,
    },
}

/// Reads values from bytes, one after the other. After an error, the reader must not be used any more.
pub struct Reader<'a> {
    bytes: &'a [u8],
    /// The number of bytes read so far.
    at: usize,
}

impl<'a> Reader<'a> {
    /// Makes a reader that starts at the first byte.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Returns the number of bytes read so far.
    #[must_use]
    pub fn position(&self) -> usize {
        self.at
    }

    /// Reads the next `count` bytes. Returns [`Malformed::Short`] if fewer are left.
    fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let taken = self.bytes.get(self.at..).and_then(|rest| rest.get(..count));
        let taken = taken.ok_or(Malformed::Short { at: self.at })?;
        self.at += count;
        Ok(taken)
    }

    /// Returns the error for a tag that is not valid for the type named `of`. The tag must be the last byte read.
    #[must_use]
    pub fn bad_tag(&self, tag: u8, of: &'static str) -> Malformed {
        Malformed::Tag { at: self.at.saturating_sub(1), tag, of }
    }

    /// Returns the number of bytes that are left.
    #[must_use]
    pub fn left(&self) -> usize {
        self.bytes.len() - self.at
    }
}

/// A type whose values have a binary form. Lists ([`Vec`] and [`BTreeMap`]) need elements that take at least one byte.
pub trait Wire: Clone + fmt::Debug + Eq {
    /// Appends the value's binary form to `out`.
    fn write(&self, out: &mut Vec<u8>);

    /// Reads a value, and moves `from` past it.
    ///
    /// # Errors
    /// [`Malformed`] if the next bytes are not a value of this type.
    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed>;
}

/// A value that can be sent as a message of its own.
pub trait Message: Wire {
    /// The protocol that the message belongs to.
    const PROTOCOL: Protocol;
    /// The kind of the message. Each type of message in a protocol has its own.
    const KIND: u8;

    /// Returns the bytes of the message: header and value.
    fn to_bytes(&self) -> Vec<u8> {
        to_message(Self::PROTOCOL, Self::KIND, self)
    }

    /// Reads a message of this type, which must take all of `bytes`.
    ///
    /// # Errors
    /// [`Malformed`] if `bytes` is not exactly such a message.
    fn from_bytes(bytes: &[u8]) -> Result<Self, Malformed> {
        from_message(Self::PROTOCOL, Self::KIND, bytes)
    }
}

/// Returns `value` as a message of this protocol and kind.
pub(crate) fn to_message(protocol: Protocol, kind: u8, value: &impl Wire) -> Vec<u8> {
    let mut out = protocol.magic.to_vec();
    protocol.version.write(&mut out);
    kind.write(&mut out);
    value.write(&mut out);
    out
}

/// Reads a message of this protocol and kind, which must take all of `bytes`.
pub(crate) fn from_message<V: Wire>(protocol: Protocol, kind: u8, bytes: &[u8]) -> Result<V, Malformed> {
    let Protocol { magic, version: spoken } = protocol;
    if !bytes.starts_with(&magic) {
        return Err(Malformed::NotAMessage { found: bytes.iter().take(8).copied().collect() });
    }
    let mut reader = Reader { bytes, at: magic.len() };
    let found = u16::read(&mut reader)?;
    if found != spoken {
        return Err(Malformed::Version { found, spoken });
    }
    let found = u8::read(&mut reader)?;
    if found != kind {
        return Err(Malformed::Kind { wanted: kind, found });
    }
    let value = V::read(&mut reader)?;
    match reader.left() {
        0 => Ok(value),
        left => Err(Malformed::Trailing { left }),
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
wire_integer!(u8, u16, u32, u64, i64);

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

/// Takes no bytes.
impl Wire for () {
    fn write(&self, _: &mut Vec<u8>) {}

    fn read(_: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(())
    }
}

/// A type without values, for variants that do not occur. Reading it always fails.
impl Wire for Infallible {
    fn write(&self, _: &mut Vec<u8>) {
        match *self {}
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Err(Malformed::Value { at: from.at, of: "variant" })
    }
}

/// Takes eight bytes, as a `u64`. Reading fails if the number does not fit into a `usize`.
impl Wire for usize {
    fn write(&self, out: &mut Vec<u8>) {
        (*self as u64).write(out);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let at = from.at;
        Self::try_from(u64::read(from)?).map_err(|_| Malformed::Value { at, of: "size" })
    }
}

/// Whole seconds as a `u64`, then nanoseconds as a `u32`.
impl Wire for Duration {
    fn write(&self, out: &mut Vec<u8>) {
        self.as_secs().write(out);
        self.subsec_nanos().write(out);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let at = from.at;
        let (seconds, nanoseconds) = <(u64, u32)>::read(from)?;
        match nanoseconds {
            0..1_000_000_000 => Ok(Self::new(seconds, nanoseconds)),
            _ => Err(Malformed::Value { at, of: "duration" }),
        }
    }
}

impl<A: Wire, B: Wire> Wire for (A, B) {
    fn write(&self, out: &mut Vec<u8>) {
        self.0.write(out);
        self.1.write(out);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok((A::read(from)?, B::read(from)?))
    }
}

/// The elements, without a count before them.
impl<T: Wire + Copy + Default, const N: usize> Wire for [T; N] {
    fn write(&self, out: &mut Vec<u8>) {
        self.iter().for_each(|value| value.write(out));
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut values = [T::default(); N];
        for value in &mut values {
            *value = T::read(from)?;
        }
        Ok(values)
    }
}

/// The number of entries as a `u32`, then the entries in ascending order of their keys. Reading fails for another order
/// and for repeated keys.
impl<K: Wire + Ord, V: Wire> Wire for BTreeMap<K, V> {
    fn write(&self, out: &mut Vec<u8>) {
        (self.len() as u32).write(out);
        for (key, value) in self {
            key.write(out);
            value.write(out);
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let at = from.at;
        let entries = Vec::<(K, V)>::read(from)?;
        if !entries.is_sorted_by(|(one, _), (other, _)| one < other) {
            return Err(Malformed::Value { at, of: "map" });
        }
        Ok(entries.into_iter().collect())
    }
}

/// A field that is not sent: it takes no bytes, and is read as its default.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Unsent<T>(pub T);

impl<T: Clone + fmt::Debug + Eq + Default> Wire for Unsent<T> {
    fn write(&self, _: &mut Vec<u8>) {}

    fn read(_: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self::default())
    }
}

/// The length in bytes as a `u32`, then the text in UTF-8.
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

/// Has the form of the value in the box.
impl<T: Wire> Wire for Box<T> {
    fn write(&self, out: &mut Vec<u8>) {
        T::write(self, out);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        T::read(from).map(Box::new)
    }
}

/// One byte that is 1 for `Some` and 0 for `None`, then the value if there is one.
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

/// The number of elements as a `u32`, then the elements.
impl<T: Wire> Wire for Vec<T> {
    fn write(&self, out: &mut Vec<u8>) {
        (self.len() as u32).write(out);
        for value in self {
            value.write(out);
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let length = u32::read(from)? as usize;
        // An element of a list takes at least one byte, so a length above the number of bytes left is rejected before
        // any element is read. Types that take no bytes, such as `()` and `Unsent`, must not be elements of lists.
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

/// Implements [`Wire`] for a struct: its fields in the given order, one after the other. All fields must be listed,
/// by their names alone. The struct itself is defined as usual.
///
/// ```
/// #[derive(Debug, Clone, PartialEq, Eq)]
/// struct Offer {
///     batch: u64,
///     host: String,
/// }
/// bootstrap::wire_struct!(Offer { batch, host });
/// ```
#[macro_export]
macro_rules! wire_struct {
    ($name:ident $(<$parameter:ident>)? { $($field:ident),* $(,)? }) => {
        impl $(<$parameter: $crate::wire::Wire>)? $crate::wire::Wire
            for $name $(<$parameter>)?
        {
            fn write(&self, out: &mut Vec<u8>) {
                $($crate::wire::Wire::write(&self.$field, out);)*
            }

            fn read(
                from: &mut $crate::wire::Reader<'_>,
            ) -> Result<Self, $crate::wire::Malformed> {
                Ok(Self { $($field: $crate::wire::Wire::read(from)?),* })
            }
        }
    };
}

/// Implements [`Wire`] for an enum: one byte with the tag of the variant, then the variant's fields in the given order.
/// All variants must be listed. A unit variant is written `TAG => Variant {}`. A tuple variant must have exactly one
/// field, for which any name is given. The enum itself is defined as usual.
///
/// ```
/// #[derive(Debug, Clone, PartialEq, Eq)]
/// enum Answer {
///     Accepted,
///     Moved { rank: u32, host: String },
///     Failed(String),
/// }
/// bootstrap::wire_enum!(named Answer {
///     0 => Accepted {},
///     1 => Moved { rank, host },
///     2 => Failed(cause),
/// });
/// assert_eq!(Answer::Accepted.name(), "Accepted");
/// ```
///
/// The word `named` also gives the enum a public method `name`, which returns the name of the variant.
#[macro_export]
macro_rules! wire_enum {
    (
        named $name:ident
        { $($tag:literal => $variant:ident $({ $($field:ident),* })? $(($inner:ident))?),* $(,)? }
    ) => {
        $crate::wire_enum!($name { $($tag => $variant $({ $($field),* })? $(($inner))?),* });

        impl $name {
            /// Returns the name of the variant.
            #[must_use]
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$variant { .. } => stringify!($variant),)*
                }
            }
        }
    };
    (
        $name:ident $(<$parameter:ident: $bound:ident>)?
        { $($tag:literal => $variant:ident $({ $($field:ident),* })? $(($inner:ident))?),* $(,)? }
    ) => {
        impl $(<$parameter: $bound>)? $crate::wire::Wire for $name $(<$parameter>)? {
            fn write(&self, out: &mut Vec<u8>) {
                match self {
                    $(Self::$variant $({ $($field),* })? $(($inner))? => {
                        $crate::wire::Wire::write(&($tag as u8), out);
                        $($($crate::wire::Wire::write($field, out);)*)?
                        $($crate::wire::Wire::write($inner, out);)?
                    })*
                }
            }

            fn read(
                from: &mut $crate::wire::Reader<'_>,
            ) -> Result<Self, $crate::wire::Malformed> {
                match <u8 as $crate::wire::Wire>::read(from)? {
                    $($tag => Ok(Self::$variant
                        $({ $($field: $crate::wire::Wire::read(from)?),* })?
                        $(({ let $inner = $crate::wire::Wire::read(from)?; $inner }))?
                    ),)*
                    tag => Err(from.bad_tag(tag, stringify!($name))),
                }
            }
        }
    };
}

pub use {wire_enum, wire_struct};

#[cfg(test)]
mod tests;
