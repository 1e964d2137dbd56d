//! The server's state for one connection, and its side of the greeting.
//!
//! Without a secret, the client's greeting is the type byte `VALIDATE` and a fixed `u32`, and the server does not
//! answer it. With a secret, the client sends `VALIDATE`, a different fixed `u32`, and its challenge. The server
//! answers with the byte 1 and its own challenge, the client sends its proof, and the server answers with the byte 1
//! and its own proof.

use super::{
    super::{
        buffer::Buffer,
        rejection::Rejection,
        request::ClientId,
        secret::{self, Block, Secret},
        wire::{MAGIC, RequestDecoder, kind},
    },
    task::Task,
    turns::Place,
};

/// The server's state for one connection.
#[derive(Default)]
pub(super) struct Client {
    greeting: Greeting,
    pub(super) decoder: RequestDecoder,
    /// The request that is being served. `None` if there is none, and while the server works on the request in a turn.
    pub(super) task: Option<Task>,
    /// The memory of the request that is being served, in bytes.
    pub(super) task_memory: usize,
    /// Bytes for the client that were not sent yet.
    pub(super) unsent: Buffer,
    /// The memory of this client at the last call of `Server::count`, in bytes. It is a part of `Server::held`.
    pub(super) memory: usize,
    /// The client's state in the queue of turns.
    pub(super) place: Place,
    /// True if the connection has ended and the client's next turn will free its memory.
    pub(super) is_gone: bool,
}

/// The progress of the greeting.
#[derive(Default, PartialEq, Eq)]
enum Greeting {
    /// The first part has not arrived completely. With a secret, it includes the client's challenge.
    #[default]
    Due,
    /// The first part has arrived, with this challenge of the client. The client's proof has not arrived.
    Proof(Block),
    /// The greeting is complete.
    Done,
}

/// The result of reading a part of the greeting.
pub(super) enum Greeted {
    /// More bytes must arrive.
    Not,
    /// The part is complete, and its answer was added to the unsent bytes.
    Answered,
    /// The part is complete and has no answer.
    Silently,
}

impl Client {
    /// The number of unsent bytes above which no further requests of the client are served.
    const BACKLOG: usize = 1 << 20;

    pub(super) fn is_greeted(&self) -> bool {
        self.greeting == Greeting::Done
    }

    /// Returns true if the client has so many unsent bytes that it must receive some before it is served again.
    pub(super) fn is_behind(&self) -> bool {
        self.unsent.as_slice().len() > Self::BACKLOG
    }

    /// Returns true if the server wants more bytes of the client. See `Server::wants`.
    pub(super) fn is_wanted(&self) -> bool {
        !self.is_behind() && !self.place.is_queued()
    }

    /// Returns the memory of this connection's buffers and of the request that is being served, in bytes.
    pub(super) fn buffers(&self) -> usize {
        self.decoder.memory() + self.unsent.memory() + self.task_memory
    }

    /// Returns the number of strings that are freed when this connection is removed, except those of its wait.
    pub(super) fn strings(&self) -> usize {
        self.decoder.strings() + self.task.as_ref().map_or(0, Task::strings)
    }

    /// Reads the next part of the greeting from the received bytes, if it is complete. `id` is this client's id, and
    /// `secret` the server's secret with the seed of its challenges.
    ///
    /// # Errors
    /// - [`Rejection::Foreign`] as soon as one of the first five bytes is wrong.
    /// - [`Rejection::NoSecret`] or [`Rejection::NotKept`] if only one side has a secret.
    /// - [`Rejection::WrongSecret`] if the client's proof is wrong.
    pub(super) fn greet(
        &mut self,
        id: ClientId,
        secret: Option<&(Secret, Block)>,
    ) -> Result<Greeted, Rejection> {
        let buffer = &mut self.decoder.buffer;
        if let (Greeting::Proof(client), Some((secret, seed))) = (&self.greeting, secret) {
            let Some(proof) = buffer.array::<32>() else { return Ok(Greeted::Not) };
            let own = secret::block(seed, id);
            if !secret.is_client_proof(&proof, client, &own) {
                return Err(Rejection::WrongSecret);
            }
            self.unsent.extend(&[1]);
            self.unsent.extend(&secret.server_proof(client, &own));
            self.greeting = Greeting::Done;
            return Ok(Greeted::Answered);
        }
        let first = buffer.as_slice();
        let is = |magic: u32| {
            let [a, b, c, d] = magic.to_le_bytes();
            first.iter().zip([kind::VALIDATE, a, b, c, d]).all(|(byte, expected)| *byte == expected)
        };
        let whole = first.len() >= 5;
        match (secret, is(MAGIC), is(secret::MAGIC)) {
            (_, false, false) => Err(Rejection::Foreign { first: first[..first.len().min(5)].to_vec() }),
            _ if !whole => Ok(Greeted::Not),
            (Some(_), true, _) => Err(Rejection::NoSecret),
            (None, _, true) => Err(Rejection::NotKept),
            (None, true, _) => {
                buffer.skip(5);
                self.greeting = Greeting::Done;
                Ok(Greeted::Silently)
            }
            (Some((_, seed)), ..) => {
                let Some(client) = first[5..].first_chunk().copied() else { return Ok(Greeted::Not) };
                buffer.skip(5 + client.len());
                self.unsent.extend(&[1]);
                self.unsent.extend(&secret::block(seed, id));
                self.greeting = Greeting::Proof(client);
                Ok(Greeted::Answered)
            }
        }
    }
}
