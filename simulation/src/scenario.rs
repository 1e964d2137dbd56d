//! The choices of a seed: ranks and groups, the program of every rank, and the trouble, which is a fault or a
//! difference between ranks. The *culprit* is the rank that the trouble concerns. A *meeting* is one agreement among
//! ranks, for example on a commit. Further terms are defined in [`super`].
//!
//! Every rank has two pools. The first one serves all actions that name no other pool. The *second pool* stays empty,
//! and is only [committed](Action::Commit).

use std::{collections::BTreeMap, time::Duration};
use symm_agreement::WindowSupport;

use crate::{programs::Writer, random::Random, trouble::Trouble, violation::Limits};

/// The normal deadline of a meeting, counted on each rank from the time at which it begins the meeting.
pub(crate) const DEADLINE: Duration = Duration::from_millis(800);
/// Under [`Trouble::ShortDeadline`], the deadline of meetings on all ranks except the culprit, in place of
/// [`DEADLINE`]. The culprit has the trouble's deadline, which is shorter. Commits of the second pool, and the commits
/// at the end of the program, keep their deadlines.
///
/// The deadline is long enough for the culprit's registrations of windows, which begin after a delay of up to 30 s
/// under this trouble. On every member, the time limit of a registration is 3/16 of the longest deadline among the
/// members, here 75 s.
pub(crate) const LONG_DEADLINE: Duration = Duration::from_secs(400);
/// The deadline of the commits at the end of the program. A rank may come late to them, because it has waited for
/// absent ranks and missing answers in its earlier meetings. This deadline is longer than all these waits together.
pub(crate) const LAST_DEADLINE: Duration = Duration::from_secs(3600);

/// The longer of the two leases that a seed draws from, in µs. A lease is the time that peers have to close lent
/// memory, see [`Scenario::lease`]. If the trouble delays no rank, the programs of all ranks end within this time, so
/// that no lease expires.
pub(crate) const LONG_LEASE: u64 = 1_000_000_000;

pub(crate) const MIB: u64 = 1 << 20;

/// An action of a rank's program.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Action {
    Allocate {
        bytes: u64,
    },
    /// Frees the rank's block with index `nth` modulo the number of its blocks.
    Free {
        nth: u64,
    },
    /// Agrees with all ranks on a length, the greatest `bytes` of any rank, and allocates a block of this length.
    AllocateAgreed {
        bytes: u64,
    },
    /// Commits the first pool for the group, or the second pool if `second` is true. `last` is true for the commits at
    /// the end of the program, which have the policy [`Prefix`](symm_mem::Policy::Prefix) and the deadline
    /// [`LAST_DEADLINE`]. If `verify` is false, the rank skips the commit if nothing is new, see
    /// [`CommitOptions::verify`](symm_mem::CommitOptions::verify).
    Commit {
        group: u64,
        second: bool,
        last: bool,
        verify: bool,
    },
    /// Skips a commit of the group, but adds it to the rank's count of commits. So the rank's later commits have the
    /// same numbers as on the other members. In production, a rank skips a commit without `verify` in this way
    /// if its own pool has nothing new, even if the pools of the other members have new segments.
    Skip {
        group: u64,
    },
    /// Commits the first pool for several groups, in the order of the groups' uids, as
    /// [`commit_all`](symm_mem::commit_all) does. For the other fields, see [`Commit`](Self::Commit).
    CommitAll {
        groups: Vec<u64>,
        last: bool,
        verify: bool,
    },
    /// Begins a graph capture. If `declared` is true, the rank announces the capture to the pool by `begin_capture`.
    BeginCapture {
        declared: bool,
    },
    /// In a capture, enqueues work that uses the rank's block with index `nth` modulo the number of its blocks.
    Capture {
        nth: u64,
    },
    /// Uses the rank's block with index `nth`, modulo the number of its blocks, in a collective of the group. `site` is
    /// the number of the collective, equal on all members. By this number, the simulation compares how the members
    /// access the block.
    Use {
        group: u64,
        nth: u64,
        site: u64,
    },
    /// Enqueues the rank's end of a message from member `from` to member `to`: `from` sends, and `to` receives. Other
    /// members do nothing.
    Message {
        group: u64,
        from: u32,
        to: u32,
    },
    /// Ends the capture, and keeps its graph.
    EndCapture,
    /// Drops all graphs of the rank.
    DropGraphs,
    DropLastGraph,
    /// Frees the rank's blocks in some segments, and then retires these segments (frees their memory on all ranks).
    /// They are `count` consecutive entries, from index `nth` on, of the list of segments that are not retired yet.
    /// Indexes count modulo the length of the list. If the list is shorter than `count`, the action retires all of its
    /// segments.
    Retire {
        nth: u64,
        count: u64,
    },
    /// Runs a rendezvous of the group, in which each member offers its memory `what`, and maps the offers of the
    /// others.
    Meet {
        group: u64,
        what: RendezvousInput,
    },
    /// Runs an [exchange](crate::exchanges): agrees with the group's members on a plan, a list of one-sided transfers
    /// between them. `name` is the name of the plan. The transfers are drawn from `seed`, which is equal on all
    /// members.
    Exchange {
        group: u64,
        name: u64,
        seed: u64,
    },
    /// Simulates the transfers of a plan with this name. The rank can have several plans with this name, because each
    /// `Exchange` adds one. Among those that the rank has not dropped, the action takes the newest plan, or the oldest
    /// if `former` is true. Only the newest plan may be executed, so the transfers of an older plan must be refused.
    Copy {
        group: u64,
        name: u64,
        former: bool,
    },
    /// Drops the plans with this name: all of them if `all` is true, else all except the newest.
    DropPlans {
        group: u64,
        name: u64,
        all: bool,
    },
    /// Drops all plans, and the buffers that the rank lends to peers for the plans' transfers. A lent buffer is freed
    /// once the peers have closed the plans that use it.
    CloseExchanges,
    /// Creates the group with its communicator. If the rank already has the group, the new group replaces it. If
    /// `epoch` is true, the id of the new group then has the next epoch, else the same id as before.
    Make {
        group: u64,
        epoch: bool,
    },
    Pause {
        us: u64,
    },
}

/// The memory that a member offers in a rendezvous.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RendezvousInput {
    /// The rank's block with index `nth` modulo the number of its blocks.
    Block { nth: u64 },
    /// A [persistent allocation](crate::rank::Rank::persistent), which belongs to no pool. All members use the same
    /// `id`.
    Persistent { id: u64 },
}

/// The choices of a seed.
#[derive(Debug, Clone)]
pub(crate) struct Scenario {
    pub(crate) trouble: Trouble,
    /// The rank that the trouble concerns. A seed draws a culprit in any case, but some troubles concern no single
    /// rank.
    pub(crate) culprit: u32,
    /// The members of each group, by the group's uid.
    pub(crate) groups: BTreeMap<u64, Vec<u32>>,
    pub(crate) programs: Vec<Vec<Action>>,
    /// The release of the library (NCCL), as its version code, such as 22809 for 2.28.9.
    pub(crate) release: u32,
    /// The memory in bytes that the pools of a rank can use, except on the culprit under [`Trouble::Exhausted`].
    capacity: u64,
    /// The memory in bytes that the culprit's pools can use under [`Trouble::Exhausted`].
    culprit_capacity: u64,
    /// True if `capacity` is so small, at most 70 MiB, that allocations may fail.
    pub(crate) scarce: bool,
    /// The longest random delay in µs. Messages to and from the store travel in one or two pieces, and each piece
    /// arrives after a random delay. So does the result of a call into the library.
    pub(crate) slowest: u64,
    /// True if the connection of a rank to the store sometimes breaks before the answer to a write arrives. The rank
    /// then makes the request again.
    pub(crate) repeats: bool,
    /// The least time in µs from the death of a rank until the watchdogs of the other ranks report it as dead. `None`
    /// if they never report it.
    pub(crate) noticed: Option<u64>,
    /// The time in µs that peers have to close the memory that a rank lends them for a plan. It begins when the rank
    /// drops the plan, or when the plan's exchange ends on the rank and the rank does not know its result. If a peer
    /// needs longer, the rank keeps the memory until the end of the run.
    pub(crate) lease: u64,
}

/// The releases of the library (NCCL) from which a seed draws. Some have windows, some have none, and the windows of
/// 2.28.3 are defective.
const RELEASES: [u32; 12] =
    [21304, 21805, 22105, 22203, 22304, 22605, 22707, 22803, 22809, 22907, 23007, 23201];
/// Releases for the troubles under which plain registrations (`ncclCommRegister`) fail, see [`Trouble::forbids_plain`].
/// They have no usable windows, because only segments without windows are registered plainly. 21304 and 21805 are left
/// out, because they have no `ncclCommRegister`.
const WINDOWLESS: [u32; 4] = [22105, 22203, 22605, 22803];

/// Returns true if the windows of a release can be used.
fn has_windows(release: u32) -> bool {
    release >= 22700 && release != 22803
}

impl Scenario {
    pub(crate) fn draw(random: &mut Random, limits: &Limits) -> Self {
        let drawn = 2 + random.below(5) as u32;
        let world = limits.ranks.unwrap_or(drawn).max(2);
        let trouble = Trouble::draw(random);
        let culprit = random.below(world.into()) as u32;
        let groups = groups(random, world, limits);
        let phases = (2 + random.below(3)).min(limits.phases);
        let trouble_phase = random.below(phases);
        let release = match trouble {
            Trouble::OtherEnvironment => 22809,
            _ if trouble.forbids_plain() => *random.pick(&WINDOWLESS),
            _ if random.one_in(4) => 22809,
            _ => *random.pick(&RELEASES),
        };
        let seed = random.next();
        let programs =
            Writer::new(seed, limits, trouble, culprit, &groups, world).write(phases, trouble_phase);
        let scarce = random.one_in(8);
        Self {
            trouble,
            culprit,
            groups,
            programs,
            release,
            capacity: 2 * MIB * if scarce { 4 + random.below(32) } else { 1 << 13 },
            culprit_capacity: 2 * MIB * random.below(12),
            scarce,
            slowest: *random.pick(&[5, 50, 2000]),
            repeats: random.one_in(3),
            noticed: random.one_in(2).then(|| random.below(100_000)),
            lease: *random.pick(&[100_000, LONG_LEASE]),
        }
    }

    /// Returns the memory in bytes that the pools of `rank` can use.
    pub(crate) fn memory(&self, rank: u32) -> u64 {
        if self.trouble_of(rank) == Trouble::Exhausted { self.culprit_capacity } else { self.capacity }
    }

    /// Returns true if the library has `ncclCommRegister`.
    pub(crate) fn has_plain_registration(&self) -> bool {
        self.release >= 21903
    }

    /// Returns the release of the library on `rank`, and its support of windows.
    pub(crate) fn library(&self, rank: u32) -> (u32, WindowSupport) {
        let trouble = self.trouble_of(rank);
        let release = match (trouble, self.release) {
            (Trouble::OtherRelease, 22809) => 22907,
            (Trouble::OtherRelease, _) => 22809,
            (_, release) => release,
        };
        let reason = if !has_windows(release) {
            format!("release {release} has no windows")
        } else if trouble == Trouble::OtherEnvironment {
            "NCCL_WIN_ENABLE is 0 on a member".to_owned()
        } else {
            return (release, WindowSupport::Available);
        };
        (release, WindowSupport::Unavailable { reason })
    }

    /// Returns the ranks that `rank` lists as members when it creates the [domain](symm_mem::Domain) of its pools, in a
    /// job of `world` ranks.
    pub(crate) fn domain(&self, rank: u32, world: u32) -> Vec<u32> {
        let lacks = match self.trouble {
            Trouble::OtherDomain { lacks: true } if self.is_culprit(rank) => Some((rank + 1) % world),
            Trouble::OtherDomain { lacks: false } if !self.is_culprit(rank) => Some(self.culprit),
            _ => None,
        };
        (0..world).filter(|other| Some(*other) != lacks).collect()
    }

    /// Returns the address space in bytes that is left for windows of `group`, as `rank` reports it in a commit. A rank
    /// computes it from the memory size of its own device. Under [`Trouble::AddressSpace`], the culprit reports 3 MiB,
    /// and the other members of its groups report 2 MiB. Under all other troubles, and in groups without the culprit, a
    /// rank reports 1 TiB, which is enough for all windows.
    pub(crate) fn address_space(&self, group: u64, rank: u32) -> u64 {
        match self.trouble {
            Trouble::AddressSpace if self.is_culprit(rank) => 3 << 20,
            Trouble::AddressSpace if self.groups[&group].contains(&self.culprit) => 2 << 20,
            _ => 1 << 40,
        }
    }

    /// Returns the trouble if `rank` is the culprit, else [`Trouble::None`].
    pub(crate) fn trouble_of(&self, rank: u32) -> Trouble {
        if self.is_culprit(rank) { self.trouble } else { Trouble::None }
    }

    pub(crate) fn is_culprit(&self, rank: u32) -> bool {
        rank == self.culprit
    }
}

fn groups(random: &mut Random, world: u32, limits: &Limits) -> BTreeMap<u64, Vec<u32>> {
    let mut groups: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
    for _ in 0..2 + random.below(4) {
        let mut members: Vec<u32> = (0..world).filter(|_| random.one_in(2)).collect();
        if members.is_empty() {
            members = (0..world).collect();
        }
        if random.one_in(2) {
            members.reverse();
        }
        groups.insert(1 + random.below(100), members);
    }
    while groups.len() > limits.groups {
        groups.pop_last();
    }
    groups
}
