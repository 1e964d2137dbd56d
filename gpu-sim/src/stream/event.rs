//! Events: marks in streams, that streams and the host wait for.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cuda_driver_sys::{CUevent, CUresult};

use super::capture::Session;
use super::{Op, Stream, Streams};
use crate::abi::{Answer, Refusal};
use crate::sched::{self, Signal};
use crate::world::Machine;

/// An event. A record is a number; the event stands at the last one.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) id: u64,
    pub(crate) context: u64,
    timed: bool,
    state: Mutex<State>,
    signal: Signal,
}

#[derive(Debug, Default)]
struct State {
    recorded: u64,
    done: u64,
    /// When the last record that is done was reached.
    at: Option<Duration>,
    /// The last record was made by a capturing stream: the session and the nodes before the mark.
    captured: Option<(Arc<Session>, Vec<usize>)>,
}

impl Event {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks the end of what is in `stream` now.
    pub(crate) fn record(self: &Arc<Self>, machine: &Arc<Machine>, stream: &Arc<Stream>) -> Answer {
        if self.context != stream.context.id {
            let why = format!("event {:#x} and {} belong to different contexts", self.id, stream.name);
            return Err(Refusal::new(CUresult::CUDA_ERROR_INVALID_HANDLE, why));
        }
        if let Some(capturing) = stream.capturing_or_refuse(machine)? {
            self.state().captured = Some((capturing.session, capturing.after));
            return Ok(());
        }
        let me = self.clone();
        stream.push_with(machine, || {
            let mut state = self.state();
            state.captured = None;
            state.recorded += 1;
            let number = state.recorded;
            let run = Box::new(move |_: &super::Exec| {
                me.reach(number);
                Ok(())
            });
            Op {
                what: format!("record {number} of event {:#x}", self.id),
                run,
                always: true,
                after: Vec::new(),
            }
        });
        Ok(())
    }

    fn reach(&self, number: u64) {
        {
            let mut state = self.state();
            if number > state.done {
                (state.done, state.at) = (number, Some(sched::now()));
            }
        }
        self.signal.notify();
    }

    /// Makes later work of `stream` wait for the last record, or join the capture it was made in.
    pub(crate) fn hold_back(self: &Arc<Self>, machine: &Arc<Machine>, stream: &Arc<Stream>) -> Answer {
        let (captured, number) = {
            let state = self.state();
            (state.captured.clone(), state.recorded)
        };
        if let Some((session, nodes)) = captured {
            return stream.join(machine, &session, &nodes);
        }
        if number == 0 {
            return Ok(());
        }
        if let Some(capturing) = stream.capturing_or_refuse(machine)? {
            let why =
                format!("{} waits for event {:#x}, recorded outside of its capture", stream.name, self.id);
            capturing.session.invalidate(why.clone());
            return Err(Refusal::new(CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION, why));
        }
        let me = self.clone();
        let what = format!("a wait for event {:#x}", self.id);
        let run = Box::new(move |_: &super::Exec| {
            let reason = || format!("record {number} of event {:#x}", me.id);
            Ok(sched::wait(&me.signal, reason, None, || me.state().done >= number)?)
        });
        stream.push(machine, Op { what, run, always: false, after: Vec::new() });
        Ok(())
    }

    fn last(&self) -> Answer<u64> {
        let state = self.state();
        if state.captured.is_some() {
            let why = format!("event {:#x} was last recorded by a capture", self.id);
            return Err(Refusal::new(CUresult::CUDA_ERROR_CAPTURED_EVENT, why));
        }
        Ok(state.recorded)
    }

    /// Whether the last record is done.
    pub(crate) fn is_done(&self) -> Answer<bool> {
        let last = self.last()?;
        Ok(self.state().done >= last)
    }

    /// Blocks until the record that is the last one now is done.
    pub(crate) fn synchronize(&self) -> Answer {
        let last = self.last()?;
        let reason = || format!("record {last} of event {:#x}", self.id);
        Ok(sched::wait(&self.signal, reason, None, || self.state().done >= last)?)
    }

    /// Time from `start` to this event.
    pub(crate) fn elapsed_since(&self, start: &Self) -> Answer<f64> {
        let mut times = [0.0; 2];
        for (time, event) in times.iter_mut().zip([start, self]) {
            if !event.timed || event.last()? == 0 {
                let why = format!("event {:#x} is not timed or was never recorded", event.id);
                return Err(Refusal::new(CUresult::CUDA_ERROR_INVALID_HANDLE, why));
            }
            if !event.is_done()? {
                return Err(CUresult::CUDA_ERROR_NOT_READY.into());
            }
            *time = event.state().at.unwrap_or_default().as_secs_f64() * 1e3;
        }
        Ok(times[1] - times[0])
    }
}

impl Streams {
    pub(crate) fn create_event(&self, context: u64, timed: bool) -> Arc<Event> {
        let id = self.number();
        let event = Event { id, context, timed, state: Mutex::default(), signal: Signal::new() };
        let event = Arc::new(event);
        self.table().events.insert(id, event.clone());
        event
    }

    pub(crate) fn event(&self, handle: CUevent) -> Answer<Arc<Event>> {
        self.table().events.get(&(handle as u64)).cloned().ok_or_else(|| no_event(handle))
    }

    pub(crate) fn destroy_event(&self, handle: CUevent) -> Answer {
        let gone = self.table().events.remove(&(handle as u64));
        gone.map(drop).ok_or_else(|| no_event(handle))
    }
}

fn no_event(handle: CUevent) -> Refusal {
    Refusal::new(CUresult::CUDA_ERROR_INVALID_HANDLE, format!("{handle:p} is no live event"))
}
