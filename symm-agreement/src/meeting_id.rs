//! Ids of meetings. A meeting is one agreement of ranks on a commit, on a retirement, or on the length of an
//! allocation. The id determines the name of the agreement in the store.

use std::fmt;

use bootstrap::agreement::Place;
use process_group::group::GroupId;

use super::record::PoolId;

/// The purpose of a meeting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MeetingKind {
    /// To commit the segments of a pool for a group. The members of the group take part.
    Commit {
        /// The group.
        group: GroupId,
    },
    /// To retire segments. All ranks of the pool's domain take part.
    Retire {},
    /// To agree on the length of an allocation. All ranks of the domain take part.
    Length {},
}

/// Identifies a meeting among all meetings of the pools that use one store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct MeetingId {
    /// The number of the pool's domain.
    pub domain: u64,
    /// The [generation](PoolId::generation) of the domain.
    pub generation: u64,
    /// The pool's number in the domain.
    pub pool: u32,
    /// The purpose of the meeting.
    pub kind: MeetingKind,
    /// The number of the meeting, from 0, among those of the same pool and [`kind`](Self::kind).
    pub round: u64,
}

impl MeetingId {
    /// The meeting `round` of a kind and pool.
    pub fn new(pool: PoolId, kind: MeetingKind, round: u64) -> Self {
        let PoolId { domain, generation, pool, .. } = pool;
        Self { domain, generation, pool, kind, round }
    }

    /// Returns the id of the meeting at `place`, the agreement in which a rank waits. Returns `None` if that agreement
    /// is not a meeting.
    #[must_use]
    pub fn at(place: &Place) -> Option<Self> {
        Self::named(&place.name)
    }

    /// Returns the id of the agreement with this name if it is a meeting. Otherwise returns `None`, for example for the
    /// agreement on a [plain registration](super::RegistrationProtocol).
    pub fn named(name: &str) -> Option<Self> {
        let mut parts = name.split('/');
        let mut next = || parts.next();
        let ("symm", domain, pool, kind, round) = (next()?, next()?, next()?, next()?, next()?) else {
            return None;
        };
        let (domain, generation) = domain.split_once('.')?;
        let kind = match kind {
            "retire" => MeetingKind::Retire {},
            "length" => MeetingKind::Length {},
            group => {
                let (uid, epoch) = group.split_once('.')?;
                MeetingKind::Commit { group: GroupId { uid: uid.parse().ok()?, epoch: epoch.parse().ok()? } }
            }
        };
        let id = Self {
            domain: u64::from_str_radix(domain, 16).ok()?,
            generation: generation.parse().ok()?,
            pool: pool.parse().ok()?,
            kind,
            round: round.parse().ok()?,
        };
        next().is_none().then_some(id)
    }

    /// Returns the name of the meeting's agreement.
    pub fn name(&self) -> String {
        let Self { domain, generation, pool, kind, round } = self;
        let pool = format!("symm/{domain:x}.{generation}/{pool}");
        match kind {
            MeetingKind::Commit { group } => format!("{pool}/{}.{}/{round}", group.uid, group.epoch),
            MeetingKind::Retire {} => format!("{pool}/retire/{round}"),
            MeetingKind::Length {} => format!("{pool}/length/{round}"),
        }
    }
}

impl fmt::Display for MeetingId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, generation, pool, kind, round } = *self;
        match kind {
            MeetingKind::Commit { group } => write!(out, "commit {round} of group {group}"),
            MeetingKind::Retire {} => write!(out, "retirement {round}"),
            MeetingKind::Length {} => write!(out, "agreed allocation {round}"),
        }?;
        write!(out, " in {}", PoolId { domain, generation, instance: 0, pool })
    }
}

/// Describes the agreement that `place` names, for an error text. An agreement that is not a meeting is described by
/// its name.
pub(crate) fn describe_place(place: &Place) -> String {
    MeetingId::at(place).map_or_else(|| place.name.clone(), |meeting| meeting.to_string())
}

/// Returns the store key that counts how often `rank` has created the domain with the number `domain`.
pub fn generation_key(domain: u64, rank: u32) -> String {
    format!("symm/{domain:x}/generation/{rank}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_meeting_is_found_from_the_name_of_its_agreement() {
        let pool = PoolId { domain: 0xa5, generation: 3, instance: 9, pool: 2 };
        let group = GroupId { uid: u64::MAX, epoch: 4 };
        for kind in [MeetingKind::Commit { group }, MeetingKind::Retire {}, MeetingKind::Length {}] {
            let meeting = MeetingId::new(pool, kind, 7);
            assert_eq!(MeetingId::named(&meeting.name()), Some(meeting));
            assert_eq!(MeetingId::named(&format!("{}/plain", meeting.name())), None);
        }
        for other in ["", "symm/1.2/3/retire", "symm/1/3/retire/0", "tp/1.2/3/retire/0", "symm/1.2/3/4/0"] {
            assert_eq!(MeetingId::named(other), None, "{other}");
        }
    }
}
