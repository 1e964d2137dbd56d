//! The server's state for one connection, and the greeting.

use super::{
    super::{
        clients::ClientId,
        secret::{self, Block, Secret},
        wire::{Buffer, MAGIC, RequestDecoder, kind},
    },
    rejection::Rejection,
    task::Task,
    turns::Place,
};

#[derive(Default)]
pub(super) struct Client {
    greeting: Greeting,
    pub(super) decoder: RequestDecoder,
    /// The request in service, while work on it is left.
    pub(super) task: Option<Task>,
    /// The memory of the request in service, in bytes.
    pub(super) task_memory: usize,
    pub(super) unsent: Buffer,
    /// The memory of this client at the last count, in bytes.
    pub(super) memory: usize,
    pub(super) place: Place,
    /// The connection is closed. Its memory is released in a turn of its own.
    pub(super) is_gone: bool,
}

/// Progress of the greeting.
#[derive(Default, PartialEq, Eq)]
enum Greeting {
    /// The first part is incomplete.
    #[default]
    Due,
    /// The first part has arrived, with this challenge of the client. The client's proof is due.
    Proof(Block),
    Done,
}

/// Result of reading a part of the greeting.
pub(super) enum Greeted {
    /// The part is incomplete.
    Not,
    /// The part is complete, and its answer must be sent.
    Answered,
    /// The part is complete and has no answer.
    Silently,
}

impl Client {
    /// The number of unsent bytes above which no more requests of a client are served.
    const BACKLOG: usize = 1 << 20;

    pub(super) fn is_greeted(&self) -> bool {
        self.greeting == Greeting::Done
    }

    /// Returns true if the client must receive replies before more of its requests are served.
    pub(super) fn is_behind(&self) -> bool {
        self.unsent.as_slice().len() > Self::BACKLOG
    }

    /// Returns true if the server should read more bytes from the client.
    pub(super) fn is_wanted(&self) -> bool {
        !self.is_behind() && !self.place.is_queued()
    }

    /// Returns the memory of this connection's buffers and of the request in service, in bytes.
    pub(super) fn buffers(&self) -> usize {
        self.decoder.memory() + self.unsent.memory() + self.task_memory
    }

    /// Returns the number of strings that this connection holds.
    pub(super) fn strings(&self) -> usize {
        self.decoder.strings() + self.task.as_ref().map_or(0, Task::strings)
    }

    /// Reads the next part of the greeting, once it is complete. Rejects a wrong byte of the first part as soon as
    /// the byte arrives.
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
