//! Executes the [actions](crate::scenario::Action) of the ranks' programs. The functions for actions of exchanges are
//! in the file `plans`. Those that begin commits, retirements and rendezvous are in `meetings`. Terms such as
//! *meeting*, *domain* and *poisoned* are defined in [`super`].

use caching_alloc::core::SegmentMemory;
use process_group::group::GroupId;
use symm_agreement::PoolId;
use symm_mem::{RegistrationState, internals::in_order};

use crate::{
    library::{Extent, Life},
    pools::state_of,
    rank::{Capture, Membership, Rank},
    results::{Kind, Meeting, Used, Way},
    scenario::{Action, DEADLINE},
    violation::{Violation, bail, ensure},
    work::{Machine, Work},
    world::{Event, World, tell},
};

impl World {
    /// Executes the next action of the rank's program, if there is one. Then schedules the action after it. Exception:
    /// if the executed action begins a meeting, or a store request with
    /// [`Goal::Resume`](crate::requests::Goal::Resume), the end of the meeting or of the request schedules the next
    /// action.
    pub(crate) fn resume(&mut self, rank: u32) -> Result<(), Violation> {
        let Some(action) = self.rank(rank).program.pop_front() else { return Ok(()) };
        tell!(self, "rank {rank}: {action:?}");
        match action {
            Action::Pause { us } => {
                let later = self.now + us;
                self.at(later, Event::Resume(rank));
                return Ok(());
            }
            Action::Commit { group, second, last, verify } => {
                if verify || !self.skip_if_nothing_new(rank, group) {
                    return self.commit(rank, group, second, last);
                }
            }
            Action::Skip { group } => self.skip_commit(rank, group),
            Action::CommitAll { groups, last, verify } => self.commit_all(rank, &groups, last, verify),
            Action::AllocateAgreed { bytes } => return self.agree_on_length(rank, bytes),
            Action::Retire { nth, count } => return self.retire(rank, nth, count),
            Action::Meet { group, what } => return self.meet(rank, group, what),
            Action::Exchange { group, name, seed } => return self.exchange(rank, group, name, seed),
            Action::Copy { group, name, former } => self.copy(rank, group, name, former)?,
            Action::DropPlans { group, name, all } => self.drop_plans(rank, group, name, all)?,
            Action::CloseExchanges => self.close_exchanges(rank)?,
            Action::Allocate { bytes } => self.allocate(rank, bytes)?,
            Action::Free { nth } => {
                let state = self.rank(rank);
                if !state.blocks.is_empty() {
                    let at = (nth % state.blocks.len() as u64) as usize;
                    state.blocks.remove(at);
                }
            }
            Action::BeginCapture { declared } => {
                let number = self.random.next();
                let state = self.rank(rank);
                state.capture = Some(Capture::begin(&state.pool, declared, number));
            }
            Action::Capture { nth } => {
                let state = self.rank(rank);
                let block = state.block(nth).map(|(block, _)| block.clone());
                if let (Some(capture), Some(block)) = (&mut state.capture, block) {
                    capture.uses(&state.pool, &block);
                }
            }
            Action::EndCapture => {
                let state = self.rank(rank);
                state.graphs.extend(state.capture.take().map(Capture::end));
            }
            Action::DropGraphs => self.rank(rank).graphs.clear(),
            Action::DropLastGraph => drop(self.rank(rank).graphs.pop()),
            Action::Use { group, nth, site } => self.use_block(rank, group, nth, site)?,
            Action::Message { group, from, to } => self.message(rank, group, from, to),
            Action::Make { group, epoch } => self.make(rank, group, epoch)?,
        }
        self.observe(rank)?;
        self.soon(Event::Resume(rank));
        Ok(())
    }

    /// Inserts commits of the rank's [first pool](Rank::pool) for `groups` as the next actions of the rank's program.
    /// The commits have the order in which the production function [`commit_all`](symm_mem::commit_all) runs them.
    fn commit_all(&mut self, rank: u32, groups: &[u64], last: bool, verify: bool) {
        let state = self.rank(rank);
        let pool = state.pool.id();
        let named: Vec<(u32, GroupId, PoolId)> =
            groups.iter().filter_map(|group| Some((rank, state.groups.get(group)?.id, pool))).collect();
        // Each push goes to the front, so the last commit is pushed first.
        for at in in_order(&named).into_iter().rev() {
            let group = named[at].1.uid;
            state.program.push_front(Action::Commit { group, second: false, last, verify });
        }
    }

    /// Begins an agreement of all ranks of the domain on the length of an allocation. This rank needs `bytes` bytes.
    fn agree_on_length(&mut self, rank: u32, bytes: u64) -> Result<(), Violation> {
        let deadline = self.deadline(rank, DEADLINE);
        let state = self.rank(rank);
        let start = state_of(&state.pool).begin_length(bytes, deadline);
        let round = state.lengths;
        state.lengths += 1;
        let work = Work::Length { machine: Machine::new(start, self.random.next())? };
        self.begin(rank, work, Meeting { kind: Kind::Length, epoch: 0, round }, deadline)
    }

    pub(crate) fn allocate(&mut self, rank: u32, bytes: u64) -> Result<(), Violation> {
        let state = self.rank(rank);
        // A failed allocation needs no check here, because the pool's log records the failure. If the allocation has
        // succeeded on other ranks, the logs differ, and the next commit reports this.
        let block = state.pool.allocate(bytes);
        state.observe()?;
        if let Ok(block) = block {
            let (identity, begin) = (state.identity, block.ptr().0);
            if let Some(used) = state.used_by_graph(begin..begin + block.bytes()) {
                bail!("rank {rank} places a block at {begin:#x} where a graph of its uses {used:#x?}");
            }
            state.blocks.push((block, identity));
        }
        Ok(())
    }

    /// Adds the new operations of the rank's first pool to the rank's hash of all operations, see
    /// [`Rank::observe`](crate::rank::Rank::observe). Then checks each segment that the pool has released to the device
    /// since the last call: no graph and no current capture of the rank uses its memory, and no communicator can access
    /// it. Also checks that the rank's device has never refused the release of a segment.
    pub(crate) fn observe(&mut self, rank: u32) -> Result<(), Violation> {
        let state = self.rank(rank);
        state.observe()?;
        let device = state.device.clone();
        for SegmentMemory { address, bytes, .. } in device.take_freed() {
            ensure!(
                self.ranks[rank as usize].used_by_graph(address..address + bytes).is_none(),
                "rank {rank} gives the memory at {address:#x} back, which a graph uses"
            );
            if let Some((group, holder)) = self.library.reached(rank, address, bytes) {
                bail!(
                    "rank {rank} gives the memory at {address:#x} back, under the window that rank {holder} has of \
                     it in {group}"
                );
            }
        }
        device.free_error().map_or(Ok(()), |what| Err(Violation(format!("rank {rank}: {what}"))))
    }

    /// Creates a group on a rank, and joins its communicator. If the rank already has the group, first aborts the
    /// rank's communicator of the old group. In that case, `epoch` selects how the new group differs from the old one:
    ///
    /// - True: the new group has the next epoch. Its commits are counted from 0 again.
    /// - False: the new group has the same id and is the next [life](Life) (creation) of this id. It continues the
    ///   count of the group's commits.
    fn make(&mut self, rank: u32, group: u64, epoch: bool) -> Result<(), Violation> {
        let members = self.scenario.groups[&group].clone();
        let state = &mut self.ranks[rank as usize];
        let mut made = Membership::new(group, members.clone());
        if let Some(former) = state.groups.remove(&group) {
            state.pool.forget(former.id);
            made.id.epoch = former.id.epoch + u64::from(epoch);
            if !epoch {
                (made.commits, made.second_commits) = (former.commits, former.second_commits);
                made.life = former.life + 1;
            }
            (made.collectives, made.messages) = (former.collectives, former.messages);
            self.library.leave(Life { group: former.id, number: former.life }, rank)?;
        }
        let life = Life { group: made.id, number: made.life };
        self.library.join(life, &members, rank, state.device.context())?;
        state.groups.insert(group, made);
        Ok(())
    }

    /// Counts a message as sent or received, if this rank is its sender or receiver and the group is not poisoned on
    /// this rank.
    fn message(&mut self, rank: u32, group: u64, from: u32, to: u32) {
        let Rank { pool, groups, .. } = self.rank(rank);
        let membership = groups.get_mut(&group).filter(|it| pool.poison(it.id).is_none());
        let Some(membership) = membership else { return };
        if rank == from {
            membership.send(to);
        } else if rank == to {
            membership.receive(from);
        }
    }

    /// Simulates a collective of a group on the rank's block with index `nth` modulo the number of its blocks. `site`
    /// identifies the collective. Does nothing if the group is poisoned. If the rank has no blocks, only counts the
    /// collective.
    ///
    /// Counts the collective. Records whether it accesses the block through a window, through a plain registration
    /// (`ncclCommRegister`) or without either. The [oracle](crate::oracle) compares these records of all members.
    /// Checks that the pool and the record of the [library](crate::library) agree on how the block is registered. If
    /// the block is in a window, checks the window by [`check_window`](Self::check_window).
    fn use_block(&mut self, rank: u32, group: u64, nth: u64, site: u64) -> Result<(), Violation> {
        let state = &mut self.ranks[rank as usize];
        let membership = state.groups.get_mut(&group).filter(|it| state.pool.poison(it.id).is_none());
        let Some(membership) = membership else { return Ok(()) };
        membership.collectives += 1;
        let id = membership.id;
        let Some((block, identity)) = state.block(nth) else { return Ok(()) };
        let (ptr, bytes, identity, place) = (block.ptr(), block.bytes(), *identity, block.placement());
        let found = state.pool.lookup(ptr, bytes, id).map_err(Violation::of)?;
        let Some(found) = found.filter(|found| found.placement == place) else {
            bail!("rank {rank} does not find its block at {place:?}: {found:?}");
        };
        let life = state.life(id);
        let way = match (found.state, self.library.is_plain(life, rank, ptr.0)) {
            (RegistrationState::Window { serial }, false) => {
                let own = self.library.window(life, rank, serial);
                let Some(own) = own.filter(|own| (own.address..own.address + own.bytes).contains(&ptr.0))
                else {
                    bail!("rank {rank} finds window {serial} of group {id} at {place:?}, which is {own:?}");
                };
                self.check_window(life, rank, serial, own)?;
                Way::Window { serial, offset: ptr.0 - own.address }
            }
            (RegistrationState::Registered, true) => Way::Registered,
            (RegistrationState::Agreed | RegistrationState::Pending, false) => Way::Without,
            (registration, plain) => {
                bail!(
                    "rank {rank} finds {place:?} as {registration:?} of group {id}; registered plainly: {plain}"
                )
            }
        };
        self.uses.entry((group, site)).or_default().push(Used { rank, identity, way });
        Ok(())
    }

    /// Checks the window of `rank` with this [serial](crate::library), the window's number in the communicator. `own`
    /// is the window's memory on this rank. All members that have not left the communicator must have registered the
    /// same segments in their windows with this serial. If the NCCL release has a function that returns the address of
    /// a peer's memory in a window, `rank` must reach the memory of the next member at this address.
    fn check_window(&self, life: Life, rank: u32, serial: u64, own: Extent) -> Result<(), Violation> {
        let id = life.group;
        for other in self.scenario.groups[&id.uid].iter().filter(|it| !self.library.is_gone(life, **it)) {
            let its = self.library.window(life, *other, serial).map(|its| its.identity);
            ensure!(
                its == Some(own.identity),
                "rank {rank} uses window {serial} of group {id}, which rank {other} has not"
            );
        }
        // `Rank::observe` writes the identity of each segment to the start of the segment. So the memory of every
        // member's window begins with the identity of the window's first segment, and this number is the same on all
        // members.
        if let Some(next) = self.library.next_window(life, rank, serial)? {
            let device = &self.ranks[rank as usize].device;
            let (own, found) = (device.read(own.address)?, device.read(next)?);
            ensure!(
                found == own,
                "rank {rank} finds {found:#x} in window {serial} of the next member of group {id}, and {own:#x} in \
                 its own"
            );
        }
        Ok(())
    }
}
