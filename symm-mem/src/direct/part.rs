//! The messages of one [lane](super::lane) (one direction between this rank and a peer) in one launch.

use std::sync::MutexGuard;

use super::{
    lane::{Chunk, Lane, State},
    rounds::Kind,
    zero_copy::{Offer, Take},
};

/// The messages of one lane in one launch, with the lane's lock.
pub(super) struct Part<'a> {
    pub(super) lane: &'a Lane,
    pub(super) state: MutexGuard<'a, State>,
    pub(super) pieces: Vec<Piece>,
    /// Of the messages that the sender copies into the receiver's buffer, those with lower numbers than this are
    /// enqueued. The others are not enqueued yet. If the launch fails, [`Pushes::fail`] cleans up the others.
    ///
    /// [`Pushes::fail`]: super::pushes::Pushes::fail
    pub(super) unlaunched: u64,
}

/// A chunk or a zero-copy message of a lane. See [rounds](super::rounds).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Piece {
    Chunk(Chunk),
    Offer(Offer),
    Take(Take),
}

impl Piece {
    /// The number of the message, if the sender copies it into the receiver's buffer.
    pub(super) fn pushed(&self) -> Option<u64> {
        match self {
            Self::Chunk(_) => None,
            Self::Offer(offer) => offer.pushed,
            Self::Take(take) => take.pushed,
        }
    }
}

impl Part<'_> {
    /// Returns the piece at index `piece`, which must be a chunk.
    pub(super) fn chunk(&self, piece: usize) -> Chunk {
        match self.pieces[piece] {
            Piece::Chunk(chunk) => chunk,
            other => unreachable!("{other:?} is carried as a chunk"),
        }
    }

    pub(super) fn kinds(&self) -> Vec<Kind> {
        let kind = |piece: &Piece| match piece {
            Piece::Chunk(_) => Kind::Chunk,
            Piece::Offer(_) => Kind::Offer,
            Piece::Take(_) => Kind::Take,
        };
        self.pieces.iter().map(kind).collect()
    }
}
