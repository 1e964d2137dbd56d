//! One-sided operations: a rank writes into a window of another, which counts the signals that it is sent.
//!
//! A put opens the file of the peer's memory, wherever that process is, by the place that it told when the window was
//! registered; what is written there, every mapping of it shows. Signals of a pair are a word that its sender raises:
//! a wait is enqueued for so many more than all waits before it. Captured ones have words of their own, which the
//! receiver takes back one by one, since a graph cannot know how often it was launched.
//!
//! | | 2.29 | 2.30.3 |
//! |---|---|---|
//! | in a captured stream | refused | puts there meet waits there |
//!
//! As in the library, the first call of a rank waits until every rank has made one; a group's one-sided operations
//! come before its others; a put may go past the end of the peer's window, unless the world is strict.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use rustix::fs::{Mode, OFlags};

use super::comm::Comm;
use super::error::{Failure, Interrupted, Result};
use super::group;
use super::host::{self, Call};
use super::library::Library;
use super::shm::Plane;
use crate::memory::{Physical, View};
use crate::world::Machine;

/// The first release that has them in graphs.
pub(crate) const CAPTURED_SINCE: u32 = 23003;

/// Where a window lies for another rank: its memory's file, and its first byte there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) process: u64,
    pub(crate) file: u64,
    /// Of the memory in the file.
    pub(crate) offset: u64,
    /// Bytes of the memory.
    pub(crate) size: u64,
    /// Of the window in the memory.
    pub(crate) start: u64,
}

/// `ncclPutSignal`, `ncclSignal`, and one description of `ncclWaitSignal`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum OneSided {
    Put { local: u64, bytes: usize, peer: usize, place: Place, offset: u64 },
    Signal { peer: usize },
    Wait { peer: usize, signals: u64 },
}

impl OneSided {
    /// What it reads of its own rank.
    pub(crate) fn local(&self) -> (u64, usize) {
        match *self {
            Self::Put { local, bytes, .. } => (local, bytes),
            Self::Signal { .. } | Self::Wait { .. } => (0, 0),
        }
    }
}

/// Queues the call that hides in the first one of a rank, in the group that is open.
pub(crate) fn begin(machine: &Arc<Machine>, library: &Library, comm: &Arc<Comm>) -> Result {
    if !comm.topology().symmetric {
        return Err(Failure::argument(format!("{comm} has no windows, and so no one-sided operations")));
    }
    if comm.one_sided.swap(true, Ordering::SeqCst) {
        return Ok(());
    }
    let inside = comm.clone();
    let job = Box::new(move || host::exchange(&inside, &host::card(Call::OneSided)).map(drop));
    group::add_job(machine, library, comm, job)
}

/// How many signals of a pair there must have been for each operation that waits: counted in the order of launches.
pub(crate) fn targets(comm: &Comm, operations: &[OneSided], captured: bool) -> Vec<u64> {
    let mut counters = comm.counters.lock().unwrap_or_else(PoisonError::into_inner);
    let target = |operation: &OneSided| match *operation {
        OneSided::Wait { peer, signals } if !captured => counters.await_signals(peer, signals),
        _ => 0,
    };
    operations.iter().map(target).collect()
}

/// Runs operations that follow each other; `views` are what they read.
pub(crate) fn run(
    comm: &Comm,
    operations: &[OneSided],
    views: &[View],
    targets: &[u64],
    captured: bool,
) -> std::result::Result<Option<Failure>, Interrupted> {
    for ((operation, view), target) in operations.iter().zip(views).zip(targets) {
        match *operation {
            OneSided::Put { peer, place, offset, .. } => {
                await_room(comm, peer, captured)?;
                if let Err(error) = write(view, place, offset) {
                    return Ok(Some(Failure::cuda(format!("writing to rank {peer} of {comm}: {error}"))));
                }
                raise(comm, peer, captured);
            }
            OneSided::Signal { peer } => {
                await_room(comm, peer, captured)?;
                raise(comm, peer, captured);
            }
            OneSided::Wait { peer, signals } if captured => {
                (0..signals).try_for_each(|_| take_back(comm, peer))?;
            }
            OneSided::Wait { peer, .. } => {
                let raised = comm.shared().layout().signals(peer, comm.rank);
                wait_for(comm, peer, raised, |found| found >= *target)?;
            }
        }
    }
    Ok(None)
}

/// Copies a put's bytes into the peer's memory.
fn write(view: &View, place: Place, offset: u64) -> std::result::Result<(), String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let path = format!("/proc/{}/fd/{}", place.process, place.file);
    let file = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    let file = file.map_err(|error| text(&io::Error::from(error)))?;
    let memory = Physical::import(file, Some((place.offset, place.size))).map_err(|error| text(&error))?;
    let start = place.start + offset;
    if start.checked_add(view.len() as u64).is_none_or(|end| end > place.size) {
        return Err(format!("{} bytes at {start:#x} of memory of {} bytes", view.len(), place.size));
    }
    let mut chunk = vec![0; view.len().min(1 << 20)];
    let mut done = 0;
    while done < view.len() {
        let len = chunk.len().min(view.len() - done);
        view.read(done, &mut chunk[..len]);
        let mut rest = &chunk[..len];
        while !rest.is_empty() {
            let at = place.offset + start + (done + len - rest.len()) as u64;
            let written = rustix::io::pwrite(memory.file(), rest, at);
            rest = &rest[written.map_err(|error| text(&io::Error::from(error)))?..];
        }
        done += len;
    }
    memory.written().notify();
    Ok(())
}

/// What is captured waits until the peer has taken back the signal before, and whatever came with it.
fn await_room(comm: &Comm, peer: usize, captured: bool) -> std::result::Result<(), Interrupted> {
    if !captured {
        return Ok(());
    }
    let word = comm.shared().layout().graph_signals(comm.rank, peer);
    wait_for(comm, peer, word, |found| found == 0)
}

/// Raises a peer's count of our signals.
fn raise(comm: &Comm, peer: usize, captured: bool) {
    let shared = comm.shared();
    let layout = shared.layout();
    let signals =
        if captured { layout.graph_signals(comm.rank, peer) } else { layout.signals(comm.rank, peer) };
    shared.word(signals).fetch_add(1, Ordering::SeqCst);
    comm.signal().notify();
}

/// Waits for a captured signal of a peer, and lets it raise the next.
fn take_back(comm: &Comm, peer: usize) -> std::result::Result<(), Interrupted> {
    let shared = comm.shared();
    let word = shared.layout().graph_signals(peer, comm.rank);
    wait_for(comm, peer, word, |found| found != 0)?;
    shared.word(word).store(0, Ordering::SeqCst);
    comm.signal().notify();
    Ok(())
}

/// Waits until the word at `offset`, which the peer changes, is as wanted.
fn wait_for(
    comm: &Comm,
    peer: usize,
    offset: usize,
    wanted: impl Fn(u64) -> bool,
) -> std::result::Result<(), Interrupted> {
    let ready = || wanted(comm.shared().word(offset).load(Ordering::SeqCst));
    let mut gone = false;
    comm.wait(
        Plane::Stream,
        || format!("a signal of rank {peer} on {comm}"),
        || {
            // Who has left may have signalled before that, and after we looked.
            gone = !ready() && comm.has_departed(peer) && !ready();
            gone || ready()
        },
    )?;
    if gone { Err(Interrupted::Departed(peer)) } else { Ok(()) }
}
