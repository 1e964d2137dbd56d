//! The seeded mode: coroutines on one OS thread, one at a time, in an order that the seed decides.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};

use super::{Actor, Deadlock, Run, WaitError, Waiting, forget_locals, local, panic_text, whoami};

/// Duration of every step on the virtual clock, in nanoseconds. It is not zero, so that time passes while a task
/// polls.
const STEP: u64 = 1_000;

/// The part that other threads may read.
#[derive(Debug)]
pub(crate) struct Seeded {
    world: u64,
    owner: ThreadId,
    clock_ns: AtomicU64,
    stopping: AtomicBool,
    history: Mutex<Vec<Step>>,
}

/// One scheduling decision of a seeded run.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Step {
    /// Time of the decision, on the virtual clock.
    pub at: Duration,
    /// The actor or executor.
    pub who: Arc<str>,
    /// The call or wait at which it had paused.
    pub at_what: Arc<str>,
}

type Body = Coroutine<Wake, Pause, (), DefaultStack>;

/// Why a coroutine gave up the thread.
enum Pause {
    Point(&'static str),
    Wait { reason: Arc<str>, deadline: Option<Duration>, condition: Condition },
}

/// The value that resumes a coroutine.
enum Wake {
    Go,
    TimedOut,
    Stopped,
    Deadlock(Arc<Deadlock>),
}

/// A condition on a suspended coroutine's stack.
#[derive(Clone, Copy)]
struct Condition(*mut (dyn FnMut() -> bool + 'static));

impl Condition {
    fn new<'a>(condition: &'a mut (dyn FnMut() -> bool + 'a)) -> Self {
        let pointer: *mut (dyn FnMut() -> bool + 'a) = condition;
        // SAFETY: only the lifetime changes. A condition is evaluated while its task is in the table as waiting
        // (`holds`), and a task leaves that state before its wait returns and ends the borrow.
        Self(unsafe {
            std::mem::transmute::<*mut (dyn FnMut() -> bool + 'a), *mut (dyn FnMut() -> bool + 'static)>(
                pointer,
            )
        })
    }

    fn holds(self) -> bool {
        // SAFETY: see `new`; nobody else runs, so the exclusive borrow is ours.
        unsafe { (*self.0)() }
    }
}

struct Task {
    name: Arc<str>,
    /// Absent while it runs.
    body: Option<Body>,
    yielder: *const Yielder<Wake, Pause>,
    paused: Pause,
    /// A deadlock found while it waited; the wait returns it.
    doomed: Option<Arc<Deadlock>>,
}

/// The part that belongs to the owner thread: coroutines cannot move between threads.
struct Tasks {
    world: u64,
    random: u64,
    next: u64,
    tasks: BTreeMap<u64, Task>,
    stacks: Vec<DefaultStack>,
}

thread_local! {
    static TASKS: RefCell<Option<Tasks>> = const { RefCell::new(None) };
}

/// Result of one step of the scheduler.
enum Stepped {
    Ran,
    /// The clock has reached the deadline of the wait outside of all actors.
    RootDue,
    Deadlock(Arc<Deadlock>),
    /// There is no task.
    Empty,
}

impl Seeded {
    pub(crate) fn new(world: u64, seed: u64) -> Self {
        let tasks = Tasks { world, random: seed, next: 1, tasks: BTreeMap::new(), stacks: Vec::new() };
        TASKS.set(Some(tasks));
        Self {
            world,
            owner: std::thread::current().id(),
            clock_ns: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            history: Mutex::default(),
        }
    }

    pub(super) fn is_owner(&self) -> bool {
        std::thread::current().id() == self.owner
    }

    pub(super) fn now(&self) -> Duration {
        Duration::from_nanos(self.clock_ns.load(Relaxed))
    }

    pub(crate) fn history(&self) -> Vec<Step> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn with<R>(&self, f: impl FnOnce(&mut Tasks) -> R) -> Option<R> {
        TASKS.with_borrow_mut(|tasks| tasks.as_mut().filter(|t| t.world == self.world).map(f))
    }

    fn yielder(&self) -> Option<*const Yielder<Wake, Pause>> {
        let me = local::task();
        self.with(|t| t.tasks.get(&me).map(|task| task.yielder)).flatten()
    }

    /// Returns control to the scheduler, and returns the reason for being resumed.
    fn pause(yielder: *const Yielder<Wake, Pause>, pause: Pause) -> Wake {
        // SAFETY: the yielder lives on the stack of the running coroutine, which is ours: `yielder()` looked it up
        // under the running task's number.
        unsafe { (*yielder).suspend(pause) }
    }

    pub(super) fn wait(
        &self,
        reason: String,
        deadline: Option<Duration>,
        condition: &mut dyn FnMut() -> bool,
    ) -> Result<(), WaitError> {
        if self.stopping.load(Relaxed) {
            return Err(WaitError::Stopped { reason });
        }
        if std::thread::panicking() {
            return Err(WaitError::Unwinding { reason });
        }
        // A deadline beyond the end of the clock never passes.
        let deadline = deadline.filter(|deadline| deadline.as_nanos() < u128::from(u64::MAX / 2));
        let wake = match self.yielder() {
            Some(yielder) => {
                let condition = Condition::new(condition);
                Self::pause(yielder, Pause::Wait { reason: reason.as_str().into(), deadline, condition })
            }
            None => self.wait_outside(&reason, deadline, condition),
        };
        match wake {
            Wake::Go => Ok(()),
            Wake::TimedOut => {
                Err(WaitError::TimedOut { deadline: deadline.unwrap_or_else(|| self.now()), reason })
            }
            Wake::Stopped => Err(WaitError::Stopped { reason }),
            Wake::Deadlock(deadlock) => Err(WaitError::Deadlock(deadlock)),
        }
    }

    /// A wait of the owner thread itself, outside of all actors: it runs the tasks.
    fn wait_outside(
        &self,
        reason: &str,
        deadline: Option<Duration>,
        condition: &mut dyn FnMut() -> bool,
    ) -> Wake {
        loop {
            match self.step(Some((reason, deadline))) {
                _ if condition() => return Wake::Go,
                Stepped::Ran => {}
                Stepped::RootDue => return Wake::TimedOut,
                Stepped::Deadlock(deadlock) => return Wake::Deadlock(deadlock),
                Stepped::Empty => return Wake::Stopped,
            }
        }
    }

    pub(super) fn point(&self, label: &'static str) {
        if self.stopping.load(Relaxed) || std::thread::panicking() || !self.is_owner() {
            return;
        }
        match self.yielder() {
            Some(yielder) => drop(Self::pause(yielder, Pause::Point(label))),
            // Outside of all actors, executors may run first, but need not.
            None => {
                while self.with(|t| t.draw(2)) == Some(1) {
                    let Some(chosen) = self.choose() else { break };
                    self.resume(chosen);
                }
            }
        }
    }

    /// See [`super::draw`].
    pub(super) fn draw(&self, bound: u64) -> u64 {
        self.with(|tasks| tasks.draw(bound.max(1))).unwrap_or(0)
    }

    pub(super) fn spawn(&self, name: Arc<str>, job: Box<dyn FnOnce() + Send>) {
        self.with(|tasks| tasks.add(name, job));
    }

    /// Picks one of the tasks that may run now by the seed, and the value that resumes it.
    fn choose(&self) -> Option<(u64, Wake)> {
        enum Look {
            Ready(Wake),
            Ask(Condition, bool),
        }
        let now = self.now();
        let looks: Vec<(u64, Look)> = self.with(|t| {
            t.tasks
                .iter()
                .map(|(&id, task)| match (&task.paused, &task.doomed) {
                    (Pause::Point(_), _) => (id, Look::Ready(Wake::Go)),
                    (Pause::Wait { .. }, Some(deadlock)) => {
                        (id, Look::Ready(Wake::Deadlock(deadlock.clone())))
                    }
                    (Pause::Wait { condition, deadline, .. }, None) => {
                        (id, Look::Ask(*condition, deadline.is_some_and(|d| d <= now)))
                    }
                })
                .collect()
        })?;
        let stopping = self.stopping.load(Relaxed);
        let mut able: Vec<(u64, Wake)> = looks
            .into_iter()
            .filter_map(|(id, look)| match look {
                Look::Ready(wake) => Some((id, wake)),
                Look::Ask(condition, _) if condition.holds() => Some((id, Wake::Go)),
                Look::Ask(..) if stopping => Some((id, Wake::Stopped)),
                Look::Ask(_, true) => Some((id, Wake::TimedOut)),
                Look::Ask(_, false) => None,
            })
            .collect();
        if able.is_empty() {
            return None;
        }
        let pick = self.with(|t| t.draw(able.len() as u64))? as usize;
        Some(able.swap_remove(pick))
    }

    /// Runs one task to its next pause.
    fn resume(&self, (id, wake): (u64, Wake)) {
        let taken = self.with(|t| {
            let task = t.tasks.get_mut(&id)?;
            task.doomed = None;
            let at_what = match &task.paused {
                Pause::Point(label) => Arc::from(*label),
                Pause::Wait { reason, .. } => reason.clone(),
            };
            task.paused = Pause::Point("running");
            task.body.take().map(|body| (body, task.name.clone(), at_what))
        });
        let Some((mut body, name, at_what)) = taken.flatten() else { return };
        let at = Duration::from_nanos(self.clock_ns.fetch_add(STEP, Relaxed) + STEP);
        let step = Step { at, who: name.clone(), at_what };
        self.history.lock().unwrap_or_else(PoisonError::into_inner).push(step);

        let before = local::enter(id, Some(name));
        let result = body.resume(wake);
        local::enter(before.0, before.1);
        match result {
            CoroutineResult::Yield(paused) => {
                self.with(|t| {
                    if let Some(task) = t.tasks.get_mut(&id) {
                        (task.paused, task.body) = (paused, Some(body));
                    }
                });
            }
            CoroutineResult::Return(()) => {
                self.with(|t| {
                    t.tasks.remove(&id);
                    t.stacks.push(body.into_stack());
                });
                forget_locals(self.world, Some(id));
            }
        }
    }

    /// Runs a task, or moves the clock to the next deadline, or detects a deadlock. `root` is the wait of the owner
    /// thread itself.
    fn step(&self, root: Option<(&str, Option<Duration>)>) -> Stepped {
        if let Some(chosen) = self.choose() {
            self.resume(chosen);
            return Stepped::Ran;
        }
        let next = self
            .with(|t| {
                t.tasks
                    .values()
                    .filter_map(|task| match task.paused {
                        Pause::Wait { deadline, .. } => deadline,
                        Pause::Point(_) => None,
                    })
                    .min()
            })
            .flatten();
        let root_deadline = root.and_then(|r| r.1);
        if let Some(due) = [next, root_deadline].into_iter().flatten().min() {
            self.clock_ns.fetch_max(due.as_nanos() as u64, Relaxed);
            return if root_deadline == Some(due) { Stepped::RootDue } else { Stepped::Ran };
        }
        let mut waiting = self.waiting();
        if waiting.is_empty() && root.is_none() {
            return Stepped::Empty;
        }
        waiting.extend(root.map(|r| Waiting { who: whoami(), what: r.0.to_owned() }));
        let deadlock = Arc::new(Deadlock { at: self.now(), waiting });
        self.with(|t| t.tasks.values_mut().for_each(|task| task.doomed = Some(deadlock.clone())));
        Stepped::Deadlock(deadlock)
    }

    pub(super) fn waiting(&self) -> Vec<Waiting> {
        self.with(|t| {
            t.tasks
                .values()
                .filter_map(|task| match &task.paused {
                    Pause::Wait { reason, .. } => {
                        Some(Waiting { who: task.name.to_string(), what: reason.to_string() })
                    }
                    Pause::Point(_) => None,
                })
                .collect()
        })
        .unwrap_or_default()
    }

    pub(super) fn run<T: Send + 'static>(&self, actors: Vec<Actor<T>>) -> Run<T> {
        let results = Rc::new(RefCell::new(Vec::new()));
        results.borrow_mut().resize_with(actors.len(), || None);
        let left = Rc::new(Cell::new(actors.len()));
        for (i, (name, body)) in actors.into_iter().enumerate() {
            let (results, left) = (results.clone(), left.clone());
            let job = move || {
                let result = catch_unwind(AssertUnwindSafe(body)).map_err(|p| panic_text(&*p));
                results.borrow_mut()[i] = Some(result);
                left.set(left.get() - 1);
            };
            self.with(|tasks| tasks.add(name.into(), job));
        }
        let mut deadlock = None;
        while left.get() > 0 {
            match self.step(None) {
                Stepped::Deadlock(found) => deadlock = deadlock.or(Some(found)),
                Stepped::Empty => break,
                Stepped::Ran | Stepped::RootDue => {}
            }
        }
        let results = results
            .borrow_mut()
            .iter_mut()
            .map(|r| r.take().unwrap_or_else(|| Err("the actor never ran to its end".to_owned())))
            .collect();
        Run { results, deadlock }
    }

    /// Ends every wait, then runs the tasks to their ends, since a coroutine must not be dropped halfway.
    pub(super) fn stop(&self) {
        self.stopping.store(true, Relaxed);
        while self.is_owner()
            && let Some(chosen) = self.choose()
        {
            self.resume(chosen);
        }
        self.with(|t| t.tasks.clear());
    }
}

impl Tasks {
    /// Returns a number below `bound`, from the seed (SplitMix64).
    fn draw(&mut self, bound: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }

    fn add(&mut self, name: Arc<str>, job: impl FnOnce() + 'static) {
        let id = self.next;
        self.next += 1;
        let stack = self.stacks.pop().unwrap_or_default();
        let world = self.world;
        let body = Body::with_stack(stack, move |yielder, _: Wake| {
            TASKS.with_borrow_mut(|tasks| {
                if let Some(task) =
                    tasks.as_mut().filter(|t| t.world == world).and_then(|t| t.tasks.get_mut(&id))
                {
                    task.yielder = yielder;
                }
            });
            job();
        });
        let task = Task {
            name,
            body: Some(body),
            yielder: std::ptr::null(),
            paused: Pause::Point("start"),
            doomed: None,
        };
        self.tasks.insert(id, task);
    }
}
