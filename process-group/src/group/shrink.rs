//! Groups of the surviving members.
//!
//! All survivors must agree on who has survived, or some would wait for ranks that wait for others. Each
//! survivor therefore publishes the ranks that it excludes, and the outcome is written once, by
//! compare-and-set. It is written by the first survivor that finds a different list, by the last one that
//! comes, or by the first whose deadline passes. All follow the outcome in the store.

use std::sync::{Arc, atomic::Ordering};

use nccl_sys::Feature;

use super::{
    GroupError, GroupId, ProcessGroup, Result,
    builder::NUMBER,
    error::list,
    seat::Seat,
    vigil::{Vigil, heard},
};
use crate::{
    comm::{self, CommError, Config, ShrinkMode},
    profile,
    store::{Deadline, PrefixStore, Store, StoreError},
};

/// The reason why a group cannot be shrunk as its members asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShrinkError {
    /// Two members exclude different ranks.
    #[error(
        "rank {rank} leaves out the ranks {}, but rank {other} the ranks {}; ask again when both know the same",
        list(.excluded), list(.other_excluded)
    )]
    Differ {
        /// One member.
        rank: usize,
        /// The ranks that it excludes.
        excluded: Vec<usize>,
        /// The other.
        other: usize,
        /// The ranks that the other excludes.
        other_excluded: Vec<usize>,
    },
    /// A member's record cannot be read.
    #[error("{at} holds {found:?}; does a member run another version of this program?")]
    Record {
        /// The key of the record.
        at: String,
        /// The data found.
        found: String,
    },
}

/// NCCL can shrink the communicator.
const ALIVE: &str = "alive";
/// NCCL can shrink the communicator after giving up its work.
const HURT: &str = "hurt";
/// The communicator no longer exists.
const GONE: &str = "gone";

const OUTCOME: &str = "outcome";
const COMPLETE: &str = "complete";
const DIFFER: &str = "differ";
const ABSENT: &str = "absent";

impl ProcessGroup {
    /// Makes a group of this group's members without the `excluded` ones, which are ranks of this group. The
    /// order of the members stays. Collective over the survivors, who all give the same list; the lists are
    /// compared before anything is made. The excluded members do not call, and may have died. After
    /// [`GroupError::Lost`] the survivors exclude the rank that it names.
    ///
    /// NCCL shrinks the communicator (2.27.3) if every survivor's is usable. Otherwise the survivors make a
    /// new one over the store, for example after a loss, which aborts the communicator.
    /// [`startup`](Self::startup) tells which. This group stays, to be aborted. After an
    /// [orderly](ShrinkMode::Orderly) shrink it can also be destroyed by all its members.
    ///
    /// ```no_run
    /// # use process_group::{ProcessGroup, comm::ShrinkMode, group::GroupError};
    /// # fn go_on(world: ProcessGroup, error: GroupError) -> Result<ProcessGroup, GroupError> {
    /// let GroupError::Lost { rank, .. } = error else { return Err(error) };
    /// let rest = world.shrink(&[rank], ShrinkMode::AfterFailure)?;
    /// world.abort(rest.timeout())?;
    /// # Ok(rest) }
    /// ```
    ///
    /// # Errors
    /// - [`CommError::Argument`] for an invalid list, before the others are met.
    /// - [`GroupError::Shrink`] if two survivors gave different lists, and [`GroupError::Absent`] with the
    ///   survivors that did not come, the same on every one that came. Nothing has changed, and all may try
    ///   again.
    /// - [`GroupError::Lost`]: another member has died, and has to be excluded too.
    /// - [`CommError::Closed`] if this group was aborted meanwhile, and [`StoreError::GivenUp`] if another
    ///   survivor aborted it.
    /// - [`GroupError::WorkTimeout`], in an orderly shrink, for work that is not done. [`GroupError::Comm`]
    ///   from NCCL itself.
    #[doc(alias = "ncclCommShrink")]
    pub fn shrink(&self, excluded: &[usize], mode: ShrinkMode) -> Result<Self> {
        self.shrink_with(excluded, mode, self.communicator.config().clone(), self.timeout())
    }

    /// [`shrink`](Self::shrink) with settings for the new communicator and a deadline.
    ///
    /// # Errors
    /// As for [`shrink`](Self::shrink).
    pub fn shrink_with(
        &self,
        excluded: &[usize],
        mode: ShrinkMode,
        config: Config,
        deadline: Deadline,
    ) -> Result<Self> {
        const CALL: &str = "shrink";
        let _range = profile::range(CALL, &self.name, 0);
        let began = std::time::Instant::now();
        self.agrees(CALL)?;
        comm::settings(CALL, self.nccl(), &config)?;
        let left = self.left(CALL, excluded)?;
        if mode == ShrinkMode::Orderly {
            self.counter.vigil.check()?;
            // Revoked work needs no wait.
            if self.counter.vigil.check_work().is_ok() {
                self.quiesce(deadline)?;
            }
        }
        let attempt = self.shrinks.fetch_add(1, Ordering::AcqRel);
        let seat = self.seat_without(&left, excluded, attempt, &config);
        // The watch of the new group. It knows the losses that ended this group, and a further one ends the
        // meeting.
        let vigil = seat.vigil();
        let _unborn = self.counter.vigil.bear(&vigil);
        let state = match (self.communicator.check(), mode) {
            _ if self.counter.vigil.is_over() => GONE,
            (Ok(()), ShrinkMode::Orderly) => ALIVE,
            (Ok(()), ShrinkMode::AfterFailure) | (Err(CommError::Poisoned { .. }), _) => HURT,
            (Err(_), _) => GONE,
        };
        let mut excluded = excluded.to_vec();
        excluded.sort_unstable();
        let survivors = Survivors { group: self, store: &seat.store, left: &left, excluded: &excluded };
        let states = survivors.agree(&vigil, state, deadline)?;
        let met = began.elapsed();
        let uid = self.number_of(&vigil, seat.rank == 0, left[0], deadline)?;
        let id = GroupId { uid, epoch: self.id().epoch };
        let numbered = began.elapsed();
        let by_nccl = self.nccl().has(Feature::SHRINK) && states.iter().all(|state| state != GONE);
        let mut group = if by_nccl {
            let mode = if states.iter().any(|state| state == HURT) {
                ShrinkMode::AfterFailure
            } else {
                ShrinkMode::Orderly
            };
            let config = seat.config(config);
            let made = self.communicator.shrink(&excluded, mode, &config, deadline);
            // A loss that was noticed meanwhile has aborted the attempt. The caller may try again.
            let made = self.counter.vigil.explain(vigil.explain_making(made))?;
            seat.take(vigil, id, made, deadline)?
        } else {
            seat.init(vigil, id, self.nccl(), self.context(), config, deadline)?
        };
        group.startup.met(met, numbered - met);
        Ok(group)
    }

    /// Gives up the work that this rank has enqueued. Work that waits for other members ends unfinished, and
    /// waits for it return an error. The group accepts no further work. It can still be split, shrunk,
    /// destroyed and aborted. Local: every member that goes on must revoke it too. Requires NCCL 2.28.7; see
    /// [`Communicator::revoke`](comm::Communicator::revoke).
    ///
    /// # Errors
    /// [`GroupError::Lost`]; [`GroupError::Comm`] with those of
    /// [`Communicator::revoke`](comm::Communicator::revoke).
    #[doc(alias = "ncclCommRevoke")]
    pub fn revoke(&self, deadline: Deadline) -> Result<()> {
        let vigil = &self.counter.vigil;
        vigil.check()?;
        self.nccl().api().require(Feature::REVOKE).map_err(CommError::from)?;
        // A refused call must not give up any work.
        comm::refuse_inside_group("ncclCommRevoke")?;
        vigil.explain(self.communicator.check().map_err(GroupError::from))?;
        // Before NCCL's call, because work that NCCL gives up looks done.
        vigil.revoke(deadline);
        let all = std::iter::once(&self.communicator).chain(self.messages.communicators());
        let revoked: Vec<_> = all.map(|communicator| communicator.revoke(deadline)).collect();
        vigil.explain(revoked.into_iter().collect::<comm::Result<()>>().map_err(GroupError::from))
    }

    /// Returns the survivors, by rank of this group.
    fn left(&self, call: &'static str, excluded: &[usize]) -> Result<Vec<usize>> {
        self.communicator.place().excluded(call, excluded)?;
        Ok((0..self.size()).filter(|rank| !excluded.contains(rank)).collect())
    }

    /// Returns this rank's place in the new group. All survivors meet under one name, even if their lists
    /// differ.
    fn seat_without(&self, left: &[usize], excluded: &[usize], attempt: u64, config: &Config) -> Seat {
        let members: Arc<[_]> = left.iter().map(|rank| self.members[*rank].clone()).collect();
        Seat {
            name: format!("{} without {}", self.name, list(excluded)).into(),
            rank: left.iter().position(|rank| *rank == self.rank).unwrap_or_default(),
            ranks: members.iter().map(|member| member.rank).collect(),
            members,
            numbers: self.numbers.clone(),
            job: self.job.clone(),
            store: PrefixStore::new(&format!("shrink/{attempt}"), Arc::new(self.store.clone())),
            terms: self.terms,
            recorder: self.counter.track.recorder().clone(),
            desk: self.desk.clone(),
            watch: self.watch.clone(),
            messages: self.messages.of_subgroup(self.terms.lazy, left.len(), config),
            followers: self.followers.clone(),
        }
    }

    /// Returns the new group's number. Its first rank takes the number and publishes it.
    fn number_of(&self, vigil: &Vigil, leads: bool, leader: usize, deadline: Deadline) -> Result<u64> {
        let rank = self.members[leader].rank;
        let bytes = if leads {
            let number = self.numbers.add("groups", 1)?.unsigned_abs();
            vigil.say(NUMBER, &number.to_le_bytes())?
        } else {
            vigil.hear(NUMBER, rank, "the shrinking", deadline)?
        };
        <[u8; 8]>::try_from(&bytes[..]).map(u64::from_le_bytes).map_err(|_| {
            let found = String::from_utf8_lossy(&bytes).into_owned();
            self.unreadable(NUMBER, found)
        })
    }

    fn unreadable(&self, at: &str, found: String) -> GroupError {
        let source = ShrinkError::Record { at: at.to_owned(), found };
        GroupError::Shrink { group: self.name.to_string(), source }
    }
}

/// The survivors' agreement on the excluded ranks.
struct Survivors<'a> {
    /// The group to shrink.
    group: &'a ProcessGroup,
    store: &'a PrefixStore,
    left: &'a [usize],
    /// Ascending.
    excluded: &'a [usize],
}

/// The state of the survivors' records.
enum Found {
    /// The outcome is known: all agree, or a record has another list.
    Outcome(String),
    /// These survivors have not come; all others agree.
    Missing(Vec<usize>),
}

impl Survivors<'_> {
    fn key(rank: usize) -> String {
        format!("card/{rank}")
    }

    /// Meets the other survivors, and returns the state of each communicator.
    fn agree(&self, vigil: &Vigil, state: &str, deadline: Deadline) -> Result<Vec<String>> {
        let card = format!("{state} {}", numbers(self.excluded));
        self.store.set(&Self::key(self.group.rank), card.as_bytes())?;
        // If two survivors have different lists, the later one finds the earlier one's record. With any
        // outcome they do not continue together.
        match self.found()? {
            Found::Outcome(outcome) => {
                self.decide(&outcome)?;
                if outcome != COMPLETE {
                    return Err(self.meaning(&outcome, deadline));
                }
            }
            Found::Missing(_) => {}
        }
        let stands = vigil.attend_word(OUTCOME, || {
            let stands = match self.store.get(OUTCOME, deadline) {
                Err(StoreError::Timeout { .. }) => {
                    let opinion = match self.found()? {
                        Found::Outcome(outcome) => outcome,
                        Found::Missing(missing) => format!("{ABSENT} {}", numbers(&missing)),
                    };
                    self.decide(&opinion)?
                }
                stands => stands?,
            };
            Ok(text(&heard(OUTCOME, stands)?))
        })?;
        if stands != COMPLETE {
            return Err(self.meaning(&stands, deadline));
        }
        let state = |rank: &usize| match self.card(*rank)? {
            Some((state, _)) => Ok(state),
            None => Err(self.group.unreadable(&Self::key(*rank), "nothing".into())),
        };
        self.left.iter().map(state).collect()
    }

    /// Writes the outcome unless there is one. Returns the outcome in the store.
    fn decide(&self, outcome: &str) -> Result<Vec<u8>> {
        Ok(self.store.compare_set(OUTCOME, b"", outcome.as_bytes())?)
    }

    /// Returns a rank's record: its communicator's state, and the ranks that it excludes.
    fn card(&self, rank: usize) -> Result<Option<(String, Vec<usize>)>> {
        let key = Self::key(rank);
        if !self.store.check(&[&key])? {
            return Ok(None);
        }
        let card = text(&self.store.get(&key, Deadline::now())?);
        let read = card.split_once(' ').and_then(|(state, ranks)| Some((state.to_owned(), read(ranks)?)));
        read.map(Some).ok_or_else(|| self.group.unreadable(&key, card))
    }

    /// Evaluates the records. Each record is read once. A record that arrives later counts as missing here,
    /// not as compared.
    fn found(&self) -> Result<Found> {
        let mut missing = Vec::new();
        for rank in 0..self.group.size() {
            match self.card(rank)? {
                Some((_, theirs)) if theirs != self.excluded => {
                    let (mine, theirs) = (numbers(self.excluded), numbers(&theirs));
                    let outcome = format!("{DIFFER} {} {mine} {rank} {theirs}", self.group.rank);
                    return Ok(Found::Outcome(outcome));
                }
                Some(_) => {}
                None if self.left.contains(&rank) => missing.push(rank),
                None => {}
            }
        }
        Ok(if missing.is_empty() { Found::Outcome(COMPLETE.to_owned()) } else { Found::Missing(missing) })
    }

    /// Returns the error for an outcome.
    fn meaning(&self, outcome: &str, deadline: Deadline) -> GroupError {
        let group = self.group.name.to_string();
        let of_the_job = |ranks: Vec<usize>| -> Vec<usize> {
            ranks.into_iter().filter_map(|rank| self.group.ranks.get(rank).copied()).collect()
        };
        let words: Vec<&str> = outcome.split(' ').collect();
        let error = match words[..] {
            [ABSENT, ranks] => read(ranks).map(|ranks| GroupError::Absent {
                group: group.clone(),
                ranks: of_the_job(ranks),
                size: self.left.len(),
                meeting: "the shrinking",
                waited: deadline.waited(),
            }),
            [DIFFER, rank, excluded, other, other_excluded] => (|| {
                let source = ShrinkError::Differ {
                    rank: rank.parse().ok()?,
                    excluded: read(excluded)?,
                    other: other.parse().ok()?,
                    other_excluded: read(other_excluded)?,
                };
                Some(GroupError::Shrink { group: group.clone(), source })
            })(),
            _ => None,
        };
        error.unwrap_or_else(|| self.group.unreadable(OUTCOME, outcome.to_owned()))
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn numbers(ranks: &[usize]) -> String {
    ranks.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

fn read(ranks: &str) -> Option<Vec<usize>> {
    ranks.split(',').map(|rank| rank.parse().ok()).collect()
}
