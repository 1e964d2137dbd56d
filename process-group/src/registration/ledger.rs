//! Which segment is registered with which communicator.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};

use caching_alloc::core::{Hold, Segment, SegmentId};
use cuda_driver::DevicePtr;

use super::{Counts, RegistrarError, Result};
use crate::{
    comm::{CommError, Communicator, Registration, Shared, register},
    store::Deadline,
};

/// The state of a registrar.
pub(super) struct Ledger {
    device: u32,
    patience: Duration,
    communicators: Vec<Weak<Shared>>,
    segments: HashMap<SegmentId, Held>,
    /// What could not be deregistered.
    stuck: Vec<Held>,
    poison: Option<String>,
    counts: Counts,
}

/// A segment with its registrations. The memory cannot go while it is here.
struct Held {
    hold: Hold,
    registrations: Vec<(Weak<Shared>, Registration)>,
}

impl Held {
    fn segment(&self) -> &Segment {
        self.hold.segment()
    }

    /// Forgets registrations that ended with their communicator.
    fn prune(&mut self) {
        self.registrations.retain(|(shared, _)| alive(shared).is_some());
    }
}

/// The communicator, if it has not ended.
fn alive(shared: &Weak<Shared>) -> Option<Arc<Shared>> {
    let ended = |shared: &Arc<Shared>| matches!(shared.gate.check("register"), Err(CommError::Closed { .. }));
    shared.upgrade().filter(|shared| !ended(shared))
}

impl Ledger {
    pub(super) fn new(device: u32, patience: Duration) -> Self {
        Self {
            device,
            patience,
            communicators: Vec::new(),
            segments: HashMap::new(),
            stuck: Vec::new(),
            poison: None,
            counts: Counts::default(),
        }
    }

    pub(super) fn check(&self) -> Result<()> {
        match &self.poison {
            None => Ok(()),
            Some(reason) => Err(RegistrarError::Poisoned { reason: reason.clone() }),
        }
    }

    pub(super) fn counts(&self) -> Counts {
        let held = self.segments.values().chain(&self.stuck);
        let live =
            |held: &Held| held.registrations.iter().filter(|(shared, _)| alive(shared).is_some()).count();
        Counts {
            segments: self.segments.len(),
            communicators: self.communicators.iter().filter_map(alive).count(),
            registrations: held.map(live).sum(),
            stuck: self.stuck.len(),
            ..self.counts
        }
    }

    /// A segment has come: it is registered before anybody gets a block of it.
    pub(super) fn come(&mut self, segment: &Segment) -> Result<()> {
        let held = Held { hold: segment.hold("segment registrar")?, registrations: Vec::new() };
        let held = self.segments.entry(segment.id()).or_insert(held);
        if self.poison.is_some() {
            // Not registered with anybody, and nobody is told twice.
            return Ok(());
        }
        self.communicators.retain(|shared| alive(shared).is_some());
        for weak in &self.communicators {
            let Some(shared) = alive(weak) else { continue };
            match register_segment(&shared, segment, self.patience) {
                Ok(registration) => {
                    held.registrations.push((weak.clone(), registration));
                    self.counts.registered += 1;
                }
                // It has ended, or awaits its abort: it will not use the segment.
                Err(RegistrarError::Register {
                    source: CommError::Closed { .. } | CommError::Poisoned { .. },
                    ..
                }) => {}
                Err(error) => {
                    self.counts.failures += 1;
                    self.poison = Some(describe(&error));
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// A segment is to go: nothing may know it any more.
    pub(super) fn go(&mut self, segment: &Segment) -> Result<()> {
        let Some(mut held) = self.segments.remove(&segment.id()) else { return Ok(()) };
        let released = release(&mut held, |_| true, self.patience, &mut self.counts);
        if released.is_err() {
            self.stuck.push(held);
        }
        released
    }

    pub(super) fn add(&mut self, communicator: &Communicator) -> Result<()> {
        self.check()?;
        let found = communicator.context().device().ordinal();
        if found != self.device {
            let communicator = communicator.name().to_owned();
            return Err(RegistrarError::WrongDevice { communicator, found, wanted: self.device });
        }
        let shared = communicator.shared();
        let weak = Arc::downgrade(shared);
        if self.communicators.iter().any(|known| known.ptr_eq(&weak)) {
            return Ok(());
        }
        for held in self.segments.values_mut() {
            match register_segment(shared, held.segment(), self.patience) {
                Ok(registration) => {
                    held.registrations.push((weak.clone(), registration));
                    self.counts.registered += 1;
                }
                Err(error) => {
                    self.counts.failures += 1;
                    // What cannot be undone stays with its segment, whose memory then cannot go.
                    return self.remove(communicator).and(Err(error));
                }
            }
        }
        self.communicators.push(weak);
        Ok(())
    }

    pub(super) fn remove(&mut self, communicator: &Communicator) -> Result<()> {
        let weak = Arc::downgrade(communicator.shared());
        self.communicators.retain(|known| !known.ptr_eq(&weak));
        let mut first = Ok(());
        for held in self.segments.values_mut() {
            let released = release(held, |known| known.ptr_eq(&weak), self.patience, &mut self.counts);
            first = first.and(released);
        }
        first
    }

    pub(super) fn clear(&mut self) -> Result<()> {
        self.communicators.clear();
        let mut first = Ok(());
        for (_, mut held) in self.segments.drain() {
            let released = release(&mut held, |_| true, self.patience, &mut self.counts);
            if released.is_err() {
                self.stuck.push(held);
            }
            first = first.and(released);
        }
        first
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        self.stuck.iter_mut().for_each(Held::prune);
        // A communicator that still knows the memory may reach it: it stays, for ever.
        for held in self.stuck.drain(..).filter(|held| !held.registrations.is_empty()) {
            std::mem::forget(held);
        }
    }
}

/// Registers a whole segment with one communicator.
fn register_segment(shared: &Arc<Shared>, segment: &Segment, patience: Duration) -> Result<Registration> {
    let (address, bytes) = (segment.address(), segment.bytes());
    let length = usize::try_from(bytes).unwrap_or(usize::MAX);
    // SAFETY: the segment is held until the registration is gone. Whether it is registered is the same on all ranks
    // as long as no registrar is poisoned, which its users agree on.
    let registered = unsafe { register(shared, DevicePtr(address), length, Deadline::after(patience)) };
    registered.map_err(|source| RegistrarError::Register { address, bytes, source })
}

/// Undoes the registrations that `chosen` picks; what fails stays.
fn release(
    held: &mut Held,
    chosen: impl Fn(&Weak<Shared>) -> bool,
    patience: Duration,
    counts: &mut Counts,
) -> Result<()> {
    held.prune();
    let (address, bytes) = (held.segment().address(), held.segment().bytes());
    let mut first = Ok(());
    held.registrations.retain(|(shared, registration)| {
        if !chosen(shared) {
            return true;
        }
        match registration.release(Deadline::after(patience)) {
            Ok(()) => {
                counts.deregistered += 1;
                false
            }
            Err(source) => {
                counts.failures += 1;
                if first.is_ok() {
                    first = Err(RegistrarError::Deregister { address, bytes, source });
                }
                true
            }
        }
    });
    first
}

/// The whole chain of an error, as one line.
fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
