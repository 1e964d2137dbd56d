//! The messages of one [lane](super::lane) (one direction between this rank and a peer) in one launch. A launch
//! enqueues the messages of one call: a send, a receive, or a batch of both.

use std::sync::MutexGuard;

use super::{
    lane::{Chunk, Lane, LaneState},
    rounds::PieceKind,
    zero_copy::{ZeroCopyOffer, ZeroCopyTake},
};

/// The messages of one lane in one launch, with the lane's lock.
pub(super) struct LaneLaunch<'a> {
    pub(super) lane: &'a Lane,
    pub(super) state: MutexGuard<'a, LaneState>,
    pub(super) pieces: Vec<Piece>,
    /// The messages with this number or a higher one are not enqueued yet. Considers only messages that the sender
    /// copies into the receiver's buffer. If the launch fails, [`Pushes::fail`] cleans up these messages.
    ///
    /// [`Pushes::fail`]: super::pushes::Pushes::fail
    pub(super) unlaunched: u64,
}

/// A chunk (a part of a message that goes through the [ring](super#the-ring)), or a whole [zero-copy
/// message](super#zero-copy-messages). A zero-copy message is an offer on the rank that offers its buffer, and a take
/// on the rank that makes the copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Piece {
    Chunk(Chunk),
    Offer(ZeroCopyOffer),
    Take(ZeroCopyTake),
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

impl LaneLaunch<'_> {
    /// Returns the piece at index `piece`, which must be a chunk.
    pub(super) fn chunk(&self, piece: usize) -> Chunk {
        match self.pieces[piece] {
            Piece::Chunk(chunk) => chunk,
            other => unreachable!("{other:?} is carried as a chunk"),
        }
    }

    pub(super) fn kinds(&self) -> Vec<PieceKind> {
        let kind = |piece: &Piece| match piece {
            Piece::Chunk(_) => PieceKind::Chunk,
            Piece::Offer(_) => PieceKind::Offer,
            Piece::Take(_) => PieceKind::Take,
        };
        self.pieces.iter().map(kind).collect()
    }
}
