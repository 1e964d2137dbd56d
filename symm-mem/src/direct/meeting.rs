//! Installation of a path: the ranks open each other's boards, and agree on the outcome.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use bootstrap::agreement::{self, Decision, Ending, Failed, Member, Protocol, Report, ValuesByRank};
use process_group::{
    ProcessGroup, error_text,
    link::{Listener, Tag, exchange},
    store::{Deadline, StoreError},
};

use super::{
    DirectError, DirectOptions,
    board::{FlagPage, Layout},
};
use crate::{
    agreement::{
        PROTOCOL,
        ending::gone,
        wire::{self, wire_enum, wire_struct},
    },
    domain::{rank_of, ranks_of},
    local_registry::{LocalRegistry, LocalToken},
    rendezvous::process,
};

/// Tag of a message with the descriptor of a board.
const BOARD: Tag = Tag(*b"brd1");

/// Boards that other ranks of this process can take.
static BOARDS: LocalRegistry<Arc<FlagPage>> = LocalRegistry::new();

/// The agreement of the members on the boards of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
struct BoardProtocol;

/// Message of a rank before anything is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Card {
    options: String,
    board: Board,
}
wire_struct!(Card { options, board });

/// A rank's board.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Board {
    /// The means by which it can be opened.
    Offered { place: Place },
    /// The reason why the rank has none.
    Missing { problem: String },
}
wire_enum!(Board { 0 => Offered { place }, 1 => Missing { problem } });

/// The means by which a board can be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    process: u64,
    /// For ranks of the same process.
    token: u64,
    /// For ranks of other processes: an endpoint.
    endpoint: Vec<u8>,
}
wire_struct!(Place { process, token, endpoint });

/// The outcome of opening the boards on a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Opened {
    Done {},
    Failed { problem: String },
}
wire_enum!(Opened { 0 => Done {}, 1 => Failed { problem } });

/// The reason why no member has a path.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Refusal {
    /// Members gave different options.
    Options { options: ValuesByRank<String> },
    /// A member failed, the first of several.
    Failed { rank: u32, problem: String },
}
wire_enum!(Refusal { 0 => Options { options }, 1 => Failed { rank, problem } });

impl Protocol for BoardProtocol {
    const PROTOCOL: wire::Protocol = PROTOCOL;

    type Record = Card;
    type Plan = Vec<Place>;
    type Outcome = Opened;
    type Agreed = ();
    type Refusal = Refusal;

    fn decide(cards: &[(u32, Card)]) -> Decision<Self> {
        let options = ValuesByRank::of(cards.iter().map(|(rank, card)| (*rank, card.options.clone())));
        if !options.is_unanimous() {
            return Decision::Refused { refusal: Refusal::Options { options } };
        }
        let place = |(rank, card): &(u32, Card)| match &card.board {
            Board::Offered { place } => Ok(place.clone()),
            Board::Missing { problem } => Err(Refusal::Failed { rank: *rank, problem: problem.clone() }),
        };
        match cards.iter().map(place).collect() {
            Ok(plan) => Decision::Act { plan },
            Err(refusal) => Decision::Refused { refusal },
        }
    }

    fn is_final(opened: &Opened) -> bool {
        matches!(opened, Opened::Failed { .. })
    }

    fn judge(_: &Vec<Place>, reports: &[(u32, Report<Opened>)]) -> Decision<Self> {
        let failed = reports.iter().find_map(|(rank, report)| match report {
            Report::Outcome(Opened::Failed { problem }) => Some((*rank, problem.clone())),
            _ => None,
        });
        let late = || {
            let (rank, _) = reports.iter().find(|(_, report)| *report == Report::Late)?;
            Some((*rank, "it did not open the boards of the others in time".to_owned()))
        };
        match failed.or_else(late) {
            Some((rank, problem)) => Decision::Refused { refusal: Refusal::Failed { rank, problem } },
            None => Decision::Agreed { agreed: () },
        }
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
        let deposit = BOARDS.leave(board.clone());
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
                return BOARDS
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
    let layout = Layout { world: group.size(), slots: options.ring().slots() };
    let own = Own::make(group, layout);
    let board = match &own {
        Ok(own) => Board::Offered { place: own.place() },
        Err(problem) => Board::Missing { problem: problem.clone() },
    };
    let card = Card { options: options.to_string(), board };
    let rank = rank_of(group.global_rank());
    let member = Member {
        name: format!("{attempt}/direct"),
        rank,
        members: ranks_of(group),
        generation: 0,
        patience: deadline.remaining(),
    };
    let (mut make, mut made) = (Some(make), None);
    let act = |places: &Vec<Place>, deadline, _: &dyn Fn() -> bool| {
        let (Ok(own), Some(make)) = (&own, make.take()) else {
            return Opened::Failed { problem: "it has no board".to_owned() };
        };
        let opened = own.boards(group, layout, places, deadline);
        match opened.and_then(|boards| make(boards).map_err(|error| error_text(&error))) {
            Ok(path) => {
                made = Some(path);
                Opened::Done {}
            }
            Err(problem) => Opened::Failed { problem },
        }
    };
    let goes_on = || group.standing().map_err(|ended| gone(rank, &ended));
    let result = agreement::run::<BoardProtocol>(&group.job_store(), member, card.clone(), act, goes_on);
    // No other rank needs the descriptor or the endpoint any more.
    drop(own);
    match result {
        Ok(()) => made.ok_or_else(|| unmade(group, rank, "it has opened no board".to_owned())),
        Err(failed) => Err(failure(group, &card.options, *failed)),
    }
}

fn unmade(group: &ProcessGroup, rank: u32, problem: String) -> DirectError {
    DirectError::Unmade { group: group.name().to_owned(), rank: rank as usize, problem }
}

/// Converts the ending of the agreement to an error. `own` are the options of this rank.
fn failure(group: &ProcessGroup, own: &str, failed: Failed<BoardProtocol>) -> DirectError {
    let (name, own) = (group.name().to_owned(), own.to_owned());
    match (failed.ending, failed.store) {
        (Ending::Refused(Refusal::Failed { rank, problem }), _) => unmade(group, rank, problem),
        (Ending::Refused(Refusal::Options { options }), _) => {
            // The first rank with other options than this rank's.
            let others = options.entries.into_iter().filter(|entry| entry.value != own);
            let first = others.min_by_key(|entry| entry.ranks.first().copied());
            let (rank, options) = first.map_or((0, String::new()), |entry| {
                (entry.ranks.first().map_or(0, |rank| *rank as usize), entry.value)
            });
            DirectError::Different { group: name, rank, options, own }
        }
        (Ending::Failed(source), _) => match group.standing() {
            Err(ended) => DirectError::Group(ended),
            Ok(()) => DirectError::NotAgreed { group: name, source: Box::new(source) },
        },
        (_, Some(source)) => DirectError::Store { group: name, source },
        (other, None) => {
            let problem =
                format!("the agreement on its boards: {other:?}; does another program use its keys?");
            DirectError::Store { group: name, source: StoreError::Argument(problem) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(options: &str) -> Card {
        let place = Place { process: 1, token: 2, endpoint: vec![3] };
        Card { options: options.to_owned(), board: Board::Offered { place } }
    }

    #[test]
    fn other_options_and_a_missing_board_are_refused_by_name() {
        let cards = [(4, card("a")), (5, card("a")), (6, card("b"))];
        let Decision::Refused { refusal: Refusal::Options { options } } = BoardProtocol::decide(&cards)
        else {
            panic!("the options differ")
        };
        assert_eq!(options.minority(), [6]);
        let missing = Card { board: Board::Missing { problem: "no memory".to_owned() }, ..card("a") };
        let refusal = Refusal::Failed { rank: 5, problem: "no memory".to_owned() };
        let cards = [(4, card("a")), (5, missing)];
        assert_eq!(BoardProtocol::decide(&cards), Decision::Refused { refusal });
        assert!(matches!(BoardProtocol::decide(&cards[..1]), Decision::Act { plan } if plan.len() == 1));
    }

    #[test]
    fn a_failure_outweighs_silence() {
        let failed = Report::Outcome(Opened::Failed { problem: "no addresses".to_owned() });
        let named = |reports: &[(u32, Report<Opened>)]| match BoardProtocol::judge(&Vec::new(), reports) {
            Decision::Refused { refusal: Refusal::Failed { rank, .. } } => Some(rank),
            Decision::Agreed { .. } => None,
            other => panic!("{other:?}"),
        };
        let done = Report::Outcome(Opened::Done {});
        assert_eq!(named(&[(0, Report::Late), (1, done.clone()), (2, failed)]), Some(2));
        assert_eq!(named(&[(0, done.clone()), (1, Report::Late)]), Some(1));
        assert_eq!(named(&[(0, done.clone()), (1, done)]), None);
    }
}
