//! Symmetric memory: pools with the same block layout on every rank. A pool's memory consists of segments, and each
//! block lies in one segment. The ranks agree to register segments as NCCL windows.
//!
//! The ranks of a [`Domain`] must make the same requests of a [`SymmetricPool`] (allocations, reservations and frees)
//! in the same order. A [`commit`](SymmetricPool::commit) registers the pool's new segments as windows of one group of
//! ranks ([`SymmetricGroup`]). It registers them on all members or on none, in the same order on every member. If the
//! members made different requests, then by default no segment is registered, and every member gets the same error. The
//! error names the ranks, the segment, the different values, and the first allocation that differs. Earlier commits
//! stay valid, and other groups are not affected. [`CommitOptions::deadline`] describes the time limits of a commit.
//!
//! Out of scope: the placement of blocks in segments ([`caching_alloc::core::symmetric`]), and communicators and
//! collectives ([`process_group`]).
//!
//! ```no_run
//! # fn rank(world: &process_group::ProcessGroup) -> Result<(), Box<dyn std::error::Error>> {
//! use symm_mem::{CommitOptions, Domain, Geometry, SymmetricPool};
//!
//! let pool = SymmetricPool::new(&Domain::of(world)?, world.context(), Geometry::default())?;
//! let gradients = pool.allocate(25 << 20)?;
//! let report = pool.commit(world, CommitOptions::default())?;
//! match &report.without {
//!     None => println!("{} windows in {:?}", report.new_windows, report.elapsed),
//!     Some(reason) => println!("the same offsets everywhere, but no windows: {reason}"),
//! }
//! // If the buffer is in a window, an all-reduce on it reads and writes the other ranks' memory directly.
//! let found = pool.lookup(gradients.ptr(), gradients.bytes(), world.id())?;
//! # Ok(())
//! # }
//! ```
//!
//! # Map
//! | module | contents |
//! |---|---|
//! | [`agreement`] | the crate `symm-agreement`: the protocols by which ranks agree, without I/O: for commits, [retirements](SymmetricPool::retire), and lengths of [agreed allocations](SymmetricPool::allocate_agreed) |
//! | [`direct`] | `send` and `recv` of a process group through symmetric memory, without a communicator |
//! | [`exchange`] | one-sided put and get: plans of transfers, and shared regions |
//! | [`kernels`] | device code: signals between ranks, and the collectives over their memory: the crate `peer-kernels` |
//! | [`rendezvous`] | peers' memory and signals, as in PyTorch's SymmetricMemory |
//! | [`sharing`] | the transport of memory handles between ranks: the crate `memory-sharing` |
//! | `membership` | the state of a pool in its groups: commits, retirements, windows and look-up |
//! | `pool` | a pool's memory: segments, blocks, and the pins that keep them allocated for captures and graphs |
//! | `symmetric_pool` | [`SymmetricPool`], built on `membership` and `pool` |
//! | root | [`Domain`], [`SymmetricPool`] and its blocks, [`CommitOptions`], [`commit_all`], [`Explanation`], [`Error`] |
//!
//! # Invariants
//! | | invariant | enforced by |
//! |---|---|---|
//! | I1 | only a commit creates windows; allocation, free, look-up and collectives create none | [`SymmetricPool::allocate`] only places a block and logs the request; only `commit` (or [`attach`](SymmetricPool::attach), which does the same) and [`SymmetricPool::retire`] call the communicator |
//! | I2 | a pool is committed only for groups inside its domain | a check before the rank offers any segment to the members ([`ErrorKind::GroupOutsideDomain`]) |
//! | I3 | a segment is identified by its pool and its ordinal (its number in the pool), and a group by its number and [epoch](GroupId::epoch), never by an address or a handle | [`PoolId`], [`GroupId`]; ordinals are never reused |
//! | I4 | a group commits each segment at most once; its log of committed and retired segments is equal on all members, and only grows until the pool [forgets](SymmetricPool::forget) the group | [`agreement::GroupLog`]; in every commit and retirement, each member posts the log's hash in its record (its message to the other members), and the members compare the hashes ([`Poison::CommittedLogDiverged`], [`Refusal::CommittedLogDiverged`]) |
//! | I5 | at most one call at a time registers or deregisters windows of a communicator; no such call begins while only some ranks have enqueued a collective or a message of a process group; the pool's lock is not held during the call | only one commit or retirement at a time uses a communicator, and the communicator itself lets only one thread at a time call NCCL; a commit or retirement is refused if the ranks have enqueued different numbers of collectives or messages ([`Refusal::CollectivesOutstanding`], [`Refusal::MessagesOutstanding`]); commits and retirements unlock the pool before they call NCCL |
//! | I6 | all ranks run their commits for several groups in the same order | [`commit_all`] runs them in ascending order of the group ids; if ranks use different orders and so wait for each other, the commits fail, with the list of waiting ranks |
//! | I7 | placement is a function of the sequence of requests | [`caching_alloc::core::symmetric::SymmetricArena`] |
//! | I8 | the ranks agree on the registration state of a segment; no rank determines it alone | [`RegistrationState`] changes only by the agreed result of a commit or a retirement, or when the group is poisoned (its members may have different windows: [`Poison`]) or forgotten |
//! | I9 | memory is freed only after its last use | the pool, its blocks, [`GraphPin`]s, graphs that use the memory, every communicator that has registered its segments, and every [direct path](direct) that can copy to and from it keep the memory allocated; the last of them to be dropped frees it. Exception: the memory of a retired segment is freed earlier, but only once all ranks have reported that its windows are deregistered |
//! | I10 | a pool does not grow during a [declared capture](SymmetricPool::begin_capture), and no window is created or removed during a capture that [`is_capturing`](cuda_driver::graph::is_capturing) finds | [`PoolCapture`] freezes the pool; during both kinds of captures, a commit or retirement ends with [`Refusal::CommitDuringCapture`] on all members |
//! | I11 | if captured work of this library uses a block, the block's memory goes to no other block while the graph exists | each use in a capture pins the block ([`cuda_driver::graph_memory`]); the graph and its executables hold the pin. For other captured work, see [`PoolCapture`] |
//!
//! A window stays until its communicator is gone, or until all ranks of the domain [retire](SymmetricPool::retire) its
//! segment. A segment can be retired only if no rank has a block in it or a graph that uses it.
//! [`SymmetricPool::explain`] reports how a group's collectives access a buffer, and why.

pub mod direct;
mod domain;
mod error;
mod error_kind;
pub mod exchange;
mod group_object;
mod idle;
#[doc(hidden)]
pub mod internals;
mod lock;
mod membership;
mod pool;
pub mod rendezvous;
mod symmetric_pool;

pub use agreement::{
    Enqueued, GroupId, MessageCounts, NoWindows, Poison, Policy, PoolId, Refusal, Unmapped, decide,
};
pub use caching_alloc::core::symmetric::{Geometry, Placement, SymmetricError};
pub use domain::{Domain, DomainError};
pub use error::Error;
pub use error_kind::ErrorKind;
pub use membership::{
    BufferLocation, CommitOptions, CommitReport, CommunicatorGroup, LookupError, RegistrationState,
    RetireReport, SymmetricGroup,
};
pub use memory_sharing as sharing;
pub use peer_kernels as kernels;
pub use pool::{GraphPin, PoolCapture, SliceError, SymmetricBlock};
pub use symm_agreement as agreement;
pub use symmetric_pool::{
    AccessPath, Explanation, PathReason, PoolScope, PoolSource, SymmetricPool, commit_all,
};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

// These files belong to the workspace and not to the package, so these doctests run in the workspace only.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct WorkspaceReadme;
#[cfg(doctest)]
#[doc = include_str!("../../docs/testing.md")]
struct Testing;
