//! Symmetric memory: pools whose blocks lie at the same place on every rank, and whose segments become NCCL windows
//! by agreement.
//!
//! The ranks of a [`Domain`] ask a [`SymmetricPool`] for the same things in the same order. A
//! [`commit`](SymmetricPool::commit) registers its new segments as windows of one group: on all members or on none,
//! in one order. Ranks that differ are given the same error, before their deadline, that names rank, ordinal and
//! both values, and the first allocation in which they differ; what was committed before stays, and so do the
//! other groups.
//!
//! Not for: placement itself ([`caching_alloc::core::symmetric`]), communicators and collectives
//! ([`process_group`]).
//!
//! ```no_run
//! # use process_group::{comm::Communicator, store::HashStore};
//! # use symm_mem::{CommitOptions, CommunicatorGroup, Domain, Geometry, GroupId, SymmetricPool};
//! # fn rank(rank: u32, communicator: &Communicator) -> Result<(), Box<dyn std::error::Error>> {
//! # let store = std::sync::Arc::new(HashStore::new());
//! let domain = Domain::new(store, 0, rank, 0..4)?;
//! let pool = SymmetricPool::new(&domain, communicator.context(), Geometry::default())?;
//! let gradients = pool.allocate(25 << 20)?;
//! let id = GroupId { uid: 0, epoch: 0 };
//! let world = CommunicatorGroup { id, ranks: (0..4).collect(), communicator };
//! let report = pool.commit(&world, CommitOptions::default())?;
//! match &report.without {
//!     None => println!("{} windows in {:?}", report.new_windows, report.elapsed),
//!     Some(reason) => println!("the same offsets everywhere, but no windows: {reason}"),
//! }
//! // The buffer is in a window: the all-reduce of every rank reads and writes its peers' memory directly.
//! let found = pool.lookup(gradients.ptr(), gradients.bytes(), id)?;
//! # Ok(())
//! # }
//! ```
//!
//! # Map
//! | module | holds |
//! |---|---|
//! | [`agreement`] | the protocol without I/O: records, decisions, the commit's machine; the meeting of a rendezvous and of an exchange |
//! | [`direct`] | messages of a process group without a communicator |
//! | [`exchange`] | one-sided put and get: plans, handles that are opened once, leases |
//! | [`kernels`] | device code: signals between ranks, and the collectives over their memory |
//! | [`rendezvous`] | peers' memory and signals: PyTorch's SymmetricMemory |
//! | `simulation` | feature of that name: whole programs of several ranks under seeded schedules, and what must hold of them |
//! | root | [`Domain`], [`SymmetricPool`] and its blocks, [`CommitOptions`], [`CommitError`], [`commit_all`], [`Explanation`], [`RetireError`] |
//!
//! # Invariants
//! | | what | kept by |
//! |---|---|---|
//! | I1 | allocation, free, look-up and collectives make no window; only a commit does | [`SymmetricPool::allocate`] places and journals; `commit` (or `attach`) and [`SymmetricPool::retire`] alone call the communicator |
//! | I2 | a group lies inside the pool's domain | [`CommitError::GroupOutsideDomain`], before anything is posted |
//! | I3 | a segment is known by (pool, ordinal), a group by (number, epoch), never by an address or a handle | [`PoolId`], [`GroupId`]; ordinals are never reused |
//! | I4 | a group's committed log only grows, is equal on all members, and holds a segment once | [`agreement::Seat`]; its hash is in every record ([`Poison::CommittedLogDiverged`]) |
//! | I5 | one window call of a communicator at a time, never under the allocator's lock | one commit of a communicator at a time, and its gate; half-enqueued collectives and messages are [`Refusal::CollectivesOutstanding`] and [`Refusal::MessagesOutstanding`] |
//! | I6 | several groups in ascending order of their numbers | [`commit_all`]; whoever does otherwise meets a deadline that says who waits where |
//! | I7 | placement is a function of the sequence of requests | [`caching_alloc::core::symmetric::SymmetricArena`] |
//! | I8 | what a segment is to a group is agreed, not found out | [`Standing`] changes by a commit's verdict only |
//! | I9 | memory stays until nobody can reach it | the pool, its blocks, [`GraphPin`]s, graphs that use it and every communicator with windows in it hold the memory; the last one gives it back. A retired segment's memory goes when all ranks have said that its windows are gone |
//! | I10 | a pool does not grow during a declared capture, and no window comes or goes during any | [`PoolCapture`] freezes it; a commit or a retirement while the driver says that a stream captures is [`Refusal::CommitDuringCapture`] on all members |
//! | I11 | a block that captured work uses is not placed again while the graph lives | each use pins it ([`process_group::graph_memory`]); the graph and its executables hold the pin |
//!
//! Windows stay until their communicator is gone, or until all ranks of the domain [retire](SymmetricPool::retire) their
//! segments, which no block and no graph may hold on any rank. What happens to a buffer, and why, says
//! [`SymmetricPool::explain`].

pub mod agreement;
mod commit;
pub mod direct;
mod domain;
pub mod exchange;
pub mod kernels;
mod pool;
pub mod rendezvous;
#[cfg(any(test, feature = "simulation"))]
pub mod simulation;

pub use agreement::{Enqueued, GroupId, MessageCounts, NoWindows, Poison, Policy, PoolId, Refusal, decide};
pub use caching_alloc::core::symmetric::{Geometry, Placement, SymmetricError};
pub use commit::{CommitError, CommitOptions, CommitReport, CommunicatorGroup, SymmetricGroup, commit_all};
pub use domain::{Domain, DomainError};
pub use pool::{
    AgreedError, Explanation, GraphPin, LookupError, Path, PoolCapture, Residence, RetireError, RetireReport,
    Standing, SymmetricBlock, SymmetricPool, Why,
};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(test)]
extern crate self as symm_mem;
#[cfg(test)]
#[path = "../tests/main.rs"]
mod end_to_end;
