//! The kinds of errors of the operations on which ranks agree.

use std::io;

use bootstrap::agreement::Failure;
use caching_alloc::core::symmetric::SymmetricError;
use process_group::{
    group::{GroupError, GroupId},
    store::StoreError,
};

use crate::{
    agreement::{Ending, Malformed, Poison, Refusal, Unmapped},
    exchange::protocol::ExchangeRefusal,
    pool::SliceError,
    rendezvous::{AllocationError, protocol::RendezvousRefusal},
};

/// The kind of an [`Error`](crate::Error): why an operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A [commit](crate::SymmetricPool::commit), [retirement](crate::SymmetricPool::retire) or [agreed
    /// allocation](crate::SymmetricPool::allocate_agreed) was refused on all members. Nothing has changed. Groups can
    /// commit again, with the exceptions that [`Refusal`] lists.
    #[error("refused on all members: {0}")]
    Refused(Refusal),
    /// A [rendezvous](crate::rendezvous) was refused on all members. No member keeps a mapping that this rendezvous
    /// made. The group can begin its next rendezvous.
    #[error("refused on all members: {0}")]
    RendezvousRefused(RendezvousRefusal),
    /// An [exchange](crate::exchange) was refused on all members. No member gets the plan of transfers, or the set of
    /// regions, that was requested. An earlier plan or set of the same name is unchanged.
    #[error("refused on all members: {0}")]
    ExchangeRefused(ExchangeRefusal),
    /// The members of a group may have different NCCL windows, for one of these reasons:
    /// - A commit or retirement failed after the members had decided to carry it out.
    /// - The group was already poisoned before this commit.
    /// - This commit found that the members' logs of committed and retired segments differ
    ///   ([`Poison::CommittedLogDiverged`]).
    ///
    /// After a commit, the group is poisoned on all members, with one exception in plain registrations
    /// (`ncclCommRegister`): see [`Error`](crate::Error). A poisoned group cannot commit again. Abort the group's
    /// communicator, create the group again in its next [epoch](GroupId::epoch), and have the pool
    /// [forget](crate::SymmetricPool::forget) the poisoned group. Until then, the pool does not free the memory of
    /// retired segments.
    ///
    /// After a retirement, the segments are retired on all ranks, but some windows of them may still exist. Of the
    /// groups that were given to the retirement, two kinds are poisoned: groups with a member that failed or did not
    /// finish in time, and groups that ended during the retirement. A rank with a poisoned group does not return the
    /// segments' memory to the driver yet: see [`RetireReport::bytes`](crate::RetireReport::bytes).
    #[error("poisoned on all members: {poison}; poisoned groups of this rank: {groups:?}")]
    Poisoned {
        /// The reason, equal on all members.
        poison: Poison,
        /// The groups of this rank that are poisoned.
        groups: Box<[GroupId]>,
    },
    /// The [store](process_group::store) failed, so this member does not know the result. The others may report this
    /// member as missing, or they may have agreed. If they agreed on an allocation, they have made it and this rank has
    /// not. Then the next commit reports to all members that their requests of the pool (allocations, reservations and
    /// frees) differ.
    ///
    /// If the source is [`StoreError::RankTaken`], another process runs as this rank. The others may have agreed with
    /// that process.
    #[error("could not reach the store{}", if *poisoned {
        " after this rank had posted its record, so its groups are poisoned"
    } else {
        ""
    })]
    Store {
        /// True if the others may have registered or deregistered windows because of this rank's record, the message by
        /// which it took part. Then the group of the commit, or every group that was given to the retirement, is
        /// poisoned.
        ///
        /// False if this rank had posted no record, if the retirement was given no groups, or if the members were
        /// refusing the commit and only searched for the first difference of their requests. Always false for other
        /// operations.
        poisoned: bool,
        /// The error of the store.
        source: StoreError,
    },
    /// The group has ended, because a member is lost or for another reason. So this rank no longer waits for the
    /// group's members. Earlier agreements remain valid. If a group has ended, this kind replaces two sorts of errors:
    /// failures of this member alone, and agreed reasons that only name missing ranks, such as [`Refusal::SyncTimeout`]
    /// and [`Poison::MembersLost`].
    #[error("the group ended: {cause}")]
    GroupOver {
        /// The error that ended the group. The text of this kind contains the cause's text, so
        /// [`source`](std::error::Error::source) does not return the cause.
        cause: GroupError,
    },
    /// This member cannot decode a value in the store, because another program or another release of this crate has
    /// written it. The value is a list of members, the members' decision, or their verdict (the result of the vote that
    /// follows after the members have carried out the decision). So this member does not know the result of the
    /// agreement.
    #[error(
        "a value in the store cannot be decoded{}; check that no other program writes under its keys",
        if *poisoned { ", so the groups of this rank are poisoned" } else { "" }
    )]
    Unreadable {
        /// True for a commit, and for a retirement that was given groups. The group of the commit, or each of the given
        /// groups, is then poisoned on this rank. Otherwise false.
        poisoned: bool,
        /// The decoding error.
        source: Malformed,
    },
    /// A bug of this crate: the [state machine](bootstrap::agreement::Agreement) of the agreement got an input that it
    /// had not requested, or the result of the agreement does not fit what this rank had posted. The group of a commit,
    /// or every group that was given to a retirement, is then poisoned on this rank.
    #[error("the ranks' agreement was driven out of step; this is a bug of symm-mem")]
    OutOfStep,
    /// The group has members outside of the pool's domain. Only the ranks of the domain promise to make the same
    /// requests of its pools, so a pool can be committed only for groups inside its domain. Each member checks its own
    /// domain. Members whose domain contains the whole group get a [`Refusal::PeerPrepareFailed`].
    #[error(
        "its members {outside:?} are outside of the pool's domain {domain:#x}; make the domain of the union of all groups \
         that are to share the pool"
    )]
    GroupOutsideDomain {
        /// The domain's number.
        domain: u64,
        /// The members outside.
        outside: Vec<u32>,
    },
    /// The ranks agreed on a length, but this rank could not allocate a block of that length. If other ranks have
    /// allocated the block, the next commit reports to all members that their requests differ.
    #[error("the ranks agreed on {bytes} bytes")]
    AgreedAllocation {
        /// The agreed length in bytes.
        bytes: u64,
        /// The reason, such as a lack of memory, or a length of 0 because no rank needs anything.
        source: SymmetricError,
    },
    /// This rank could not allocate the slice of [`alloc_mapped`](crate::SymmetricPool::alloc_mapped), so it could not
    /// map the slice either. The call also commits the pool. If other members could allocate theirs, then under the
    /// default [policy](crate::CommitOptions::policy) they get a refusal of this commit that names the difference.
    #[error(transparent)]
    Slice(#[from] SliceError),
    /// [`Rendezvous::get`](crate::rendezvous::Rendezvous::get) was called for memory that no
    /// [`rendezvous`](crate::rendezvous::Rendezvous::rendezvous) of the group has mapped.
    #[error(
        "RendezvousMissing: the group has had no rendezvous for the memory at {address:#x}; all members call `rendezvous` \
         first"
    )]
    RendezvousMissing {
        /// The address of the memory.
        address: u64,
    },
    /// The block given to [`symmetric_memory`](crate::SymmetricPool::symmetric_memory) was allocated after the last
    /// commit that compared the members' requests.
    #[error(
        "NotCompared: the block's request has number {request}, and the members have compared their first {compared} \
         requests, so the block may be at another place on a peer; all members commit the pool with \
         CommitOptions::verify first"
    )]
    NotCompared {
        /// The number of the block's request in the pool's sequence of requests, from 0.
        request: u64,
        /// The number of requests that the members have found equal.
        compared: u64,
    },
    /// [`symmetric_memory`](crate::SymmetricPool::symmetric_memory) was called for a buffer that the pool does not
    /// contain.
    #[error(
        "OtherPool: the buffer at {address:#x} is not in this pool; ask the pool that allocated it, or use a rendezvous"
    )]
    OtherPool {
        /// The address of the buffer.
        address: u64,
    },
    /// [`symmetric_memory`](crate::SymmetricPool::symmetric_memory) was called for a buffer in a segment that the
    /// members of the group have not mapped.
    #[error(
        "NotMapped: the members have not mapped segment {ordinal}{}",
        match reason {
            Some(reason) => format!(": {reason}"),
            None => "; commit its pool for the group first, with CommitOptions::map_peers".to_owned(),
        }
    )]
    NotMapped {
        /// The number of the buffer's segment in the pool.
        ordinal: u32,
        /// The reason why the commit of the segment did not map it, or `None` if the segment is not committed for the
        /// group.
        reason: Option<Unmapped>,
    },
    /// This rank has too few adjacent free channels for a plan or a set of regions of an [exchange](crate::exchange). A
    /// channel is a slot into which one peer writes the signals of one transfer of a plan, or those of a set of
    /// regions. The other members get a refusal that names this rank.
    #[error(
        "NoChannels: the plan needs {wanted} adjacent channels, {free} of {channels} are free on this rank (some are held by \
         plans that peers have not let go of); drop plans, or make the exchange with more"
    )]
    NoChannels {
        /// Number of adjacent channels that the plan or the set of regions needs.
        wanted: usize,
        /// Number of free channels.
        free: usize,
        /// Number of channels of this exchange.
        channels: usize,
    },
    /// The list of an exchange's members lacks this rank, or contains a number that is not a rank of the group.
    #[error("ranks {members:?} are no part of a group of {world} ranks to which rank {rank} belongs")]
    NotAMember {
        /// The members of the exchange, as ranks in the group.
        members: Vec<usize>,
        /// This rank, as a rank in the group.
        rank: usize,
        /// Size of the group.
        world: usize,
    },
    /// A thread of an [exchange](crate::exchange) cannot be started: the thread that closes the peers' memory of
    /// dropped plans, or one of the two threads that enforce the deadlines of transfers.
    #[error("a thread of the exchange cannot be started")]
    Thread(#[source] io::Error),
    /// Invalid options of a [direct path](crate::direct).
    #[error("{problem}")]
    Options {
        /// The problem.
        problem: String,
    },
    /// Members gave different options of a direct path.
    #[error("rank {rank} installs it with {options}, this rank with {own}")]
    OptionsDiffer {
        /// The lowest rank whose options differ from this rank's, as a rank of the job.
        rank: usize,
        /// The options of that rank.
        options: String,
        /// The options of this rank.
        own: String,
    },
    /// Members run on other hosts than this rank. A direct path needs memory that all members can access, on the
    /// devices and on the host. Hosts are distinguished by [`process_group::link::host`], so containers of one machine
    /// with different network namespaces or host names count as different hosts.
    #[error(
        "ranks {ranks:?} run on other hosts than rank {own}; P2pPolicy::Direct is for the ranks of one host, so split \
         groups of those, or choose another policy"
    )]
    OtherHosts {
        /// This rank, as a rank of the job.
        own: usize,
        /// Ranks of the job that run on other hosts.
        ranks: Vec<usize>,
    },
    /// A member could not set up its part of the direct path, or did not do so in time. So no member has the path.
    #[error("rank {rank} has none: {problem}")]
    Unmade {
        /// The rank to which `problem` belongs, as a rank of the job: the lowest rank that failed. If no rank failed,
        /// it is the lowest rank that did not answer in time. If all ranks answered, it is the lowest rank that got no
        /// answer from another member.
        rank: usize,
        /// The failure on that rank, or a text about the missing answer.
        problem: String,
    },
    /// The members did not agree on a direct path: a member did not take part in time or has left, the protocol
    /// versions or member lists differ, or a message cannot be read. Every member gets the same reason, unless two
    /// processes take part as one rank ([`Failure::Taken`]) or the member lists differ ([`Failure::Members`]).
    #[error("its members did not agree: {source}")]
    NotAgreed {
        /// The reason.
        source: Box<Failure>,
    },
    /// The group no longer exists. Its direct path was dropped together with it.
    #[error("the group is gone, and its direct path with it; install a path for another group")]
    PathEnded,
    /// The group accepts no [direct path](crate::direct): it has another [P2P policy](process_group::group::P2pPolicy),
    /// already has a path, or has ended.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// This rank cannot allocate the memory that the operation needs. The other members get an error that names this
    /// rank.
    #[error(transparent)]
    Allocation(#[from] AllocationError),
    /// A driver call failed on this rank, or the driver lacks a required feature. The other members get an error that
    /// names this rank.
    #[error(transparent)]
    Driver(#[from] cuda_driver::Error),
}

impl From<StoreError> for ErrorKind {
    fn from(source: StoreError) -> Self {
        Self::Store { poisoned: false, source }
    }
}

impl ErrorKind {
    /// Converts the ending of an agreement.
    ///
    /// - `refused` converts a refusal.
    /// - `failure` is the store's error, if the store failed.
    /// - `groups` has the group of a commit, or those groups of a retirement that are poisoned. If it is empty, as for
    ///   all other agreements, the error reports no poisoned group.
    #[doc(hidden)]
    pub fn of_ending<R>(
        ending: Ending<R>,
        refused: impl FnOnce(R) -> Self,
        failure: Option<StoreError>,
        groups: Vec<GroupId>,
    ) -> Self {
        let poisons = !groups.is_empty();
        match (ending, failure) {
            (Ending::Refused(refusal), _) => refused(refusal),
            (Ending::Poisoned(poison), _) => Self::Poisoned { poison, groups: groups.into() },
            (Ending::StoreFailed { in_doubt }, Some(source)) => {
                Self::Store { poisoned: poisons && in_doubt, source }
            }
            (Ending::Unreadable { source }, _) => Self::Unreadable { poisoned: poisons, source },
            (Ending::OutOfStep | Ending::StoreFailed { .. }, _) => Self::OutOfStep,
        }
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Refused(refusal) => refusal.name(),
            Self::RendezvousRefused(refusal) => refusal.name(),
            Self::ExchangeRefused(refusal) => refusal.name(),
            Self::Poisoned { poison, .. } => poison.name(),
            Self::Store { .. } => "Store",
            Self::GroupOver { .. } => "GroupOver",
            Self::Unreadable { .. } => "Unreadable",
            Self::OutOfStep => "OutOfStep",
            Self::GroupOutsideDomain { .. } => "GroupOutsideDomain",
            Self::AgreedAllocation { .. } => "AgreedAllocation",
            Self::RendezvousMissing { .. } => "RendezvousMissing",
            Self::NotCompared { .. } => "NotCompared",
            Self::OtherPool { .. } => "OtherPool",
            Self::NotMapped { .. } => "NotMapped",
            Self::NoChannels { .. } => "NoChannels",
            Self::NotAMember { .. } => "NotAMember",
            Self::Thread(_) => "Thread",
            Self::Options { .. } => "Options",
            Self::OptionsDiffer { .. } => "OptionsDiffer",
            Self::OtherHosts { .. } => "OtherHosts",
            Self::Unmade { .. } => "Unmade",
            Self::NotAgreed { .. } => "NotAgreed",
            Self::PathEnded => "PathEnded",
            Self::Group(_) => "Group",
            Self::Allocation(_) => "Allocation",
            Self::Driver(_) => "Driver",
            Self::Slice(_) => "Slice",
        }
    }
}
