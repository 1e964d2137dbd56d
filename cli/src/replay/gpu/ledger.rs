//! Counts and times of the driver calls of a replay.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use caching_alloc::host::Calls;
use caching_alloc::sources::{LoggedCall, SourceMethod};

use crate::replay::figures::DriverTimes;

/// A sum over the calls that a [`LoggingSource`](caching_alloc::sources::LoggingSource) has made.
#[derive(Debug, Default)]
pub(super) struct Ledger(Mutex<(Calls, DriverTimes)>);

impl Ledger {
    pub(super) fn record(&self, call: &LoggedCall) {
        let mut sums = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (calls, times) = &mut *sums;
        let (count, time): (_, &mut Duration) = match call.method {
            SourceMethod::Allocate => (&mut calls.allocate, &mut times.allocate),
            SourceMethod::Release => (&mut calls.release, &mut times.release),
            SourceMethod::Create => (&mut calls.create, &mut times.create),
            SourceMethod::Discard => (&mut calls.discard, &mut times.discard),
            SourceMethod::Map => (&mut calls.map, &mut times.map),
            SourceMethod::Enable => (&mut calls.enable, &mut times.enable),
            SourceMethod::Unmap => (&mut calls.unmap, &mut times.unmap),
            // Ranges of addresses are reserved once for many pages, and a replay exports nothing.
            _ => return,
        };
        *count += 1;
        *time += call.duration;
        if !call.outcome.is_success() {
            return;
        }
        match call.method {
            SourceMethod::Allocate | SourceMethod::Create => calls.live_bytes += call.bytes,
            SourceMethod::Release | SourceMethod::Discard => calls.live_bytes -= call.bytes,
            _ => {}
        }
        calls.peak_bytes = calls.peak_bytes.max(calls.live_bytes);
    }

    pub(super) fn calls(&self) -> Calls {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0
    }

    pub(super) fn times(&self) -> DriverTimes {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1
    }
}
