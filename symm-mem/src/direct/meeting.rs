//! A step of the installation of a [direct path](super): the ranks open each other's [flag pages](super::flag_page),
//! and agree whether all of them have a path or none. For words such as record, plan and outcome, see the [terms of
//! agreements](bootstrap::agreement#terms).

use bootstrap::agreement::{self, Decision, Ending, Failed, Member, Protocol, Report, ValuesByRank};
use cuda_driver::Context;
use process_group::{error_text, store::Deadline};

use super::{
    DirectOptions,
    flag_page::{FlagPage, FlagPageLayout},
};
use crate::{
    agreement::{
        PROTOCOL,
        wire::{self, wire_enum, wire_struct},
    },
    error::{CallContext, Error},
    error_kind::ErrorKind,
    rendezvous::GroupInfo,
    sharing::{self, Export, Imported, Offer, OpeningOutcome, Party, Shareable, Site},
};

/// The agreement of this step: either every member has opened all flag pages, or no member gets a path.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FlagPageProtocol;

/// The record that each rank posts before any rank opens a flag page.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PathRecord {
    /// The text of the rank's [`DirectOptions`]. It must be the same on all ranks.
    options: String,
    page: PageOffer,
}
wire_struct!(PathRecord { options, page });

/// The flag page that a rank offers to the others, or the reason why it has none.
#[derive(Debug, Clone, PartialEq, Eq)]
enum PageOffer {
    Offered {
        site: Site,
        export: Export,
    },
    /// The rank could not create or offer its flag page.
    Missing {
        problem: String,
    },
}
wire_enum!(PageOffer { 0 => Offered { site, export }, 1 => Missing { problem } });

/// The reason why no member has a path.
#[derive(Debug, Clone, PartialEq, Eq)]
enum FlagPageRefusal {
    /// Members gave different options.
    Options { options: ValuesByRank<String> },
    /// A member has no flag page, or not all members succeeded in opening all flag pages. `rank` is the member that is
    /// named as the cause, and `problem` describes its failure. If several of the following cases occur, the cause is a
    /// member of the first one:
    /// - A member has no flag page.
    /// - A member reported a failure.
    /// - A member posted no outcome.
    /// - A member did not answer another member that tried to open its flag page, as the other one reported.
    /// - A member reported that it got no answer when it tried to open a flag page, and no report names the member that
    ///   did not answer.
    Failed { rank: u32, problem: String },
}
wire_enum!(FlagPageRefusal { 0 => Options { options }, 1 => Failed { rank, problem } });

impl Protocol for FlagPageProtocol {
    const PROTOCOL: wire::Protocol = PROTOCOL;

    type Record = PathRecord;
    type Plan = Vec<(Site, Export)>;
    type Outcome = OpeningOutcome;
    type Agreed = ();
    type Refusal = FlagPageRefusal;

    fn decide(records: &[(u32, PathRecord)]) -> Decision<Self> {
        let options = ValuesByRank::of(records.iter().map(|(rank, record)| (*rank, record.options.clone())));
        if !options.is_unanimous() {
            return Decision::Refused { refusal: FlagPageRefusal::Options { options } };
        }
        let page = |(rank, record): &(u32, PathRecord)| match &record.page {
            PageOffer::Offered { site, export } => Ok((site.clone(), export.clone())),
            PageOffer::Missing { problem } => {
                Err(FlagPageRefusal::Failed { rank: *rank, problem: problem.clone() })
            }
        };
        match records.iter().map(page).collect() {
            Ok(plan) => Decision::Act { plan },
            Err(refusal) => Decision::Refused { refusal },
        }
    }

    fn is_final(outcome: &OpeningOutcome) -> bool {
        matches!(outcome, OpeningOutcome::Failed { .. })
    }

    fn judge(_: &Vec<(Site, Export)>, reports: &[(u32, Report<OpeningOutcome>)]) -> Decision<Self> {
        match sharing::judge(reports) {
            Some(failure) => {
                let (rank, problem) = failure.cause();
                Decision::Refused { refusal: FlagPageRefusal::Failed { rank, problem } }
            }
            None => Decision::Agreed { agreed: () },
        }
    }
}

/// Creates this rank's flag page. The other ranks can open it until the [`Offer`] is dropped. The [`PageOffer`] is for
/// this rank's record.
fn offer_page(context: &Context, layout: FlagPageLayout) -> Result<(FlagPage, Offer, PageOffer), String> {
    let page = FlagPage::create(context, layout).map_err(|error| format!("its flag page: {error}"))?;
    let mut offer = Offer::new().map_err(|problem| format!("its listener: {problem}"))?;
    let export = offer.export(Shareable::Host(page.memory().clone()))?;
    let site = Site { endpoint: offer.endpoint(), ..Site::of_process() };
    Ok((page, offer, PageOffer::Offered { site, export }))
}

/// Opens the flag pages of the other members. `pages` describes the pages of all members. `own` is the page of this
/// rank, and `offer` its offer to the others. Returns the pages of all members, in the order of `pages`. On failure,
/// returns the outcome that this rank posts to the members.
fn open_all(
    context: &Context,
    info: &GroupInfo,
    (own, offer): (&FlagPage, &Offer),
    pages: &[(Site, Export)],
    layout: FlagPageLayout,
    deadline: Deadline,
) -> Result<Vec<FlagPage>, OpeningOutcome> {
    let parties = info.global_ranks().iter().zip(pages);
    let parties: Vec<Party<'_>> =
        parties.map(|(rank, (site, export))| Party { rank: *rank, site, exports: vec![export] }).collect();
    let name = |_, _| "the flag page".to_owned();
    let mut opened = sharing::open(context, offer, info.rank(), &parties, |_, _| vec![0], name, deadline)?;
    let page = |(at, party): (usize, &Party<'_>)| match opened.remove(&(at, 0)) {
        None => Ok(own.clone()),
        Some(Imported::Host(memory)) if memory.bytes() == layout.bytes() => Ok(FlagPage::new(layout, memory)),
        Some(other) => {
            let (rank, bytes) = (party.rank, layout.bytes());
            let cause =
                format!("the flag page of rank {rank}: {other:?}, expected {bytes} bytes of the host");
            Err(OpeningOutcome::Failed { cause })
        }
    };
    parties.iter().enumerate().map(page).collect()
}

/// Creates this rank's flag page, opens those of the others, passes all of them to `make`, and returns the result of
/// `make`. Collective: the members agree that either all of them succeed or none does. A rank that does not learn the
/// result of this agreement, because it loses the store or the group ends, gets an error even if the others succeed.
///
/// `attempt` is a name that all members pass, and that no other call uses. A rank that cannot create its flag page
/// still takes part: its record contains the reason, and the members agree on a refusal without opening any flag page.
pub(super) fn exchange_flag_pages<T>(
    info: &GroupInfo,
    context: &Context,
    options: &DirectOptions,
    (attempt, deadline): (&str, Deadline),
    call: &CallContext,
    make: impl FnOnce(Vec<FlagPage>) -> cuda_driver::Result<T>,
) -> Result<T, Error> {
    let layout = FlagPageLayout { world: info.world_size(), slots: options.ring().slots() };
    let own = offer_page(context, layout);
    let page = match &own {
        Ok((.., offered)) => offered.clone(),
        Err(problem) => PageOffer::Missing { problem: problem.clone() },
    };
    let record = PathRecord { options: options.to_string(), page };
    let rank = info.global_rank();
    let member = Member {
        name: format!("{attempt}/direct"),
        rank,
        members: info.global_ranks().to_vec(),
        generation: 0,
        patience: deadline.remaining(),
        deadline: None,
    };
    let (mut make, mut made) = (Some(make), None);
    let act = |pages: &Vec<(Site, Export)>, deadline, _: &dyn Fn() -> bool| {
        let (Ok((own, offer, _)), Some(make)) = (&own, make.take()) else {
            return OpeningOutcome::Failed { cause: "it has no flag page".to_owned() };
        };
        let opened = open_all(context, info, (own, offer), pages, layout, deadline);
        let failed = |error| OpeningOutcome::Failed { cause: error_text(&error) };
        match opened.and_then(|flag_pages| make(flag_pages).map_err(failed)) {
            Ok(path) => {
                made = Some(path);
                OpeningOutcome::Mapped
            }
            Err(outcome) => outcome,
        }
    };
    let result = agreement::run::<FlagPageProtocol>(&*info.store, member, record.clone(), act, info.object());
    // Ends the offer: closes the listener, and removes the page from the registry of this process. After a success, all
    // ranks have opened this rank's flag page, and after a failure, this rank has no path.
    drop(own);
    match result {
        Ok(()) => made.ok_or_else(|| call.error(unmade(rank, "it has opened no flag page".to_owned()))),
        Err(failed) => {
            let is_agreed = matches!(failed.ending, Ending::Refused(_));
            Err(call.error_of_group(info.standing(), is_agreed, failure(record.options, *failed)))
        }
    }
}

fn unmade(rank: u32, problem: String) -> ErrorKind {
    ErrorKind::Unmade { rank: rank as usize, problem }
}

/// Converts the failure of the agreement to an error. `own` is the text of this rank's options, as in its record.
fn failure(own: String, failed: Failed<FlagPageProtocol>) -> ErrorKind {
    match (failed.ending, failed.store) {
        (Ending::Refused(FlagPageRefusal::Failed { rank, problem }), _) => unmade(rank, problem),
        (Ending::Refused(FlagPageRefusal::Options { options }), _) => {
            // Report the lowest rank whose options differ from this rank's.
            let others = options.entries.into_iter().filter(|entry| entry.value != own);
            let first = others.min_by_key(|entry| entry.ranks.first().copied());
            let (rank, options) = first.map_or((0, String::new()), |entry| {
                (entry.ranks.first().map_or(0, |rank| *rank as usize), entry.value)
            });
            ErrorKind::OptionsDiffer { rank, options, own }
        }
        (Ending::Failed(source), _) => ErrorKind::NotAgreed { source: Box::new(source) },
        (Ending::Unreadable(source), _) => ErrorKind::Unreadable { poisoned: false, source },
        (_, Some(source)) => source.into(),
        (_, None) => ErrorKind::OutOfStep,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sharing::Handle;

    fn record(options: &str) -> PathRecord {
        let export = Export { bytes: 4096, handle: Handle::Host, token: 2 };
        let page = PageOffer::Offered { site: Site::of_process(), export };
        PathRecord { options: options.to_owned(), page }
    }

    #[test]
    fn other_options_and_a_missing_flag_page_are_refused_by_name() {
        let records = [(4, record("a")), (5, record("a")), (6, record("b"))];
        let Decision::Refused { refusal: FlagPageRefusal::Options { options } } =
            FlagPageProtocol::decide(&records)
        else {
            panic!("the options differ")
        };
        assert_eq!(options.minority(), [6]);
        let missing =
            PathRecord { page: PageOffer::Missing { problem: "no memory".to_owned() }, ..record("a") };
        let refusal = FlagPageRefusal::Failed { rank: 5, problem: "no memory".to_owned() };
        let records = [(4, record("a")), (5, missing)];
        assert_eq!(FlagPageProtocol::decide(&records), Decision::Refused { refusal });
        assert!(matches!(FlagPageProtocol::decide(&records[..1]), Decision::Act { plan } if plan.len() == 1));
    }

    #[test]
    fn a_reported_failure_comes_before_a_missing_outcome() {
        let failed = Report::Outcome(OpeningOutcome::Failed { cause: "no addresses".to_owned() });
        let named =
            |reports: &[(u32, Report<OpeningOutcome>)]| match FlagPageProtocol::judge(&Vec::new(), reports) {
                Decision::Refused { refusal: FlagPageRefusal::Failed { rank, .. } } => Some(rank),
                Decision::Agreed { .. } => None,
                other => panic!("{other:?}"),
            };
        let done = Report::Outcome(OpeningOutcome::Mapped);
        assert_eq!(named(&[(0, Report::Late), (1, done.clone()), (2, failed)]), Some(2));
        assert_eq!(named(&[(0, done.clone()), (1, Report::Late)]), Some(1));
        assert_eq!(named(&[(0, done.clone()), (1, done)]), None);
    }
}
