//! One-sided operations: a rank writes into another rank's window, and the target counts the signals it receives.
//!
//! A put opens the file of the peer's memory, also in another process; the peer sent the file's location when it
//! registered the window. Every mapping of the file sees the written bytes. The signals of a pair are a word that the
//! sender increments. A wait is satisfied at the sum of its count and the counts of all earlier waits. Signals in
//! captured streams have words of their own. The receiver resets them one by one, since a graph cannot know how often
//! it was launched.
//!
//! | | 2.29 | 2.30.3 |
//! |---|---|---|
//! | in a captured stream | refused | captured puts match captured waits |
//!
//! As in the library, the first call of a rank waits until every rank has made one; a group's one-sided operations
//! run before its others; a put may write past the end of the peer's window, unless the world is strict.

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

/// The first release that supports them in graphs.
pub(crate) const CAPTURED_SINCE: u32 = 23003;

/// Location of a window for another rank: the file of its memory, and the window's first byte there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) process: u64,
    pub(crate) file: u64,
    /// Offset of the memory in the file.
    pub(crate) offset: u64,
    /// Bytes of the memory.
    pub(crate) size: u64,
    /// Offset of the window in the memory.
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
    /// Address and length of the local source, in bytes.
    pub(crate) fn local(&self) -> (u64, usize) {
        match *self {
            Self::Put { local, bytes, .. } => (local, bytes),
            Self::Signal { .. } | Self::Wait { .. } => (0, 0),
        }
    }
}

/// Queues the meeting that a rank's first call implies, in the open group.
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

/// Returns the total of signals that each wait must reach. Totals are counted in launch order.
pub(crate) fn targets(comm: &Comm, operations: &[OneSided], captured: bool) -> Vec<u64> {
    let mut counters = comm.counters.lock().unwrap_or_else(PoisonError::into_inner);
    let target = |operation: &OneSided| match *operation {
        OneSided::Wait { peer, signals } if !captured => counters.await_signals(peer, signals),
        _ => 0,
    };
    operations.iter().map(target).collect()
}

/// Runs operations one after the other; `views` are their local sources.
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

/// Waits, for a captured operation, until the peer has consumed the previous signal and the data that came with it.
fn await_room(comm: &Comm, peer: usize, captured: bool) -> std::result::Result<(), Interrupted> {
    if !captured {
        return Ok(());
    }
    let word = comm.shared().layout().graph_signals(comm.rank, peer);
    wait_for(comm, peer, word, |found| found == 0)
}

/// Increments the peer's count of this rank's signals.
fn raise(comm: &Comm, peer: usize, captured: bool) {
    let shared = comm.shared();
    let layout = shared.layout();
    let signals =
        if captured { layout.graph_signals(comm.rank, peer) } else { layout.signals(comm.rank, peer) };
    shared.word(signals).fetch_add(1, Ordering::SeqCst);
    comm.signal().notify();
}

/// Waits for a captured signal of a peer, then resets it so that the peer can send the next.
fn take_back(comm: &Comm, peer: usize) -> std::result::Result<(), Interrupted> {
    let shared = comm.shared();
    let word = shared.layout().graph_signals(peer, comm.rank);
    wait_for(comm, peer, word, |found| found != 0)?;
    shared.word(word).store(0, Ordering::SeqCst);
    comm.signal().notify();
    Ok(())
}

/// Waits until the word at `offset`, which the peer changes, has the wanted value.
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
            // A rank may signal and leave after the check above, so check again.
            gone = !ready() && comm.has_departed(peer) && !ready();
            gone || ready()
        },
    )?;
    if gone { Err(Interrupted::Departed(peer)) } else { Ok(()) }
}
