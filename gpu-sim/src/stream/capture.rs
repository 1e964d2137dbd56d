//! Capture: streams that record a graph instead of running.
//!
//! A session begins on one stream. Another stream joins it by waiting for an event recorded in it, and must be joined
//! back before the end. A call that cannot be recorded invalidates the session; its end returns that error.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cuda_driver_sys::{CUgraphNodeType, CUresult, CUstreamCaptureMode};

use super::graph::{Graph, Node};
use super::{Stream, StreamKind, Streams, Work};
use crate::abi::{DriverError, DriverResult};
use crate::sched::with_local;
use crate::world::Machine;

/// A capture in progress.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: u64,
    mode: CUstreamCaptureMode,
    origin: u64,
    /// The rank that began it.
    by: u64,
    state: Mutex<Building>,
}

#[derive(Debug, Default)]
struct Building {
    nodes: Vec<Node>,
    streams: Vec<Arc<Stream>>,
    invalid: Option<String>,
    ended: bool,
}

/// One stream's state in a session.
#[derive(Debug, Clone)]
pub(crate) struct Capturing {
    pub(crate) session: Arc<Session>,
    /// Predecessors of the stream's next node.
    pub(crate) after: Vec<usize>,
}

/// A rank's capture interaction mode (`cuThreadExchangeStreamCaptureMode`), and the rank's number.
#[derive(Debug)]
struct Interaction {
    mode: CUstreamCaptureMode,
    rank: u64,
}

impl Default for Interaction {
    fn default() -> Self {
        static RANKS: AtomicU64 = AtomicU64::new(1);
        Self { mode: CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL, rank: RANKS.fetch_add(1, SeqCst) }
    }
}

impl Session {
    fn state(&self) -> MutexGuard<'_, Building> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Invalidates the session: only its end is possible from now on, and returns an error.
    pub(crate) fn invalidate(&self, why: String) {
        self.state().invalid.get_or_insert(why);
    }

    /// Drops the session's references to its streams.
    pub(super) fn let_go(&self) {
        self.state().streams.clear();
    }

    pub(crate) fn is_invalid(&self) -> bool {
        self.state().invalid.is_some()
    }

    pub(super) fn has_ended(&self) -> bool {
        self.state().ended
    }

    fn check(&self) -> DriverResult {
        match &self.state().invalid {
            Some(why) => Err(DriverError::new(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, why.clone())),
            None => Ok(()),
        }
    }

    fn add(&self, node: Node) -> usize {
        let mut state = self.state();
        state.nodes.push(node);
        state.nodes.len() - 1
    }
}

impl Stream {
    fn slot(&self) -> MutexGuard<'_, Option<Capturing>> {
        self.capture.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the stream's state in a capture, if it captures.
    pub(crate) fn capturing(&self) -> Option<Capturing> {
        self.slot().clone()
    }

    /// Like [`Stream::capturing`]. Fails if the capture is invalid, and on the legacy stream while a stream that it
    /// would wait for captures.
    pub(super) fn capturing_or_refuse(&self, machine: &Machine) -> DriverResult<Option<Capturing>> {
        if let Some(capturing) = self.capturing() {
            capturing.session.check()?;
            return Ok(Some(capturing));
        }
        if let Some((session, why)) = self.implicit(machine) {
            session.invalidate(why.clone());
            return Err(DriverError::new(CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, why));
        }
        Ok(None)
    }

    /// Like [`Stream::capturing`], for queries. It also fails on the legacy stream while a stream that it would wait
    /// for captures, but invalidates nothing (documented, not measured).
    pub(crate) fn asked_for_capture(&self, machine: &Machine) -> DriverResult<Option<Capturing>> {
        match self.implicit(machine) {
            Some((_, why)) => Err(DriverError::new(CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, why)),
            None => Ok(self.capturing()),
        }
    }

    /// For the legacy stream: the capture of a stream that it would wait for, and the error text.
    fn implicit(&self, machine: &Machine) -> Option<(Arc<Session>, String)> {
        if self.flavour != StreamKind::Legacy {
            return None;
        }
        machine.streams.of_context(self.context.id).into_iter().find_map(|other| {
            let capturing = other.capturing().filter(|_| other.flavour.is_blocking())?;
            let why = format!("{} would wait for {}, which captures", self.name, other.name);
            Some((capturing.session, why))
        })
    }

    /// Records `work` if the stream captures. Returns true if it does.
    pub(super) fn record(
        &self,
        machine: &Machine,
        kind: CUgraphNodeType,
        work: &Arc<dyn Work>,
    ) -> DriverResult<bool> {
        let Some(capturing) = self.capturing_or_refuse(machine)? else { return Ok(false) };
        let node = Node { kind, work: Some(work.clone()), after: capturing.after };
        let node = capturing.session.add(node);
        *self.slot() = Some(Capturing { session: capturing.session, after: vec![node] });
        Ok(true)
    }

    /// Makes the stream's next node depend on `nodes`. A stream that does not capture joins the session.
    pub(super) fn join(
        self: &Arc<Self>,
        machine: &Machine,
        session: &Arc<Session>,
        nodes: &[usize],
    ) -> DriverResult {
        if session.has_ended() {
            return Err(DriverError::invalid(format!(
                "{} waits for an event whose capture has ended",
                self.name
            )));
        }
        session.check()?;
        if self.flavour == StreamKind::Legacy {
            let why = format!("{} cannot capture", self.name);
            session.invalidate(why.clone());
            return Err(DriverError::new(CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, why));
        }
        let mut after = match self.capturing_or_refuse(machine)? {
            Some(capturing) if Arc::ptr_eq(&capturing.session, session) => capturing.after,
            Some(capturing) => {
                let why = format!("{} would merge two captures", self.name);
                capturing.session.invalidate(why.clone());
                session.invalidate(why.clone());
                return Err(DriverError::new(CUresult::CUDA_ERROR_STREAM_CAPTURE_MERGE, why));
            }
            None => {
                session.state().streams.push(self.clone());
                Vec::new()
            }
        };
        let known: BTreeSet<usize> = after.iter().copied().collect();
        after.extend(nodes.iter().filter(|n| !known.contains(n)));
        *self.slot() = Some(Capturing { session: session.clone(), after });
        Ok(())
    }

    /// Starts a capture on this stream.
    pub(crate) fn begin_capture(
        self: &Arc<Self>,
        machine: &Machine,
        mode: CUstreamCaptureMode,
    ) -> DriverResult {
        if self.flavour == StreamKind::Legacy {
            let why = "the legacy stream cannot capture";
            return Err(DriverError::new(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, why));
        }
        if self.capturing().is_some() {
            let why = format!("{} captures already", self.name);
            return Err(DriverError::new(CUresult::CUDA_ERROR_ILLEGAL_STATE, why));
        }
        let session = Arc::new(Session {
            id: machine.streams.number(),
            mode,
            origin: self.id,
            by: with_local(machine.id, |i: &mut Interaction| i.rank),
            state: Mutex::new(Building { streams: vec![self.clone()], ..Building::default() }),
        });
        machine.streams.table().sessions.push(session.clone());
        *self.slot() = Some(Capturing { session, after: Vec::new() });
        Ok(())
    }

    /// Ends the capture that began on this stream and returns its graph.
    pub(crate) fn end_capture(&self, machine: &Machine) -> DriverResult<Arc<Graph>> {
        let Some(capturing) = self.capturing() else {
            let why = format!("{} does not capture", self.name);
            return Err(DriverError::new(CUresult::CUDA_ERROR_ILLEGAL_STATE, why));
        };
        let session = capturing.session;
        if session.origin != self.id {
            let why = format!("the capture did not begin on {}", self.name);
            session.invalidate(why.clone());
            return Err(DriverError::new(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, why));
        }
        let me = with_local(machine.id, |i: &mut Interaction| i.rank);
        if session.by != me && session.mode != CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED {
            let why = "only the thread that began a capture may end it, unless its mode is relaxed";
            return Err(DriverError::new(CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, why));
        }
        let (nodes, streams, invalid) = {
            let mut state = session.state();
            state.ended = true;
            let streams = std::mem::take(&mut state.streams);
            (std::mem::take(&mut state.nodes), streams, state.invalid.clone())
        };
        machine.streams.table().sessions.retain(|s| s.id != session.id);
        let mut unjoined = None;
        let before_end = ancestors(&nodes, &capturing.after);
        for stream in streams {
            let left = stream.slot().take();
            let ends = left.map(|c| c.after).unwrap_or_default();
            if !ends.iter().all(|n| before_end.contains(n)) {
                unjoined = Some(format!("{} was not joined back before the end of the capture", stream.name));
            }
        }
        if let Some(why) = invalid {
            return Err(DriverError::new(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, why));
        }
        if let Some(why) = unjoined {
            return Err(DriverError::new(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED, why));
        }
        Ok(machine.streams.add_graph(nodes))
    }
}

/// Returns `of` and all their predecessors.
fn ancestors(nodes: &[Node], of: &[usize]) -> BTreeSet<usize> {
    let mut all = BTreeSet::new();
    let mut left = of.to_vec();
    while let Some(node) = left.pop() {
        if all.insert(node) {
            left.extend(&nodes[node].after);
        }
    }
    all
}

impl Streams {
    /// Refuses a call that could disturb a capture (allocation, event query, synchronisation) if the modes of the
    /// capture and of the rank forbid it, and invalidates the affected captures.
    pub(crate) fn forbid_during_capture(&self, machine: &Machine, call: &str) -> DriverResult {
        let sessions = self.table().sessions.clone();
        if sessions.is_empty() {
            return Ok(());
        }
        let (mode, me) = with_local(machine.id, |i: &mut Interaction| (i.mode, i.rank));
        let forbids = |s: &&Arc<Session>| {
            let relaxed = s.mode == CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
            let global = s.mode == CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
            match mode {
                CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED => false,
                CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL => s.by == me && !relaxed,
                _ => (s.by == me && !relaxed) || global,
            }
        };
        let hit: Vec<_> = sessions.iter().filter(forbids).collect();
        if hit.is_empty() {
            return Ok(());
        }
        let why = format!("{call} during a capture that forbids it");
        hit.iter().for_each(|s| s.invalidate(why.clone()));
        Err(DriverError::new(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, why))
    }

    /// Sets the rank's mode and returns the previous one.
    pub(crate) fn exchange_mode(&self, machine: &Machine, mode: CUstreamCaptureMode) -> CUstreamCaptureMode {
        with_local(machine.id, |i: &mut Interaction| std::mem::replace(&mut i.mode, mode))
    }
}
