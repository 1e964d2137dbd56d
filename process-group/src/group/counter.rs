//! Counts of the work that a group has enqueued on its device. The members can compare these counts.
//!
//! Collectives can be compared on all members, and messages between their sender and receiver. The total
//! number of calls cannot be compared: in a pipeline, for example, the middle stages make more calls than the
//! first and the last.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use cuda_driver::Device;

use super::{GroupId, health::GroupHealth};
use crate::record::{Exchanged, Log, Recorder};

/// The part of a group that its [`Work`](super::Work) values share, including the log of the group's calls.
#[derive(Debug)]
pub(super) struct Counter {
    pub(super) id: GroupId,
    pub(super) name: Arc<str>,
    pub(super) log: Log,
    pub(super) recorder: Arc<Recorder>,
    pub(super) health: Arc<GroupHealth>,
    /// The time limit of waits for work.
    pub(super) timeout: Duration,
    /// The ranks of the job that are members.
    ranks: Arc<[usize]>,
    /// Identifies the device, as the address of its driver's function table and its ordinal. A test process
    /// may have two drivers.
    device: (usize, u32),
}

/// The work that one group of this process has enqueued.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Enqueued {
    /// The group.
    pub id: GroupId,
    /// The group's name.
    pub name: String,
    /// The number of calls; see [`ProcessGroup::sequence`](super::ProcessGroup::sequence).
    pub sequence: u64,
    /// The number of calls that all members make, including batches with a collective and calls of
    /// [`track_graph_launch`](super::ProcessGroup::track_graph_launch). Equal on all members that have enqueued
    /// the same calls.
    pub collectives: u64,
    /// The messages by peer, in ascending order. Peers without messages are left out.
    pub messages: Vec<MessageCounts>,
}

/// The messages of one group between this rank and a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct MessageCounts {
    /// The peer's rank of the job.
    pub peer: usize,
    /// The number of messages sent to the peer. Equal to the peer's `received` once both ends have enqueued
    /// the same messages.
    pub sent: u64,
    /// The number of messages received from the peer.
    pub received: u64,
    /// True if a graph captured any of these messages. Launches of the graph are not counted, so the counts
    /// cannot be compared.
    pub captured: bool,
}

static COUNTERS: Mutex<Vec<Weak<Counter>>> = Mutex::new(Vec::new());

fn counters() -> MutexGuard<'static, Vec<Weak<Counter>>> {
    COUNTERS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn key(device: &Device) -> (usize, u32) {
    (std::ptr::from_ref(device.driver().api().table()).addr(), device.ordinal())
}

impl Counter {
    /// Makes the counter of the group of `ranks`, and registers it for [`enqueued_on`].
    pub(super) fn new(
        id: GroupId,
        name: Arc<str>,
        (log, recorder): (Log, Arc<Recorder>),
        (health, timeout): (Arc<GroupHealth>, Duration),
        ranks: Arc<[usize]>,
        device: &Device,
    ) -> Arc<Self> {
        let counter = Arc::new(Self { id, name, log, recorder, health, timeout, ranks, device: key(device) });
        let mut counters = counters();
        counters.retain(|counter| counter.strong_count() > 0);
        counters.push(Arc::downgrade(&counter));
        counter
    }

    fn enqueued(&self) -> Enqueued {
        let (sequence, others) = self.log.counts();
        let messages = |(peer, with): (usize, Exchanged)| MessageCounts {
            peer: self.ranks.get(peer).copied().unwrap_or(peer),
            sent: with.sent,
            received: with.received,
            captured: with.captured,
        };
        let mut messages: Vec<MessageCounts> = others.messages.into_iter().map(messages).collect();
        messages.sort_unstable_by_key(|with| with.peer);
        let (id, name, collectives) = (self.id, self.name.to_string(), sequence - others.calls);
        Enqueued { id, name, sequence, collectives, messages }
    }
}

/// Returns the work that every group of this process has enqueued on `device`, in the order of their ids.
///
/// Serves to check that windows can be registered. Registering a window maps memory and waits for kernels,
/// which in turn may wait for a peer. Members must therefore not begin the registration while one of them has
/// enqueued a collective, or one end of a message, that another has not enqueued.
#[must_use]
pub fn enqueued_on(device: &Device) -> Vec<Enqueued> {
    let wanted = key(device);
    let mut found: Vec<_> = counters()
        .iter()
        .filter_map(Weak::upgrade)
        .filter(|counter| counter.device == wanted)
        .map(|counter| counter.enqueued())
        .collect();
    found.sort_unstable_by_key(|counter| counter.id);
    found
}
