//! The ranges that one communicator has registered or has still to register.
//!
//! Registration is local, but no other thread may be inside the communicator meanwhile. Requests that follow an
//! allocator's segments are therefore recorded first, and executed at once if the communicator is free. Otherwise the
//! next call that enters executes them before it enqueues anything. So a request never waits, and no call uses memory
//! before its registration.
//!
//! Memory is kept alive, by its [`Keeper`], until NCCL no longer knows it: until it is deregistered, or the
//! communicator is gone.

use std::{
    collections::{BTreeMap, VecDeque},
    ffi::c_void,
    fmt, ptr,
    sync::{Arc, PoisonError},
};

use cuda_driver::{DevicePtr, graph::RelaxedCapture};
use nccl_sys::Feature;

use super::{ArgumentError, CommError, Result, call::call, gate::Kind, shared::Shared};
use crate::{
    store::Deadline,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
};

const REGISTER: &str = "ncclCommRegister";
const DEREGISTER: &str = "ncclCommDeregister";

/// Keeps registered memory alive as long as the value lives, and is notified of the outcome. Called without a lock
/// held, on the thread that is inside the communicator.
pub(crate) trait Keeper: Send + Sync {
    fn registered(&self);
    fn deregistered(&self);
    fn failed(&self);
}

/// Called with the reason when a communicator on which all ranks rely lacks a registration. It must not block.
pub(crate) type Alarm = dyn Fn(&str) + Send + Sync;

/// The ranges that one communicator has registered.
#[derive(Default)]
pub(crate) struct Registry {
    /// True while requests are pending.
    owes: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By address, without overlaps.
    ranges: BTreeMap<u64, Range>,
    /// Addresses with a pending request. The range holds the request itself.
    todo: VecDeque<u64>,
    /// The reason why a range that should be registered is not.
    failure: Option<Arc<str>>,
    /// Set once the members rely on the registrations.
    alarm: Option<Arc<Alarm>>,
    /// Number of users that add and remove ranges.
    users: usize,
    /// Set when the communicator is about to end, or has ended. No range is added any more.
    ending: bool,
}

struct Range {
    bytes: usize,
    phase: Phase,
    /// The range is to be deregistered as soon as it is registered.
    unwanted: bool,
    keeper: Option<Arc<dyn Keeper>>,
}

/// NCCL's handle as a number; 0 if NCCL gave none.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Handle(usize);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Coming,
    /// A thread is in NCCL with the range.
    Moving,
    Registered(Handle),
    Leaving(Handle),
    /// NCCL failed to deregister the range.
    Stuck,
}

enum Job {
    Register(u64, usize),
    Deregister(u64, Handle),
}

impl Registry {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if requests are pending that the next call has to execute. One atomic load.
    #[inline]
    pub(crate) fn owes(&self) -> bool {
        self.owes.load(Ordering::Relaxed)
    }

    /// Returns the number of ranges that NCCL knows.
    pub(crate) fn len(&self) -> usize {
        let known = |range: &&Range| !matches!(range.phase, Phase::Coming | Phase::Moving);
        self.lock().ranges.values().filter(known).count()
    }

    /// Returns true if the `bytes` at `address` lie in one range that NCCL knows, or will know before the next call.
    pub(crate) fn covers(&self, address: u64, bytes: u64) -> bool {
        let state = self.lock();
        let known = state.ranges.range(..=address).next_back();
        known.is_some_and(|(begin, range)| {
            let effective = match range.phase {
                Phase::Coming | Phase::Moving => !range.unwanted,
                Phase::Registered(handle) => handle != Handle(0),
                Phase::Leaving(_) | Phase::Stuck => false,
            };
            effective && address.saturating_add(bytes) <= begin.saturating_add(range.bytes as u64)
        })
    }

    /// Returns the reason why a range that should be registered is not, if there is one.
    pub(crate) fn failure(&self) -> Option<Arc<str>> {
        self.lock().failure.clone()
    }

    /// Records a range to register. It must not overlap another. Does nothing if the communicator is about to end.
    fn note(&self, address: u64, bytes: usize, keeper: Arc<dyn Keeper>) -> Result<()> {
        let range = Range { bytes, phase: Phase::Coming, unwanted: false, keeper: Some(keeper) };
        self.insert(REGISTER, address, range)
    }

    fn insert(&self, call: &'static str, address: u64, range: Range) -> Result<()> {
        let mut state = self.lock();
        if state.ending && range.phase == Phase::Coming {
            return Ok(());
        }
        let end = address.saturating_add(range.bytes as u64);
        let before = state.ranges.range(..end).next_back();
        if let Some((at, known)) = before.filter(|(at, known)| **at + known.bytes as u64 > address) {
            let (known, known_bytes) = (*at, known.bytes);
            let bytes = range.bytes;
            return Err(ArgumentError::RegisteredTwice { call, address, bytes, known, known_bytes }.into());
        }
        if range.phase == Phase::Coming {
            state.todo.push_back(address);
            self.owes.store(true, Ordering::Release);
        }
        state.ranges.insert(address, range);
        Ok(())
    }

    /// Adds a user.
    pub(crate) fn begin(&self) {
        self.lock().users += 1;
    }

    /// Removes a user. After the last one, no member relies on the registrations.
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        state.users = state.users.saturating_sub(1);
        if state.users == 0 {
            (state.alarm, state.failure) = (None, None);
        }
    }

    /// Stops accepting new ranges.
    pub(super) fn retire(&self) {
        self.lock().ending = true;
    }

    /// Returns the next request to execute.
    fn next(&self) -> Option<Job> {
        let mut state = self.lock();
        while let Some(address) = state.todo.pop_front() {
            let failed = state.failure.is_some() || state.ending;
            let Some(range) = state.ranges.get_mut(&address) else { continue };
            match range.phase {
                // After a failure, or before the end, no registration is started.
                Phase::Coming if failed => drop(state.ranges.remove(&address)),
                Phase::Coming => {
                    range.phase = Phase::Moving;
                    return Some(Job::Register(address, range.bytes));
                }
                Phase::Leaving(handle) => {
                    range.phase = Phase::Moving;
                    return Some(Job::Deregister(address, handle));
                }
                Phase::Moving | Phase::Registered(_) | Phase::Stuck => {}
            }
        }
        self.owes.store(false, Ordering::Relaxed);
        None
    }

    /// Records the result of a registration.
    fn came(&self, address: u64, result: &Result<Handle>) {
        let mut state = self.lock();
        let keeper = state.ranges.get(&address).and_then(|range| range.keeper.clone());
        match result {
            Ok(handle) => {
                if let Some(range) = state.ranges.get_mut(&address) {
                    let unwanted = range.unwanted;
                    range.phase = if unwanted { Phase::Leaving(*handle) } else { Phase::Registered(*handle) };
                    if unwanted {
                        state.todo.push_back(address);
                        self.owes.store(true, Ordering::Release);
                    }
                }
            }
            Err(_) => drop(state.ranges.remove(&address)),
        }
        drop(state);
        if let Some(keeper) = keeper {
            if result.is_ok() { keeper.registered() } else { keeper.failed() }
        }
    }

    /// Records the result of a deregistration.
    fn went(&self, address: u64, result: &Result<()>) {
        let mut state = self.lock();
        let keeper = match result {
            Ok(()) => state.ranges.remove(&address).and_then(|range| range.keeper),
            Err(_) => state.ranges.get_mut(&address).and_then(|range| {
                range.phase = Phase::Stuck;
                range.keeper.clone()
            }),
        };
        drop(state);
        if let Some(keeper) = keeper {
            if result.is_ok() { keeper.deregistered() } else { keeper.failed() }
        }
    }

    /// Requests the deregistration of a range. A registration that has not started is cancelled instead.
    fn leave(&self, call: &'static str, address: u64) -> Result<()> {
        let mut state = self.lock();
        let Some(range) = state.ranges.get_mut(&address) else {
            return Err(ArgumentError::NotRegistered { call, address }.into());
        };
        match range.phase {
            Phase::Coming => drop(state.ranges.remove(&address)),
            Phase::Moving => range.unwanted = true,
            Phase::Registered(handle) => {
                range.phase = Phase::Leaving(handle);
                state.todo.push_back(address);
                self.owes.store(true, Ordering::Release);
            }
            Phase::Leaving(_) | Phase::Stuck => {}
        }
        Ok(())
    }

    /// Forgets all ranges once the communicator is gone.
    pub(super) fn clear(&self) {
        let mut state = self.lock();
        state.ending = true;
        let ranges = std::mem::take(&mut state.ranges);
        state.todo.clear();
        drop(state);
        let known = ranges.values().filter(|range| range.phase != Phase::Coming);
        known.filter_map(|range| range.keeper.as_ref()).for_each(|keeper| keeper.deregistered());
        // Memory is freed here, with no lock held.
        drop(ranges);
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registry({} ranges)", self.len())
    }
}

/// A range that could not be registered or deregistered.
#[derive(Debug)]
pub(crate) struct Unsettled {
    pub(crate) address: u64,
    pub(crate) bytes: usize,
    pub(crate) is_registration: bool,
    pub(crate) source: Box<CommError>,
}

impl Unsettled {
    fn reason(&self) -> String {
        let Self { address, bytes, .. } = self;
        format!("{bytes} bytes at {address:#x} could not be registered: {}", crate::error_text(&self.source))
    }
}

impl Shared {
    /// Registers a range now, or before the next call if another thread is inside. A failure poisons the communicator
    /// if its members rely on it.
    pub(crate) fn bring(&self, address: u64, bytes: usize, keeper: Arc<dyn Keeper>) -> Result<(), Unsettled> {
        self.note(address, bytes, keeper)?;
        self.settle_if_free(REGISTER)
    }

    /// Registers a range before the next call, or by [`settle_by`](Self::settle_by).
    pub(crate) fn note(&self, address: u64, bytes: usize, keeper: Arc<dyn Keeper>) -> Result<(), Unsettled> {
        self.registry.note(address, bytes, keeper).map_err(|source| {
            let unsettled = Unsettled { address, bytes, is_registration: true, source: source.into() };
            self.lacks(&unsettled.reason());
            unsettled
        })
    }

    /// Deregisters a range now, or before the next call if another thread is inside.
    pub(crate) fn dismiss(&self, address: u64) -> Result<(), Unsettled> {
        self.registry.leave(DEREGISTER, address).map_err(|source| Unsettled {
            address,
            bytes: 0,
            is_registration: false,
            source: source.into(),
        })?;
        self.settle_if_free(DEREGISTER)
    }

    /// Executes the pending requests, unless another thread is inside. The next call then executes them.
    fn settle_if_free(&self, call: &'static str) -> Result<(), Unsettled> {
        match self.gate.enter(call, Kind::Local, Some(Deadline::now())) {
            Ok(_entry) => self.settle(),
            Err(_) => Ok(()),
        }
    }

    /// Waits until no thread is inside, and executes the pending requests.
    pub(crate) fn settle_by(&self, deadline: Deadline) -> Result<(), Unsettled> {
        let _entry = self.gate.enter(REGISTER, Kind::Local, Some(deadline)).map_err(nowhere)?;
        self.settle()
    }

    /// Executes the pending requests before `call`, which may be refused afterwards. The caller is inside the gate.
    #[cold]
    pub(super) fn settle_before(&self, call: &'static str) -> Result<()> {
        match self.settle() {
            // Requests that are still pending were not started.
            Err(unsettled) if self.registry.owes() => Err(*unsettled.source),
            _ => self.gate.check(call),
        }
    }

    /// Executes all pending requests. Returns the first failure. The caller is inside the gate.
    pub(crate) fn settle(&self) -> Result<(), Unsettled> {
        let settled = self.context.with_current(|| self.settle_in_current());
        settled.map_err(|error| nowhere(error.into()))?
    }

    fn settle_in_current(&self) -> Result<(), Unsettled> {
        // Registration calls must not become part of a stream capture of this thread.
        let relaxed = RelaxedCapture::enter(self.context.driver());
        let _relaxed = relaxed.map_err(|error| nowhere(error.into()))?;
        let mut first = Ok(());
        while let Some(job) = self.registry.next() {
            let (address, bytes, is_registration, result) = match job {
                Job::Register(address, bytes) => {
                    // SAFETY: inside the gate. The keeper keeps the memory mapped at its address.
                    let result = unsafe { self.raw_register(address, bytes) };
                    let result = result.and_then(|handle| match handle {
                        Handle(0) => {
                            let communicator = self.name().to_owned();
                            Err(CommError::NothingRegistered { communicator, address, bytes })
                        }
                        handle => Ok(handle),
                    });
                    self.registry.came(address, &result);
                    (address, bytes, true, result.map(drop))
                }
                Job::Deregister(address, handle) => {
                    // SAFETY: inside the gate. The handle is the communicator's own, and is deregistered once.
                    let result = unsafe { self.raw_deregister(handle) };
                    self.registry.went(address, &result);
                    (address, 0, false, result)
                }
            };
            let Err(source) = result else { continue };
            let failed = Unsettled { address, bytes, is_registration, source: source.into() };
            if failed.is_registration {
                self.lacks(&failed.reason());
            }
            first = first.and(Err(failed));
        }
        first
    }

    /// Records that a range that should be registered is not.
    fn lacks(&self, reason: &str) {
        let mut state = self.registry.lock();
        let reason = state.failure.get_or_insert_with(|| reason.into()).clone();
        let alarm = state.alarm.clone();
        drop(state);
        if let Some(alarm) = alarm {
            self.gate.poison(&reason);
            alarm(&reason);
        }
    }

    /// Declares that the members rely on the registrations from now on. Any failure from here on, or since the caller
    /// checked, poisons the communicator and is passed to `alarm`.
    pub(crate) fn rely(&self, alarm: Arc<Alarm>) {
        let failure = {
            let mut state = self.registry.lock();
            state.alarm = Some(alarm.clone());
            state.failure.clone()
        };
        if let Some(reason) = failure {
            self.gate.poison(&reason);
            alarm(&reason);
        }
    }

    /// Deregisters everything before the end. The caller is inside the gate; only the destruction enters after it.
    pub(super) fn deregister_all(&self) -> Result<()> {
        let known: Vec<_> = self.registry.lock().ranges.keys().copied().collect();
        for address in known {
            self.registry.leave(DEREGISTER, address)?;
        }
        if self.registry.owes() { self.settle().map_err(|unsettled| *unsettled.source) } else { Ok(()) }
    }

    /// Registers a range of memory that the caller keeps alive. Returns true if NCCL gave a handle.
    ///
    /// # Safety
    /// The memory stays where it is until the range is deregistered, or the communicator is gone.
    pub(super) unsafe fn register(&self, ptr: DevicePtr, bytes: usize, deadline: Deadline) -> Result<bool> {
        if ptr.0 == 0 || bytes == 0 {
            return Err(ArgumentError::Null { call: "register", buffer: "registered", bytes }.into());
        }
        self.nccl.api().require(Feature::REGISTER)?;
        let _entry = self.gate.enter(REGISTER, Kind::Local, Some(deadline))?;
        self.context.with_current(|| {
            let range = Range { bytes, phase: Phase::Moving, unwanted: false, keeper: None };
            self.registry.insert(REGISTER, ptr.0, range)?;
            // SAFETY: inside the gate; the caller's contract.
            let result = unsafe { self.raw_register(ptr.0, bytes) };
            self.registry.came(ptr.0, &result);
            result.map(|handle| handle != Handle(0))
        })?
    }

    /// Deregisters a range of [`register`](Self::register). May be repeated after the communicator was busy.
    pub(super) fn deregister(&self, ptr: DevicePtr, deadline: Deadline) -> Result<()> {
        // Nothing aborts an adopted communicator, which would deregister the range.
        let kind = if self.is_adopted() { Kind::Cleanup } else { Kind::Local };
        let _entry = match self.gate.enter(DEREGISTER, kind, Some(deadline)) {
            Ok(entry) => entry,
            Err(busy @ CommError::Busy { .. })
                if self.is_adopted() || self.gate.check(DEREGISTER).is_ok() =>
            {
                return Err(busy);
            }
            // The communicator has ended, or can only be aborted.
            Err(_) => return Ok(()),
        };
        self.context.with_current(|| {
            let handle = match self.registry.lock().ranges.get_mut(&ptr.0) {
                Some(range) => match std::mem::replace(&mut range.phase, Phase::Moving) {
                    Phase::Registered(handle) => handle,
                    _ => return Ok(()),
                },
                None => return Ok(()),
            };
            // SAFETY: inside the gate. The handle is the communicator's own, and is deregistered once, also after an
            // error.
            let result = unsafe { self.raw_deregister(handle) };
            self.registry.went(ptr.0, &Ok(()));
            result
        })?
    }

    /// # Safety
    /// The caller is inside the gate; the memory stays where it is until it is deregistered.
    unsafe fn raw_register(&self, address: u64, bytes: usize) -> Result<Handle> {
        let mut handle = ptr::null_mut();
        let buffer = address as *mut c_void;
        // SAFETY: the communicator is alive inside the gate; the memory is alive by the caller's contract; the handle is
        // written before the call returns, because communicators are blocking.
        unsafe { call!(&self.nccl, self.name(), ncclCommRegister(self.raw(), buffer, bytes, &mut handle)) }?;
        Ok(Handle(handle.addr()))
    }

    /// # Safety
    /// The caller is inside the gate; the handle is the communicator's.
    unsafe fn raw_deregister(&self, Handle(handle): Handle) -> Result<()> {
        if handle == 0 {
            return Ok(());
        }
        let handle = handle as *mut c_void;
        // SAFETY: the communicator is alive inside the gate; the handle is its own.
        unsafe { call!(&self.nccl, self.name(), ncclCommDeregister(self.raw(), handle)) }
    }
}

/// A failure that concerns no single range.
fn nowhere(source: CommError) -> Unsettled {
    Unsettled { address: 0, bytes: 0, is_registration: true, source: source.into() }
}

#[cfg(test)]
mod interleavings {
    use super::*;
    use crate::sync::model::{check, thread};

    struct Memory;

    impl Keeper for Memory {
        fn registered(&self) {}
        fn deregistered(&self) {}
        fn failed(&self) {}
    }

    /// Another thread adds segments while a communicator is destroyed or aborted.
    #[test]
    fn what_comes_while_a_communicator_ends_is_not_kept() {
        for is_destroyed in [true, false] {
            check(move || {
                let (registry, memory) = (Arc::new(Registry::default()), Arc::new(Memory));
                let coming = {
                    let (registry, memory) = (registry.clone(), memory.clone());
                    thread::spawn(move || {
                        for address in [1, 2] {
                            registry.note(address, 1, memory.clone()).unwrap();
                        }
                    })
                };
                if is_destroyed {
                    registry.retire();
                    assert!(registry.next().is_none(), "nothing is begun towards the end");
                }
                registry.clear();
                coming.join().unwrap();
                assert_eq!(Arc::strong_count(&memory), 1, "memory is kept by what has ended");
            });
        }
    }
}
