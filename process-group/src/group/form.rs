//! Makes communicators with the help of the store: on all of their ranks, or on none.
//!
//! NCCL's own calls wait forever for a missing rank, and do not report that another rank has failed. The
//! ranks therefore meet before they call NCCL, which names the missing ones. A rank that fails publishes its
//! failure in the store, and blocked ranks read it there. No rank uses the communicator before all have made
//! it.

use std::sync::Arc;

use super::{GroupError, Result, process_group, vigil::Vigil};
use crate::{
    chain,
    comm::{self, CommError, Communicator, UniqueId},
    store::{Deadline, PrefixStore, Store, StoreError, give_up, lost_rank, rendezvous},
};

/// The ranks that make something together.
pub(super) struct Formation<'a> {
    pub(super) vigil: &'a Vigil,
    pub(super) store: &'a PrefixStore,
    pub(super) followers: &'a [Follower],
    /// The group's name.
    pub(super) group: &'a str,
    /// The name of the result in errors.
    pub(super) what: &'static str,
    /// The attempt's name in the store. It is used once.
    pub(super) meeting: String,
    /// This rank's place among `ranks`.
    pub(super) place: usize,
    /// The ranks of the job that make it.
    pub(super) ranks: &'a [usize],
}

const ID: &[u8] = b"id";
const READY: &[u8] = b"ready";
const REFUSED: &[u8] = b"no";

/// The outcome in the store when all have made it.
const MADE: &[u8] = b"made";
const FAILED: &str = "failed ";

impl Formation<'_> {
    /// Makes, with the others, the communicator that this rank has prepared.
    ///
    /// # Errors
    /// [`GroupError::Absent`], and [`GroupError::Unmade`] if another rank could not prepare it:
    /// nothing has changed then. After any other error the communicator is poisoned: [`GroupError::Comm`] and
    /// [`GroupError::Unmade`] for a failure of this rank and another's, [`GroupError::Lost`],
    /// [`GroupError::Store`].
    pub(super) fn form(&self, communicator: &Communicator, deadline: Deadline) -> Result<()> {
        // The first rank makes the id for all.
        let card = match self.place {
            0 => match communicator.nccl().unique_id() {
                Ok(id) => [ID, id.as_bytes()].concat(),
                Err(error) => return Err(self.refuse(error.into(), deadline)),
            },
            _ => READY.to_vec(),
        };
        let cards = self.meet("ready", &card, deadline)?;
        let refused =
            cards.iter().enumerate().find_map(|(place, card)| Some((place, card.strip_prefix(REFUSED)?)));
        if let Some((place, why)) = refused {
            return Err(self.unmade(place, String::from_utf8_lossy(why).into_owned()));
        }
        let id = cards[0].strip_prefix(ID);
        let id = id.ok_or_else(|| self.unmade(0, "it gave no unique id".into()))?;
        let id = UniqueId::try_from(id)?;
        let made = self.together(deadline, |go_on| {
            communicator.join(&id, deadline, go_on).or_else(|error| match error {
                GroupError::Comm(error) => self.vigil.explain_making(Err(error)),
                error => Err(error),
            })?;
            announce(self.followers, communicator)
        });
        made.inspect_err(|error| communicator.give_up(&chain(error)))
    }

    /// Tells the others that this rank cannot take part. Returns this rank's error.
    pub(super) fn refuse(&self, error: GroupError, deadline: Deadline) -> GroupError {
        // The other ranks report missing ranks.
        let _ = self.meet("ready", &[REFUSED, chain(&error).as_bytes()].concat(), deadline);
        error
    }

    /// Meets the others at `name`, and returns their cards.
    pub(super) fn meet(&self, name: &str, card: &[u8], deadline: Deadline) -> Result<Vec<Vec<u8>>> {
        let name = format!("{}/{name}", self.meeting);
        self.vigil.attend(&name, || {
            rendezvous(self.store, &name, self.place, self.ranks.len(), card, deadline)
                .map_err(|error| process_group::explain(self.group, self.ranks, error, self.what))
        })
    }

    /// Runs a step that succeeds on all ranks or on none. The step asks now and then whether it should still
    /// wait.
    pub(super) fn together<T>(
        &self,
        deadline: Deadline,
        work: impl FnOnce(&mut dyn FnMut() -> Result<()>) -> Result<T>,
    ) -> Result<T> {
        let name = format!("{}/made", self.meeting);
        let outcome = format!("{name}/outcome");
        self.vigil.attend(&name, || {
            let mut go_on = || {
                self.vigil.check()?;
                if self.store.check(&[&outcome])? {
                    self.obey(&self.store.get(&outcome, deadline)?)
                } else {
                    Ok(())
                }
            };
            self.store.set(&self.came(&name, self.place), b"")?;
            let done = work(&mut go_on).map_err(|error| self.give_up(&name, &outcome, error))?;
            self.store.set(&self.done(&name, self.place), b"")?;
            if usize::try_from(self.store.add(&format!("{name}/count"), 1)?) == Ok(self.ranks.len()) {
                self.store.compare_set(&outcome, b"", MADE)?;
            }
            let stands = match self.store.get(&outcome, deadline) {
                Err(StoreError::Timeout { .. }) => self.time_out(&name, &outcome, deadline)?,
                stands => stands?,
            };
            self.obey(&stands).map(|()| done)
        })
    }

    fn came(&self, name: &str, place: usize) -> String {
        format!("{name}/came/{place}")
    }

    /// Tells the others of a failure of this rank, or of the first rank that has not come by its deadline.
    fn give_up(&self, name: &str, outcome: &str, error: GroupError) -> GroupError {
        // The others learn of the end of the group by themselves.
        if self.vigil.is_over() {
            let _ = give_up(self.store, name, self.place);
            return error;
        }
        // An outcome that is already in the store came first. Without a store nobody can be told.
        let GroupError::Comm(CommError::DeadlineExceeded { waited, .. }) = error else {
            let _ = self.fail(outcome, self.place, &chain(&error));
            return error;
        };
        // A rank whose state the store does not return is not reported as absent.
        let is_absent = |place: &usize| self.store.check(&[&self.came(name, *place)]).is_ok_and(|came| !came);
        let absent: Vec<_> = (0..self.ranks.len()).filter(is_absent).collect();
        let late = absent.first().copied().unwrap_or(self.place);
        let _ = self.fail(outcome, late, &format!("not there after {waited:?}"));
        if absent.is_empty() {
            return error;
        }
        let ranks = absent.iter().map(|place| self.ranks[*place]).collect();
        GroupError::Absent {
            group: self.group.into(),
            ranks,
            size: self.ranks.len(),
            meeting: self.what,
            waited,
        }
    }

    fn done(&self, name: &str, place: usize) -> String {
        format!("{name}/done/{place}")
    }

    /// Publishes that a rank has failed, unless there is an outcome. Returns the outcome in the store.
    fn fail(&self, outcome: &str, place: usize, why: &str) -> Result<Vec<u8>> {
        Ok(self.store.compare_set(outcome, b"", format!("{FAILED}{place} {why}").as_bytes())?)
    }

    fn time_out(&self, name: &str, outcome: &str, deadline: Deadline) -> Result<Vec<u8>> {
        for place in 0..self.ranks.len() {
            if !self.store.check(&[&self.done(name, place)])? {
                return self.fail(outcome, place, &format!("not done after {:?}", deadline.waited()));
            }
        }
        Ok(self.store.compare_set(outcome, b"", MADE)?)
    }

    /// Converts an outcome to a result.
    fn obey(&self, outcome: &[u8]) -> Result<()> {
        if outcome == MADE {
            return Ok(());
        }
        let text = String::from_utf8_lossy(outcome);
        let failed = text.strip_prefix(FAILED).and_then(|text| text.split_once(' '));
        Err(match failed.and_then(|(place, why)| Some((place.parse().ok()?, why))) {
            Some((place, why)) => self.unmade(place, why.into()),
            // Written by a rank that left the meeting and knows the reason.
            None => {
                let rank = lost_rank(outcome).unwrap_or(self.place);
                StoreError::GivenUp { rank, at: self.meeting.clone() }.into()
            }
        })
    }

    pub(super) fn unmade(&self, place: usize, problem: String) -> GroupError {
        let rank = self.ranks.get(place).copied().unwrap_or(usize::MAX);
        GroupError::Unmade { group: self.group.into(), what: self.what, rank, problem }
    }
}

/// Called with each communicator that a group makes; see [`Builder::follow`](super::Builder::follow).
pub(super) type Follower = Arc<dyn Fn(&Communicator) -> comm::Result<()> + Send + Sync>;

/// Calls the followers with a communicator that is made and not used yet.
pub(super) fn announce(followers: &[Follower], communicator: &Communicator) -> Result<()> {
    Ok(followers.iter().try_for_each(|follower| follower(communicator))?)
}
