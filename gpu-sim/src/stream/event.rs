//! Events: marks in streams that other streams and the host wait for.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use cuda_driver_sys::{CUevent, CUresult};

use super::capture::Session;
use super::{Op, Stream, Streams};
use crate::abi::{DriverError, DriverResult};
use crate::sched::{self, Signal, WaitError};
use crate::world::Machine;

/// An event. It refers to its last record.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) id: u64,
    pub(crate) context: u64,
    timed: bool,
    last: Mutex<Last>,
}

/// An event's last record.
#[derive(Debug, Clone, Default)]
enum Last {
    #[default]
    Never,
    /// In a stream.
    Mark(Arc<Mark>),
    /// By a capturing stream: the session, and the nodes before the mark.
    Captured(Arc<Session>, Vec<usize>),
}

/// One record in a stream. Records of one event may complete in any order, since their streams differ.
#[derive(Debug, Default)]
struct Mark {
    /// Time at which it completed.
    reached: OnceLock<Duration>,
    signal: Signal,
}

impl Mark {
    fn is_reached(&self) -> bool {
        self.reached.get().is_some()
    }

    fn reach(&self) {
        // A mark is in one queue, so it completes once.
        let _ = self.reached.set(sched::now());
        self.signal.notify();
    }

    fn wait(&self, event: u64) -> Result<(), WaitError> {
        sched::wait(&self.signal, || format!("event {event:#x}"), None, || self.is_reached())
    }
}

impl Event {
    fn last(&self) -> MutexGuard<'_, Last> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the event after all work that is in `stream` now.
    pub(crate) fn record(self: &Arc<Self>, machine: &Arc<Machine>, stream: &Arc<Stream>) -> DriverResult {
        if self.context != stream.context.id {
            let why = format!("event {:#x} and {} belong to different contexts", self.id, stream.name);
            return Err(DriverError::new(CUresult::CUDA_ERROR_INVALID_HANDLE, why));
        }
        stream.make_room();
        if let Some(capturing) = stream.capturing_or_refuse(machine)? {
            *self.last() = Last::Captured(capturing.session, capturing.after);
            return Ok(());
        }
        stream.push_with(machine, |_| {
            let mark = Arc::new(Mark::default());
            *self.last() = Last::Mark(mark.clone());
            let run = Box::new(move |_: &super::Exec| {
                mark.reach();
                Ok(())
            });
            Op { what: format!("a record of event {:#x}", self.id), run, always: true, after: Vec::new() }
        });
        Ok(())
    }

    /// Makes later work of `stream` wait for the last record, or join the capture in which it was made.
    pub(crate) fn make_stream_wait(&self, machine: &Arc<Machine>, stream: &Arc<Stream>) -> DriverResult {
        // An event that was never recorded delays nothing.
        let has_mark = matches!(*self.last(), Last::Mark(_));
        if has_mark {
            stream.make_room();
        }
        let last = self.last().clone();
        let mark = match last {
            Last::Never => return Ok(()),
            Last::Captured(session, nodes) => return stream.join(machine, &session, &nodes),
            Last::Mark(mark) => mark,
        };
        if let Some(capturing) = stream.capturing_or_refuse(machine)? {
            let why =
                format!("{} waits for event {:#x}, recorded outside of its capture", stream.name, self.id);
            capturing.session.invalidate(why.clone());
            return Err(DriverError::new(CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION, why));
        }
        let id = self.id;
        let run = Box::new(move |_: &super::Exec| Ok(mark.wait(id)?));
        let what = format!("a wait for event {id:#x}");
        stream.push(machine, Op { what, run, always: false, after: Vec::new() });
        Ok(())
    }

    /// Returns the last record in a stream; `None` if there never was one.
    fn mark(&self) -> DriverResult<Option<Arc<Mark>>> {
        match &*self.last() {
            Last::Never => Ok(None),
            Last::Mark(mark) => Ok(Some(mark.clone())),
            Last::Captured(session, _) => {
                let why = format!("event {:#x} was last recorded by a capture", self.id);
                if session.has_ended() {
                    return Err(DriverError::invalid(why));
                }
                session.invalidate(format!("event {:#x} was asked about", self.id));
                Err(DriverError::new(CUresult::CUDA_ERROR_CAPTURED_EVENT, why))
            }
        }
    }

    /// True if the last record has completed.
    pub(crate) fn is_done(&self) -> DriverResult<bool> {
        Ok(self.mark()?.is_none_or(|mark| mark.is_reached()))
    }

    /// Blocks until the record that is the last one at the call has completed.
    pub(crate) fn synchronize(&self) -> DriverResult {
        match self.mark()? {
            Some(mark) => Ok(mark.wait(self.id)?),
            None => Ok(()),
        }
    }

    /// Returns the time from `start` to this event.
    pub(crate) fn elapsed_since(&self, start: &Self) -> DriverResult<f64> {
        let mut times = [0.0; 2];
        for (time, event) in times.iter_mut().zip([start, self]) {
            let Some(mark) = event.mark()?.filter(|_| event.timed) else {
                let why = format!("event {:#x} is not timed or was never recorded", event.id);
                return Err(DriverError::new(CUresult::CUDA_ERROR_INVALID_HANDLE, why));
            };
            let reached = mark.reached.get().ok_or(CUresult::CUDA_ERROR_NOT_READY)?;
            *time = reached.as_secs_f64() * 1e3;
        }
        Ok(times[1] - times[0])
    }
}

impl Streams {
    pub(crate) fn create_event(&self, context: u64, timed: bool) -> Arc<Event> {
        let id = self.number();
        let event = Event { id, context, timed, last: Mutex::default() };
        let event = Arc::new(event);
        self.table().events.insert(id, event.clone());
        event
    }

    pub(crate) fn event(&self, handle: CUevent) -> DriverResult<Arc<Event>> {
        self.table().events.get(&(handle as u64)).cloned().ok_or_else(|| no_event(handle))
    }

    pub(crate) fn destroy_event(&self, handle: CUevent) -> DriverResult {
        let gone = self.table().events.remove(&(handle as u64));
        gone.map(drop).ok_or_else(|| no_event(handle))
    }
}

fn no_event(handle: CUevent) -> DriverError {
    DriverError::new(CUresult::CUDA_ERROR_INVALID_HANDLE, format!("{handle:p} is no live event"))
}
