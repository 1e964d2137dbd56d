//! One rank: opens its device, joins the job, and runs the stages.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use cuda_driver::{Stream, StreamFlags};
use process_group::ProcessGroup;
use process_group::comm::wait_for_dropped;
use process_group::group::Request;
use process_group::store::{Deadline, Store, rendezvous};

use super::backend::{self, Devices};
use super::groups::{self, Role};
use super::job::{Job, Member};
use super::options::RankOptions;
use super::protocol::{Message, Reporter, Stage};
use super::{buckets, diverge, launcher, reduce, replay};
use crate::job_secret::store_of_environment;
use crate::trace::Trace;

/// Interval between checks of the world's health while its subgroups are destroyed.
const LOOK: Duration = Duration::from_millis(10);

/// Runs the rank to its end, and reports its result to the launcher.
pub(crate) fn run(options: &RankOptions) -> Result<()> {
    launcher::die_with_launcher(options.launcher)?;
    let mut reporter = Reporter::from_stdin().context("standard input is not the launcher's socket")?;
    match work(options, &mut reporter) {
        Ok(()) => Ok(reporter.send(&Message::Finished)?),
        Err(error) => Err(reporter.fail(error)),
    }
}

fn work(options: &RankOptions, reporter: &mut Reporter) -> Result<()> {
    let &RankOptions { rank, ranks, deadline, .. } = options;
    let trace = Trace::load(options.trace.as_deref())?;
    let devices = backend::open(options.backend, ranks)?;

    reporter.enter(Stage::Meet)?;
    let store: Arc<dyn Store> =
        Arc::new(store_of_environment()?.connect(&options.store, Deadline::after(deadline))?);
    rendezvous(
        &*store,
        "the start of the demo",
        rank as usize,
        ranks as usize,
        b"",
        Deadline::after(deadline),
    )?;

    let outcome = join(options, &devices, store, &trace, reporter);
    if outcome.is_err() {
        // Dropped communicators are aborted in the background; the devices must outlive that.
        wait_for_dropped(Deadline::after(deadline));
    }
    if let (Some(world), Ok(())) = (devices.world, &outcome) {
        drop((devices.driver, devices.nccl));
        world.finish()?;
    }
    outcome
}

/// Creates the communicators and runs the stages with them.
fn join(
    options: &RankOptions,
    devices: &Devices,
    store: Arc<dyn Store>,
    trace: &Trace,
    reporter: &mut Reporter,
) -> Result<()> {
    let &RankOptions { rank, ranks, deadline, .. } = options;
    let context = devices.driver.device(rank)?.retain_primary()?;
    reporter.enter(Stage::Connect)?;
    reporter.send(&Message::Ready {
        nccl_version: devices.nccl.release().to_string(),
        device: context.device().name()?,
    })?;
    let world = ProcessGroup::builder()
        .store(store.clone())
        .rank(rank as usize)
        .world_size(ranks as usize)
        .context(&context)
        .nccl(&devices.nccl)
        .timeout(deadline)
        .heartbeat(Duration::from_millis(options.heartbeat))
        .build()?;
    let members = split(world, rank, ranks)?;
    let stream = Stream::new(&context, StreamFlags::NON_BLOCKING)?;
    let job = Job { options, context: &context, store, stream, members };
    stages(job, trace, devices.budget, reporter)
}

fn stages(job: Job<'_>, trace: &Trace, budget: u64, reporter: &mut Reporter) -> Result<()> {
    let mut reducer = None;
    // Errors are reported before the pool and the groups are dropped, because that may take a while.
    until_finish(&job, trace, budget, &mut reducer, reporter).map_err(|error| reporter.fail(error))?;
    let limit = job.options.deadline;
    // Subgroups are destroyed before the group that they were split from, and all before the memory that they
    // registered.
    let mut members = job.members.into_iter();
    let world = members.next().context("a job without a world")?.process_group;
    let destroyed = thread::scope(|scope| {
        let mut subgroups = members.rev();
        let destroying = scope.spawn(move || {
            subgroups.try_for_each(|member| member.process_group.destroy(Deadline::after(limit)))
        });
        // NCCL takes up to a second for each. The death of a rank that is in none of them is reported meanwhile.
        while !destroying.is_finished() {
            world.check().map_err(|error| reporter.fail(error.into()))?;
            thread::sleep(LOOK);
        }
        destroying.join().unwrap_or_else(|panic| resume_unwind(panic)).map_err(anyhow::Error::from)
    });
    destroyed.map_err(|error| reporter.fail(error))?;
    world.destroy(Deadline::after(limit)).map_err(|error| reporter.fail(error.into()))
}

/// Runs all stages but the last; the pool outlives an error.
fn until_finish(
    job: &Job<'_>,
    trace: &Trace,
    budget: u64,
    reducer: &mut Option<reduce::Reducer>,
    reporter: &mut Reporter,
) -> Result<()> {
    reporter.enter(Stage::Replay)?;
    replay::run(job, trace, reporter)?;

    reporter.enter(Stage::Commit)?;
    let reducer = reducer.insert(reduce::Reducer::place(job, &buckets::buckets(budget))?);
    reducer.commit(job, reporter)?;

    reporter.enter(Stage::Reduce)?;
    reducer.eager(job, reporter)?;

    reporter.enter(Stage::Graph)?;
    reducer.graph(job, reporter)?;

    reporter.enter(Stage::Diverge)?;
    let agreeing = diverge::run(job, reducer.pool(), reporter)?;

    reporter.enter(Stage::GoOn)?;
    reducer.go_on(job, &agreeing, reporter)?;
    Ok(reporter.enter(Stage::Finish)?)
}

/// Splits the world into this rank's groups.
fn split(world: ProcessGroup, rank: u32, ranks: u32) -> Result<Vec<Member>> {
    let layout = groups::layout(ranks);
    let mut members = Vec::new();
    for (role, name) in [(Role::Tensor, "TP"), (Role::Data, "DP")] {
        let lists = layout.iter().filter(|group| group.role == role);
        let lists = lists.map(|group| group.ranks.iter().map(|&rank| rank as usize).collect()).collect();
        let process_group = world.split(name, &Request::Lists(lists))?;
        let here = (0..).zip(&layout).find(|(_, group)| group.role == role && group.ranks.contains(&rank));
        let (Some(process_group), Some((number, group))) = (process_group, here) else {
            anyhow::bail!("rank {rank} is in no {name} group of {ranks} ranks");
        };
        members.push(Member { number, group: group.clone(), process_group });
    }
    members.insert(0, Member { number: 0, group: layout[0].clone(), process_group: world });
    Ok(members)
}
