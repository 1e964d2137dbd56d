//! Assigns ranks to subgroups, from the requests of all members. Every member computes the same assignment.

use std::collections::{BTreeMap, HashMap};

use bootstrap::{
    Ranges,
    agreement::PlainProtocol,
    wire::{wire_enum, wire_struct},
};

use crate::messages;

/// One member's request for a split.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Ranks with the same color become one subgroup, ordered by key and then by rank. Ranks without a color
    /// are in no subgroup. Subgroups are numbered by ascending color.
    Color {
        /// The color. `None` for no subgroup.
        color: Option<u32>,
        /// The sort key among the ranks of the same color.
        key: i64,
    },
    /// One list for each subgroup: the subgroup's ranks of the job, in the order of their new ranks. All
    /// members must pass equal lists.
    Lists(Vec<Vec<usize>>),
}

/// A member's subgroup, and its rank there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// The index of the subgroup.
    pub group: usize,
    /// The member's rank in the subgroup.
    pub rank: usize,
}

/// The subgroups of a split. Each is a list of its members' ranks in the parent group, in the order of their
/// new ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SplitPlan {
    groups: Vec<Vec<usize>>,
}

/// Requests that do not form a split. Ranks are ranks of the job.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SplitError {
    /// Two members gave different names or different lists, or one gave lists and the other a color.
    #[error(
        "rank {rank} asked for {asked}, but rank {other} for {other_asked}; all members ask for the same"
    )]
    Different {
        /// The rank with the different request.
        rank: usize,
        /// The request of `rank`.
        asked: String,
        /// The rank that `rank` is compared with.
        other: usize,
        /// The request of `other`.
        other_asked: String,
    },
    /// A list names a rank that is not in the group that is split.
    #[error("list {list} names rank {rank}, which is not in the group (its ranks: {})", Ranges(.members))]
    NotAMember {
        /// The index of the list.
        list: usize,
        /// The rank that is not in the group.
        rank: usize,
        /// The ranks of the group that is split.
        members: Vec<usize>,
    },
    /// A rank is named twice. The subgroups of one split must not overlap.
    #[error("rank {rank} is in list {first} and in list {second}; split twice for groups that overlap")]
    Twice {
        /// The rank that is named twice.
        rank: usize,
        /// The index of the list with the rank's first occurrence.
        first: usize,
        /// The index of the list with the rank's second occurrence.
        second: usize,
    },
    /// A list is empty.
    #[error("list {list} is empty")]
    Empty {
        /// The index of the list.
        list: usize,
    },
}

impl SplitPlan {
    /// Computes the subgroups from the requests of the members, in the order of the members' ranks in the
    /// parent group. `members` contains their ranks of the job, in the same order.
    ///
    /// # Errors
    /// The reason why the requests do not form a split; the same on every member.
    pub fn new(requests: &[Request], members: &[usize]) -> Result<Self, SplitError> {
        let Some(first) = requests.first() else { return Ok(Self { groups: Vec::new() }) };
        let mut colors = Vec::new();
        for (request, rank) in requests.iter().zip(members) {
            match request {
                Request::Color { color, key } if matches!(first, Request::Color { .. }) => {
                    colors.push((*color, *key))
                }
                request if request == first => {}
                other => {
                    return Err(SplitError::Different {
                        rank: *rank,
                        asked: other.describe(),
                        other: members[0],
                        other_asked: first.describe(),
                    });
                }
            }
        }
        match first {
            Request::Color { .. } => Ok(Self::from_colors(&colors)),
            Request::Lists(lists) => Self::from_lists(lists, members),
        }
    }

    /// Groups the parent group's ranks by color. `colors` has the color and key of each rank, in the order of
    /// ranks. Each subgroup is ordered by key and then by rank, and subgroups are in ascending order of
    /// color.
    #[must_use]
    pub fn from_colors(colors: &[(Option<u32>, i64)]) -> Self {
        let mut groups: BTreeMap<u32, Vec<(i64, usize)>> = BTreeMap::new();
        for (place, (color, key)) in colors.iter().enumerate() {
            if let Some(color) = color {
                groups.entry(*color).or_default().push((*key, place));
            }
        }
        let ordered = |mut group: Vec<(i64, usize)>| {
            group.sort_unstable();
            group.into_iter().map(|(_, place)| place).collect()
        };
        Self { groups: groups.into_values().map(ordered).collect() }
    }

    /// Builds the subgroups from `lists`, whose entries are ranks of the job. `members` has the parent
    /// group's ranks of the job.
    ///
    /// # Errors
    /// A listed rank is not a member or is listed twice, or a list is empty.
    pub fn from_lists(lists: &[Vec<usize>], members: &[usize]) -> Result<Self, SplitError> {
        let places: HashMap<usize, usize> =
            members.iter().enumerate().map(|(place, rank)| (*rank, place)).collect();
        let mut seen = HashMap::new();
        let mut groups = Vec::new();
        for (list, ranks) in lists.iter().enumerate() {
            if ranks.is_empty() {
                return Err(SplitError::Empty { list });
            }
            let mut group = Vec::new();
            for rank in ranks {
                let not_a_member = || SplitError::NotAMember { list, rank: *rank, members: members.to_vec() };
                group.push(*places.get(rank).ok_or_else(not_a_member)?);
                if let Some(first) = seen.insert(*rank, list) {
                    return Err(SplitError::Twice { rank: *rank, first, second: list });
                }
            }
            groups.push(group);
        }
        Ok(Self { groups })
    }

    /// Returns the subgroups. Each is a list of its members' ranks in the parent group, in the order of their
    /// new ranks.
    #[must_use]
    pub fn groups(&self) -> &[Vec<usize>] {
        &self.groups
    }

    /// Returns the subgroup and the new rank of the member with rank `place` in the parent group. `None` if
    /// it is in no subgroup.
    #[must_use]
    pub fn placement(&self, place: usize) -> Option<Placement> {
        self.groups.iter().enumerate().find_map(|(group, places)| {
            places.iter().position(|member| *member == place).map(|rank| Placement { group, rank })
        })
    }
}

impl Request {
    fn describe(&self) -> String {
        match self {
            Self::Color { .. } => "a split by color".into(),
            Self::Lists(lists) => format!("the lists {lists:?}"),
        }
    }
}

/// The agreement on the subgroups of a split.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Split;

/// The record that a member posts for a split.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SplitRecord {
    pub(super) request: Request,
    /// The name that all subgroups have in common.
    pub(super) name: String,
    /// The number of the first subgroup. Only the first member's value counts.
    pub(super) number: u64,
}

wire_enum!(Request { 0 => Color { color, key }, 1 => Lists(lists) });
wire_struct!(SplitRecord { request, name, number });
wire_struct!(SplitPlan { groups });
wire_enum!(SplitError {
    0 => Different { rank, asked, other, other_asked },
    1 => NotAMember { list, rank, members },
    2 => Twice { rank, first, second },
    3 => Empty { list },
});

impl PlainProtocol for Split {
    const PROTOCOL: bootstrap::wire::Protocol = messages::PROTOCOL;
    type Record = SplitRecord;
    /// The subgroups, and the number of the first one.
    type Agreed = (SplitPlan, u64);
    type Refusal = SplitError;

    fn conclude(records: &[(u32, SplitRecord)]) -> Result<(SplitPlan, u64), SplitError> {
        let members: Vec<usize> = records.iter().map(|(rank, _)| *rank as usize).collect();
        let (_, first) = &records[0];
        if let Some((rank, record)) = records.iter().find(|(_, record)| record.name != first.name) {
            let asked = |record: &SplitRecord| format!("subgroups named {:?}", record.name);
            let (rank, other) = (*rank as usize, members[0]);
            return Err(SplitError::Different {
                rank,
                asked: asked(record),
                other,
                other_asked: asked(first),
            });
        }
        let requests: Vec<Request> = records.iter().map(|(_, record)| record.request.clone()).collect();
        Ok((SplitPlan::new(&requests, &members)?, first.number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn colors() -> impl Strategy<Value = Vec<(Option<u32>, i64)>> {
        prop::collection::vec((prop::option::of(0u32..4), -3i64..4), 1..12)
    }

    proptest! {
        /// Every member with a color is in exactly one subgroup, together with the other members of that
        /// color, in order.
        #[test]
        fn colors_partition_the_members(colors in colors()) {
            let plan = SplitPlan::from_colors(&colors);
            for (place, (color, key)) in colors.iter().enumerate() {
                let placement = plan.placement(place);
                prop_assert_eq!(placement.is_some(), color.is_some());
                let Some(Placement { group, rank }) = placement else { continue };
                prop_assert_eq!(plan.groups()[group][rank], place);
                for (other, (other_color, other_key)) in colors.iter().enumerate() {
                    let together = plan.placement(other).filter(|found| found.group == group);
                    prop_assert_eq!(together.is_some(), other_color == color);
                    if let Some(found) = together {
                        prop_assert_eq!(found.rank.cmp(&rank), (*other_key, other).cmp(&(*key, place)));
                    }
                }
            }
            let mut distinct: Vec<_> = colors.iter().filter_map(|(color, _)| *color).collect();
            distinct.sort_unstable();
            distinct.dedup();
            prop_assert_eq!(plan.groups().len(), distinct.len());
        }

        /// Valid lists are kept as they are. Other lists are refused.
        #[test]
        fn lists_are_kept_or_refused(
            lists in prop::collection::vec(prop::collection::vec(0usize..10, 0..4), 0..4),
            mut members in prop::collection::hash_set(0usize..10, 1..10).prop_map(Vec::from_iter),
        ) {
            members.sort_unstable();
            let all: Vec<_> = lists.concat();
            let distinct: std::collections::HashSet<_> = all.iter().collect();
            let good = distinct.len() == all.len()
                && lists.iter().all(|list| !list.is_empty())
                && all.iter().all(|rank| members.contains(rank));
            match SplitPlan::from_lists(&lists, &members) {
                Err(_) => prop_assert!(!good),
                Ok(plan) => {
                    prop_assert!(good);
                    let ranks = |group: &Vec<usize>| group.iter().map(|place| members[*place]).collect::<Vec<_>>();
                    prop_assert_eq!(plan.groups().iter().map(ranks).collect::<Vec<_>>(), lists);
                }
            }
        }
    }

    #[test]
    fn who_asks_for_something_else_is_named() {
        let record = |request, name: &str| SplitRecord { request, name: name.into(), number: 9 };
        let lists = |last: usize| record(Request::Lists(vec![vec![4, 5], vec![last]]), "tp");
        let agree = |records: [SplitRecord; 3]| {
            Split::conclude(&[4, 5, 6].into_iter().zip(records).collect::<Vec<_>>())
        };
        assert_eq!(agree([lists(6), lists(6), lists(6)]).unwrap().1, 9);
        let error = agree([lists(6), lists(6), lists(7)]).unwrap_err();
        assert!(matches!(error, SplitError::Different { rank: 6, other: 4, .. }), "{error}");
        let color = record(Request::Color { color: Some(1), key: 0 }, "tp");
        let error = agree([lists(6), color, lists(6)]).unwrap_err();
        assert!(error.to_string().contains("rank 5 asked for a split by color"), "{error}");
        let other = record(Request::Lists(vec![vec![4, 5], vec![6]]), "dp");
        let error = agree([lists(6), lists(6), other]).unwrap_err();
        assert!(error.to_string().contains("named \"dp\""), "{error}");
    }
}
