//! Communicators made from a communicator: split, shrink and grow.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use super::bootstrap::UniqueId;
use super::comm::Comm;
use super::config::Config;
use super::error::{Failure, Result};
use super::host::{self, Call};
use super::init;
use super::library::Library;
use super::shm::Plane;
use crate::world::Machine;

/// The colour of a rank that joins no child.
pub(crate) const NO_COLOR: i32 = -1;

/// Splits the parent, with all its ranks, by colour. `made` gets the child's handle as soon as it exists, so that an
/// abort can end the child's bootstrap. If a child fails, its handle is returned anyway, as in real NCCL: it exists
/// until it is aborted.
pub(crate) fn split(
    machine: &Machine,
    library: &Library,
    parent: &Arc<Comm>,
    (color, key): (i32, i32),
    config: Config,
    made: impl FnOnce(usize),
) -> Result {
    let part = divide(machine, library, parent, color, key);
    if color == NO_COLOR {
        return part.map(drop);
    }
    // The rank in a failed child is never used.
    let (rank, size) = part.as_ref().map_or((0, 1), |part| (part.rank, part.size));
    let child = init::create(machine, library, rank, size, parent.device, config);
    parent.adopt(&child);
    made(child.handle);
    let Part { id, opened, .. } = part?;
    init::meet(machine, library, &child, id)?;
    parent.unlink_child();
    Opened::met(opened);
    Ok(())
}

/// This rank's part in a split.
struct Part<'a> {
    rank: usize,
    size: usize,
    /// Id of the child's bootstrap; unused without a colour.
    id: UniqueId,
    opened: Option<Opened<'a>>,
}

/// The ranks of the parent exchange their colours.
fn divide<'a>(
    machine: &Machine,
    library: &'a Library,
    parent: &Comm,
    color: i32,
    key: i32,
) -> Result<Part<'a>> {
    let mut card = host::card(Call::Split);
    card[1] = u64::from(color as u32);
    card[2] = u64::from(key as u32);
    let cards = host::exchange(parent, &card)?;
    // Children are ordered by key, then by rank in the parent.
    let mut members: Vec<(i32, usize)> = cards
        .iter()
        .enumerate()
        .filter(|(_, card)| card[1] as u32 as i32 == color)
        .map(|(rank, card)| (card[2] as u32 as i32, rank))
        .collect();
    members.sort_unstable();
    let leader = color != NO_COLOR && members.first().is_some_and(|first| first.1 == parent.rank);
    let opened = leader.then(|| Opened::now(machine, library));
    let mut invitation = host::card(Call::Split);
    if let Some(Ok(opened)) = &opened {
        invitation[1..3].copy_from_slice(&opened.id.to_words());
    }
    let invitations = host::exchange(parent, &invitation)?;
    let opened = opened.transpose()?;
    let words = [invitations[members[0].1][1], invitations[members[0].1][2]];
    if color != NO_COLOR && words == [0, 0] {
        return Err(Failure::remote(format!("rank {} of {parent} could not open the child", members[0].1)));
    }
    let rank = members.iter().position(|member| member.1 == parent.rank).unwrap_or_default();
    Ok(Part { rank, size: members.len(), id: UniqueId::from_words(words), opened })
}

/// Makes a communicator of the parent's ranks without the excluded ones, which do not call. `made` gets the child as
/// in [`split`].
pub(crate) fn shrink(
    machine: &Machine,
    library: &Library,
    parent: &Arc<Comm>,
    excluded: &[usize],
    config: Config,
    made: impl FnOnce(usize),
) -> Result {
    let survivors: Vec<usize> = (0..parent.size).filter(|rank| !excluded.contains(rank)).collect();
    let Some(rank) = survivors.iter().position(|&rank| rank == parent.rank) else {
        return Err(Failure::argument(format!("{parent} is asked to shrink by its own rank")));
    };
    let child = init::create(machine, library, rank, survivors.len(), parent.device, config);
    parent.adopt(&child);
    made(child.handle);
    // Only the survivors have counted this shrink; the list of excluded ranks tells it from other shrinks.
    let name = {
        let mut shrinks = parent.shrinks.lock().unwrap_or_else(PoisonError::into_inner);
        let count = shrinks.entry(excluded.to_vec()).or_insert(0);
        *count += 1;
        let mut hasher = DefaultHasher::new();
        (&*count, excluded).hash(&mut hasher);
        hasher.finish()
    };
    let shared = parent.shared();
    let words: [usize; 3] = std::array::from_fn(|i| shared.layout().invitation(survivors[0]) + 8 * i);
    let opened = if rank == 0 { Some(Opened::now(machine, library)?) } else { None };
    if let Some(opened) = &opened {
        let id = opened.id.to_words();
        shared.word(words[1]).store(id[0], Ordering::Relaxed);
        shared.word(words[2]).store(id[1], Ordering::Relaxed);
        shared.word(words[0]).store(name, Ordering::SeqCst);
        shared.signal().notify();
    }
    parent.wait(
        Plane::Host,
        || format!("rank {} to open the shrunk communicator of {parent}", survivors[0]),
        || shared.word(words[0]).load(Ordering::SeqCst) == name,
    )?;
    let id = UniqueId::from_words([words[1], words[2]].map(|word| shared.word(word).load(Ordering::Relaxed)));
    init::meet(machine, library, &child, id)?;
    parent.unlink_child();
    Opened::met(opened);
    Ok(())
}

/// Makes a communicator of the parent's ranks and of new ones behind them, `size` in all. One rank of the parent has made
/// the unique id, by which the new ranks come. `made` gets the child as in [`split`]. Its abort flag is its own.
pub(crate) fn grow(
    machine: &Machine,
    library: &Library,
    parent: &Arc<Comm>,
    size: usize,
    config: Config,
    made: impl FnOnce(usize),
) -> Result {
    let child = init::create(machine, library, parent.rank, size, parent.device, config);
    made(child.handle);
    let own = parent.growth.lock().unwrap_or_else(PoisonError::into_inner).take();
    let opened = own.map(|id| Opened { library, id });
    let mut card = host::card(Call::Grow);
    card[1] = size as u64;
    if let Some(opened) = &opened {
        card[2..4].copy_from_slice(&opened.id.to_words());
    }
    let cards = host::exchange(parent, &card)?;
    if let Some(rank) = cards.iter().position(|other| other[1] != card[1]) {
        let (own, other) = (parent.rank, cards[rank][1]);
        return Err(Failure::usage(format!(
            "rank {own} grows {parent} to {size} ranks, rank {rank} to {other}"
        )));
    }
    let mut ids = cards.iter().map(|card| [card[2], card[3]]).filter(|words| *words != [0, 0]);
    let (Some(words), None) = (ids.next(), ids.next()) else {
        return Err(Failure::usage(format!("{parent} grows, and not exactly one rank has made a unique id")));
    };
    init::meet(machine, library, &child, UniqueId::from_words(words))?;
    Opened::met(opened);
    Ok(())
}

/// A child's bootstrap. The rank that opened it closes it, unless the ranks have met.
struct Opened<'a> {
    library: &'a Library,
    id: UniqueId,
}

impl<'a> Opened<'a> {
    fn now(machine: &Machine, library: &'a Library) -> Result<Self> {
        Ok(Self { library, id: library.open_meeting(machine)? })
    }

    /// Leaves a completed bootstrap, which ends by itself.
    fn met(opened: Option<Self>) {
        std::mem::forget(opened);
    }
}

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        self.library.close_meeting(self.id);
    }
}
