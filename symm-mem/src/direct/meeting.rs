//! How the ranks come by each other's boards.

use std::{
    os::fd::AsFd,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use process_group::{
    ProcessGroup,
    local::{Door, Tag, exchange},
    store::{Deadline, Store, StoreError, rendezvous},
};

use super::{
    DirectError, DirectOptions,
    board::{Board, BoardError, Layout, find, offer},
};
use crate::rendezvous::process;

/// A descriptor of a board.
const BOARD: Tag = Tag(*b"brd1");

/// What a rank says of its board.
struct Card {
    options: String,
    process: u64,
    token: u64,
    door: Vec<u8>,
}

impl Card {
    fn encode(&self) -> Vec<u8> {
        let Self { options, process, token, door } = self;
        [format!("{options}\n{process}\n{token}\n").as_bytes(), door].concat()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut lines = bytes.splitn(4, |byte| *byte == b'\n');
        let mut text = || std::str::from_utf8(lines.next()?).ok();
        let (options, process, token) = (text()?.to_owned(), text()?.parse().ok()?, text()?.parse().ok()?);
        Some(Self { options, process, token, door: lines.next()?.to_vec() })
    }
}

/// Makes this rank's board and has those of the others: all members have them, or none. Collective.
pub(super) fn boards(
    group: &ProcessGroup,
    options: &DirectOptions,
    deadline: Deadline,
) -> Result<Vec<Arc<Board>>, DirectError> {
    static TOKENS: AtomicU64 = AtomicU64::new(0);
    let (rank, world, store, name) = (group.rank(), group.size(), group.store(), group.name().to_owned());
    let told = |source: StoreError| DirectError::Store { group: name.clone(), source };
    // Counted whatever follows, so that the members' next attempts meet.
    let attempt = store.add(&format!("direct/attempts/{rank}"), 1).map_err(told)?;
    let meet = |what: &str, card: &[u8]| {
        rendezvous(&store, &format!("direct/{attempt}/{what}"), rank, world, card, deadline).map_err(told)
    };
    let layout = Layout { world, slots: options.ring().slots() };
    let made = Board::create(group.context(), layout).map_err(|error| error.to_string());
    let opened = Door::open().map_err(|error| error.to_string());
    let token = TOKENS.fetch_add(1, Ordering::Relaxed);
    let door = opened.as_ref().map_or_else(|_| Vec::new(), Door::card);
    let card = Card { options: options.to_string(), process: process(), token, door };
    let made = made.map(|(descriptor, board)| (descriptor, Arc::new(board)));
    if let Ok((_, board)) = &made {
        offer(token, board);
    }
    let cards = meet("boards", &card.encode())?;
    let all = || -> Result<Vec<Arc<Board>>, String> {
        let (descriptor, own) = made?;
        let door = opened?;
        let cards: Vec<Card> = cards
            .iter()
            .map(|card| Card::decode(card).ok_or("a card in the store cannot be read"))
            .collect::<Result<_, _>>()?;
        let elsewhere = |place: &usize| cards[*place].process != cards[rank].process;
        let others: Vec<u64> = (0..world).filter(elsewhere).map(|place| place as u64).collect();
        let door_of = |place: u64| Ok(cards[place as usize].door.clone());
        let own_descriptor = [(BOARD, descriptor.as_fd())];
        let mut met = exchange(&door, rank as u64, &others, door_of, &own_descriptor, deadline)
            .map_err(|error| error.to_string())?;
        let board = |place: usize| {
            if place == rank {
                return Ok(own.clone());
            }
            if !elsewhere(&place) {
                return find(cards[place].token).ok_or_else(|| format!("the board of place {place} is gone"));
            }
            let at = met.iter().position(|peer| peer.link.place() == place as u64);
            let descriptor = at.and_then(|at| met.swap_remove(at).descriptors.pop());
            let descriptor = descriptor.ok_or_else(|| format!("place {place} sent no board"))?;
            let opened = Board::open(group.context(), layout, descriptor.as_fd());
            Ok(Arc::new(opened.map_err(|error: BoardError| format!("the board of place {place}: {error}"))?))
        };
        (0..world).map(board).collect()
    };
    // The cards are the same on all, so all come to this or none does.
    different(group, &cards, &card.options)?;
    let boards = all();
    let outcome = boards.as_ref().err().cloned().unwrap_or_default();
    let outcomes = meet("outcomes", outcome.as_bytes())?;
    if let Some(place) = outcomes.iter().position(|outcome| !outcome.is_empty()) {
        let problem = String::from_utf8_lossy(&outcomes[place]).into_owned();
        return Err(DirectError::Unmade { group: name, rank: group.global_ranks()[place], problem });
    }
    boards.map_err(|problem| DirectError::Unmade { group: name, rank: group.global_rank(), problem })
}

/// All members gave the same options.
fn different(group: &ProcessGroup, cards: &[Vec<u8>], own: &str) -> Result<(), DirectError> {
    let options = |card: &Vec<u8>| Card::decode(card).map(|card| card.options);
    let all: Vec<_> = cards.iter().map(options).collect();
    if all.iter().all(|options| *options == all[0]) {
        return Ok(());
    }
    // Of those that are not as this rank's, the first.
    let place = all.iter().position(|options| options.as_deref() != Some(own)).unwrap_or_default();
    let options = all[place].clone().unwrap_or_else(|| "what cannot be read".to_owned());
    let rank = group.global_ranks()[place];
    Err(DirectError::Different { group: group.name().to_owned(), rank, options, own: own.to_owned() })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn cards_survive_the_store(process: u64, token: u64, door in prop::collection::vec(any::<u8>(), 0..40)) {
            let card = Card { options: DirectOptions::default().to_string(), process, token, door };
            let found = Card::decode(&card.encode()).unwrap();
            prop_assert_eq!((found.options, found.process, found.token, found.door),
                (card.options, process, token, card.door));
        }

        #[test]
        fn whatever_stands_there_is_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = Card::decode(&bytes);
        }
    }
}
