//! The secret that clients and server share, and the proofs of it in the greeting.
//!
//! The client sends a *challenge* of 32 bytes, and the server answers with its own. Every connection has new
//! challenges. Then each side sends a *proof* that it knows the secret: the HMAC-SHA-256 of both challenges, keyed with
//! the secret's hash. The HMAC also covers a fixed text and the word `client` or `server`, so that neither side can
//! send back the other's proof. The client sends its proof first, so a process that connects without the secret gets no
//! data with which to test guesses of the secret. The later traffic is neither encrypted nor protected against changes.

use std::fmt;

use hmac_sha256::{HMAC, Hash};

/// The number that a client with a secret sends in place of [`MAGIC`](super::wire::MAGIC).
///
/// A server with a secret that gets a greeting without one sends this number too, and closes the connection. The client
/// reads the number in place of the nonce that answers its first ping. The two cannot be confused: `TcpStore` uses its
/// process id as that nonce, and no process id is so large.
pub(super) const MAGIC: u32 = 0xA5C9_E3B1;

/// 32 bytes: a challenge, a proof, the hash of a secret, or the seed of the server's challenges.
pub(super) type Block = [u8; 32];

/// A secret that only the processes of a job know. Only its SHA-256 hash is kept.
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
    /// The minimum length in bytes. An observer of a greeting could find a shorter secret by brute force.
    pub const LEAST: usize = 16;

    /// Makes a secret from `bytes`. The caller has checked that there are at least [`LEAST`](Self::LEAST) bytes.
    pub(in crate::store) fn of(bytes: &[u8]) -> Self {
        Self(Hash::hash(bytes))
    }

    /// Returns the HMAC state after all input. Finalizing it gives the proof of the side `who`: `b"client"` or
    /// `b"server"`. The parameters `client` and `server` are the challenges of the two sides.
    fn code(&self, who: &[u8], client: &Block, server: &Block) -> HMAC {
        let mut code = HMAC::new(self.0);
        [b"lockstep store 1: ", who, client, server].into_iter().for_each(|part| code.update(part));
        code
    }

    /// Returns the client's proof for the challenges of client and server.
    pub(super) fn client_proof(&self, client: &Block, server: &Block) -> Block {
        self.code(b"client", client, server).finalize()
    }

    /// Returns the server's proof for the challenges of client and server.
    pub(super) fn server_proof(&self, client: &Block, server: &Block) -> Block {
        self.code(b"server", client, server).finalize()
    }

    /// Returns true if `proof` is the client's proof for these challenges. Compares in constant time.
    pub(super) fn is_client_proof(&self, proof: &Block, client: &Block, server: &Block) -> bool {
        self.code(b"client", client, server).finalize_verify(proof)
    }

    /// Returns true if `proof` is the server's proof for these challenges. Compares in constant time.
    pub(super) fn is_server_proof(&self, proof: &Block, client: &Block, server: &Block) -> bool {
        self.code(b"server", client, server).finalize_verify(proof)
    }
}

/// Returns the server's challenge for the client with the id `number`. It cannot be predicted without `seed`.
pub(super) fn block(seed: &Block, number: u64) -> Block {
    HMAC::mac(number.to_le_bytes(), seed)
}

/// The reason why a client's greeting has failed because of the [`Secret`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Distrust {
    /// The store's host requires a secret, and this client has none.
    #[error("it wants a secret and this process has none")]
    Wanted,
    /// This client has a secret, and the host has none.
    #[error("this process has a secret and the host has none")]
    NotKept,
    /// The host has refused this client's proof, so it has another secret.
    #[error("it has refused this process's proof: the secrets differ")]
    Refused,
    /// The host has sent a wrong proof, so it does not know the secret.
    #[error("it has not proved that it knows the secret")]
    Unproven,
    /// This client has a secret, and the host has not answered the first part of the greeting in time. PyTorch's hosts
    /// never answer a greeting with a secret.
    #[error("it does not answer a greeting with a secret; PyTorch's stores know none")]
    Unanswered,
}
