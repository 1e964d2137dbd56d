//! Installation of a path: the ranks open each other's boards, and agree on the outcome.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use process_group::{
    ProcessGroup, error_text,
    link::{Listener, Tag, exchange},
    store::{Deadline, StoreError, rendezvous},
};

use super::{
    DirectError, DirectOptions,
    board::{FlagPage, Layout},
};
use crate::rendezvous::{
    desk::{LocalRegistry, LocalToken},
    process,
};

/// Tag of a message with the descriptor of a board.
const BOARD: Tag = Tag(*b"brd1");

/// Boards that other ranks of this process can take.
static DESK: LocalRegistry<Arc<FlagPage>> = LocalRegistry::new();

/// Message of a rank before anything is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Card {
    options: String,
    /// The means by which its board can be opened, or the reason why it has none.
    board: Result<Place, String>,
}

/// The means by which a board can be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    process: u64,
    /// For ranks of the same process.
    token: u64,
    /// For ranks of other processes: an endpoint.
    endpoint: Vec<u8>,
}

impl Card {
    fn encode(&self) -> Vec<u8> {
        let Self { options, board } = self;
        match board {
            Ok(Place { process, token, endpoint }) => {
                [format!("{options}\nboard\n{process}\n{token}\n").as_bytes(), endpoint].concat()
            }
            Err(problem) => format!("{options}\nnone\n{problem}").into_bytes(),
        }
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        fn line(bytes: &[u8]) -> Option<(&str, &[u8])> {
            let end = bytes.iter().position(|byte| *byte == b'\n')?;
            Some((std::str::from_utf8(&bytes[..end]).ok()?, &bytes[end + 1..]))
        }
        let (options, rest) = line(bytes)?;
        let (kind, rest) = line(rest)?;
        let board = match kind {
            "board" => {
                let (process, rest) = line(rest)?;
                let (token, endpoint) = line(rest)?;
                Ok(Place {
                    process: process.parse().ok()?,
                    token: token.parse().ok()?,
                    endpoint: endpoint.to_vec(),
                })
            }
            "none" => Err(String::from_utf8_lossy(rest).into_owned()),
            _ => return None,
        };
        Some(Self { options: options.to_owned(), board })
    }
}

/// This rank's board, and the means by which the others open it.
struct Own {
    board: Arc<FlagPage>,
    descriptor: OwnedFd,
    listener: Listener,
    deposit: LocalToken<Arc<FlagPage>>,
}

impl Own {
    fn make(group: &ProcessGroup, layout: Layout) -> Result<Self, String> {
        let (descriptor, board) =
            FlagPage::create(group.context(), layout).map_err(|error| format!("its board: {error}"))?;
        let board = Arc::new(board);
        let listener = Listener::open().map_err(|error| format!("its listener: {error}"))?;
        let deposit = DESK.leave(board.clone());
        Ok(Self { board, descriptor, listener, deposit })
    }

    fn place(&self) -> Place {
        Place { process: process(), token: self.deposit.token, endpoint: self.listener.endpoint() }
    }

    /// Opens the boards of all ranks, given by `places`; the result has their order.
    fn boards(
        &self,
        group: &ProcessGroup,
        layout: Layout,
        places: &[Place],
        deadline: Deadline,
    ) -> Result<Vec<Arc<FlagPage>>, String> {
        let (rank, world) = (group.rank(), places.len());
        let elsewhere = |place: &usize| places[*place].process != process();
        let others: Vec<u64> = (0..world).filter(elsewhere).map(|place| place as u64).collect();
        let endpoint_of = |place: u64| Ok(places[place as usize].endpoint.clone());
        let descriptor = [(BOARD, self.descriptor.as_fd())];
        let mut met = exchange(&self.listener, rank as u64, &others, endpoint_of, &descriptor, deadline)
            .map_err(|error| error.to_string())?;
        let board = |place: usize| {
            if place == rank {
                return Ok(self.board.clone());
            }
            if !elsewhere(&place) {
                return DESK
                    .find(places[place].token)
                    .ok_or_else(|| format!("the board of place {place} is gone"));
            }
            let at = met.iter().position(|peer| peer.link.place() == place as u64);
            let descriptor = at.and_then(|at| met.swap_remove(at).descriptors.pop());
            let descriptor = descriptor.ok_or_else(|| format!("place {place} sent no board"))?;
            let opened = FlagPage::open(group.context(), layout, descriptor.as_fd());
            Ok(Arc::new(opened.map_err(|error| format!("the board of place {place}: {error}"))?))
        };
        (0..world).map(board).collect()
    }
}

/// Makes this rank's board, opens those of the others, and passes all of them to `make`. Either all members succeed,
/// or none does. Collective; `attempt` is a name that is unique to this attempt of the members. A rank that fails
/// before anything is opened tells the others at once, so none of them waits for it at its endpoint.
pub(super) fn agreed<T>(
    group: &ProcessGroup,
    options: &DirectOptions,
    (attempt, deadline): (&str, Deadline),
    make: impl FnOnce(Vec<Arc<FlagPage>>) -> cuda_driver::Result<T>,
) -> Result<T, DirectError> {
    let (rank, world, store, name) = (group.rank(), group.size(), group.store(), group.name().to_owned());
    let told = |source: StoreError| DirectError::Store { group: name.clone(), source };
    let unmade = |place: usize, problem: String| DirectError::Unmade {
        group: name.clone(),
        rank: group.global_ranks()[place],
        problem,
    };
    let meet = |what: &str, card: &[u8]| {
        rendezvous(&store, &format!("{attempt}/direct/{what}"), rank, world, card, deadline).map_err(told)
    };
    let layout = Layout { world, slots: options.ring().slots() };
    let own = Own::make(group, layout);
    let card =
        Card { options: options.to_string(), board: own.as_ref().map(Own::place).map_err(Clone::clone) };
    let cards = meet("boards", &card.encode())?;
    // All ranks read the same cards, so all continue here or none does.
    different(group, &cards, &card.options)?;
    let place_of = |(place, card): (usize, &Vec<u8>)| match Card::decode(card).map(|card| card.board) {
        Some(Ok(found)) => Ok(found),
        Some(Err(problem)) => Err(unmade(place, problem)),
        None => Err(unmade(place, "its card in the store cannot be read".to_owned())),
    };
    let places = cards.iter().enumerate().map(place_of).collect::<Result<Vec<_>, _>>()?;
    let own = own.map_err(|problem| unmade(rank, problem))?;

    let made = own
        .boards(group, layout, &places, deadline)
        .and_then(|boards| make(boards).map_err(|error| error_text(&error)));
    let outcome = made.as_ref().err().cloned().unwrap_or_default();
    let outcomes = meet("outcomes", outcome.as_bytes())?;
    // No other rank needs the descriptor or the endpoint any more.
    drop(own);
    if let Some(place) = outcomes.iter().position(|outcome| !outcome.is_empty()) {
        return Err(unmade(place, String::from_utf8_lossy(&outcomes[place]).into_owned()));
    }
    made.map_err(|problem| unmade(rank, problem))
}

/// Fails unless all members gave the same options.
fn different(group: &ProcessGroup, cards: &[Vec<u8>], own: &str) -> Result<(), DirectError> {
    let options = |card: &Vec<u8>| Card::decode(card).map(|card| card.options);
    let all: Vec<_> = cards.iter().map(options).collect();
    if all.iter().all(|options| *options == all[0]) {
        return Ok(());
    }
    // The first rank with other options than this rank's.
    let place = all.iter().position(|options| options.as_deref() != Some(own)).unwrap_or_default();
    let options = all[place].clone().unwrap_or_else(|| "what cannot be read".to_owned());
    let rank = group.global_ranks()[place];
    Err(DirectError::Different { group: group.name().to_owned(), rank, options, own: own.to_owned() })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_board() -> impl Strategy<Value = Result<Place, String>> {
        let endpoint = prop::collection::vec(any::<u8>(), 0..40);
        let place = (any::<u64>(), any::<u64>(), endpoint).prop_map(|(process, token, endpoint)| Place {
            process,
            token,
            endpoint,
        });
        prop_oneof![place.prop_map(Ok), "(?s).{0,40}".prop_map(Err)]
    }

    proptest! {
        #[test]
        fn cards_survive_the_store(board in any_board()) {
            let card = Card { options: DirectOptions::default().to_string(), board };
            prop_assert_eq!(Card::decode(&card.encode()), Some(card));
        }

        #[test]
        fn whatever_stands_there_is_read_or_refused(
            board in any_board(), bytes in prop::collection::vec(any::<u8>(), 0..60), cut in any::<prop::sample::Index>(),
        ) {
            // The options, the kind, and the two numbers of a board are lines. A text without one of them is not a
            // card.
            let lines = if board.is_ok() { 4 } else { 2 };
            let card = Card { options: DirectOptions::default().to_string(), board }.encode();
            let ends: Vec<_> = card.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at).collect();
            prop_assert_eq!(Card::decode(&card[..cut.index(ends[lines - 1] + 1)]), None);
            let kind = [&card[..=ends[0]], b"x", &card[ends[0] + 1..]].concat();
            prop_assert_eq!(Card::decode(&kind), None);
            let number = [b"o\nboard\nx", &bytes[..]].concat();
            prop_assert_eq!(Card::decode(&number), None);
        }
    }
}
