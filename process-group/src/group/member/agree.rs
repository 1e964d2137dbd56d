//! Checks that ranks can form a group, and derives the facts that decide whether the group can have windows.

use std::collections::HashMap;

use super::{Disagreement, Member, Uuid, record::Joining};
use crate::comm::WindowFacts;

/// Checks that the ranks that published these records can form a group. Returns the group's members and its
/// number.
pub(in crate::group) fn agree(records: &[Joining]) -> Result<(Vec<Member>, u64), Disagreement> {
    let Some(Joining { member: first, number, .. }) = records.first() else { return Ok((Vec::new(), 0)) };
    records.iter().try_for_each(|record| record.compare(&records[0]))?;
    let mut devices: HashMap<(u64, Uuid), usize> = HashMap::new();
    for Joining { member, .. } in records {
        let (rank, other) = (member.rank, first.rank);
        if member.nccl != first.nccl {
            let (release, other_release) = (member.nccl, first.nccl);
            return Err(Disagreement::Release { rank, release, other, other_release });
        }
        if member.checked != first.checked {
            let (rank, other) = if member.checked { (rank, other) } else { (other, rank) };
            return Err(Disagreement::Checked { rank, other });
        }
        if member.witnesses != first.witnesses {
            let (witnesses, other_witnesses) = (member.witnesses, first.witnesses);
            return Err(Disagreement::Witnesses { rank, witnesses, other, other_witnesses });
        }
        if let Some(other) = devices.insert((member.host, member.device), rank) {
            return Err(Disagreement::SameDevice { rank, other, device: member.device });
        }
    }
    Ok((records.iter().map(|record| record.member.clone()).collect(), *number))
}

/// Returns the facts that decide whether a group of these members can have windows.
pub(in crate::group) fn window_facts(members: &[Member]) -> WindowFacts {
    let one_host = members.windows(2).all(|pair| pair[0].host == pair[1].host);
    // `Some(false)` if any pair of devices lacks peer access. Otherwise `None` if it is unknown for a pair.
    let mut peer_access = Some(true);
    for member in members {
        let others = members.iter().filter(|other| other.rank != member.rank);
        for other in others.filter(|other| other.host == member.host) {
            let reaches =
                member.sees.iter().find(|(device, _)| *device == other.device).map(|(_, reaches)| *reaches);
            peer_access = match (peer_access, reaches) {
                (Some(false), _) | (_, Some(false)) => Some(false),
                (Some(true), Some(true)) => Some(true),
                _ => None,
            };
        }
    }
    WindowFacts {
        one_host: Some(one_host),
        peer_access: if one_host { peer_access } else { None },
        window_enable: Some(members.iter().all(|member| member.window_enable)),
        cumem_enable: Some(members.iter().all(|member| member.cumem_enable)),
        oldest_driver: members.iter().map(|member| member.driver).min(),
    }
}

#[cfg(test)]
mod tests {
    use nccl_sys::Version;

    use super::{super::Witnesses, *};

    fn four(change: impl Fn(&mut Member)) -> Vec<Joining> {
        let device = |rank: usize| [rank as u8; 16];
        let record = |rank: usize| {
            let sees = (0..4).filter(|other| *other != rank).map(|other| (device(other), true)).collect();
            let mut member = Member { sees, ..Member::example(rank, 7) };
            change(&mut member);
            Joining::new(member, 7)
        };
        (0..4).map(record).collect()
    }

    fn facts(records: &[Joining]) -> WindowFacts {
        let (members, _) = agree(records).unwrap();
        window_facts(&members)
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let error = agree(&four(|m| {
            if m.rank == 2 {
                m.nccl = Version::new(2, 28, 3)
            }
        }))
        .unwrap_err();
        assert!(
            error.to_string().starts_with("rank 2 has NCCL 2.28.3, but rank 0 has NCCL 2.28.9"),
            "{error}"
        );
        let error = agree(&four(|m| m.checked = m.rank == 2)).unwrap_err();
        assert_eq!(error, Disagreement::Checked { rank: 2, other: 0 });
        let error = agree(&four(|m| {
            if m.rank == 1 {
                m.witnesses = Witnesses::Store
            }
        }))
        .unwrap_err();
        assert!(matches!(error, Disagreement::Witnesses { rank: 1, other: 0, .. }), "{error}");
        let error = agree(&four(|m| {
            if m.rank == 3 {
                m.device = [1; 16]
            }
        }))
        .unwrap_err();
        assert!(matches!(error, Disagreement::SameDevice { rank: 3, other: 1, .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("UUID 01010101-0101-0101-0101-010101010101 "), "{text}");
    }

    #[test]
    fn facts_about_windows_are_those_of_the_worst_member() {
        let good = facts(&four(|_| {}));
        assert_eq!((good.one_host, good.peer_access), (Some(true), Some(true)));
        assert_eq!(facts(&four(|m| m.window_enable = m.rank != 1)).window_enable, Some(false));
        assert_eq!(
            facts(&four(|m| if m.rank == 1 {
                m.sees[0].1 = false
            }))
            .peer_access,
            Some(false)
        );
        assert_eq!(
            facts(&four(|m| if m.rank == 1 {
                m.sees.clear()
            }))
            .peer_access,
            None
        );
        let old = Version::new(11, 8, 0);
        assert_eq!(
            facts(&four(|m| if m.rank == 1 {
                m.driver = old
            }))
            .oldest_driver,
            Some(old)
        );
        let apart = facts(&four(|m| m.host = m.rank as u64 / 2));
        assert_eq!((apart.one_host, apart.peer_access), (Some(false), None));
    }
}
