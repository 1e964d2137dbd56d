//! Messages: their two halves are matched by their number among those of one direction between two ranks, and must be
//! equal.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{
    analyze::Group,
    load::{Dump, Entry, elements},
};

/// A message whose other half is missing or different.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Message {
    pub(super) from: usize,
    pub(super) to: usize,
    /// Its number among those from one rank to the other.
    pub(super) number: u64,
    pub(super) problem: String,
}

/// The messages from one rank to another.
#[derive(Default)]
struct Pair<'a> {
    /// The sent and the received half, by number.
    halves: BTreeMap<u64, [Option<&'a Entry>; 2]>,
    /// True if a dump has no numbers for them, and has lost the start of the sequence.
    unnumbered: bool,
}

/// Returns the first wrong message of each pair. A rank without a dump gives no information about its halves.
pub(super) fn messages(group: &Group<'_>) -> Vec<Message> {
    let dumps: BTreeMap<usize, &Dump> = group.dumps().collect();
    let forgetful = |rank: &usize| dumps[rank].entries.first().is_some_and(|entry| entry.record_id > 0);
    let mut pairs: BTreeMap<(usize, usize), Pair<'_>> = BTreeMap::new();
    for (rank, dump) in &dumps {
        let mut counts: BTreeMap<(usize, usize), u64> = BTreeMap::new();
        for entry in group.entries(dump) {
            let Some((side, peer)) = end(group, entry) else { continue };
            let ranks = if side == SENT { (*rank, peer) } else { (peer, *rank) };
            let count = counts.entry(ranks).or_default();
            *count += 1;
            let pair = pairs.entry(ranks).or_default();
            pair.unnumbered |= entry.pair_seq_id.is_none() && forgetful(rank);
            pair.halves.entry(entry.pair_seq_id.unwrap_or(*count)).or_default()[side] = Some(entry);
        }
    }
    let known = |ranks: &(usize, usize)| dumps.contains_key(&ranks.0) && dumps.contains_key(&ranks.1);
    let wrong = |((from, to), pair): (&(usize, usize), &Pair<'_>)| {
        // Below the first message that both sides remember, one side may have overwritten its half.
        let first = |side: usize| {
            pair.halves.iter().find(|(_, halves)| halves[side].is_some()).map(|(number, _)| *number)
        };
        let both = first(SENT).max(first(RECEIVED)).unwrap_or_default();
        let start = if forgetful(from) || forgetful(to) { both } else { 0 };
        pair.halves.range(start..).find_map(|(number, halves)| {
            let mut problem = problem(*from, *to, *halves)?;
            problem.push_str(&reservation(&dumps, *from, *to, *halves));
            Some(Message { from: *from, to: *to, number: *number, problem })
        })
    };
    pairs.iter().filter(|(ranks, pair)| known(ranks) && !pair.unnumbered).filter_map(wrong).collect()
}

/// The halves of a message.
const SENT: usize = 0;
const RECEIVED: usize = 1;

/// Returns the half that an entry is, and the job's rank at the other end.
fn end(group: &Group<'_>, entry: &Entry) -> Option<(usize, usize)> {
    let (operation, ends) = entry.words().split_once(' ')?;
    let (side, peer) = match operation {
        "send" => (SENT, ends.split_once("->")?.1),
        "recv" => (RECEIVED, ends.split_once("<-")?.1),
        _ => return None,
    };
    Some((side, *group.ranks.get(peer.parse::<usize>().ok()?)?))
}

/// Describes the fault of a message, if there is one.
fn problem(from: usize, to: usize, halves: [Option<&Entry>; 2]) -> Option<String> {
    match halves {
        [None, None] => None,
        [Some(sent), None] => {
            let count = elements(&sent.input_sizes);
            Some(format!("rank {from} sent {count} elements, rank {to} has not received{}", sent.place()))
        }
        [None, Some(received)] => {
            let count = elements(&received.output_sizes);
            Some(format!("rank {to} receives {count} elements, rank {from} has not sent{}", received.place()))
        }
        [Some(sent), Some(received)] => {
            let (out, into) = (elements(&sent.input_sizes), elements(&received.output_sizes));
            if out != into {
                return Some(format!("{out} elements sent, {into} received{}", received.place()));
            }
            let (out, into) = (sent.input_dtypes.join(", "), received.output_dtypes.join(", "));
            (out != into).then(|| format!("{out} sent, {into} received{}", received.place()))
        }
    }
}

/// Returns a note if one half is missing, and the dump of that end is older than the other half.
fn reservation(
    dumps: &BTreeMap<usize, &Dump>,
    from: usize,
    to: usize,
    halves: [Option<&Entry>; 2],
) -> String {
    let (known, silent, act) = match halves {
        [Some(sent), None] => (sent, to, "received"),
        [None, Some(received)] => (received, from, "sent"),
        _ => return String::new(),
    };
    let times = dumps[&silent].written_ns.zip(known.created_ns);
    match times {
        Some((written, created)) if written < created => {
            format!("; the dump of rank {silent} was written before, so it may have {act} later")
        }
        _ => String::new(),
    }
}
