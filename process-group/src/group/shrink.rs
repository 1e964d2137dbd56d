//! Groups of those that are left.
//!
//! Who is left must be the same to all of them, or some would wait for ranks that wait for others. So each says whom it
//! leaves out, and the outcome is written once, by compare-and-set: by the first that finds another with another list,
//! by the last that comes, or by the first whose deadline passes. All obey what stands there.

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

/// Why a group cannot go on as its members asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShrinkError {
    /// Two members leave out others.
    #[error(
        "rank {rank} leaves out the ranks {}, but rank {other} the ranks {}; ask again when both know the same",
        list(.excluded), list(.other_excluded)
    )]
    Differ {
        /// One member.
        rank: usize,
        /// Whom it leaves out.
        excluded: Vec<usize>,
        /// The other.
        other: usize,
        /// Whom that one leaves out.
        other_excluded: Vec<usize>,
    },
    /// What a member has said cannot be read.
    #[error("{at} holds {found:?}; does a member run another version of this program?")]
    Record {
        /// Where it stands.
        at: String,
        /// What was found.
        found: String,
    },
}

/// The communicator can be shrunk by NCCL.
const ALIVE: &str = "alive";
/// The same, when its work is given up.
const HURT: &str = "hurt";
/// It is gone.
const GONE: &str = "gone";

const OUTCOME: &str = "outcome";
const COMPLETE: &str = "complete";
const DIFFER: &str = "differ";
const ABSENT: &str = "absent";

impl ProcessGroup {
    /// Makes a group of this one's members but the `excluded`, ranks of this group, in their order. Collective over
    /// those that are left, who all give the same list, which is compared before anything is made; the excluded do not
    /// call, and may be gone. After [`GroupError::Lost`] the survivors leave out the rank that it names.
    ///
    /// NCCL shrinks the communicator (2.27.3) if every survivor's is alive; otherwise, as after a loss, which aborts
    /// it, the survivors make a new one over the store. [`startup`](Self::startup) says which. This group stays, to be
    /// aborted, or destroyed by all its members after an [orderly](ShrinkMode::Orderly) shrink.
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
    /// - [`CommError::Argument`] for a list that cannot be, before the others are met;
    /// - [`GroupError::Shrink`] where two survivors gave different lists, and [`GroupError::Absent`] with the survivors
    ///   that did not come, the same on every one that came: nothing has changed, and all may try again;
    /// - [`GroupError::Lost`]: another is gone, and has to be left out too;
    /// - [`CommError::Closed`] where this group was aborted meanwhile, and [`StoreError::GivenUp`] where it was by another
    ///   survivor;
    /// - [`GroupError::WorkTimeout`], in order, for work that is not done; [`GroupError::Comm`] from NCCL itself.
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
            // Of what was revoked there is nothing to wait for.
            if self.counter.vigil.check_work().is_ok() {
                self.quiesce(deadline)?;
            }
        }
        let attempt = self.shrinks.fetch_add(1, Ordering::AcqRel);
        let seat = self.seat_without(&left, excluded, attempt, &config);
        // Of the new group: losses that this one ended with are known, and a further one ends the meeting.
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
            // A loss that was noticed meanwhile has aborted the whole: to be asked for again.
            let made = self.counter.vigil.explain(vigil.explain_making(made))?;
            seat.take(vigil, id, made, deadline)?
        } else {
            seat.init(vigil, id, self.nccl(), self.context(), config, deadline)?
        };
        group.startup.met(met, numbered - met);
        Ok(group)
    }

    /// Gives up what this rank has enqueued: work that waits for others ends, undone, and says so to who waits for it.
    /// The group takes no further work, and can be split, shrunk, destroyed and aborted. Local: every member that is to
    /// go on revokes it too. NCCL 2.28.7; see [`Communicator::revoke`](comm::Communicator::revoke).
    ///
    /// # Errors
    /// [`GroupError::Lost`]; [`GroupError::Comm`] with those of [`Communicator::revoke`](comm::Communicator::revoke).
    #[doc(alias = "ncclCommRevoke")]
    pub fn revoke(&self, deadline: Deadline) -> Result<()> {
        let vigil = &self.counter.vigil;
        vigil.check()?;
        self.nccl().api().require(Feature::REVOKE).map_err(CommError::from)?;
        // What is refused has given up nothing.
        comm::refuse_inside_group("ncclCommRevoke")?;
        vigil.explain(self.communicator.check().map_err(GroupError::from))?;
        // Before: what NCCL gives up looks done.
        vigil.revoke(deadline);
        let all = std::iter::once(&self.communicator).chain(self.messages.communicators());
        let revoked: Vec<_> = all.map(|communicator| communicator.revoke(deadline)).collect();
        vigil.explain(revoked.into_iter().collect::<comm::Result<()>>().map_err(GroupError::from))
    }

    /// Who is left, by rank of this group.
    fn left(&self, call: &'static str, excluded: &[usize]) -> Result<Vec<usize>> {
        self.communicator.place().excluded(call, excluded)?;
        Ok((0..self.size()).filter(|rank| !excluded.contains(rank)).collect())
    }

    /// This rank's place in the new group. All survivors meet under one name, whomever they leave out.
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

    /// The new group's number: its first rank takes it, and tells the others.
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

/// Those that are left, and agree on that.
struct Survivors<'a> {
    /// The whole group.
    group: &'a ProcessGroup,
    store: &'a PrefixStore,
    left: &'a [usize],
    /// Ascending.
    excluded: &'a [usize],
}

/// What a survivor finds of the others.
enum Found {
    /// The outcome is known: all agree, or one leaves out others.
    Outcome(String),
    /// These survivors have not come; all others agree.
    Missing(Vec<usize>),
}

impl Survivors<'_> {
    fn key(rank: usize) -> String {
        format!("card/{rank}")
    }

    /// Meets the others: what each says of its communicator.
    fn agree(&self, vigil: &Vigil, state: &str, deadline: Deadline) -> Result<Vec<String>> {
        let card = format!("{state} {}", numbers(self.excluded));
        self.store.set(&Self::key(self.group.rank), card.as_bytes())?;
        // Of two that differ, the later one finds the earlier: whatever stands, they do not go on together.
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

    /// Writes the outcome unless it stands already; returns what stands.
    fn decide(&self, outcome: &str) -> Result<Vec<u8>> {
        Ok(self.store.compare_set(OUTCOME, b"", outcome.as_bytes())?)
    }

    /// What a rank has said: its communicator's state, and whom it leaves out.
    fn card(&self, rank: usize) -> Result<Option<(String, Vec<usize>)>> {
        let key = Self::key(rank);
        if !self.store.check(&[&key])? {
            return Ok(None);
        }
        let card = text(&self.store.get(&key, Deadline::now())?);
        let read = card.split_once(' ').and_then(|(state, ranks)| Some((state.to_owned(), read(ranks)?)));
        read.map(Some).ok_or_else(|| self.group.unreadable(&key, card))
    }

    /// What the cards come to. Each is looked at once: one that comes later is missing here, and not taken for one that was
    /// compared.
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

    /// The error that an outcome stands for.
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
