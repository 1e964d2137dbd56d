//! The unique id by which the ranks of a new communicator find each other.

use std::fmt;

use nccl_sys::ncclUniqueId;

use super::CommError;

/// A unique id that one rank makes and sends to all others. The id contains a network address of that rank, and
/// serves one initialization.
///
/// The rank that made the id must stay alive until every rank has joined. [`Display`](fmt::Display) shows a short
/// digest, to tell two ids apart in a log.
#[doc(alias = "ncclUniqueId")]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct UniqueId([u8; Self::BYTES]);

impl UniqueId {
    /// Size of an id in bytes.
    pub const BYTES: usize = 128;

    /// Returns the bytes of the id, to be sent to the other ranks.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }

    /// Makes an id from the bytes that [`as_bytes`](Self::as_bytes) returned on another rank.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    pub(crate) fn from_raw(raw: ncclUniqueId) -> Self {
        Self(raw.internal.map(|byte| byte.cast_unsigned()))
    }

    pub(crate) fn raw(&self) -> ncclUniqueId {
        ncclUniqueId { internal: self.0.map(u8::cast_signed) }
    }
}

impl TryFrom<&[u8]> for UniqueId {
    type Error = CommError;

    fn try_from(bytes: &[u8]) -> Result<Self, CommError> {
        let bytes = bytes.try_into().map_err(|_| CommError::UniqueIdLength { found: bytes.len() })?;
        Ok(Self(bytes))
    }
}

impl fmt::Display for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", bootstrap::hash::fnv64(&self.0) >> 32)
    }
}

impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UniqueId({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_survive_the_way_to_nccl_and_back() {
        let id = UniqueId::from_bytes(std::array::from_fn(|i| (i * 37) as u8));
        assert_eq!(UniqueId::from_raw(id.raw()), id);
        assert_eq!(UniqueId::try_from(&id.as_bytes()[..]).unwrap(), id);
        assert_eq!(id.to_string().len(), 8);
        assert_ne!(id.to_string(), UniqueId::from_bytes([0; 128]).to_string());
    }

    #[test]
    fn a_wrong_length_is_named() {
        let error = UniqueId::try_from(&[0u8; 3][..]).unwrap_err();
        assert!(error.to_string().contains("3 bytes"), "{error}");
    }
}
