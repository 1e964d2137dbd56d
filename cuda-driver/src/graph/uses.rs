//! Ordering of work that uses memory of other streams.
//!
//! The memory of a slice belongs to one stream. When work on another stream uses the memory, events order the two
//! streams: the using stream first waits for the memory's stream, and the memory's stream then waits for the use.
//! A free of the memory, or an access from the host, therefore needs to wait only for the memory's own stream.
//!
//! Captured work does not run when it is enqueued, but at each launch of its graph. The graph holds the memory, and
//! each launch counts as a use.

use super::capture::{CaptureStatus, RelaxedCapture};
use super::kept::{self, BoundMemory};
use super::watch::Watch;
use crate::{Error, Event, EventFlags, Result, Stream};

/// Selects how [`enqueue`] treats work on a stream that captures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DuringCapture {
    /// Captures the work, and makes the graph hold the memory.
    Keep,
    /// Refuses the work.
    Refuse,
}

/// Returns the error for a call that cannot be part of the stream's capture.
fn while_capturing() -> Error {
    Error::WhileCapturing {
        what: "work on slices",
        instead: "captures of `Stream::begin_capture` take launches, fills and copies between device slices whose \
                  streams do not capture elsewhere; make other calls before or after the capture",
    }
}

/// Returns an error if the stream captures.
pub(crate) fn refuse_capture(stream: &Stream) -> Result<()> {
    if stream.capture_status()? == CaptureStatus::None { Ok(()) } else { Err(while_capturing()) }
}

/// Adds `memory` to the objects that the graph of the stream's capture will hold. Returns an error if the stream does
/// not capture, if the capture is invalidated, or if another library began it.
pub(crate) fn keep_in_capture(stream: &Stream, memory: &[BoundMemory]) -> Result<()> {
    if kept::keep_in_open(stream, &[], memory)? { Ok(()) } else { Err(while_capturing()) }
}

/// A guard that is dropped only if the work of [`enqueue`] panics. It is then unknown which work was enqueued, so the
/// drop keeps the memory for ever.
struct KeepForEver<'a>(&'a [BoundMemory]);

impl Drop for KeepForEver<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|memory| memory.keep_for_ever());
    }
}

/// Calls `work`, which enqueues work on `stream` that uses `memory`, and orders that work with other uses of the
/// memory. The order may be unknown after a failed call, a panic of `work` or a race with a capture. The memory is then
/// never freed.
///
/// The work may have been enqueued even if the result is an error. If `memory` is empty, only calls `work`.
pub(crate) fn enqueue<T, E: From<Error>>(
    stream: &Stream,
    memory: &[BoundMemory],
    during_capture: DuringCapture,
    work: impl FnOnce() -> Result<T, E>,
) -> Result<T, E> {
    if memory.is_empty() {
        return work();
    }
    let watch = Watch::new(memory.iter().map(|memory| memory.stream()).chain([stream]));
    let capture = capture_of(stream, memory, during_capture)?;
    let others = streams_to_order(stream, memory, capture)?;
    let done = if others.is_empty() { None } else { Some(event_of(stream)?) };
    // Called after each record of an event. If another thread began a capture, the event may be part of it, and a
    // stream that waits for such an event joins the capture.
    let not_captured = || -> Result<()> {
        match capture {
            None if !watch.is_certain() => Err(Error::CaptureRace { what: "work on slices" }),
            _ => Ok(()),
        }
    };
    for other in &others {
        let earlier = event_of(other)?;
        other.record(&earlier)?;
        not_captured()?;
        stream.wait_uncounted(&earlier)?;
    }
    let unwinding = KeepForEver(memory);
    let enqueued = work();
    std::mem::forget(unwinding);
    let ordered = done.map_or(Ok(()), |done| -> Result<()> {
        stream.record(&done)?;
        not_captured()?;
        others.iter().try_for_each(|other| other.wait_uncounted(&done))
    });
    let raced = match capture {
        None => Ok(!watch.is_certain()),
        // An invalidated capture has no id any more. This is no race: such a capture gives no graph that could hold the
        // work.
        Some(_) => {
            stream.capture_info().map(|info| info.id != capture && info.status != CaptureStatus::Invalidated)
        }
    };
    let is_ordered = ordered.is_ok() || capture.is_some() || synchronize(stream).is_ok();
    if !is_ordered || !matches!(raced, Ok(false)) {
        memory.iter().for_each(|memory| memory.keep_for_ever());
    }
    if raced? {
        return Err(Error::CaptureRace { what: "work on slices" }.into());
    }
    let enqueued = enqueued?;
    ordered?;
    Ok(enqueued)
}

/// Makes later work of `stream` wait for the work on `other`. Returns an error if one of them captures, or if another
/// thread may have begun a capture meanwhile.
pub(crate) fn order_after(stream: &Stream, other: &Stream) -> Result<()> {
    let watch = Watch::new([stream]);
    refuse_capture(stream)?;
    let earlier = record_uncaptured(other)?;
    let not_captured = || match watch.is_certain() {
        true => Ok(()),
        false => Err(Error::CaptureRace { what: "a wait for another stream" }),
    };
    // A wait of a capturing stream for an event outside of the capture would invalidate the capture.
    not_captured()?;
    stream.wait_uncounted(&earlier)?;
    not_captured()
}

/// Makes an event, and records it on `stream`. Returns an error if the stream captures, or if another thread may have
/// begun a capture meanwhile: a stream that waits for an event of a capture joins that capture.
pub(crate) fn record_uncaptured(stream: &Stream) -> Result<Event> {
    let watch = Watch::new([stream]);
    refuse_capture(stream)?;
    let event = event_of(stream)?;
    stream.record(&event)?;
    match watch.is_certain() {
        true => Ok(event),
        false => Err(Error::CaptureRace { what: "the record of an event" }),
    }
}

/// Returns `None` if `stream` does not capture. Otherwise makes the graph of the stream's capture hold `memory`, and
/// returns the id of the capture. Returns an error if the stream captures and `during_capture` is
/// [`Refuse`](DuringCapture::Refuse), if the capture is invalidated, or if another library began it.
fn capture_of(stream: &Stream, memory: &[BoundMemory], during_capture: DuringCapture) -> Result<Option<u64>> {
    let info = stream.capture_info()?;
    if info.status == CaptureStatus::None {
        return Ok(None);
    }
    if info.id.is_none() || during_capture == DuringCapture::Refuse {
        return Err(while_capturing());
    }
    keep_in_capture(stream, memory)?;
    Ok(info.id)
}

/// Returns the streams of `memory` that must be ordered with `stream` by events. If `stream` captures, these are only
/// the streams in the same capture: the others are ordered with each launch of the graph. Returns an error if one of
/// the streams is in a capture that `stream` is not in, is in an invalidated capture, or belongs to another driver.
fn streams_to_order<'a>(
    stream: &Stream,
    memory: &'a [BoundMemory],
    capture: Option<u64>,
) -> Result<Vec<&'a Stream>> {
    let mut others: Vec<&Stream> = Vec::new();
    for other in memory.iter().map(|memory| memory.stream()) {
        if other.is_same(stream) || others.contains(&other) {
            continue;
        }
        let ours = stream.context().driver();
        ours.require_same("a slice", other.context().driver(), "the stream that should use it")?;
        let info = other.capture_info()?;
        match (info.status, capture) {
            (CaptureStatus::None, None) => others.push(other),
            (CaptureStatus::None, Some(_)) => {}
            (CaptureStatus::Active, Some(_)) if info.id == capture => others.push(other),
            _ => return Err(while_capturing()),
        }
    }
    Ok(others)
}

fn event_of(stream: &Stream) -> Result<Event> {
    Event::new(stream.context(), EventFlags::DISABLE_TIMING)
}

/// Blocks until all work of the stream has completed. Allowed while other streams capture, with one exception: for the
/// legacy default stream, no blocking stream of its context may capture.
pub(crate) fn synchronize(stream: &Stream) -> Result<()> {
    let _relaxed = RelaxedCapture::enter(stream.context().driver())?;
    stream.synchronize()
}
