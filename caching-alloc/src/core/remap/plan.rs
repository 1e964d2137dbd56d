//! Plans where to map memory for a block that fits in no free memory. A hole is a range of reserved addresses without
//! usable memory. A plan consists of a part of a hole, the free memory beside it that the block also uses, the idle
//! pages to move into the hole, and the new pages to map there.
//!
//! The longest new page is a fraction of the pool's peak use. Long pages need few calls to move much memory. Short
//! pages leave little memory idle in pages that are partly free. A block gets as few pages as the longest length
//! permits, all of about one length. The table shows the effect of the fraction on three recorded programs. Each cell
//! has three numbers: the ratio of reserved to active memory at the peak, the number of driver calls, and the number of
//! driver calls per 50 operations. The last number leaves out the first tenth of the program, and the calls at new
//! peaks.
//!
//! | longest page | GPT-2, training | ResNet-50, training | two streams |
//! | --- | --- | --- | --- |
//! | 1/64 | 1.031, 1213, 0.0 | 1.019, 1290, 0.2 | 1.078, 340, 0.6 |
//! | 1/128 | 1.011, 1839, 0.1 | 1.009, 1825, 0.4 | 1.078, 340, 0.6 |
//! | **1/256** | 1.008, 2868, 0.0 | 1.010, 2646, 0.4 | 1.078, 340, 0.6 |
//! | 1/512 | 1.011, 4630, 0.0 | 1.009, 4007, 0.5 | 1.078, 340, 0.6 |
//! | 1/1024 | 1.005, 7432, 0.0 | 1.011, 5981, 0.9 | 1.078, 340, 0.6 |
//!
//! The third program is so small that every page has the least length.
//!
//! Idle pages are moved only if new pages would exceed the pool's peak by more than a slack (see [`Budget::freely`]).
//! Each move needs driver calls, and the slack avoids most moves.

use super::arena::{Arena, ArenaList, Fragment, FreeSpan, Range, Tier};
use crate::core::heap::{BlockId, State};
use crate::core::pending::Wait;
use crate::core::segment::Segment;
use crate::core::size::{UNIT, Units, bytes_of};

/// A page is no longer than the peak divided by this, or than one granule if that is longer. A granule is the length of
/// the smallest page.
const PAGE_SHARE: u64 = 256;
/// No page is made longer than this, in bytes, unless the granule is longer.
const LONGEST_PAGE: u64 = 128 << 20;

/// Returns the longest page, in bytes, for a pool with this peak.
pub(super) fn longest_page(peak: u64, granule: u64) -> u64 {
    (peak / PAGE_SHARE).clamp(granule, LONGEST_PAGE.max(granule))
}

/// Limits of a plan.
#[derive(Debug, Clone, Copy)]
pub(in crate::core) struct Budget {
    /// The pool's peak in bytes. It determines the length of pages.
    pub(in crate::core) peak: u64,
    /// If no more than this many bytes must be mapped for the block, all of them come from new pages. Otherwise idle
    /// pages are moved first.
    pub(in crate::core) freely: u64,
    /// The most bytes that new pages may have together. At least `freely`.
    pub(in crate::core) at_most: u64,
    /// If false, the plan tries the best hole of the block's own [`Tier`], and then the best one with room for the
    /// longest idle page. If true, it then tries all holes of both tiers.
    pub(in crate::core) anywhere: bool,
}

/// A range of addresses where pages are to be mapped for a block.
#[derive(Debug)]
pub(in crate::core) struct Plan {
    /// First address of the range, and its length in bytes.
    pub(in crate::core) address: u64,
    pub(in crate::core) bytes: u64,
    /// The pages that move there, in the order of their new addresses.
    pub(in crate::core) moves: Vec<Segment>,
    /// The lengths in bytes of the new pages, which are mapped after the moved ones.
    pub(in crate::core) makes: Vec<u64>,
    /// Stale addresses that overlap the range: pages that have moved elsewhere are still mapped there. These must be
    /// unmapped first.
    pub(in crate::core) stale: Vec<FreeSpan>,
    range: u32,
    target: BlockId,
    /// Free memory directly before and after the range, which the block also uses.
    before: Vec<Fragment>,
    after: Vec<Fragment>,
    /// The heap blocks at the old addresses of the moved pages: one list for each group of neighbouring pages.
    sources: Vec<Vec<Fragment>>,
}

/// A group of neighbouring idle pages.
struct Idle {
    range: u32,
    offset: Units,
    pages: Vec<(Units, Segment)>,
    units: Units,
}

/// A place for a block: a hole, and the free memory beside it that the block would also use.
pub(super) struct Site {
    range: u32,
    /// Offset and length of the hole, in units.
    at: Units,
    room: Units,
    /// Units to map in the hole.
    need: Units,
    before: Option<FreeSpan>,
    after: Option<FreeSpan>,
}

impl Site {
    /// Returns the units in the free memory beside the hole.
    fn have(&self) -> Units {
        [self.before, self.after].iter().flatten().map(|span| span.units).sum()
    }

    /// Returns true if the block would use the free memory that contains these pages.
    fn has(&self, near: &Idle) -> bool {
        let is_in =
            |span: &FreeSpan| span.range == near.range && (span.offset..span.end()).contains(&near.offset);
        [self.before, self.after].iter().flatten().any(is_in)
    }
}

impl Plan {
    /// Returns true if the plan moves no page.
    pub(in crate::core) fn is_new(&self) -> bool {
        self.sources.is_empty()
    }

    /// Returns the number of calls that the moves need: one to map each page, one to unmap each stale span, and one to
    /// give the device access to the whole range. Returns 0 if the plan moves no page.
    pub(in crate::core) fn move_calls(&self) -> u64 {
        if self.is_new() { 0 } else { (self.moves.len() + self.stale.len() + 1) as u64 }
    }

    /// Returns the arena lists whose memory the plan takes.
    pub(in crate::core) fn lists(&self) -> Vec<ArenaList> {
        let fragments = self.sources.iter().flatten().chain(&self.before).chain(&self.after);
        let mut lists: Vec<ArenaList> = fragments.map(|fragment| fragment.list).collect();
        lists.sort_unstable();
        lists.dedup();
        lists
    }
}

impl Arena {
    /// Plans the memory for a block of `units`, from memory of the allowed arena lists. Returns `None` if no hole has
    /// room, or if the budget is not enough. The memory of the plan is in no list until the plan is settled or
    /// abandoned.
    pub(in crate::core) fn plan(
        &mut self,
        units: Units,
        allowed: &dyn Fn(ArenaList) -> bool,
        budget: Budget,
    ) -> Option<Plan> {
        let free_spans = self.free_spans(allowed);
        let site = self.site(&free_spans, units, 0)?;
        if bytes_of(site.need) <= budget.freely {
            let makes = self.page_sizes(site.need, budget.peak);
            return Some(self.take(site, Vec::new(), makes));
        }
        let idle = self.idle(&free_spans);
        let longest = idle.iter().flat_map(|near| &near.pages).map(|(_, page)| units_of(page)).max();
        // The idle pages may be too long for the best hole. Then a hole with room for any of them is tried.
        let roomy = longest.and_then(|longest| self.site(&free_spans, units, longest));
        let mut near = [Some(site), roomy].into_iter().flatten();
        near.find_map(|site| self.fill(site, &idle, budget)).or_else(|| {
            let others = if budget.anywhere { self.sites(&free_spans, &idle, units) } else { Vec::new() };
            others.into_iter().find_map(|site| self.fill(site, &idle, budget))
        })
    }

    /// Plans a block at a site, from idle pages and, for the rest, new ones. Returns `None` if the new pages exceed the
    /// budget.
    fn fill(&mut self, site: Site, idle: &[Idle], budget: Budget) -> Option<Plan> {
        let idle: Vec<&Idle> = idle.iter().filter(|near| !site.has(near)).collect();
        let chosen = choose(&idle, site.need, site.room);
        let got: Units = chosen.iter().map(|near| near.units).sum();
        let rest = site.need.saturating_sub(got);
        if bytes_of(rest) > budget.at_most {
            release(&chosen);
            return None;
        }
        let makes = self.page_sizes(rest, budget.peak);
        Some(self.take(site, chosen, makes))
    }

    /// Returns the best site in the block's tier: the one at which the fewest units must be mapped. Skips sites whose
    /// hole does not have room for those units and `spare` more. If several sites need equally few units, prefers the
    /// one with the fewest stale spans in its hole. If these are equal too, prefers the one where the block leaves the
    /// least memory unused, so that longer free memory stays available.
    pub(super) fn site(&self, free_spans: &[FreeSpan], units: Units, spare: Units) -> Option<Site> {
        let mut best: Option<((Units, usize, Units), Site)> = None;
        self.each_site(free_spans, units, Some(self.tier(units)), |site| {
            let hole = FreeSpan { range: site.range, offset: site.at, units: site.room };
            let cost = (site.need, self.stale_in(hole).count(), site.have() + site.need - units);
            if site.need.saturating_add(spare) <= site.room
                && best.as_ref().is_none_or(|(least, _)| cost < *least)
            {
                best = Some((cost, site));
            }
        });
        best.map(|(_, site)| site)
    }

    /// Returns all sites for a block in both tiers. The first site is the one that would need the least new memory if
    /// all idle pages were moved there.
    fn sites(&self, free_spans: &[FreeSpan], idle: &[Idle], units: Units) -> Vec<Site> {
        let mut sites = Vec::new();
        self.each_site(free_spans, units, None, |site| {
            let elsewhere: Units = idle.iter().filter(|near| !site.has(near)).map(|near| near.units).sum();
            sites.push((site.need.saturating_sub(elsewhere), site.need, site));
        });
        sites.sort_by_key(|(made, need, _)| (*made, *need));
        sites.into_iter().map(|(_, _, site)| site).collect()
    }

    /// Calls `visit` for all sites for a block, in `tier`, or in both tiers if it is `None`. A hole gives up to four
    /// sites: the block also uses the free memory before the hole, that after it, both, or neither.
    fn each_site(
        &self,
        free_spans: &[FreeSpan],
        units: Units,
        tier: Option<Tier>,
        mut visit: impl FnMut(Site),
    ) {
        let mut next = 0;
        for (range, at, room) in self.holes() {
            if tier.is_some_and(|tier| self.ranges[range as usize].tier != tier) {
                continue;
            }
            while free_spans.get(next).is_some_and(|span| (span.range, span.end()) < (range, at)) {
                next += 1;
            }
            let beside = |span: Option<&FreeSpan>, is: &dyn Fn(&FreeSpan) -> bool| {
                span.filter(|span| span.range == range && is(span)).copied()
            };
            let before = beside(free_spans.get(next), &|span| span.end() == at);
            let second = next + usize::from(before.is_some());
            let after = beside(free_spans.get(second), &|span| span.offset == at.saturating_add(room));
            for (before, after) in [(None, None), (before, None), (None, after), (before, after)] {
                let mut site = Site { range, at, room, need: 0, before, after };
                let missing = units.saturating_sub(site.have()).next_multiple_of(self.granule);
                if missing == 0 || missing > room {
                    continue;
                }
                // If the block uses the free memory on both sides, the whole hole must be filled between them.
                site.need = if before.is_some() && after.is_some() { room } else { missing };
                visit(site);
            }
        }
    }

    /// Returns the stale spans that overlap a place. They must be unmapped before pages are mapped there.
    fn stale_in(&self, place: FreeSpan) -> impl Iterator<Item = FreeSpan> {
        let meets = move |span: &FreeSpan| {
            span.range == place.range && span.offset < place.end() && place.offset < span.end()
        };
        self.stale.iter().copied().filter(meets)
    }

    /// Returns all holes as (range, offset, length), in ascending order. The reserved
    /// addresses of a range that the heap does not cover yet also count as a hole.
    fn holes(&self) -> Vec<(u32, Units, Units)> {
        let mut all = Vec::new();
        for (range, Range { limit, .. }) in (0u32..).zip(&self.ranges) {
            let holes = self.heap.blocks(range).filter(|(_, block)| block.state == State::Hole);
            all.extend(holes.map(|(_, hole)| (range, hole.offset, hole.units)));
            let length = self.heap.length(range);
            match all.last_mut() {
                Some((of, at, room)) if *of == range && *at + *room == length => *room = limit - *at,
                _ if length < *limit => all.push((range, length, limit - length)),
                _ => {}
            }
        }
        all
    }

    /// Returns the idle pages: those that lie completely in one of the free spans, and are not held. Neighbouring pages
    /// form a group.
    fn idle(&self, free_spans: &[FreeSpan]) -> Vec<Idle> {
        let mut all: Vec<Idle> = Vec::new();
        for span in free_spans {
            let first = span.offset.div_ceil(self.granule) as usize;
            let pages = &self.ranges[span.range as usize].pages;
            let mut open = false;
            for (index, page) in
                pages.iter().enumerate().take((span.end() / self.granule) as usize).skip(first)
            {
                let Some(page) = page else { continue };
                let offset = index as Units * self.granule;
                let units = units_of(page);
                if offset + units > span.end() {
                    break;
                }
                if page.is_held() {
                    open = false;
                    continue;
                }
                if !std::mem::replace(&mut open, true) {
                    all.push(Idle { range: span.range, offset, pages: Vec::new(), units: 0 });
                }
                if let Some(idle) = all.last_mut() {
                    idle.pages.push((offset, page.clone()));
                    idle.units += units;
                }
            }
        }
        all
    }

    /// Returns the lengths in bytes of new pages for `rest` units, which is a multiple of the granule. There are as few
    /// pages as the longest length permits. All have the same length, except that the last may be shorter.
    fn page_sizes(&self, rest: Units, peak: u64) -> Vec<u64> {
        let granule = bytes_of(self.granule);
        let longest = longest_page(peak, granule) / granule;
        let mut left = u64::from(rest / self.granule);
        let each = left.div_ceil(left.div_ceil(longest).max(1));
        let mut sizes = Vec::new();
        while left > 0 {
            let length = each.min(left);
            sizes.push(length * granule);
            left -= length;
        }
        sizes
    }

    /// Returns the plan for a site, with the chosen idle pages and with new pages of these lengths. Takes all memory of
    /// the plan out of the lists.
    fn take(&mut self, site: Site, chosen: Vec<Idle>, makes: Vec<u64>) -> Plan {
        let Site { range, mut at, room, before, after, .. } = site;
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
        if before.is_none() && after.is_some() {
            at += room - units;
        }
        let mut detached = |span: FreeSpan| self.detach(span.range, span.offset, span.end());
        let before = before.map(&mut detached).unwrap_or_default();
        let after = after.map(&mut detached).unwrap_or_default();
        let length = self.heap.length(range);
        if at + units > length {
            self.heap.extend(range, at + units - length);
            let granules = (self.heap.length(range) / self.granule) as usize;
            self.ranges[range as usize].pages.resize(granules, None);
        }
        let stale: Vec<FreeSpan> = self.stale_in(FreeSpan { range, offset: at, units }).collect();
        self.stale.retain(|span| !stale.contains(span));
        let hole = self.heap.block_over(range, at).expect("blocks cover their range");
        let target = self.heap.take_part(hole, at, units);
        Plan {
            address: self.address(target),
            bytes: bytes_of(units),
            moves,
            makes,
            stale,
            range,
            target,
            before,
            after,
            sources,
        }
    }

    /// Drops a plan whose pages were not mapped. Its pages stay at their old addresses, and the free memory that it
    /// took returns to the lists. If `is_undone` is false, pages may still be mapped at the planned addresses, which
    /// are then never used again.
    pub(in crate::core) fn abandon(&mut self, plan: Plan, is_undone: bool) {
        let Plan { moves, target, before, after, sources, .. } = plan;
        self.put_pages_back(moves);
        if is_undone {
            self.heap.make_hole(target);
        }
        self.restore(before);
        self.restore(after);
        sources.into_iter().for_each(|fragments| self.restore(fragments));
    }

    /// Completes a plan after `pages` were mapped at its addresses, in order. The memory becomes one free block of the
    /// arena list `list`. If the plan moves pages, `wait` must be `Some`, with the last use of their old addresses.
    /// After that use has ended, the old addresses can become holes. With `None`, they would be lost.
    pub(in crate::core) fn settle(
        &mut self,
        plan: Plan,
        pages: Vec<Segment>,
        list: ArenaList,
        wait: Option<Wait>,
    ) {
        let Plan { range, target, before, after, sources, .. } = plan;
        let base = self.ranges[range as usize].base;
        for page in pages {
            let granule = ((page.address() - base) / bytes_of(self.granule)) as usize;
            self.ranges[range as usize].pages[granule] = Some(page);
        }
        let of = |fragments: Vec<Fragment>| fragments.into_iter().map(|fragment| fragment.block);
        let blocks = of(before).chain([target]).chain(of(after));
        let block = self.unite(blocks).expect("there is the target, at least");
        self.free_to(block, list);
        let old = sources
            .iter()
            .filter_map(|fragments| self.unite(fragments.iter().map(|fragment| fragment.block)));
        let old: Vec<BlockId> = old.collect();
        let places = old.into_iter().map(|block| self.place(block)).collect();
        if let Some(wait) = wait {
            self.leave_old_mapping(wait, places);
        }
    }

    /// Takes idle pages out of the lists and claims them, to be released. Begins with the largest groups of
    /// neighbouring pages, and ends when `wanted` bytes are taken. Returns the pages of each group, and the heap
    /// blocks at their addresses.
    pub(in crate::core) fn detach_idle(&mut self, wanted: u64) -> Vec<(Vec<Segment>, Vec<Fragment>)> {
        let free_spans = self.free_spans(&|_| true);
        let mut idle = self.idle(&free_spans);
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
            let end = last + units_of(page);
            bytes += bytes_of(end - idle.offset);
            for (offset, _) in pages {
                self.ranges[idle.range as usize].pages[(offset / self.granule) as usize] = None;
            }
            let fragments = self.detach(idle.range, idle.offset, end);
            taken.push((pages.iter().map(|(_, page)| page.clone()).collect(), fragments));
        }
        taken
    }

    /// Turns neighbouring fragments into a hole, after their pages were unmapped.
    pub(in crate::core) fn vacate(&mut self, fragments: &[Fragment]) {
        if let Some(block) = self.unite(fragments.iter().map(|fragment| fragment.block)) {
            self.heap.make_hole(block);
        }
    }

    /// Undoes [`detach_idle`](Self::detach_idle) for pages that were not released.
    pub(in crate::core) fn reinstate(&mut self, pages: Vec<Segment>, fragments: Vec<Fragment>) {
        self.put_pages_back(pages);
        self.restore(fragments);
    }

    /// Puts claimed pages back in their ranges. They can then be held again.
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

fn units_of(page: &Segment) -> Units {
    (page.bytes() / UNIT) as Units
}

/// Chooses and claims idle pages of `need` units in total, or fewer if there are not enough. Repeatedly takes the
/// longest page that does not exceed the missing units, which keeps the number of calls low. If units are still
/// missing, also takes the shortest of the pages that were too long, unless the total would then exceed `room`.
fn choose(idle: &[&Idle], need: Units, room: Units) -> Vec<Idle> {
    let mut pages: Vec<(Units, usize, usize)> = Vec::new();
    for (at, near) in idle.iter().enumerate() {
        pages.extend(near.pages.iter().enumerate().map(|(index, (_, page))| (units_of(page), at, index)));
    }
    // The longest pages come first. Among equals, pages of small groups come first, so that long groups stay whole.
    pages
        .sort_unstable_by_key(|(units, at, index)| (std::cmp::Reverse(*units), idle[*at].units, *at, *index));
    let mut got = 0;
    let mut taken: Vec<(usize, usize)> = Vec::new();
    let mut spare: Option<(Units, usize, usize)> = None;
    for (units, at, index) in pages {
        if got >= need {
            break;
        }
        if units > need - got {
            spare = Some((units, at, index));
        } else if idle[at].pages[index].1.claim() {
            got += units;
            taken.push((at, index));
        }
    }
    if got < need
        && let Some((units, at, index)) = spare
        && got + units <= room
        && idle[at].pages[index].1.claim()
    {
        taken.push((at, index));
    }
    taken.sort_unstable();
    let mut chosen: Vec<Idle> = Vec::new();
    let mut last = None;
    for (at, index) in taken {
        let (offset, page) = &idle[at].pages[index];
        if last.is_none_or(|(before, end)| before != at || end != *offset) {
            chosen.push(Idle { range: idle[at].range, offset: *offset, pages: Vec::new(), units: 0 });
        }
        if let Some(chosen) = chosen.last_mut() {
            chosen.units += units_of(page);
            chosen.pages.push((*offset, page.clone()));
        }
        last = Some((at, offset + units_of(page)));
    }
    chosen
}

/// Ends the claim on pages that are not needed.
fn release(chosen: &[Idle]) {
    chosen.iter().flat_map(|idle| &idle.pages).for_each(|(_, page)| page.revive());
}
