//! Devices and contexts: ownership, each rank's current context, and the state that a fault leaves.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cuda_driver_sys::{CUlimit, CUresult};

use crate::abi::{DriverError, DriverResult};
use crate::fault::Fault;
use crate::memory::Arena;
use crate::sched::{Pool, with_local};
use crate::world::{Leak, Machine};

/// One GPU.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) ordinal: usize,
    pub(crate) arena: Arc<Arena>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) peers: Peers,
    primary: Mutex<Primary>,
}

/// The primary context: alive while it is retained.
#[derive(Debug, Default)]
struct Primary {
    context: Option<Arc<Context>>,
    retains: u64,
    flags: u32,
}

/// The devices whose plain allocations this device may access (one bit each).
#[derive(Debug, Default)]
pub(crate) struct Peers(AtomicU64);

impl Peers {
    pub(crate) fn is_enabled(&self, device: usize) -> bool {
        self.0.load(SeqCst) & (1 << device) != 0
    }

    /// Returns false if the state was already `enabled`.
    pub(crate) fn set(&self, device: usize, enabled: bool) -> bool {
        let bit = 1 << device;
        let before = if enabled { self.0.fetch_or(bit, SeqCst) } else { self.0.fetch_and(!bit, SeqCst) };
        (before & bit != 0) != enabled
    }
}

impl Device {
    pub(crate) fn new(ordinal: usize, capacity: u64, exports: bool) -> Self {
        Self {
            ordinal,
            arena: Arc::new(Arena::new(ordinal, capacity, exports)),
            pool: Pool::new(format!("device {ordinal}")),
            peers: Peers::default(),
            primary: Mutex::default(),
        }
    }

    fn primary(&self) -> MutexGuard<'_, Primary> {
        self.primary.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Retains the primary context; the first retain creates it.
    pub(crate) fn retain_primary(&self, contexts: &Contexts) -> Arc<Context> {
        let mut primary = self.primary();
        primary.retains += 1;
        let flags = primary.flags;
        primary.context.get_or_insert_with(|| contexts.create(self.ordinal, true, flags)).clone()
    }

    /// Releases one retain; returns the context if that was the last.
    pub(crate) fn release_primary(&self) -> DriverResult<Option<Arc<Context>>> {
        let mut primary = self.primary();
        if primary.retains == 0 {
            return Err(DriverError::new(
                CUresult::CUDA_ERROR_INVALID_CONTEXT,
                "the primary context is not retained",
            ));
        }
        primary.retains -= 1;
        Ok(if primary.retains == 0 { primary.context.take() } else { None })
    }

    /// Takes the context so that the caller can tear it down, whatever its retain count. The count is unchanged.
    pub(crate) fn reset_primary(&self) -> Option<Arc<Context>> {
        self.primary().context.take()
    }

    pub(crate) fn set_primary_flags(&self, flags: u32) {
        self.primary().flags = flags;
    }

    /// Returns its flags, and true if it is alive.
    pub(crate) fn primary_state(&self) -> (u32, bool) {
        let primary = self.primary();
        (primary.flags, primary.context.is_some())
    }
}

/// A CUDA context, the owner of a program's handles.
#[derive(Debug)]
pub(crate) struct Context {
    /// Its handle and its number (`cuCtxGetId`).
    pub(crate) id: u64,
    pub(crate) device: usize,
    pub(crate) primary: bool,
    pub(crate) flags: u32,
    poison: Mutex<Option<Poison>>,
    /// Limits that the program set explicitly.
    limits: Mutex<BTreeMap<u32, usize>>,
}

/// The first fault of a context.
#[derive(Debug)]
struct Poison {
    code: CUresult,
    /// The note about it.
    note: String,
    /// True if a call has returned its error.
    was_returned: bool,
}

impl Context {
    fn first_fault(&self) -> MutexGuard<'_, Option<Poison>> {
        self.poison.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Poisons the context. Later calls return the error of the first fault.
    pub(crate) fn poison(self: &Arc<Self>, machine: &Machine, fault: &Fault, by: &str) {
        let note = format!("device {} is poisoned by {by}: {fault}", self.device);
        // The waits of a deadlock, and those at the end of the world, are no errors of this work.
        let was_returned = matches!(fault, Fault::Wait(_));
        let poison = Poison { code: DriverError::from(fault).code, note: note.clone(), was_returned };
        let mut first = self.first_fault();
        if first.is_none() {
            *first = Some(poison);
            drop(first);
            machine.note(note);
            machine.contexts.poisoned().push(self.clone());
        }
    }

    /// Returns a limit. Limits are stored and returned without effect, since kernels here use no device stack or
    /// heap.
    pub(crate) fn limit(&self, limit: CUlimit) -> DriverResult<usize> {
        let default = match limit {
            CUlimit::CU_LIMIT_STACK_SIZE => 1 << 10,
            CUlimit::CU_LIMIT_PRINTF_FIFO_SIZE => 7 << 20,
            CUlimit::CU_LIMIT_MALLOC_HEAP_SIZE => 8 << 20,
            other => {
                let why = format!("{other:?} is not modelled");
                return Err(DriverError::new(CUresult::CUDA_ERROR_UNSUPPORTED_LIMIT, why));
            }
        };
        let limits = self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(limits.get(&limit.0).copied().unwrap_or(default))
    }

    pub(crate) fn set_limit(&self, limit: CUlimit, value: usize) -> DriverResult {
        self.limit(limit)?;
        self.limits.lock().unwrap_or_else(PoisonError::into_inner).insert(limit.0, value);
        Ok(())
    }

    /// Fails with the fault that poisoned the context, if any. The caller passes the error on to the program.
    pub(crate) fn check(&self) -> DriverResult {
        // The reason was noted when it happened.
        match &mut *self.first_fault() {
            Some(poison) => {
                poison.was_returned = true;
                Err(poison.code.into())
            }
            None => Ok(()),
        }
    }

    /// True if a fault has poisoned the context.
    pub(crate) fn is_poisoned(&self) -> bool {
        self.first_fault().is_some()
    }
}

/// The number of worlds that this process has made. Contexts of two worlds have different handles, so that a program
/// that keeps objects of an earlier world cannot take them for its own.
static WORLDS: AtomicU64 = AtomicU64::new(0);

/// The contexts of all devices. Handles are never reused.
#[derive(Debug)]
pub(crate) struct Contexts {
    next: AtomicU64,
    alive: Mutex<BTreeMap<u64, Arc<Context>>>,
    /// The contexts that faults have poisoned, also if they were destroyed since.
    poisoned: Mutex<Vec<Arc<Context>>>,
}

impl Default for Contexts {
    fn default() -> Self {
        let world = WORLDS.fetch_add(1, SeqCst);
        Self {
            next: AtomicU64::new((world << 32) + 0xc0_0001),
            alive: Mutex::default(),
            poisoned: Mutex::default(),
        }
    }
}

/// The calling rank's stack of current contexts.
#[derive(Debug, Default)]
struct Current(Vec<u64>);

impl Contexts {
    fn alive(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Context>>> {
        self.alive.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn poisoned(&self) -> MutexGuard<'_, Vec<Arc<Context>>> {
        self.poisoned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a call of NCCL has returned the faults of this device in its own form.
    pub(crate) fn faults_were_returned(&self, device: usize) {
        let poisoned = self.poisoned().clone();
        for context in poisoned.iter().filter(|context| context.device == device) {
            if let Some(poison) = &mut *context.first_fault() {
                poison.was_returned = true;
            }
        }
    }

    /// Returns the notes of the faults whose errors no call has returned.
    pub(crate) fn unreturned_faults(&self) -> Vec<String> {
        let unreturned = |context: &Arc<Context>| {
            context.first_fault().as_ref().filter(|poison| !poison.was_returned).map(|p| p.note.clone())
        };
        let poisoned = self.poisoned().clone();
        poisoned.iter().filter_map(unreturned).collect()
    }

    pub(crate) fn create(&self, device: usize, primary: bool, flags: u32) -> Arc<Context> {
        let id = self.next.fetch_add(1, SeqCst);
        let context = Arc::new(Context {
            id,
            device,
            primary,
            flags,
            poison: Mutex::default(),
            limits: Mutex::default(),
        });
        self.alive().insert(id, context.clone());
        context
    }

    pub(crate) fn get(&self, id: u64) -> DriverResult<Arc<Context>> {
        self.alive().get(&id).cloned().ok_or_else(|| {
            DriverError::new(CUresult::CUDA_ERROR_INVALID_CONTEXT, format!("{id:#x} is no live context"))
        })
    }

    pub(crate) fn remove(&self, id: u64) {
        self.alive().remove(&id);
    }

    pub(crate) fn leaks(&self) -> Vec<Leak> {
        let what = |c: &Context| {
            format!("{:#x} on device {}{}", c.id, c.device, if c.primary { ", primary" } else { "" })
        };
        self.alive().values().map(|c| Leak { kind: "context", what: what(c) }).collect()
    }
}

impl Machine {
    /// The calling rank's current context; an error if there is none or a fault has poisoned it.
    pub(crate) fn current(&self) -> DriverResult<Arc<Context>> {
        let context = self.current_even_poisoned()?;
        context.check()?;
        Ok(context)
    }

    pub(crate) fn current_even_poisoned(&self) -> DriverResult<Arc<Context>> {
        let Some(id) = self.current_handle() else {
            return Err(DriverError::new(
                CUresult::CUDA_ERROR_INVALID_CONTEXT,
                "no context is current on this thread",
            ));
        };
        self.contexts.get(id).map_err(|_| DriverError::from(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED))
    }

    /// The handle on top of the calling rank's stack.
    pub(crate) fn current_handle(&self) -> Option<u64> {
        with_local(self.id, |current: &mut Current| current.0.last().copied())
    }

    /// Replaces the top of the stack; `None` pops it.
    pub(crate) fn set_current(&self, context: Option<u64>) {
        with_local(self.id, |current: &mut Current| {
            current.0.pop();
            current.0.extend(context);
        });
    }

    pub(crate) fn push_current(&self, context: u64) {
        with_local(self.id, |current: &mut Current| current.0.push(context));
    }

    pub(crate) fn pop_current(&self) -> Option<u64> {
        with_local(self.id, |current: &mut Current| current.0.pop())
    }

    pub(crate) fn device(&self, ordinal: i32) -> DriverResult<&Device> {
        usize::try_from(ordinal).ok().and_then(|i| self.devices.get(i)).ok_or_else(|| {
            let why = format!("device {ordinal} of {}", self.devices.len());
            DriverError::new(CUresult::CUDA_ERROR_INVALID_DEVICE, why)
        })
    }

    /// Tears a context down: waits for its work, then removes its streams and its memory.
    pub(crate) fn destroy_context(&self, context: &Context) {
        // A fault or a deadlock has been noted already; the context is removed regardless.
        let _ = self.streams.synchronize_context(context);
        self.streams.remove_context(context.id);
        let gone = self.memory.space().remove_context(context.id);
        drop(gone);
        self.contexts.remove(context.id);
    }
}
