//! Where a block that fits nowhere goes: which free memory it lengthens, which idle pages come there, and which are
//! made.
//!
//! A new page is at most a fraction of what the pool needs at its peak: large enough that few calls move much,
//! small enough that little lies idle in pages that are only partly free. Pages of half the length bring the ratio of
//! reserved to active memory down by up to a hundredth, and need up to twice the calls; pages of twice the length cost
//! up to two hundredths and save up to half of the calls. Between these lies what holds 1.02 and one call per 50
//! operations for most programs. And what is idle is moved only when the
//! pool would else grow clearly beyond its need: moving costs calls, and a little room saves many.

use super::arena::{Arena, Piece, Range, Run};
use crate::core::heap::{BlockId, List, State};
use crate::core::pending::Wait;
use crate::core::segment::Segment;
use crate::core::size::{UNIT, Units, bytes_of};

/// No page is made longer than this part of the peak.
const PAGE_SHARE: u64 = 256;
/// No page is made longer than this, in bytes.
const LONGEST_PAGE: u64 = 128 << 20;

/// How much memory a plan may ask for.
#[derive(Debug, Clone, Copy)]
pub(in crate::core) struct Budget {
    /// The pool's peak, in bytes: a measure for pages.
    pub(in crate::core) peak: u64,
    /// Bytes that are made before idle pages are moved.
    pub(in crate::core) freely: u64,
    /// Bytes that can be made at all.
    pub(in crate::core) at_most: u64,
}

/// Memory that is to be mapped in one piece.
#[derive(Debug)]
pub(in crate::core) struct Plan {
    /// First address of what is to be mapped, and its length.
    pub(in crate::core) address: u64,
    pub(in crate::core) bytes: u64,
    /// The pages that come there, in the order of their new addresses.
    pub(in crate::core) moves: Vec<Segment>,
    /// Behind them, pages to be made, each of so many bytes.
    pub(in crate::core) makes: Vec<u64>,
    range: u32,
    target: BlockId,
    /// Free memory before it, which it lengthens.
    beside: Vec<Piece>,
    /// Where the pages come from, by neighbourhood.
    sources: Vec<Vec<Piece>>,
}

/// Neighbouring pages that could move.
struct Idle {
    range: u32,
    offset: Units,
    pages: Vec<(Units, Segment)>,
    units: Units,
}

impl Idle {
    /// How many of its pages have so many units together.
    fn cost(&self, units: Units) -> usize {
        let lengths = self.pages.iter().map(|(_, page)| (page.bytes() / UNIT) as Units);
        let sums = lengths.scan(0, |sum, length| Some(std::mem::replace(sum, *sum + length)));
        sums.take_while(|before| *before < units).count()
    }
}

/// A hole that a block could have.
pub(super) struct Site {
    range: u32,
    at: Units,
    need: Units,
    /// Units up to the next page or the range's end.
    room: Units,
    beside: Option<Run>,
}

impl Plan {
    /// Whether it moves nothing.
    pub(in crate::core) fn is_new(&self) -> bool {
        self.sources.is_empty()
    }

    /// The streams whose memory it takes.
    pub(in crate::core) fn lists(&self) -> Vec<List> {
        let pieces = self.sources.iter().flatten().chain(&self.beside);
        let mut lists: Vec<List> = pieces.map(|piece| piece.list).collect();
        lists.sort_unstable();
        lists.dedup();
        lists
    }
}

impl Arena {
    /// Plans room for a block, out of memory of the lists that are allowed. Nothing of what the plan names can be had
    /// by others until it is settled or abandoned.
    pub(in crate::core) fn plan(
        &mut self,
        units: Units,
        allowed: &dyn Fn(List) -> bool,
        budget: Budget,
    ) -> Option<Plan> {
        let mut runs = self.runs(allowed);
        let site = self.site(&mut runs, units)?;
        let mut idle = if bytes_of(site.need) > budget.freely { self.idle(&runs) } else { Vec::new() };
        let chosen = choose(&mut idle, site.need, site.room);
        let got: Units = chosen.iter().map(|idle| idle.units).sum();
        let rest = site.need.saturating_sub(got);
        if bytes_of(rest) > budget.at_most {
            release(&chosen);
            return None;
        }
        let makes = self.page_sizes(rest, budget.peak);
        Some(self.take(site, chosen, makes))
    }

    /// The longest free run that a hole follows, or the room behind everything.
    pub(super) fn site(&self, runs: &mut Vec<Run>, units: Units) -> Option<Site> {
        let need = |have: Units| (units - have).next_multiple_of(self.granule);
        let fits = |run: &Run| {
            let room = if run.units < units { self.room(run.range, run.end()) } else { 0 };
            (room > 0 && room >= need(run.units)).then_some(room)
        };
        let best = runs.iter().enumerate().filter_map(|(at, run)| Some((run.units, at, fits(run)?)));
        if let Some((have, at, room)) = best.max_by_key(|(have, at, _)| (*have, std::cmp::Reverse(*at))) {
            let run = runs.swap_remove(at);
            return Some(Site { range: run.range, at: run.end(), need: need(have), room, beside: Some(run) });
        }
        let ends = (0u32..).zip(&self.ranges).map(|(range, _)| (range, self.heap.length(range)));
        let holes = (0u32..).zip(&self.ranges).flat_map(|(range, _)| {
            let holes = self.heap.blocks(range).filter(|(_, block)| block.state == State::Hole);
            holes.map(move |(_, block)| (range, block.offset))
        });
        let need = need(0);
        ends.chain(holes).find_map(|(range, at)| {
            let room = self.room(range, at);
            (room >= need).then_some(Site { range, at, need, room, beside: None })
        })
    }

    /// Units from a place to the next that is mapped, if nothing is mapped there.
    fn room(&self, range: u32, at: Units) -> Units {
        let (length, limit) = (self.heap.length(range), self.ranges[range as usize].limit);
        if at == length {
            return limit - length;
        }
        let hole = self.heap.block_at(range, at).map(|id| self.heap.block(id));
        match hole.filter(|block| block.state == State::Hole) {
            Some(hole) if hole.offset + hole.units == length => limit - at,
            Some(hole) => hole.units,
            None => 0,
        }
    }

    /// Whole pages in free memory that nobody holds, by neighbourhood.
    fn idle(&self, runs: &[Run]) -> Vec<Idle> {
        let mut all: Vec<Idle> = Vec::new();
        for run in runs {
            let first = run.offset.div_ceil(self.granule) as usize;
            let pages = &self.ranges[run.range as usize].pages;
            let mut open = false;
            for (index, page) in
                pages.iter().enumerate().take((run.end() / self.granule) as usize).skip(first)
            {
                let Some(page) = page else { continue };
                let offset = index as Units * self.granule;
                let units = (page.bytes() / UNIT) as Units;
                if offset + units > run.end() {
                    break;
                }
                if page.is_held() {
                    open = false;
                    continue;
                }
                if !std::mem::replace(&mut open, true) {
                    all.push(Idle { range: run.range, offset, pages: Vec::new(), units: 0 });
                }
                if let Some(idle) = all.last_mut() {
                    idle.pages.push((offset, page.clone()));
                    idle.units += units;
                }
            }
        }
        all
    }

    /// Sizes of the pages that are to be made, in bytes: as long as they may be, then shorter for the rest.
    fn page_sizes(&self, mut rest: Units, peak: u64) -> Vec<u64> {
        let granule = bytes_of(self.granule);
        let longest = (peak / PAGE_SHARE).clamp(granule, LONGEST_PAGE.max(granule)) / granule;
        let mut step = self.granule << longest.ilog2();
        let mut sizes = Vec::new();
        while rest > 0 {
            while step > rest {
                step /= 2;
            }
            sizes.push(bytes_of(step));
            rest -= step;
        }
        sizes
    }

    /// Takes everything that a plan needs out of what others can have.
    fn take(&mut self, site: Site, chosen: Vec<Idle>, makes: Vec<u64>) -> Plan {
        let Site { range, at, beside, .. } = site;
        let mut moves = Vec::new();
        let mut sources = Vec::new();
        let mut units: Units = makes.iter().map(|bytes| (bytes / UNIT) as Units).sum();
        for idle in chosen {
            units += idle.units;
            sources.push(self.detach(idle.range, idle.offset, idle.offset + idle.units));
            let pages = &mut self.ranges[idle.range as usize].pages;
            for (offset, page) in idle.pages {
                pages[(offset / self.granule) as usize] = None;
                moves.push(page);
            }
        }
        let beside = beside.map(|run| self.detach(run.range, run.offset, run.end())).unwrap_or_default();
        let length = self.heap.length(range);
        if at + units > length {
            self.heap.extend(range, at + units - length);
            let granules = (self.heap.length(range) / self.granule) as usize;
            self.ranges[range as usize].pages.resize(granules, None);
        }
        let hole = self.heap.block_over(range, at).expect("blocks tile their range");
        let target = self.heap.take_part(hole, at, units);
        Plan {
            address: self.address(target),
            bytes: bytes_of(units),
            moves,
            makes,
            range,
            target,
            beside,
            sources,
        }
    }

    /// Puts everything back: what the plan wanted to move stays where it was. Where it was to be, nothing comes any more
    /// if something may still be mapped there.
    pub(in crate::core) fn abandon(&mut self, plan: Plan, is_undone: bool) {
        let Plan { moves, target, beside, sources, .. } = plan;
        self.put_pages_back(moves);
        if is_undone {
            self.heap.make_hole(target);
        } else {
            self.lose_block(target);
        }
        self.restore(beside);
        sources.into_iter().for_each(|pieces| self.restore(pieces));
    }

    /// The plan has been carried out: `pages` are mapped there, in their order. The memory is free on the stream of
    /// `list`; the old addresses of what moved are left until `wait` is over.
    pub(in crate::core) fn settle(
        &mut self,
        plan: Plan,
        pages: Vec<Segment>,
        list: List,
        wait: Option<Wait>,
    ) {
        let Plan { range, target, beside, sources, .. } = plan;
        let base = self.ranges[range as usize].base;
        for page in pages {
            let granule = ((page.address() - base) / bytes_of(self.granule)) as usize;
            self.ranges[range as usize].pages[granule] = Some(page);
        }
        let blocks = beside.iter().map(|piece| piece.block).chain([target]);
        let block = self.unite(blocks).expect("there is the target, at least");
        self.heap.free_into(block, list);
        let old = sources.iter().filter_map(|pieces| self.unite(pieces.iter().map(|piece| piece.block)));
        let old: Vec<BlockId> = old.collect();
        let places = old.into_iter().map(|block| self.place(block)).collect();
        if let Some(wait) = wait {
            self.leave_ghost(wait, places);
        }
    }

    /// Takes idle pages with at least `wanted` bytes, or all, out of what others can have: to be given back.
    pub(in crate::core) fn detach_idle(&mut self, wanted: u64) -> Vec<(Vec<Segment>, Vec<Piece>)> {
        let runs = self.runs(&|_| true);
        let mut idle = self.idle(&runs);
        idle.sort_by_key(|idle| std::cmp::Reverse(idle.units));
        let mut bytes = 0;
        let mut taken = Vec::new();
        for idle in idle {
            if bytes >= wanted {
                break;
            }
            let claimed = idle.pages.iter().take_while(|(_, page)| page.claim()).count();
            let pages = &idle.pages[..claimed];
            let Some((last, page)) = pages.last() else { continue };
            let end = last + (page.bytes() / UNIT) as Units;
            bytes += bytes_of(end - idle.offset);
            for (offset, _) in pages {
                self.ranges[idle.range as usize].pages[(offset / self.granule) as usize] = None;
            }
            let pieces = self.detach(idle.range, idle.offset, end);
            taken.push((pages.iter().map(|(_, page)| page.clone()).collect(), pieces));
        }
        taken
    }

    /// Nothing is mapped any more where these pieces are.
    pub(in crate::core) fn vacate(&mut self, pieces: &[Piece]) {
        if let Some(block) = self.unite(pieces.iter().map(|piece| piece.block)) {
            self.heap.make_hole(block);
        }
    }

    /// Something may still be mapped where these pieces are.
    pub(in crate::core) fn lose(&mut self, pieces: &[Piece]) {
        pieces.iter().for_each(|piece| self.lose_block(piece.block));
    }

    /// The pages stay where they are.
    pub(in crate::core) fn reinstate(&mut self, pages: Vec<Segment>, pieces: Vec<Piece>) {
        self.put_pages_back(pages);
        self.restore(pieces);
    }

    /// Claimed pages are where they were, and can be held again.
    fn put_pages_back(&mut self, pages: Vec<Segment>) {
        for page in pages {
            page.revive();
            let of = |range: &&mut Range| {
                (range.base..range.base + bytes_of(range.limit)).contains(&page.address())
            };
            if let Some(range) = self.ranges.iter_mut().find(of) {
                let granule = (page.address() - range.base) / bytes_of(self.granule);
                range.pages[granule as usize] = Some(page);
            }
        }
    }
}

/// Pages of `need` units, or as many as there are: of the neighbourhood that has enough in the fewest pages, or else of
/// the longest, and on. They are claimed: nobody can hold them any more.
fn choose(idle: &mut Vec<Idle>, need: Units, room: Units) -> Vec<Idle> {
    let mut chosen = Vec::new();
    let mut got = 0;
    while got < need && !idle.is_empty() {
        let rest = need - got;
        let best = (0..idle.len()).min_by_key(|at| {
            let units = idle[*at].units;
            // A page costs a call whatever its length: the fewest, of where least is left over.
            if units >= rest {
                (0, idle[*at].cost(rest), units, *at)
            } else {
                (1, 0, Units::MAX - units, *at)
            }
        });
        let Some(best) = best else { break };
        let from = idle.swap_remove(best);
        let mut taken = Idle { range: from.range, offset: from.offset, pages: Vec::new(), units: 0 };
        for (offset, page) in from.pages {
            let units = (page.bytes() / UNIT) as Units;
            if got >= need || got + units > room || !page.claim() {
                break;
            }
            got += units;
            taken.units += units;
            taken.pages.push((offset, page));
        }
        if taken.units > 0 {
            chosen.push(taken);
        }
    }
    chosen
}

/// Lets go of pages that were claimed for nothing.
fn release(chosen: &[Idle]) {
    chosen.iter().flat_map(|idle| &idle.pages).for_each(|(_, page)| page.revive());
}
