//! The reasons why a server closes a connection.

use std::time::Duration;

use super::{request::Refusal, secret};

/// The reason why a server closes a connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Rejection {
    /// The first bytes are not the beginning of a greeting.
    #[error("foreign traffic: the first bytes are {first:02x?}")]
    Foreign {
        /// The first bytes, at most five.
        first: Vec<u8>,
    },
    /// The greeting was not complete in time.
    #[error("no greeting within {waited:.1?}")]
    Silent {
        /// The time limit: [`ServerLimits::greeting`](super::ServerLimits::greeting).
        waited: Duration,
    },
    /// The greeting was not complete, and the server has closed this connection to accept a newer one.
    #[error("no greeting yet, and newer connections need the place: {limit} may be without one")]
    Crowded {
        /// The most connections that may be without a complete greeting.
        limit: usize,
    },
    /// The server has rejected a new connection, because the limit of clients is reached and all clients have greeted.
    #[error(
        "{limit} clients are connected, and no more are allowed by the store's limit, or by the descriptors that its \
         process may have (`ulimit -n`)"
    )]
    Full {
        /// The most clients that may be connected.
        limit: usize,
    },
    /// A new connection for which the server's process has no file descriptor left. The host of a `TcpStore` reports
    /// this reason, the state machine does not.
    #[error(
        "with {clients} clients connected, the store's process has no descriptor left for another (`ulimit -n`)"
    )]
    Descriptors {
        /// The number of connected clients.
        clients: usize,
    },
    /// The server's memory is used up, and the server has closed the connection that holds the most. This may be the
    /// connection that needed memory, counted with the bytes that it needed, or another one. If both hold equally much,
    /// the one that needed memory is closed. The server closes connections in this way until the memory suffices.
    #[error(
        "the store's {limit} bytes of memory are used up, and none holds or needs more of them than this connection: \
         {held} bytes"
    )]
    Memory {
        /// The bytes that this connection holds (requests, its wait, unsent replies, overhead). If this connection
        /// needed more, the bytes that it needed are included.
        held: usize,
        /// The bytes that the server may use: [`ServerLimits::memory`](super::ServerLimits::memory).
        limit: usize,
    },
    /// The server has a secret, and the client has sent a greeting without one, as PyTorch's clients do.
    #[error("a greeting without the secret that this store wants; PyTorch's clients cannot give one")]
    NoSecret,
    /// The client has a secret and the server has none.
    #[error("a greeting with a secret, and this store has none")]
    NotKept,
    /// The client's proof is wrong, so it does not know the server's secret.
    #[error("a wrong secret")]
    WrongSecret,
    /// The type byte of a request is unknown. A second greeting on a connection counts as type byte 0.
    #[error("type byte {0} is no request")]
    UnknownRequest(u8),
    /// The request exceeds a limit or cannot be executed.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

impl Rejection {
    /// Returns the bytes to send before the connection is closed. If the reason concerns the secret, a client of this
    /// crate recognizes the reason from these bytes. For all other reasons, there are none.
    pub fn last_words(&self) -> &'static [u8] {
        const WANTED: [u8; 4] = secret::MAGIC.to_le_bytes();
        match self {
            Self::NoSecret => &WANTED,
            Self::NotKept | Self::WrongSecret => &[0],
            _ => &[],
        }
    }
}
