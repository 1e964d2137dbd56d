//! The ranks' messages as figures: the table for a person, the JSON object for a program, the verdict.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use comfy_table::{Table, presets};
use serde::Serialize;

use crate::json::rounded;

use super::backend::Backend;
use super::groups::{Group, diverging_rank};
use super::protocol::{Committed, Message, Mode, Reduced, Replayed};

/// All messages of the ranks.
pub(crate) struct Figures {
    backend: Backend,
    ranks: u32,
    groups: Vec<Group>,
    nccl_version: String,
    devices: BTreeMap<u32, String>,
    replayed: BTreeMap<u32, Replayed>,
    /// By (group, rank).
    committed: BTreeMap<(u32, u32), Committed>,
    /// By (group, rank), each with up to one of every mode.
    reduced: BTreeMap<(u32, u32), Vec<Reduced>>,
    diverged_at: Option<u64>,
    /// By (group, rank).
    refused: BTreeMap<(u32, u32), Refusal>,
}

#[derive(Clone)]
struct Refusal {
    kind: String,
    text: String,
    ahead: Vec<u32>,
    nanoseconds: u64,
}

/// Explains the table of ranks.
const BY_RANK: &str = "\
Replay of the trace on each rank. Active memory is in use by the trace's program, reserved memory is all that the
allocator has taken from the device. Registrations count each segment once for each communicator of the rank.";

/// Explains the table of groups.
const BY_GROUP: &str = "\
All-reduces of the gradient buckets in each group: TP are tensor-parallel pairs, DP data-parallel groups across them.
Windows are the pool's segments that the group registers with NCCL in its commit. Times are of the slowest member: the
commit, the all-reduces called one by one (eager), and the same from a captured graph. All sums are compared with the
exact ones (verified, over all members and passes). After that one rank diverges: it allocates a segment that the others
lack, and every group commits again (second commit).";

/// Error kind for a segment that others lack.
const DIVERGENCE: &str = "SegmentCountMismatch";

impl Figures {
    pub(crate) fn new(backend: Backend, ranks: u32, groups: Vec<Group>) -> Self {
        Self {
            backend,
            ranks,
            groups,
            nccl_version: String::new(),
            devices: BTreeMap::new(),
            replayed: BTreeMap::new(),
            committed: BTreeMap::new(),
            reduced: BTreeMap::new(),
            diverged_at: None,
            refused: BTreeMap::new(),
        }
    }

    /// Stores a message of `rank`.
    pub(crate) fn hear(&mut self, rank: u32, message: Message) {
        match message {
            Message::Ready { nccl_version, device } => {
                self.nccl_version = nccl_version;
                self.devices.insert(rank, device);
            }
            Message::Replayed(replayed) => {
                self.replayed.insert(rank, replayed);
            }
            Message::Committed(committed) => {
                self.committed.insert((committed.group, rank), committed);
            }
            Message::Reduced(reduced) => {
                self.reduced.entry((reduced.group, rank)).or_default().push(reduced);
            }
            Message::Diverging { nanoseconds } => self.diverged_at = Some(nanoseconds),
            Message::Refused { group, kind, text, ahead, nanoseconds } => {
                self.refused.insert((group, rank), Refusal { kind, text, ahead, nanoseconds });
            }
            Message::Stage(_) | Message::Progress { .. } | Message::Finished | Message::Failed { .. } => {}
        }
    }

    /// Returns an error unless every claim of the demo held.
    pub(crate) fn verdict(&self) -> Result<()> {
        let mut replays = self.replayed.values();
        let first = replays.next();
        let alike = |a: &Replayed, b: &Replayed| {
            (a.allocations, a.segments, a.peak_active, a.peak_reserved)
                == (b.allocations, b.segments, b.peak_active, b.peak_reserved)
        };
        if self.replayed.len() != self.ranks as usize
            || !replays.all(|other| first.is_some_and(|one| alike(one, other)))
        {
            bail!(
                "the replay of one trace came to different figures on different ranks, or is missing on some"
            );
        }
        let diverging = diverging_rank(self.ranks);
        for (number, group) in (0..).zip(&self.groups) {
            self.check_group(number, group, group.disagrees_with(diverging))?;
        }
        Ok(())
    }

    fn check_group(&self, number: u32, group: &Group, disagrees: bool) -> Result<()> {
        self.check_windows(number, group)?;
        self.check_passes(number, group, disagrees)?;
        self.check_refusals(number, group, disagrees)
    }

    fn check_windows(&self, number: u32, group: &Group) -> Result<()> {
        let windows: Vec<_> =
            group.ranks.iter().map(|&rank| self.committed.get(&(number, rank)).map(|c| c.windows)).collect();
        if windows.iter().any(|&on_rank| on_rank.is_none() || on_rank != windows[0]) {
            bail!("group {group}: its members committed different windows: {windows:?}");
        }
        let reasons = self.of_group(number, &self.committed).map(|committed| committed.no_windows.as_deref());
        let reason = reasons.flatten().next();
        let is_excused = match self.backend {
            // A library without windows gives a reason; the embedded device always has windows.
            Backend::Cuda => reason.is_some(),
            Backend::Sim | Backend::Auto => false,
        };
        if group.ranks.len() > 1 && self.windows(number) == 0 && !is_excused {
            bail!("group {group}: expected windows, found none: {}", reason.unwrap_or("no reason was given"));
        }
        Ok(())
    }

    fn check_passes(&self, number: u32, group: &Group, disagrees: bool) -> Result<()> {
        let mut expected = vec![Mode::Eager, Mode::Graph];
        if !disagrees {
            expected.push(Mode::GoOn);
        }
        for &rank in &group.ranks {
            let passes = self.reduced.get(&(number, rank)).map(Vec::as_slice).unwrap_or_default();
            let modes: Vec<_> = passes.iter().map(|reduced| reduced.mode).collect();
            if modes != expected || passes.iter().any(|reduced| reduced.verified_bytes == 0) {
                bail!("group {group}, rank {rank}: expected verified passes {expected:?}, found {passes:?}");
            }
        }
        Ok(())
    }

    fn check_refusals(&self, number: u32, group: &Group, disagrees: bool) -> Result<()> {
        let diverging = diverging_rank(self.ranks);
        let refusals: Vec<_> = group.ranks.iter().map(|&rank| self.refused.get(&(number, rank))).collect();
        let same = |one: Option<&Refusal>, other: Option<&Refusal>| match (one, other) {
            (Some(one), Some(other)) => one.kind == other.kind && one.text == other.text,
            (None, None) => true,
            _ => false,
        };
        if refusals.iter().any(|&refusal| refusal.is_some() != disagrees || !same(refusal, refusals[0])) {
            bail!(
                "group {group}: expected {} after rank {diverging} diverged",
                if disagrees { "the same error on every member" } else { "no error" },
            );
        }
        if let Some(refusal) = refusals[0]
            && (refusal.kind != DIVERGENCE || refusal.ahead != [diverging])
        {
            let Refusal { kind, ahead, text, .. } = refusal;
            bail!(
                "group {group}: expected {DIVERGENCE} that names rank {diverging}, found {kind} that names {}: {text}",
                ranks(ahead)
            );
        }
        Ok(())
    }

    fn detected_on(&self) -> Vec<u32> {
        let ranks: std::collections::BTreeSet<_> = self.refused.keys().map(|&(_, rank)| rank).collect();
        ranks.into_iter().collect()
    }

    /// From the diverging rank's commit call to the last member's error.
    fn detected_after_ms(&self) -> Option<f64> {
        let last = self.refused.values().map(|refusal| refusal.nanoseconds).max()?;
        Some(last.checked_sub(self.diverged_at?)? as f64 / 1e6)
    }

    fn of_group<'a, T>(
        &self,
        number: u32,
        by: &'a BTreeMap<(u32, u32), T>,
    ) -> impl Iterator<Item = &'a T> + use<'a, T> {
        by.range((number, 0)..=(number, u32::MAX)).map(|(_, value)| value)
    }

    /// The first member's refusal; all members have the same.
    fn refusal(&self, number: u32) -> Option<&Refusal> {
        self.of_group(number, &self.refused).next()
    }

    fn verified_bytes(&self, number: u32) -> u64 {
        self.of_group(number, &self.reduced).flatten().map(|reduced| reduced.verified_bytes).sum()
    }

    fn windows(&self, number: u32) -> u64 {
        self.of_group(number, &self.committed).next().map_or(0, |committed| committed.windows)
    }

    /// The slowest member's time for the commit, in milliseconds.
    fn slowest_commit(&self, number: u32) -> Option<f64> {
        self.of_group(number, &self.committed).map(|committed| committed.milliseconds).reduce(f64::max)
    }

    /// The slowest member's time for one pass, in milliseconds.
    fn slowest(&self, number: u32, mode: Mode) -> Option<f64> {
        let passes = self.of_group(number, &self.reduced).flatten().filter(|reduced| reduced.mode == mode);
        passes.map(|reduced| reduced.milliseconds).reduce(f64::max)
    }
}

/// `rank 2` or `ranks 0, 1, 3`.
pub(super) fn ranks(ranks: &[u32]) -> String {
    let list: Vec<_> = ranks.iter().map(u32::to_string).collect();
    format!("{} {}", if ranks.len() == 1 { "rank" } else { "ranks" }, list.join(", "))
}

fn mib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 20))
}

fn ms(milliseconds: Option<f64>) -> String {
    milliseconds.map_or_else(|| "-".into(), |milliseconds| format!("{milliseconds:.1}"))
}

/// Prints the figures for a person.
pub(crate) fn table(figures: &Figures) {
    println!("{} ranks on {} {}", figures.ranks, on(figures), figures.nccl_version);

    println!("\n{BY_RANK}");
    let mut by_rank = Table::new();
    by_rank.load_style(presets::UTF8_HORIZONTAL_ONLY).set_header([
        "rank",
        "device",
        "allocations",
        "segments",
        "peak active MiB",
        "peak reserved MiB",
        "registrations",
        "replay ms",
    ]);
    for (rank, replayed) in &figures.replayed {
        by_rank.add_row([
            rank.to_string(),
            figures.devices.get(rank).cloned().unwrap_or_default(),
            replayed.allocations.to_string(),
            replayed.segments.to_string(),
            mib(replayed.peak_active),
            mib(replayed.peak_reserved),
            replayed.registrations.to_string(),
            format!("{:.0}", replayed.milliseconds),
        ]);
    }
    println!("{by_rank}");

    println!("\n{BY_GROUP}");
    let mut by_group = Table::new();
    by_group.load_style(presets::UTF8_HORIZONTAL_ONLY).set_header([
        "group",
        "ranks",
        "windows",
        "commit ms",
        "verified MiB",
        "eager ms",
        "graph ms",
        "second commit",
    ]);
    for (number, group) in (0..).zip(&figures.groups) {
        let refused = figures.refusal(number);
        by_group.add_row([
            group.to_string(),
            group.ranks.iter().map(u32::to_string).collect::<Vec<_>>().join(","),
            figures.windows(number).to_string(),
            ms(figures.slowest_commit(number)),
            mib(figures.verified_bytes(number)),
            ms(figures.slowest(number, Mode::Eager)),
            ms(figures.slowest(number, Mode::Graph)),
            refused.map_or_else(|| "succeeds".into(), |refusal| refusal.kind.clone()),
        ]);
    }
    println!("{by_group}");

    let reasons: std::collections::BTreeSet<_> =
        figures.committed.values().filter_map(|committed| committed.no_windows.as_deref()).collect();
    for reason in reasons {
        println!("without windows: {reason}");
    }
    for (number, group) in (0..).zip(&figures.groups) {
        if let Some(refusal) = figures.refusal(number) {
            println!("caught in {group}: {}", refusal.text);
        }
    }
    if let Some(after) = figures.detected_after_ms() {
        println!(
            "rank {} diverged; {} had the error {after:.1} ms after its commit call",
            diverging_rank(figures.ranks),
            ranks(&figures.detected_on())
        );
    }
    if figures.verdict().is_ok() {
        println!("ok: every element was the exact sum, and the divergence was caught on every member.");
    }
}

fn on(figures: &Figures) -> &'static str {
    match figures.backend {
        Backend::Cuda => "real GPUs, NCCL",
        Backend::Sim | Backend::Auto => "the embedded device, which behaves as NCCL",
    }
}

#[derive(Serialize)]
struct Report<'a> {
    ok: bool,
    backend: &'a str,
    ranks: u32,
    nccl_version: &'a str,
    trace: Option<TraceReport>,
    groups: Vec<GroupReport<'a>>,
    divergence: DivergenceReport,
}

#[derive(Serialize)]
struct TraceReport {
    allocations: u64,
    segments: u64,
    peak_active: u64,
    peak_reserved: u64,
    registrations: u64,
    /// The time of the slowest rank.
    milliseconds: f64,
}

#[derive(Serialize)]
struct GroupReport<'a> {
    name: String,
    ranks: &'a [u32],
    windows: u64,
    verified_bytes: u64,
    /// Times of the slowest member.
    commit_ms: Option<f64>,
    eager_ms: Option<f64>,
    graph_ms: Option<f64>,
    /// The error after the divergence; `None` for a group that goes on.
    refused: Option<&'a str>,
}

#[derive(Serialize)]
struct DivergenceReport {
    detected_on: Vec<u32>,
    error: Option<String>,
    milliseconds: Option<f64>,
}

/// The figures as one line of JSON.
pub(crate) fn json(figures: &Figures) -> Result<String> {
    let report = Report {
        ok: figures.verdict().is_ok(),
        backend: figures.backend.name(),
        ranks: figures.ranks,
        nccl_version: &figures.nccl_version,
        trace: figures.replayed.values().next().map(|replayed| TraceReport {
            allocations: replayed.allocations,
            segments: replayed.segments,
            peak_active: replayed.peak_active,
            peak_reserved: replayed.peak_reserved,
            registrations: replayed.registrations,
            milliseconds: figures.replayed.values().map(|replayed| replayed.milliseconds).fold(0.0, f64::max),
        }),
        groups: (0..)
            .zip(&figures.groups)
            .map(|(number, group)| GroupReport {
                name: group.to_string(),
                ranks: &group.ranks,
                windows: figures.windows(number),
                verified_bytes: figures.verified_bytes(number),
                commit_ms: figures.slowest_commit(number),
                eager_ms: figures.slowest(number, Mode::Eager),
                graph_ms: figures.slowest(number, Mode::Graph),
                refused: figures.refusal(number).map(|refusal| refusal.kind.as_str()),
            })
            .collect(),
        divergence: DivergenceReport {
            detected_on: figures.detected_on(),
            error: figures.refused.iter().next().map(|(&(number, _), refusal)| {
                format!("{}: {}", figures.groups[number as usize], refusal.text)
            }),
            milliseconds: figures.detected_after_ms(),
        },
    };
    rounded(&report, 3)
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
