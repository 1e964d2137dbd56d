//! Sharing of memory between ranks. All handles pass between ranks through this module.
//!
//! A rank posts its [`Site`] (its location) and its [`Export`]s (descriptions of its shared memory) in its record, the
//! message with which it enters an [agreement](bootstrap::agreement). Once the members agree, each of them opens (maps)
//! the exports of the others. Ranks of one process find each other's memory in a registry of the process. Other ranks
//! of one host get a file descriptor over [`process_group::link`], if the memory can be exported as one. In all other
//! cases, a rank opens the memory by a handle in the record: a legacy IPC handle (`cuIpcGetMemHandle`, same host only),
//! a fabric handle, or the handle of another kind of device.
//!
//! | file | subject |
//! |---|---|
//! | `site`, `export` | the data that a rank posts in its record: its location, and the handles of its memory |
//! | `host` | host memory that several processes of the host can share |
//! | `foreign` | memory of other kinds of devices, which other crates implement |
//! | `memory` | memory that a rank can share, and a peer's memory that is open on this rank |
//! | `offer` | this rank's memory while peers can open it, and the transfer of file descriptors |
//! | `open` | opens the peers' memory |
//! | `outcome` | the outcome of opening, and the members' judgement of all outcomes |
//! | `local_registry` | registries in which ranks of one process find each other's memory |
//!
//! The modules `membership`, [`rendezvous`](crate::rendezvous), [`exchange`](crate::exchange) and
//! [`direct`](crate::direct) select the memory to share, and run the agreements.

mod export;
mod foreign;
mod host;
mod local_registry;
mod memory;
mod offer;
mod open;
mod outcome;
mod site;

pub use self::{
    export::{Export, Handle},
    foreign::{ForeignError, ForeignMemory, OpenedMemory, PeerHandle},
    outcome::OpeningOutcome,
    site::{Site, Uuid},
};
pub(crate) use self::{
    host::HostMemory,
    memory::{Imported, PlainMemory, Shareable, map},
    offer::{Offer, Party},
    open::open,
    outcome::{OpeningFailure, judge, sharing_refusal},
};
#[cfg(any(test, feature = "simulation"))]
pub(crate) use self::{local_registry::LocalRegistry, offer::Exports, open::open_exports};
