//! The reasons why a server closes a connection.

use std::time::Duration;

use super::super::{request::Refusal, secret, wire::Malformed};

/// The reason why a server closes a connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Rejection {
    /// The first bytes are not those of a client of a store.
    #[error("foreign traffic: the first bytes are {first:02x?}")]
    Foreign {
        /// The bytes, at most five.
        first: Vec<u8>,
    },
    /// The greeting was not complete in time.
    #[error("no greeting within {waited:?}")]
    Silent {
        /// The time that the server waited.
        waited: Duration,
    },
    /// The greeting was not complete, and a newer connection needed the place of this one.
    #[error("no greeting yet, and newer connections need the place: {limit} may be without one")]
    Crowded {
        /// The largest number of connections without a complete greeting.
        limit: usize,
    },
    /// The limit on connected clients is reached.
    #[error(
        "{limit} clients are connected, and no more are allowed by the store's limit, or by the descriptors that its \
         process may have (`ulimit -n`)"
    )]
    Full {
        /// The largest number of clients.
        limit: usize,
    },
    /// The process has no descriptor left for the connection.
    #[error(
        "with {clients} clients connected, the store's process has no descriptor left for another (`ulimit -n`)"
    )]
    Descriptors {
        /// The number of connected clients.
        clients: usize,
    },
    /// The server's memory is used up. Either this connection needed more, and would then hold the most. Or
    /// another connection needed more, and this one held the most.
    #[error(
        "the store's {limit} bytes of memory are used up, and none holds or needs more of them than this connection: \
         {held} bytes"
    )]
    Memory {
        /// Bytes that this connection holds (requests, its wait, unsent replies, overhead), plus those that its current
        /// request needs.
        held: usize,
        /// Bytes that the server may use.
        limit: usize,
    },
    /// The client sent a greeting without a secret, as PyTorch's clients do, and the server has one.
    #[error("a greeting without the secret that this store wants; PyTorch's clients cannot give one")]
    NoSecret,
    /// The client has a secret and the server has none.
    #[error("a greeting with a secret, and this store has none")]
    NotKept,
    /// The client does not know the secret.
    #[error("a wrong secret")]
    WrongSecret,
    /// An unknown type byte, or a second greeting on one connection.
    #[error("type byte {0} is no request")]
    UnknownRequest(u8),
    /// The request cannot be served.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

impl Rejection {
    /// Returns the bytes to send before the connection is closed. They tell a client of this crate that the secret
    /// is the reason. For other reasons there are none.
    pub fn last_words(&self) -> &'static [u8] {
        const WANTED: [u8; 4] = secret::MAGIC.to_le_bytes();
        match self {
            Self::NoSecret => &WANTED,
            Self::NotKept | Self::WrongSecret => &[0],
            _ => &[],
        }
    }
}

impl From<Malformed> for Rejection {
    fn from(malformed: Malformed) -> Self {
        match malformed {
            Malformed::Unknown(kind) => Self::UnknownRequest(kind),
            Malformed::Refused(refusal) => Self::Refused(refusal),
        }
    }
}
