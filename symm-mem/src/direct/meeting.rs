//! Installation of a path: the ranks open each other's [flag pages](super::flag_page), and agree on the outcome.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use bootstrap::agreement::{self, Decision, Ending, Failed, Member, Protocol, Report, ValuesByRank};
use process_group::{ProcessGroup, error_text, link::Tag, store::Deadline};

use super::{
    DirectOptions,
    flag_page::{FlagPage, Layout},
};
use crate::{
    agreement::{
        PROTOCOL,
        wire::{self, wire_enum, wire_struct},
    },
    domain::{rank_of, ranks_of},
    error::{CallContext, Error},
    error_kind::ErrorKind,
    group_object::GroupObject,
    sharing::{Export, Fetched, Handle, LocalRegistry, Offer, Party, Share, Site},
};

/// Flag pages that other ranks of this process can open.
static FLAG_PAGES: LocalRegistry<OwnPage> = LocalRegistry::new();

/// The agreement whose result is that every member has opened all flag pages, or that no member gets a path.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FlagPageProtocol;

/// The record that each rank posts before any rank opens a flag page.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PathRecord {
    options: String,
    page: PageOffer,
}
wire_struct!(PathRecord { options, page });

/// The flag page that a rank offers to the others, or the reason why it has none.
#[derive(Debug, Clone, PartialEq, Eq)]
enum PageOffer {
    Offered {
        address: PageAddress,
    },
    /// The rank could not create its flag page.
    Missing {
        problem: String,
    },
}
wire_enum!(PageOffer { 0 => Offered { address }, 1 => Missing { problem } });

/// The data by which the other ranks open a rank's flag page.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PageAddress {
    site: Site,
    export: Export,
}
wire_struct!(PageAddress { site, export });

/// A rank's outcome: whether it has opened all flag pages and made its path.
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
    /// The first member that failed, in the order of ranks. If none failed, the first one that did not post its outcome
    /// in time.
    Failed { rank: u32, problem: String },
}
wire_enum!(Refusal { 0 => Options { options }, 1 => Failed { rank, problem } });

impl Protocol for FlagPageProtocol {
    const PROTOCOL: wire::Protocol = PROTOCOL;

    type Record = PathRecord;
    type Plan = Vec<PageAddress>;
    type Outcome = Opened;
    type Agreed = ();
    type Refusal = Refusal;

    fn decide(records: &[(u32, PathRecord)]) -> Decision<Self> {
        let options = ValuesByRank::of(records.iter().map(|(rank, record)| (*rank, record.options.clone())));
        if !options.is_unanimous() {
            return Decision::Refused { refusal: Refusal::Options { options } };
        }
        let address = |(rank, record): &(u32, PathRecord)| match &record.page {
            PageOffer::Offered { address } => Ok(address.clone()),
            PageOffer::Missing { problem } => Err(Refusal::Failed { rank: *rank, problem: problem.clone() }),
        };
        match records.iter().map(address).collect() {
            Ok(plan) => Decision::Act { plan },
            Err(refusal) => Decision::Refused { refusal },
        }
    }

    fn is_final(opened: &Opened) -> bool {
        matches!(opened, Opened::Failed { .. })
    }

    fn judge(_: &Vec<PageAddress>, reports: &[(u32, Report<Opened>)]) -> Decision<Self> {
        let failed = reports.iter().find_map(|(rank, report)| match report {
            Report::Outcome(Opened::Failed { problem }) => Some((*rank, problem.clone())),
            _ => None,
        });
        let late = || {
            let (rank, _) = reports.iter().find(|(_, report)| *report == Report::Late)?;
            Some((*rank, "it did not open the flag pages of the others in time".to_owned()))
        };
        match failed.or_else(late) {
            Some((rank, problem)) => Decision::Refused { refusal: Refusal::Failed { rank, problem } },
            None => Decision::Agreed { agreed: () },
        }
    }
}

/// A flag page, and the descriptor of its memory.
#[derive(Clone)]
struct OwnPage {
    page: Arc<FlagPage>,
    descriptor: Arc<OwnedFd>,
}

impl Share for OwnPage {
    const TAG: Tag = Tag(*b"page");

    fn registry() -> &'static LocalRegistry<Self> {
        &FLAG_PAGES
    }

    fn handle(&self) -> Result<Handle, String> {
        Ok(Handle::DESCRIPTOR)
    }

    fn descriptor(&self) -> Result<OwnedFd, String> {
        self.descriptor.try_clone().map_err(|error| error.to_string())
    }
}

/// This rank's flag page, as offered to the other ranks.
struct Own {
    page: Arc<FlagPage>,
    offer: Offer<OwnPage>,
    address: PageAddress,
}

impl Own {
    fn make(group: &ProcessGroup, layout: Layout) -> Result<Self, String> {
        let (descriptor, page) =
            FlagPage::create(group.context(), layout).map_err(|error| format!("its flag page: {error}"))?;
        let (page, descriptor) = (Arc::new(page), Arc::new(descriptor));
        let mut offer = Offer::new().map_err(|problem| format!("its listener: {problem}"))?;
        let export = offer.export(OwnPage { page: page.clone(), descriptor }, layout.bytes())?;
        let site = Site { endpoint: offer.endpoint(), ..Site::of_process() };
        Ok(Self { page, offer, address: PageAddress { site, export } })
    }

    /// Opens the flag pages of all ranks, in the order of `addresses`.
    fn open_all(
        &self,
        group: &ProcessGroup,
        layout: Layout,
        addresses: &[PageAddress],
        deadline: Deadline,
    ) -> Result<Vec<Arc<FlagPage>>, String> {
        let ranks = ranks_of(group);
        let parties: Vec<Party<'_>> = ranks
            .iter()
            .zip(addresses)
            .map(|(rank, it)| Party { rank: *rank, site: &it.site, exports: vec![&it.export] })
            .collect();
        let mut fetched = self
            .offer
            .fetch(group.rank(), &parties, |_, _| vec![0], deadline)
            .map_err(|outcome| outcome.to_string())?;
        let page = |(place, party): (usize, &Party<'_>)| {
            let rank = party.rank;
            match fetched.remove(&(place, 0)) {
                None => Ok(self.page.clone()),
                Some(Fetched::Here(own)) => Ok(own.page),
                Some(Fetched::Descriptor(descriptor)) => {
                    let opened = FlagPage::open(group.context(), layout, descriptor.as_fd());
                    Ok(Arc::new(opened.map_err(|error| format!("the flag page of rank {rank}: {error}"))?))
                }
                Some(Fetched::ByHandle) => {
                    Err(format!("rank {rank} is on another host, and flag pages are memory of one host"))
                }
            }
        };
        parties.iter().enumerate().map(page).collect()
    }
}

/// Creates this rank's flag page, opens those of the others, passes all of them to `make`, and returns the result of
/// `make`. Collective. The members agree that all of them succeed or none does. A rank that does not learn the result
/// of this agreement, because it loses the store or the group ends, gets an error even if the others succeed.
///
/// `attempt` is a name that the members use for this call only. A rank that cannot create its flag page still takes
/// part: its record contains the reason, and the members agree on a refusal without opening any flag page.
pub(super) fn agreed<T>(
    group: &ProcessGroup,
    options: &DirectOptions,
    (attempt, deadline): (&str, Deadline),
    call: &CallContext,
    make: impl FnOnce(Vec<Arc<FlagPage>>) -> cuda_driver::Result<T>,
) -> Result<T, Error> {
    let layout = Layout { world: group.size(), slots: options.ring().slots() };
    let own = Own::make(group, layout);
    let page = match &own {
        Ok(own) => PageOffer::Offered { address: own.address.clone() },
        Err(problem) => PageOffer::Missing { problem: problem.clone() },
    };
    let record = PathRecord { options: options.to_string(), page };
    let rank = rank_of(group.global_rank());
    let member = Member {
        name: format!("{attempt}/direct"),
        rank,
        members: ranks_of(group),
        generation: 0,
        patience: deadline.remaining(),
        deadline: None,
    };
    let (mut make, mut made) = (Some(make), None);
    let act = |addresses: &Vec<PageAddress>, deadline, _: &dyn Fn() -> bool| {
        let (Ok(own), Some(make)) = (&own, make.take()) else {
            return Opened::Failed { problem: "it has no flag page".to_owned() };
        };
        let opened = own.open_all(group, layout, addresses, deadline);
        match opened.and_then(|flag_pages| make(flag_pages).map_err(|error| error_text(&error))) {
            Ok(path) => {
                made = Some(path);
                Opened::Done {}
            }
            Err(problem) => Opened::Failed { problem },
        }
    };
    let store = Arc::new(group.job_store());
    let object = GroupObject {
        rank,
        store: store.clone(),
        check: || group.standing(),
        health: || Some(group.health_handle()),
        ignores: |_| false,
    };
    let result = agreement::run::<FlagPageProtocol>(&*store, member, record.clone(), act, object);
    // Closes the listener, and removes the page from the registry of this process. They are no longer needed: after a
    // success, all ranks have opened this rank's flag page, and after a failure, this rank has no path.
    drop(own);
    match result {
        Ok(()) => made.ok_or_else(|| call.error(unmade(rank, "it has opened no flag page".to_owned()))),
        Err(failed) => {
            let is_agreed = matches!(failed.ending, Ending::Refused(_));
            Err(call.error_of_group(group.standing(), is_agreed, failure(record.options, *failed)))
        }
    }
}

fn unmade(rank: u32, problem: String) -> ErrorKind {
    ErrorKind::Unmade { rank: rank as usize, problem }
}

/// Converts the failure of the agreement to an error. `own` is the text of this rank's options, as in its record.
fn failure(own: String, failed: Failed<FlagPageProtocol>) -> ErrorKind {
    match (failed.ending, failed.store) {
        (Ending::Refused(Refusal::Failed { rank, problem }), _) => unmade(rank, problem),
        (Ending::Refused(Refusal::Options { options }), _) => {
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

    fn record(options: &str) -> PathRecord {
        let export = Export { bytes: 4096, handle: Handle::DESCRIPTOR, token: 2 };
        let address = PageAddress { site: Site::of_process(), export };
        PathRecord { options: options.to_owned(), page: PageOffer::Offered { address } }
    }

    #[test]
    fn other_options_and_a_missing_flag_page_are_refused_by_name() {
        let records = [(4, record("a")), (5, record("a")), (6, record("b"))];
        let Decision::Refused { refusal: Refusal::Options { options } } = FlagPageProtocol::decide(&records)
        else {
            panic!("the options differ")
        };
        assert_eq!(options.minority(), [6]);
        let missing =
            PathRecord { page: PageOffer::Missing { problem: "no memory".to_owned() }, ..record("a") };
        let refusal = Refusal::Failed { rank: 5, problem: "no memory".to_owned() };
        let records = [(4, record("a")), (5, missing)];
        assert_eq!(FlagPageProtocol::decide(&records), Decision::Refused { refusal });
        assert!(matches!(FlagPageProtocol::decide(&records[..1]), Decision::Act { plan } if plan.len() == 1));
    }

    #[test]
    fn a_failure_outweighs_silence() {
        let failed = Report::Outcome(Opened::Failed { problem: "no addresses".to_owned() });
        let named = |reports: &[(u32, Report<Opened>)]| match FlagPageProtocol::judge(&Vec::new(), reports) {
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
