//! The groups of the demo: tensor-parallel pairs, data-parallel groups across the pairs, the world.

use std::fmt;

/// Purpose of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Every rank.
    World,
    /// Neighbouring pairs: {0,1} {2,3} …
    Tensor,
    /// The same position in each pair: {0,2,…} {1,3,…}
    Data,
}

/// The ranks of one communicator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) role: Role,
    /// Index among the groups of its role, from 0.
    pub(crate) index: u32,
    /// Global ranks, ascending.
    pub(crate) ranks: Vec<u32>,
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.role {
            Role::World => f.write_str("world"),
            Role::Tensor => write!(f, "TP{}", self.index),
            Role::Data => write!(f, "DP{}", self.index),
        }
    }
}

/// All groups of a job with `ranks` ranks (even): the world, the pairs, the two groups across them.
pub(crate) fn layout(ranks: u32) -> Vec<Group> {
    let of = |role, index, keep: &dyn Fn(u32) -> bool| Group {
        role,
        index,
        ranks: (0..ranks).filter(|&rank| keep(rank)).collect(),
    };
    let mut groups = vec![of(Role::World, 0, &|_| true)];
    groups.extend((0..ranks / 2).map(|pair| of(Role::Tensor, pair, &|rank| rank / 2 == pair)));
    groups.extend((0..2).map(|place| of(Role::Data, place, &|rank| rank % 2 == place)));
    groups
}

/// Returns the rank that allocates a segment which the others do not.
pub(crate) fn diverging_rank(ranks: u32) -> u32 {
    if ranks > 2 { 2 } else { 1 }
}

impl Group {
    /// True if its members disagree once `rank` has diverged. A group of one always agrees.
    pub(crate) fn disagrees_with(&self, rank: u32) -> bool {
        self.ranks.len() > 1 && self.ranks.contains(&rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_ranks_make_five_groups() {
        let groups: Vec<_> = layout(4).iter().map(|group| (group.to_string(), group.ranks.clone())).collect();
        let expected = [
            ("world", vec![0, 1, 2, 3]),
            ("TP0", vec![0, 1]),
            ("TP1", vec![2, 3]),
            ("DP0", vec![0, 2]),
            ("DP1", vec![1, 3]),
        ];
        assert_eq!(groups, expected.map(|(name, ranks)| (name.to_owned(), ranks)));
    }

    #[test]
    fn two_ranks_make_data_groups_of_one() {
        let groups = layout(2);
        assert_eq!(groups.len(), 4);
        assert_eq!(groups.iter().filter(|group| group.disagrees_with(diverging_rank(2))).count(), 2);
    }
}
