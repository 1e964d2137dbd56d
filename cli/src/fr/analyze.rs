//! Finds the rank that is missing, and the first call in which the ranks differ.
//!
//! Collectives are matched by their number in the group. The majority of the ranks counts as right: a minority that
//! called another collective, or fewer, is reported. A rank is not judged in a collective that is later than its dump.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::{
    jobs::OtherJob,
    load::{Dump, Entry, elements},
    messages::{Message, messages},
};

/// The combined result of the dumps.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Report {
    /// Older jobs whose dumps lie in the folder, too.
    pub(super) other_jobs: Vec<OtherJob>,
    /// Ranks that have a dump.
    pub(super) ranks: Vec<usize>,
    /// Those dumps, in the order of the ranks.
    pub(super) dumps: Vec<DumpReport>,
    /// Members of groups that have no dump.
    pub(super) without_dump: Vec<usize>,
    pub(super) groups: Vec<GroupReport>,
}

/// A dump of one rank.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct DumpReport {
    pub(super) rank: usize,
    /// The time at which the dump was made, in ns since 1970. `None` if it is not in the dump.
    pub(super) written_ns: Option<u64>,
}

/// The result for one group.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct GroupReport {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) ranks: Vec<usize>,
    /// The first collective in which members differ.
    pub(super) mismatch: Option<Mismatch>,
    /// The first collective that not all members called.
    pub(super) missing: Option<Missing>,
    /// The first collective that members had not called in dumps that are older than the collective.
    pub(super) not_judged: Option<NotJudged>,
    /// Otherwise, the first collective that is not done on all members.
    pub(super) unfinished: Option<Unfinished>,
    /// The first message of each pair whose other half is missing or different.
    pub(super) messages: Vec<Message>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Mismatch {
    pub(super) collective: u64,
    /// `operation`, `sizes`, `dtype`, `root`, `reduction`, or `calls` for batches of different lengths.
    pub(super) what: &'static str,
    /// Ranks that differ from the majority; all ranks, if there is no majority.
    pub(super) ranks: Vec<usize>,
    pub(super) values: Vec<Found>,
}

/// A value, and the ranks that had it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Found {
    pub(super) value: String,
    pub(super) ranks: Vec<usize>,
    /// Source location of the first rank's call.
    pub(super) site: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Missing {
    pub(super) collective: u64,
    /// The operation that the other ranks called.
    pub(super) operation: String,
    /// The ranks that did not call it.
    pub(super) ranks: Vec<Last>,
}

/// A collective that some members may have called after they wrote their dumps.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct NotJudged {
    pub(super) collective: u64,
    /// The operation that the other ranks called.
    pub(super) operation: String,
    /// The members whose dumps were written before the first of the other ranks called it.
    pub(super) ranks: Vec<usize>,
}

/// A rank's last call in the group.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Last {
    pub(super) rank: usize,
    /// The number of the call, if it was a collective.
    pub(super) collective: Option<u64>,
    pub(super) call: Option<String>,
    /// Time from the first call of the missing collective to the rank's dump, in ns. `None` if one of them is unknown.
    pub(super) dump_after_ns: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Unfinished {
    pub(super) collective: u64,
    pub(super) operation: String,
    /// Ranks on which it is not done.
    pub(super) ranks: Vec<usize>,
    /// Members that may not have called it: those without a dump, or with one that is older than the collective.
    pub(super) unknown: Vec<usize>,
}

/// Collectives of one rank in a group, by number. A batch has several calls with one number.
type Collectives<'a> = BTreeMap<u64, Vec<&'a Entry>>;

/// The collectives of a group's members.
struct Calls<'a> {
    by_rank: BTreeMap<usize, Collectives<'a>>,
    /// The number of each rank's last collective.
    reached: BTreeMap<usize, u64>,
    /// The first number that can be compared.
    start: u64,
}

impl<'a> Calls<'a> {
    fn numbers(&self) -> BTreeSet<u64> {
        self.by_rank.values().flat_map(|own| own.range(self.start..).map(|(number, _)| *number)).collect()
    }

    /// Returns the calls of a number, by rank.
    fn at(&self, number: u64) -> Vec<(usize, &[&'a Entry])> {
        self.by_rank.iter().filter_map(|(rank, own)| Some((*rank, &own.get(&number)?[..]))).collect()
    }

    /// Returns what the first rank called.
    fn operation(&self, number: u64) -> Option<String> {
        self.at(number).first().map(|(_, calls)| describe(calls))
    }
}

/// A member that has not called a collective which others have called.
struct Behind {
    rank: usize,
    /// Time from the first call of the collective to the rank's dump, in ns. `None` if one of them is unknown.
    dump_after_ns: Option<i128>,
}

impl Behind {
    /// Returns true if the dump is older than the collective, so that the rank may have called it later.
    fn is_early(&self) -> bool {
        self.dump_after_ns.is_some_and(|after| after < 0)
    }
}

/// Compares the dumps of all ranks of a job.
pub(super) fn analyze(dumps: &BTreeMap<usize, Dump>, other_jobs: Vec<OtherJob>) -> Report {
    // One id may name groups of different ranks, because PyTorch names split groups so.
    let mut groups: BTreeMap<(String, Vec<usize>), String> = BTreeMap::new();
    for dump in dumps.values() {
        for (id, config) in &dump.pg_config {
            groups.entry((id.clone(), config.ranks.clone())).or_insert_with(|| config.desc.clone());
        }
    }
    let members: BTreeSet<_> = groups.keys().flat_map(|(_, ranks)| ranks.iter().copied()).collect();
    Report {
        other_jobs,
        ranks: dumps.keys().copied().collect(),
        dumps: dumps.iter().map(|(&rank, dump)| DumpReport { rank, written_ns: dump.written_ns }).collect(),
        without_dump: members.into_iter().filter(|rank| !dumps.contains_key(rank)).collect(),
        groups: groups
            .into_iter()
            .map(|((id, ranks), name)| Group { id: &id, ranks: &ranks, dumps }.report(name))
            .collect(),
    }
}

/// A group, and the dumps of all ranks.
pub(super) struct Group<'a> {
    id: &'a str,
    pub(super) ranks: &'a [usize],
    dumps: &'a BTreeMap<usize, Dump>,
}

impl<'a> Group<'a> {
    /// The members that have a dump.
    pub(super) fn dumps(&self) -> impl Iterator<Item = (usize, &'a Dump)> {
        self.ranks.iter().filter_map(|rank| Some((*rank, self.dumps.get(rank)?)))
    }

    pub(super) fn entries(&self, dump: &'a Dump) -> impl DoubleEndedIterator<Item = &'a Entry> {
        let id = self.id;
        dump.entries.iter().filter(move |entry| entry.process_group.0 == id)
    }

    fn report(self, name: String) -> GroupReport {
        let calls = self.calls();
        let numbers = calls.numbers();
        let mismatch = numbers.iter().find_map(|number| self.differ(*number, &calls.at(*number)));
        let missing = numbers.iter().find_map(|&number| {
            let behind = self.behind(number, &calls).into_iter().filter(|behind| !behind.is_early());
            let ranks: Vec<_> = behind.map(|behind| self.last(&behind)).collect();
            if ranks.is_empty() {
                return None;
            }
            Some(Missing { collective: number, operation: calls.operation(number)?, ranks })
        });
        let early = |number: u64| -> Vec<usize> {
            let behind = self.behind(number, &calls).into_iter();
            behind.filter(Behind::is_early).map(|behind| behind.rank).collect()
        };
        let not_judged = numbers.iter().find_map(|&number| {
            let ranks = early(number);
            if ranks.is_empty() {
                return None;
            }
            Some(NotJudged { collective: number, operation: calls.operation(number)?, ranks })
        });
        let unfinished = numbers.iter().find_map(|&number| {
            let open = |calls: &[&Entry]| calls.iter().any(|entry| !entry.is_done() && !entry.captured);
            let all = calls.at(number);
            let ranks: Vec<_> = all.iter().filter(|(_, calls)| open(calls)).map(|(rank, _)| *rank).collect();
            if ranks.is_empty() {
                return None;
            }
            let early = early(number);
            let is_unknown = |rank: &usize| !self.dumps.contains_key(rank) || early.contains(rank);
            let unknown = self.ranks.iter().copied().filter(is_unknown).collect();
            Some(Unfinished { collective: number, operation: calls.operation(number)?, ranks, unknown })
        });
        let unfinished = unfinished.filter(|_| mismatch.is_none() && missing.is_none());
        let messages = messages(&self);
        GroupReport {
            id: self.id.into(),
            name,
            ranks: self.ranks.into(),
            mismatch,
            missing,
            not_judged,
            unfinished,
            messages,
        }
    }

    fn calls(&self) -> Calls<'a> {
        let mut calls = Calls { by_rank: BTreeMap::new(), reached: BTreeMap::new(), start: 0 };
        for (rank, dump) in self.dumps() {
            let mut own = Collectives::new();
            for entry in self.entries(dump).filter(|entry| !entry.is_p2p) {
                own.entry(entry.collective_seq_id).or_default().push(entry);
            }
            let status = dump.pg_status.get(self.id).map_or(0, |status| status.last_enqueued_collective);
            let last = own.keys().next_back().copied().unwrap_or(0);
            calls.reached.insert(rank, last.max(u64::try_from(status).unwrap_or(0)));
            // Entries that the ring buffer has overwritten cannot be compared, nor the first batch, of which it may
            // hold a part.
            if dump.entries.first().is_some_and(|entry| entry.record_id > 0) {
                calls.start = calls.start.max(own.keys().next().map_or(last, |first| first + 1));
            }
            calls.by_rank.insert(rank, own);
        }
        calls
    }

    /// Returns the members with a dump in which they have not called a collective.
    fn behind(&self, number: u64, calls: &Calls<'a>) -> Vec<Behind> {
        let ranks: Vec<_> = calls.reached.iter().filter(|(_, reached)| **reached < number).collect();
        if ranks.is_empty() {
            return Vec::new();
        }
        let entries = calls.at(number).into_iter().flat_map(|(_, entries)| entries.iter());
        let called = entries.filter_map(|entry| entry.created_ns).min();
        let behind = ranks.into_iter().map(|(&rank, _)| {
            let times = self.dumps.get(&rank).and_then(|dump| dump.written_ns).zip(called);
            let dump_after_ns = times.map(|(written, called)| i128::from(written) - i128::from(called));
            Behind { rank, dump_after_ns }
        });
        behind.collect()
    }

    fn last(&self, &Behind { rank, dump_after_ns }: &Behind) -> Last {
        let last = self.dumps.get(&rank).and_then(|dump| self.entries(dump).next_back());
        Last {
            rank,
            collective: last.filter(|entry| !entry.is_p2p).map(|entry| entry.collective_seq_id),
            call: last.map(|entry| format!("{}{}", describe(&[entry]), entry.place())),
            dump_after_ns: dump_after_ns.and_then(|after| u64::try_from(after).ok()),
        }
    }

    /// Compares the members' calls of one number and returns the first difference.
    fn differ(&self, number: u64, all: &[(usize, &[&Entry])]) -> Option<Mismatch> {
        let most = all.iter().map(|(_, calls)| calls.len()).max()?;
        for index in 0..most {
            let here: Vec<_> = all.iter().map(|(rank, calls)| (*rank, calls.get(index).copied())).collect();
            for (what, value) in FIELDS {
                let found = here.iter().filter_map(|(rank, entry)| match entry {
                    Some(entry) => Some((*rank, value(entry)?, Some(*entry))),
                    // A shorter batch.
                    None => (what == "operation").then(|| (*rank, "nothing".to_owned(), None)),
                });
                if let Some((ranks, values)) = sorted_out(found) {
                    let shorter = here.iter().any(|(_, entry)| entry.is_none());
                    let what = if shorter { "calls" } else { what };
                    return Some(Mismatch { collective: number, what, ranks, values });
                }
            }
            let whole = here.len() == self.ranks.len();
            if whole && here.iter().all(|(_, entry)| entry.is_some_and(|entry| is_uneven(entry.operation())))
            {
                let sum = |side: fn(&Entry) -> &[Vec<u64>]| -> u64 {
                    here.iter().filter_map(|(_, entry)| *entry).map(|entry| elements(side(entry))).sum()
                };
                let (sent, received) = (sum(|entry| &entry.input_sizes), sum(|entry| &entry.output_sizes));
                if sent != received {
                    let ranks: Vec<_> = here.iter().map(|(rank, _)| *rank).collect();
                    let value = format!("{sent} elements sent, {received} received in all");
                    let values = vec![Found { value, ranks: ranks.clone(), site: None }];
                    return Some(Mismatch { collective: number, what: "sizes", ranks, values });
                }
            }
        }
        None
    }
}

type Field = fn(&Entry) -> Option<String>;

/// Fields that must be equal on all members, the most significant difference first.
const FIELDS: [(&str, Field); 5] = [
    ("operation", |entry| Some(entry.operation().to_owned())),
    ("sizes", |entry| {
        let name = entry.operation();
        let side = |counts: bool, sizes: &[Vec<u64>]| {
            if counts { elements(sizes).to_string() } else { "any".into() }
        };
        let even = !is_uneven(name);
        let read = side(even && name != "scatter" && name != "all_gather_v", &entry.input_sizes);
        let written = side(even && name != "gather" && name != "reduce_scatter_v", &entry.output_sizes);
        Some(format!("{read} elements read, {written} written"))
    }),
    ("dtype", |entry| {
        let types = if entry.input_dtypes.is_empty() { &entry.output_dtypes } else { &entry.input_dtypes };
        (!types.is_empty()).then(|| types.join(", "))
    }),
    ("root", |entry| entry.peer.map(|root| format!("root {root}"))),
    ("reduction", |entry| entry.reduction.clone()),
];

/// Groups ranks by their value; `None` if all had the same.
fn sorted_out<'a>(
    found: impl Iterator<Item = (usize, String, Option<&'a Entry>)>,
) -> Option<(Vec<usize>, Vec<Found>)> {
    let mut values: Vec<Found> = Vec::new();
    for (rank, value, entry) in found {
        match values.iter_mut().find(|known| known.value == value) {
            Some(known) => known.ranks.push(rank),
            None => values.push(Found { value, ranks: vec![rank], site: entry.and_then(Entry::site) }),
        }
    }
    if values.len() < 2 {
        return None;
    }
    values.sort_by_key(|found| std::cmp::Reverse(found.ranks.len()));
    let tie = values[0].ranks.len() == values[1].ranks.len();
    let odd = if tie { &values[..] } else { &values[1..] };
    let mut ranks: Vec<_> = odd.iter().flat_map(|found| found.ranks.iter().copied()).collect();
    ranks.sort_unstable();
    Some((ranks, values))
}

/// True for operations whose members may have buffers of different lengths.
fn is_uneven(operation: &str) -> bool {
    let ours = ["all_to_all_list", "gather_list", "scatter_list"];
    let torchs = ["all_to_all", "all_to_all_single", "all_to_all_v_single"];
    ours.contains(&operation) || torchs.contains(&operation)
}

fn describe(calls: &[&Entry]) -> String {
    calls.iter().map(|entry| entry.operation()).collect::<Vec<_>>().join(", ")
}
