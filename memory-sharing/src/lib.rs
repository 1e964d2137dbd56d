//! Shares memory between ranks: a rank exports memory, and other ranks open (map) it. This crate is the transport of
//! all handles of memory for `symm-mem`.
//!
//! A rank posts its [`Site`] (its location) and its [`Export`]s (descriptions of its shared memory) in its record, the
//! message with which it enters an [agreement](bootstrap::agreement). Once the members agree, each of them calls
//! [`open`] for the exports of the others. Ranks of one process find each other's memory in a registry of the process.
//! Other ranks of one host get a file descriptor over [`bootstrap::link`], if the memory can be exported as one. In all
//! other cases, a rank opens the memory by a handle in the record: a legacy IPC handle (`cuIpcGetMemHandle`, same host
//! only), a fabric handle, or the handle of another kind of device.
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
//! The callers select the memory to share, and run the agreement.

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
    host::HostMemory,
    local_registry::LocalRegistry,
    memory::{Imported, PlainMemory, Shareable, map},
    offer::{Exports, Offer, Party},
    open::{open, open_exports},
    outcome::{OpeningFailure, OpeningOutcome, judge},
    site::{Site, Uuid},
};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
