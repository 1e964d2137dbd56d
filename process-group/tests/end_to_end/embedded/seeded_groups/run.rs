//! Runs a plan in a seeded world.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use bootstrap::runtime::{self, Instant, Route, Seeded};
use cuda_driver::{Context, Driver, Stream, StreamFlags, memory::DeviceMemory};
use gpu_sim::World;
use process_group::{
    ProcessGroup,
    comm::{DataType::F32, Nccl, ReduceOp, ShrinkMode, wait_for_dropped},
    group::{Buffer, GroupError, GroupErrorKind, GroupSettings, Request, Witnesses},
    store::{Deadline, TcpStore},
};

use super::{
    plan::{Fault, Plan, Random, Step},
    store::{self, RouteToStore},
};

/// The limit of waits for other members.
pub(super) const LIMIT: Duration = Duration::from_secs(10);

type Result<T = ()> = std::result::Result<T, GroupError>;

/// The first error of a rank.
#[derive(Debug)]
pub(super) struct Seen {
    /// The number of the step.
    pub(super) step: usize,
    pub(super) error: GroupError,
    /// The virtual times of the begin and the end of the step.
    pub(super) begun: Duration,
    pub(super) ended: Duration,
}

/// What a rank reports at its end.
#[derive(Debug, Default)]
pub(super) struct Report {
    pub(super) first: Option<Seen>,
    /// The time at which the rank had its fault.
    pub(super) fault: Option<Duration>,
    /// The reason for the end of the world group, if it is known.
    pub(super) end: Option<GroupError>,
    /// The reasons for the ends of groups at the end of the rank, by the group's number.
    pub(super) ends: Vec<(u64, GroupError)>,
    /// The virtual times at which groups have ended on this rank because of trouble, by the group's name.
    pub(super) troubles: Vec<(String, Duration)>,
    /// The result of the group of the survivors, if the rank tried to make one.
    pub(super) survivors: Option<std::result::Result<(), String>>,
    pub(super) violations: Vec<String>,
    /// The number of results that were checked.
    pub(super) checked: usize,
}

/// A run of a plan.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) reports: Vec<Report>,
    /// The virtual time of the end.
    pub(super) time: Duration,
    /// All decisions of the scheduler.
    pub(super) history: Vec<gpu_sim::Step>,
}

/// The groups of ranks whose process has ended. A process that ends destroys nothing.
type Ended = Arc<Mutex<Vec<ProcessGroup>>>;

/// See [`Report::troubles`].
type Troubles = Arc<Mutex<Vec<(String, Duration)>>>;

pub(super) fn run(plan: &Plan) -> std::result::Result<Run, String> {
    let network = Arc::new(Seeded::new());
    let _runtime = runtime::enter(network.clone());
    let world = World::builder().devices(plan.size).capacity(1 << 30).seeded(plan.seed).start().unwrap();
    let origin = Instant::now();
    // SAFETY: the world's functions behave as the driver's and NCCL's, and it outlives what is made of them.
    let (driver, nccl) = unsafe {
        (
            cuda_driver::sys::Api::from_parts(world.cuda()).unwrap(),
            nccl_sys::Api::from_parts(world.nccl()).unwrap(),
        )
    };
    let (driver, nccl) = (Driver::new(driver).unwrap(), Nccl::new(nccl));
    let (host, ended) = (store::host(), Ended::default());
    let routes: Vec<_> = (0..plan.size).map(|rank| RouteToStore::new(&network, rank)).collect();
    let actor = |rank: usize| -> (String, Box<dyn FnOnce() -> Report + Send>) {
        let (plan, driver, nccl) = (plan.clone(), driver.clone(), nccl.clone());
        let (route, ended) = (routes[rank].clone(), ended.clone());
        let body = move || {
            let context = driver.device(rank as u32).unwrap().retain_primary().unwrap();
            let random = Random::new(!plan.seed << 8 | rank as u64);
            let (store, report) = (Arc::new(route.connect()), Report::default());
            let troubles = Troubles::default();
            Rank { plan, rank, context, nccl, store, route, ended, random, origin, report, troubles }.work()
        };
        (format!("rank {rank}"), Box::new(body))
    };
    let reports = world.run_actors((0..plan.size).map(actor).collect()).map_err(|error| error.to_string())?;
    let time = origin.elapsed();
    routes.iter().for_each(|route| route.set(Route::Refused));
    drop(std::mem::take(&mut *ended.lock().unwrap()));
    if !wait_for_dropped(Deadline::after(Duration::from_secs(60))) {
        return Err("dropped communicators are not freed after 60 s".into());
    }
    // Threads that still wait for an answer of the store end.
    runtime::sleep(Duration::from_secs(30));
    drop(host);
    let history = world.history();
    drop((driver, nccl));
    world.finish().map_err(|error| error.to_string())?;
    Ok(Run { reports, time, history })
}

struct Rank {
    plan: Plan,
    rank: usize,
    context: Context,
    nccl: Nccl,
    store: Arc<TcpStore>,
    route: RouteToStore,
    ended: Ended,
    random: Random,
    origin: Instant,
    report: Report,
    troubles: Troubles,
}

/// The groups of a rank.
#[derive(Default)]
struct Groups {
    world: Option<ProcessGroup>,
    split: Option<ProcessGroup>,
}

impl Groups {
    fn get(&self, in_split: bool) -> Option<&ProcessGroup> {
        if in_split { self.split.as_ref() } else { self.world.as_ref() }
    }
}

/// Why a rank does not go on with its steps.
enum Stop {
    /// Its process has ended.
    Crashed,
    /// It has ended its groups.
    Left,
    Failed(GroupError),
}

impl From<GroupError> for Stop {
    fn from(error: GroupError) -> Self {
        Self::Failed(error)
    }
}

fn limit() -> Deadline {
    Deadline::after(LIMIT)
}

impl Rank {
    fn work(mut self) -> Report {
        runtime::sleep(Duration::from_micros(self.random.below(300_000)));
        let (mut groups, mut step) = (Groups::default(), 0);
        let mut begun = self.origin.elapsed();
        let stopped = loop {
            match self.take(step, &mut groups) {
                Ok(true) => break None,
                Ok(false) => (),
                Err(stop) => break Some(stop),
            }
            (step, begun) = (step + 1, self.origin.elapsed());
        };
        match stopped {
            None | Some(Stop::Left) => {}
            Some(Stop::Crashed) => {
                self.ended.lock().unwrap().extend(groups.split.take().into_iter().chain(groups.world.take()));
            }
            Some(Stop::Failed(error)) => {
                let ended = self.origin.elapsed();
                self.report.first = Some(Seen { step, error, begun, ended });
                self.recover(&groups);
            }
        }
        self.report.troubles = self.troubles.lock().unwrap().clone();
        let ends = groups.split.iter().chain(&groups.world);
        self.report.ends = ends.filter_map(|group| Some((group.id().uid, group.check().err()?))).collect();
        for group in groups.split.into_iter().chain(groups.world) {
            let begun = Instant::now();
            let aborted = group.abort(limit());
            if let Err(error) = aborted {
                self.report.violations.push(format!("abort after {:?}: {error}", begun.elapsed()));
            }
        }
        self.report
    }

    /// Takes step `step`: 0 makes the world, the last one ends it. Returns true after the last one.
    fn take(&mut self, step: usize, groups: &mut Groups) -> std::result::Result<bool, Stop> {
        if self.rank == self.plan.culprit && step == self.plan.at && self.fault(groups)? {
            return Ok(false);
        }
        if step == 0 {
            groups.world = Some(self.world()?);
            return Ok(false);
        }
        let Some(step) = self.plan.steps.get(step - 1).cloned() else {
            // Before the end of any group, so that a rank that has a fault before it is missed by all.
            groups.world.as_ref().unwrap().barrier(limit())?;
            for group in [groups.split.take(), groups.world.take()].into_iter().flatten() {
                group.destroy(limit())?;
            }
            return Ok(true);
        };
        self.step(&step, groups)?;
        Ok(false)
    }

    fn world(&self) -> Result<ProcessGroup> {
        // The driver's answers about memory are remembered beyond the end of a seeded world. So the second run of a seed
        // would make fewer calls.
        let settings = GroupSettings::new().check_buffers(false).timeout(LIMIT);
        let (origin, troubles) = (self.origin, self.troubles.clone());
        let settings = settings.work_timeout(self.plan.work_timeout).on_end(move |error| {
            let group = error.group().unwrap_or_default().to_owned();
            troubles.lock().unwrap().push((group, origin.elapsed()));
        });
        let builder = ProcessGroup::builder()
            .store(self.store.clone())
            .rank(self.rank)
            .world_size(self.plan.size)
            .context(&self.context)
            .nccl(&self.nccl)
            .witnesses(Witnesses::Store)
            .heartbeat(self.plan.heartbeat)
            .settings(settings)
            .checked(self.plan.checked);
        if self.plan.lazy { builder.lazy().build() } else { builder.build() }
    }

    /// Has the fault of the plan. Returns true if it stands for the step.
    fn fault(&mut self, groups: &mut Groups) -> std::result::Result<bool, Stop> {
        let now = self.origin.elapsed();
        let mut had = Some(now);
        let result = match self.plan.fault {
            Fault::None => {
                had = None;
                Ok(false)
            }
            Fault::Crash => {
                self.route.set(Route::Silent);
                Err(Stop::Crashed)
            }
            Fault::Stall(time) => {
                runtime::sleep(time);
                Ok(false)
            }
            Fault::LoseStore(time) => {
                self.later(time, |route| route.set(Route::Refused));
                Ok(false)
            }
            Fault::CutStore(time) => {
                self.later(time, |route| {
                    route.set(Route::Refused);
                    route.set(Route::Open);
                });
                Ok(false)
            }
            Fault::Silence(time) => {
                self.later(time, |route| route.set(Route::Silent));
                Ok(false)
            }
            // There is no group yet.
            Fault::Abort | Fault::AbortAside(_) | Fault::Drop | Fault::Fail | Fault::Differ
                if self.plan.at == 0 =>
            {
                had = None;
                Ok(false)
            }
            Fault::AbortAside(time) => {
                let handle = groups.world.as_ref().unwrap().abort_handle();
                self.later(time, move |_| drop(handle.abort(limit())));
                Ok(false)
            }
            Fault::Abort => {
                for group in [groups.split.take(), groups.world.take()].into_iter().flatten() {
                    if let Err(error) = group.abort(limit()) {
                        self.report.violations.push(format!("abort: {error}"));
                    }
                }
                Err(Stop::Left)
            }
            Fault::Drop => {
                *groups = Groups { world: groups.world.take(), split: None };
                groups.world = None;
                Err(Stop::Left)
            }
            Fault::Fail => {
                groups.world.as_ref().unwrap().fail("a test");
                Ok(false)
            }
            Fault::Differ => match self.plan.steps.get(self.plan.at - 1) {
                Some(Step::AllReduce { in_split, .. } | Step::Broadcast { in_split, .. })
                    if groups.get(*in_split).is_some_and(|group| group.size() > 1) =>
                {
                    let is_broadcast = matches!(self.plan.steps[self.plan.at - 1], Step::Broadcast { .. });
                    let group = groups.get(*in_split).unwrap();
                    self.report.fault = had;
                    if is_broadcast {
                        self.all_reduce(group, 3, 1)?
                    } else {
                        self.broadcast(group, 0)?
                    }
                    return Ok(true);
                }
                _ => {
                    had = None;
                    Ok(false)
                }
            },
        };
        self.report.fault = had;
        result
    }

    /// Runs `act` on another thread after this time, or at once if it is zero.
    fn later(&self, time: Duration, act: impl FnOnce(&RouteToStore) + Send + 'static) {
        if time.is_zero() {
            return act(&self.route);
        }
        let route = self.route.clone();
        let act = move || {
            runtime::sleep(time);
            act(&route);
        };
        runtime::spawn("fault", act).unwrap();
    }

    fn step(&mut self, step: &Step, groups: &mut Groups) -> Result {
        match step {
            Step::AllReduce { elements, calls, in_split } => match groups.get(*in_split) {
                Some(group) => self.all_reduce(group, *elements, *calls),
                None => Ok(()),
            },
            Step::Broadcast { root, in_split } => match groups.get(*in_split) {
                Some(group) => self.broadcast(group, *root),
                None => Ok(()),
            },
            Step::Barrier { in_split } => {
                groups.get(*in_split).map_or(Ok(()), |group| group.barrier(limit()))
            }
            Step::Split { colors } => {
                if let Some(former) = groups.split.take() {
                    former.barrier(limit())?;
                    former.destroy(limit())?;
                }
                let request = Request::Color { color: colors[self.rank], key: 0 };
                let world = groups.world.as_ref().unwrap();
                groups.split = world.split("split", &request)?;
                let members: Vec<_> = colors[self.rank].map_or(Vec::new(), |color| {
                    (0..self.plan.size).filter(|rank| colors[*rank] == Some(color)).collect()
                });
                let found = groups.split.as_ref().map_or(Vec::new(), |group| group.global_ranks());
                if found != members {
                    self.report.violations.push(format!("a split of {members:?} has {found:?}"));
                }
                Ok(())
            }
            Step::Shrink { excluded } => {
                if self.rank == *excluded {
                    return Ok(());
                }
                self.go_on_without(*excluded, groups.world.as_ref().unwrap(), ShrinkMode::Orderly)?;
                if self.plan.fault.is_end() && *excluded == self.plan.culprit {
                    // A survivor of the fault may have come to this attempt.
                    self.report.survivors = Some(Ok(()));
                }
                Ok(())
            }
            Step::Pause { times } => {
                runtime::sleep(times[self.rank]);
                Ok(())
            }
        }
    }

    /// True if the results of calls may be wrong: members may have made different calls.
    fn is_unreliable(&self) -> bool {
        self.plan.fault == Fault::Differ && !self.plan.checked
    }

    fn check(&mut self, call: &str, memory: &DeviceMemory, expected: f32) -> Result {
        let mut values = vec![0f32; memory.bytes() / 4];
        memory.copy_to_host(0, &mut values)?;
        if values.iter().any(|value| *value != expected) && !self.is_unreliable() {
            self.report.violations.push(format!("{call} gives {values:?}, expected {expected}"));
        }
        self.report.checked += 1;
        Ok(())
    }

    fn memory(&self, elements: usize, value: f32) -> Result<DeviceMemory> {
        let memory = DeviceMemory::new(&self.context, elements * 4)?;
        memory.copy_from_host(0, &vec![value; elements])?;
        Ok(memory)
    }

    fn all_reduce(&mut self, group: &ProcessGroup, elements: usize, calls: usize) -> Result {
        let stream = Stream::new(&self.context, StreamFlags::NON_BLOCKING)?;
        let expected = group.global_ranks().iter().map(|rank| *rank as f32 + 1.0).sum();
        let memories = (0..calls).map(|_| self.memory(elements, self.rank as f32 + 1.0));
        let memories = memories.collect::<Result<Vec<_>>>()?;
        let result = memories.iter().try_for_each(|memory| {
            let buffer = Buffer::new(memory.ptr(), elements, F32);
            let work = unsafe { group.raw().all_reduce(buffer, buffer, ReduceOp::Sum, &stream) }?;
            runtime::sleep(Duration::from_micros(self.random.below(2000)));
            if self.random.below(2) == 0 { work.wait_until(limit()) } else { Ok(()) }
        });
        let result = result.and_then(|()| group.quiesce(limit()));
        self.finish(&stream, group, result)?;
        memories.iter().try_for_each(|memory| self.check("all_reduce", memory, expected))
    }

    fn broadcast(&mut self, group: &ProcessGroup, root: usize) -> Result {
        let stream = Stream::new(&self.context, StreamFlags::NON_BLOCKING)?;
        let root = root % group.size();
        let expected = group.global_ranks()[root] as f32 + 1.0;
        let memory = self.memory(7, self.rank as f32 + 1.0)?;
        let buffer = Buffer::new(memory.ptr(), 7, F32);
        let work = unsafe { group.raw().broadcast(buffer, root, &stream) };
        let result = work.and_then(|work| work.wait_until(limit()));
        self.finish(&stream, group, result)?;
        self.check("broadcast", &memory, expected)
    }

    /// Ends work that is not done after an error, so that its memory can be freed.
    fn finish(&mut self, stream: &Stream, group: &ProcessGroup, result: Result) -> Result {
        if result.is_err() {
            if let Err(error) = group.abort_handle().abort(limit()) {
                self.report.violations.push(format!("abort of unfinished work: {error}"));
            }
            if let Err(error) = stream.synchronize() {
                self.report.violations.push(format!("the stream after an abort: {error}"));
            }
        }
        result
    }

    /// Waits for the reason of the group's end. If a rank is to blame, makes a group of the others.
    fn recover(&mut self, groups: &Groups) {
        let Some(world) = &groups.world else { return };
        if self.report.survivors.is_some() {
            return;
        }
        let patience = Deadline::after(self.plan.heartbeat * 3 + Duration::from_secs(1));
        while world.check().is_ok() && !patience.expired() {
            runtime::sleep(Duration::from_millis(5));
        }
        self.report.end = world.check().err();
        let named = self.report.end.as_ref().and_then(super::oracle::lost);
        let culprit = self.plan.culprit;
        if self.plan.fault.is_end() && named == Some(culprit) && self.rank != culprit {
            let mut attempt = || self.go_on_without(culprit, world, ShrinkMode::AfterFailure);
            let mut survived = attempt();
            // Other survivors may wait in a group whose end they did not notice, and miss the first attempts.
            for _ in 0..2 {
                if let Err(GroupErrorKind::Absent { .. } | GroupErrorKind::NotAgreed { .. }) =
                    survived.as_ref().map_err(GroupError::kind)
                {
                    survived = attempt();
                }
            }
            self.report.survivors = Some(survived.map_err(|error| format!("{error:?}")));
        }
    }

    /// Makes a group without a rank, uses it and ends it.
    fn go_on_without(&mut self, excluded: usize, world: &ProcessGroup, mode: ShrinkMode) -> Result {
        let rest = world.shrink(&[excluded], mode)?;
        self.all_reduce(&rest, 5, 2)?;
        rest.barrier(limit())?;
        rest.destroy(limit())
    }
}
