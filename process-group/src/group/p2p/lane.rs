//! Assigns messages to lanes.

/// Returns the index, below `lanes`, of the lane for messages from rank `from` to rank `to` in a group of `size`
/// members with [`P2pPolicy::Lanes`](super::P2pPolicy::Lanes). The result depends only on the arguments, so the sender
/// and the receiver compute the same lane without communication. A value of 0 for `lanes` counts as 1.
///
/// Each pair of members has a colour, and two pairs with a common member have different colours (an edge colouring).
/// There are [`colours(size)`](colours) colours, which is the minimum. The lane follows from the colour:
/// - With fewer lanes than colours, the lane is the colour modulo the number of lanes.
/// - With at least as many lanes as colours, no member has two peers in the same lane.
/// - With at least twice as many lanes as colours, the two directions of a pair also have different lanes.
///
/// ```
/// use process_group::group::lane;
///
/// // Rank 0 sends to three peers at once.
/// let lanes: Vec<_> = (1..4).map(|peer| lane(4, 0, peer, 3)).collect();
/// assert_eq!(lanes, [1, 2, 0]);
/// // With two ranks and two lanes, each direction has its own lane.
/// assert_ne!(lane(2, 0, 1, 2), lane(2, 1, 0, 2));
/// ```
#[must_use]
pub fn lane(size: usize, from: usize, to: usize, lanes: usize) -> usize {
    let (lanes, colours) = (lanes.max(1), colours(size));
    let (low, high) = (from.min(to), from.max(to));
    // The circle method for round-robin tournaments. If the number of members is odd, all members are on the
    // circle. If it is even, the last member is at the centre.
    let colour = if high == colours { 2 * low } else { low + high } % colours;
    let back = colours + colour;
    if from > to && back < lanes { back } else { colour % lanes }
}

/// Returns the minimum number of lanes with which no member of a group of `size` members has two peers in the
/// same lane: `size - 1`, rounded up to an odd number.
#[must_use]
pub fn colours(size: usize) -> usize {
    match size {
        0..=2 => 1,
        size => size - 1 + size % 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    /// All messages of a group, as (from, to).
    fn arcs(size: usize) -> impl Iterator<Item = (usize, usize)> {
        (0..size).flat_map(move |from| (0..size).filter(move |to| *to != from).map(move |to| (from, to)))
    }

    proptest! {
        #[test]
        fn no_lane_is_outside_and_none_is_empty_where_there_are_colours_for_all(
            size in 2usize..40, lanes in 1usize..90,
        ) {
            let used: HashSet<_> = arcs(size).map(|(from, to)| lane(size, from, to, lanes)).collect();
            prop_assert!(used.iter().all(|lane| *lane < lanes));
            prop_assert_eq!(used.len(), lanes.min(2 * colours(size)));
        }

        #[test]
        fn as_many_lanes_as_colours_keep_a_members_peers_apart(size in 2usize..40, more in 0usize..90) {
            let lanes = colours(size) + more;
            for member in 0..size {
                let mut peers_of = vec![HashSet::new(); lanes];
                for (from, to) in arcs(size).filter(|(from, to)| *from == member || *to == member) {
                    peers_of[lane(size, from, to, lanes)].insert(from + to - member);
                }
                prop_assert!(peers_of.iter().all(|peers| peers.len() <= 1), "{:?}", peers_of);
            }
        }

        #[test]
        fn twice_as_many_keep_both_directions_apart(size in 2usize..40, more in 0usize..9) {
            let lanes = 2 * colours(size) + more;
            for (from, to) in arcs(size) {
                prop_assert_ne!(lane(size, from, to, lanes), lane(size, to, from, lanes));
            }
        }

        #[test]
        fn fewer_are_dealt_out_evenly(size in 2usize..40, lanes in 1usize..40) {
            let lanes = lanes.min(colours(size));
            let most = colours(size).div_ceil(lanes);
            for member in 0..size {
                let mut peers = vec![0; lanes];
                for peer in (0..size).filter(|peer| *peer != member) {
                    prop_assert_eq!(lane(size, member, peer, lanes), lane(size, peer, member, lanes));
                    peers[lane(size, member, peer, lanes)] += 1;
                }
                prop_assert!(peers.iter().all(|peers| *peers <= most), "{:?}", peers);
            }
        }
    }
}
