//! The secret that clients and server share, and the greeting in which each proves to the other that it knows the
//! secret.
//!
//! Client and server each choose a *challenge*: 32 bytes that are never used again. Each then sends a proof: the
//! HMAC-SHA-256 of both challenges, keyed with the secret. The proof includes a different word for each side, so that
//! neither can send back the other's proof. The client sends its proof first, so a process that only connects gets
//! no data with which to test guesses of the secret. The later traffic is neither encrypted nor protected against
//! changes.

use std::fmt;

use hmac_sha256::{HMAC, Hash};

use super::super::{Result, StoreError};

/// A client with a secret sends this in place of [`MAGIC`](super::wire::MAGIC). A server with a secret sends it to
/// a client without one, in place of the nonce of that client's ping. That nonce is a process id, and no process
/// has this number as its id.
pub(super) const MAGIC: u32 = 0xA5C9_E3B1;

/// A challenge of the client or the server, or a proof.
pub(super) type Block = [u8; 32];

/// A secret that only the processes of a job know.
///
/// ```
/// use bootstrap::store::{Deadline, Secret, Store, TcpStore};
/// use std::time::Duration;
///
/// # fn main() -> Result<(), bootstrap::store::StoreError> {
/// let deadline = Deadline::after(Duration::from_secs(30));
/// let options = TcpStore::options().secret(Secret::new("c0ffee15a9e8b7d6")?);
/// let host = options.clone().host(0, deadline)?;
/// options.connect(&host.address(), deadline)?.set("key", b"value")?;
/// assert!(TcpStore::connect(&host.address(), deadline).is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Block);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl Secret {
    /// The least length in bytes. An observer of a greeting could find a shorter secret by brute force.
    pub const LEAST: usize = 16;

    /// Makes a secret of at least [`LEAST`](Self::LEAST) bytes. Use random bytes (`openssl rand -hex 16`).
    ///
    /// # Errors
    /// [`StoreError::Argument`] if `bytes` is shorter.
    pub fn new(bytes: impl AsRef<[u8]>) -> Result<Self> {
        let bytes = bytes.as_ref();
        if bytes.len() < Self::LEAST {
            return Err(StoreError::Argument(format!(
                "a store's secret of {} bytes; it needs {} at least (`openssl rand -hex 16` makes one)",
                bytes.len(),
                Self::LEAST
            )));
        }
        Ok(Self(Hash::hash(bytes)))
    }

    fn code(&self, who: &[u8], client: &Block, server: &Block) -> HMAC {
        let mut code = HMAC::new(self.0);
        [b"lockstep store 1: ", who, client, server].into_iter().for_each(|part| code.update(part));
        code
    }

    /// Returns the client's proof.
    pub(super) fn client_proof(&self, client: &Block, server: &Block) -> Block {
        self.code(b"client", client, server).finalize()
    }

    /// Returns the server's proof.
    pub(super) fn server_proof(&self, client: &Block, server: &Block) -> Block {
        self.code(b"server", client, server).finalize()
    }

    /// Returns true if this is the client's proof. Takes constant time.
    pub(super) fn is_client_proof(&self, proof: &Block, client: &Block, server: &Block) -> bool {
        self.code(b"client", client, server).finalize_verify(proof)
    }

    /// Returns true if this is the server's proof. Takes constant time.
    pub(super) fn is_server_proof(&self, proof: &Block, client: &Block, server: &Block) -> bool {
        self.code(b"server", client, server).finalize_verify(proof)
    }
}

/// Returns the server's challenge for the connection with this number. It is unpredictable without `seed`.
pub(super) fn block(seed: &Block, number: u64) -> Block {
    HMAC::mac(number.to_le_bytes(), seed)
}

/// The reason why client and server do not trust each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Distrust {
    /// The host requires a secret and this client has none.
    #[error("it wants a secret and this process has none")]
    Wanted,
    /// This client has a secret and the host has none.
    #[error("this process has a secret and the host has none")]
    NotKept,
    /// The host has another secret: it has refused this client's proof.
    #[error("it has refused this process's proof: the secrets differ")]
    Refused,
    /// The host has not proved that it knows the secret.
    #[error("it has not proved that it knows the secret")]
    Unproven,
    /// The host does not answer the greeting of a client with a secret. PyTorch's hosts do not.
    #[error("it does not answer a greeting with a secret; PyTorch's stores know none")]
    Unanswered,
}
