//! The scheduler: executes the events of the ranks, the store and the library (NCCL) in an order that the seed
//! determines.
//!
//! A message to or from the store travels in one or two *pieces*, and each piece takes a random time. A call into the
//! library begins at once, unless the run's [`Trouble`] delays it. The rank gets the result a random time after the
//! call has ended. Events at the same time happen in a random order. The clock of each rank has its own offset.
//!
//! While a rank takes part in a [meeting](super) (an agreement among ranks), the state machine of the meeting makes one
//! request at a time: to the store, to the library, or to map memory. A *token* identifies the last request. An answer
//! with another token is ignored.

use std::{
    collections::{BTreeMap, HashMap},
    hash::{DefaultHasher, Hash, Hasher},
    ops::Range,
    sync::{Arc, Weak},
    time::Duration,
};

use bootstrap::store::{Store as _, machine::ClientId};
use memory_sharing::{Exports, LocalRegistry};
use symm_agreement::{exchange::AllocationId, meeting_id::generation_key, rendezvous::RendezvousRecord};

use crate::{
    device::{self, Devices},
    exchanges::Allocation,
    library::{Extent, Library, Life},
    network::Network,
    random::Random,
    rank::{Rank, stores},
    requests::{Asked, Goal},
    results::{Ended, Used},
    scenario::Scenario,
    trouble::{CutOffAt, Trouble},
    violation::{Limits, Violation, ensure},
    work,
};

#[derive(Debug)]
pub(crate) enum Event {
    /// The rank continues its program.
    Resume(u32),
    /// A piece of a message arrives at the store, on this connection.
    AtStore(ClientId),
    /// A piece of a message arrives at the rank that has this connection.
    AtRank(ClientId),
    /// The deadline of a call to the store passes. The fields are the connection and the number of the call. The calls
    /// on a connection are counted from 1.
    Tick(ClientId, u64),
    /// The rank makes a failed request to the store again.
    Repeat(Box<Asked>),
    /// The answer to the request with this token (second field) arrives at the state machine of the rank's meeting.
    Answer(u32, u64, Box<work::Answer>),
    /// The rank maps the memory that its peers offer in these records of a rendezvous, a meeting in which members map
    /// each other's memory. The second field is the token of the rank's request.
    Share(u32, u64, Vec<RendezvousRecord>),
    /// The rank's registration of windows, which the trouble has delayed, begins in the library. The fields are the
    /// rank, the token of the request, the group, and the windows' memory. A group can be created again with the same
    /// id, so a [`Life`] says which creation of the group is meant.
    Enter(u32, u64, Life, Vec<Extent>),
    /// The rank checks which peers have closed the plans of [exchanges](crate::exchanges) for which it still lends
    /// memory, see [`World::collect`].
    Collect(u32),
    /// The first rank learns from its watchdogs that the second one is dead.
    Noticed(u32, u32),
}

pub(crate) struct World {
    pub(crate) scenario: Scenario,
    pub(crate) random: Random,
    /// The time of the current event on the simulation's clock, in µs.
    pub(crate) now: u64,
    pub(crate) ranks: Vec<Rank>,
    /// The devices of all ranks. `None` after the end of the run.
    pub(crate) devices: Option<Devices>,
    pub(crate) network: Network,
    /// The work that keeps a device busy during a [retirement](super) under [`Trouble::RestsLate`]. It is the device of
    /// the culprit, the rank that the trouble concerns.
    pub(crate) device_work: Option<device::DeviceWork>,
    /// The time in which some ranks cannot reach the store, on the simulation's clock in µs. See
    /// [`World::loses_store`]. `None` before this time.
    pub(crate) outage: Option<Range<u64>>,
    pub(crate) library: Library,
    /// The ranks that have begun to register windows in a commit that has no verdict in the store yet. The verdict is
    /// the decision that follows from the outcomes of all members' registrations. Each entry has the key of the
    /// verdict, the rank, and the token of its request.
    pub(crate) watched: Vec<(String, u32, u64)>,
    /// The registry in which the ranks find each other's exported memory.
    pub(crate) registry: Arc<LocalRegistry>,
    /// The memory that ranks export in their current meetings, by rank. A rank that is dead or has ended its meeting
    /// exports nothing.
    pub(crate) exports: BTreeMap<u32, Exports>,
    /// The allocations that ranks lend to each other in [exchanges](crate::exchanges), by lender and id. The entry of a
    /// freed allocation remains, with a reference that cannot be upgraded.
    pub(crate) allocations: HashMap<(u32, AllocationId), Weak<Allocation>>,
    /// The allocation that the lender of a transfer lends, by the exchange's key and the transfer's index. The copier,
    /// the other end of the transfer, must open exactly this allocation.
    pub(crate) lent: HashMap<(String, usize), Weak<Allocation>>,
    /// The results of all meetings on all ranks, for the checks at the end of the run.
    pub(crate) ended: Vec<Ended>,
    /// The uses of blocks in collectives, by group and [site](crate::scenario::Action::Use), for the checks at the end
    /// of the run.
    pub(crate) uses: BTreeMap<(u64, u64), Vec<Used>>,
    /// The number of events so far.
    pub(crate) event_count: u64,
    /// The rank that makes a [step](super) in the current event, or `None` if the event is no step of a rank.
    stepped: Option<u32>,
    /// The [code](Rank::code) of each rank after its last step.
    codes: Vec<u64>,
    /// A hash of the times and the order of the events so far, to compare runs of the same seed.
    pub(crate) event_hash: u64,
    /// The visited states of the world, each as a hash. May contain a state several times. See
    /// [`Run::states`](crate::Run::states).
    pub(crate) states: Vec<u64>,
    /// The descriptions of the events so far. `None` if no trace was requested.
    pub(crate) trace: Option<Vec<String>>,
    /// The number of events scheduled.
    sequence: u64,
    /// The scheduled events. The key is the time in µs, a random number that orders events at the same time, and the
    /// value of `sequence` at the scheduling.
    events: BTreeMap<(u64, u64, u64), Event>,
}

/// Adds a line to the trace, if there is one.
macro_rules! tell {
    ($world:expr, $($what:tt)*) => {
        if $world.trace.is_some() {
            let line = format!("{:>9} us  {}", $world.now, format_args!($($what)*));
            $world.trace.as_mut().into_iter().for_each(|trace| trace.push(line.clone()));
        }
    };
}
pub(crate) use tell;

/// The greatest number of events in a run. A run that ends by itself has fewer, so a run with more events is reported
/// as one that does not end.
const ENDLESS: u64 = 1_000_000;

impl World {
    pub(crate) fn new(seed: u64, limits: &Limits, trace: bool) -> Result<Self, Violation> {
        let mut random = Random(seed);
        let mut scenario = Scenario::draw(&mut random, limits);
        let size = scenario.programs.len() as u32;
        let domain_stores = stores(&mut random)?;
        let programs = std::mem::take(&mut scenario.programs);
        let devices = Devices::start(random.next(), programs.len(), scenario.release)?;
        let library = devices.library();
        // Only segments at adjacent addresses can share a window. To test shared windows, in half of the runs most
        // ranks get segments at adjacent addresses.
        let in_a_row = random.one_in(2);
        let rank = |(number, program): (u32, _)| {
            let extra = scenario.trouble_of(number) == Trouble::ExtraDomain;
            let domain = scenario.domain(number, size);
            let device = devices.of_rank(number, scenario.memory(number), in_a_row && !random.one_in(8))?;
            let memory = [device, devices.lending()?];
            Rank::new(number, &domain, extra, program, memory, &domain_stores, &mut random)
        };
        let ranks = (0..).zip(programs).map(rank).collect::<Result<Vec<Rank>, Violation>>()?;
        let codes = ranks.iter().map(Rank::code).collect();
        let mut network = Network::new(ranks.len());
        for rank in &ranks {
            let generation = rank.pool.id().generation.to_string();
            let store = network.at_once();
            store.set(&generation_key(1, rank.number), generation.as_bytes()).map_err(Violation::of)?;
        }
        Ok(Self {
            scenario,
            random,
            now: 0,
            ranks,
            devices: Some(devices),
            network,
            device_work: None,
            outage: None,
            library,
            watched: Vec::new(),
            registry: Arc::default(),
            exports: BTreeMap::new(),
            allocations: HashMap::new(),
            lent: HashMap::new(),
            ended: Vec::new(),
            uses: BTreeMap::new(),
            event_count: 0,
            stepped: None,
            codes,
            event_hash: 0,
            states: Vec::new(),
            trace: trace.then(Vec::new),
            sequence: 0,
            events: BTreeMap::new(),
        })
    }

    pub(crate) fn rank(&mut self, rank: u32) -> &mut Rank {
        &mut self.ranks[rank as usize]
    }

    /// Processes events until none is left. Fails if an event violates an invariant, or after [`ENDLESS`] events.
    pub(crate) fn run(&mut self) -> Result<(), Violation> {
        for rank in 0..self.ranks.len() as u32 {
            self.soon(Event::Resume(rank));
        }
        while let Some(((time, order, id), event)) = self.events.pop_first() {
            self.now = time;
            self.event_count += 1;
            ensure!(self.event_count <= ENDLESS, "the run does not end");
            self.event_hash = Random(self.event_hash ^ time ^ order).next() ^ id;
            self.stepped = None;
            self.happen(event)?;
            self.pass_ended_calls()?;
            // An event that is a step of a rank changes the state of this rank only, and any other event changes the
            // state of no rank. So after each event, at most one rank has a new code.
            if let Some(rank) = self.stepped {
                self.visit(rank);
            }
        }
        Ok(())
    }

    /// Schedules an event at `time`, or now if `time` has passed.
    pub(crate) fn at(&mut self, time: u64, event: Event) {
        self.sequence += 1;
        let order = self.random.next();
        self.events.insert((time.max(self.now), order, self.sequence), event);
    }

    /// Draws a delay in µs.
    pub(crate) fn delay(&mut self) -> u64 {
        let slowest = self.scenario.slowest;
        1 + self.random.below(slowest)
    }

    /// Schedules an event after a random delay.
    pub(crate) fn soon(&mut self, event: Event) {
        let time = self.now + self.delay();
        self.at(time, event);
    }

    /// Schedules an answer to the rank's request with this token. The answer arrives at `time` on the rank's own clock.
    pub(crate) fn answer_at(&mut self, time: Duration, rank: u32, token: u64, answer: work::Answer) {
        let time = self.ranks[rank as usize].world_time(time);
        self.at(time, Event::Answer(rank, token, Box::new(answer)));
    }

    /// Schedules an answer to the rank's request with this token. The answer arrives after a random time.
    pub(crate) fn answer_soon(&mut self, rank: u32, token: u64, answer: work::Answer) {
        self.soon(Event::Answer(rank, token, Box::new(answer)));
    }

    fn happen(&mut self, event: Event) -> Result<(), Violation> {
        let rank = match &event {
            Event::AtStore(_) => None,
            Event::AtRank(id) | Event::Tick(id, _) => match self.network.link(*id) {
                Some(link) => Some(link.rank),
                None => return Ok(()),
            },
            Event::Resume(rank)
            | Event::Answer(rank, ..)
            | Event::Share(rank, ..)
            | Event::Enter(rank, ..)
            | Event::Collect(rank)
            | Event::Noticed(rank, _) => Some(*rank),
            Event::Repeat(asked) => Some(asked.rank),
        };
        if let Some(rank) = rank {
            if self.ranks[rank as usize].dead {
                return Ok(());
            }
            if self.ranks[rank as usize].stopped_until > self.now {
                let later = self.ranks[rank as usize].stopped_until;
                // The operating system buffers the bytes that arrive while the rank is stopped. When the rank
                // continues, it reads all of them at once.
                if !matches!(event, Event::AtRank(id) if !self.network.hold(id)) {
                    self.at(later, event);
                }
                return Ok(());
            }
            // An event with an old token is not a step, because the rank no longer waits for it. The arrival of a
            // piece, or of a call's deadline, is not counted here: it may end a call, and then `called` in `store`
            // counts the step.
            let token = match &event {
                Event::Answer(_, token, _) | Event::Share(_, token, _) | Event::Enter(_, token, ..) => {
                    Some(*token)
                }
                Event::Repeat(asked) => match asked.goal {
                    Goal::Meeting(token) => Some(token),
                    Goal::Resume | Goal::Closed(_) => None,
                },
                _ => None,
            };
            let is_call = matches!(event, Event::AtRank(_) | Event::Tick(..));
            let is_stale = token.is_some_and(|token| token != self.ranks[rank as usize].token);
            if is_stale || !is_call && !self.count_step(rank)? {
                return Ok(());
            }
        }
        let now = Duration::from_micros(self.now);
        match event {
            Event::AtStore(id) => self.at_store(id),
            Event::AtRank(id) => {
                let outputs = self.network.receive(id, now);
                self.obey(id, outputs)
            }
            Event::Tick(id, call) => {
                let outputs = self.network.tick(id, call, now);
                self.obey(id, outputs)
            }
            Event::Repeat(asked) => self.go_on(*asked),
            Event::Resume(rank) => self.resume(rank),
            Event::Answer(rank, token, answer) => self.answer(rank, token, *answer),
            Event::Share(rank, token, records) => self.share(rank, token, &records),
            Event::Enter(rank, token, group, extents) => self.enter(rank, token, group, extents, false),
            Event::Collect(rank) => self.collect(rank),
            Event::Noticed(rank, lost) => self.noticed(rank, lost),
        }
    }

    /// Counts a [step](super) of the rank. Kills, stops or cuts off the rank if the trouble is due at this step.
    /// Returns false if the rank dies at this step.
    pub(crate) fn count_step(&mut self, rank: u32) -> Result<bool, Violation> {
        let now = self.now;
        self.stepped = Some(rank);
        let trouble = self.scenario.trouble_of(rank);
        let state = self.rank(rank);
        state.steps += 1;
        let steps = state.steps;
        match trouble {
            Trouble::Killed(at) if at == steps => {
                state.dead = true;
                self.exports.remove(&rank);
                tell!(self, "rank {rank} dies");
                self.break_links(rank, true)?;
                if let Some(after) = self.scenario.noticed {
                    for other in (0..self.ranks.len() as u32).filter(|other| *other != rank) {
                        let late = after + self.delay();
                        self.at(now + late, Event::Noticed(other, rank));
                    }
                }
                return Ok(false);
            }
            Trouble::Stopped(at, ms) if at == steps => {
                state.stopped_until = now + 1000 * ms;
                tell!(self, "rank {rank} stops for {ms} ms");
            }
            Trouble::CutOff(CutOffAt::Step(at), ms) if at == steps => self.cut_off(rank, ms)?,
            _ => {}
        }
        Ok(true)
    }

    /// Counts an action of the rank in its meeting, see [`CutOffAt::Action`]. `in_retirement` is true if the meeting is
    /// a retirement. Cuts off the rank if the trouble is due at this action.
    pub(crate) fn count_action(&mut self, rank: u32, in_retirement: bool) -> Result<(), Violation> {
        let trouble = self.scenario.trouble_of(rank);
        let state = self.rank(rank);
        state.actions += 1;
        state.retirement_actions += u64::from(in_retirement);
        let is_now = |at| match at {
            CutOffAt::Step(_) => false,
            CutOffAt::Action(at) => at == state.actions,
            CutOffAt::RetirementAction(at) => in_retirement && at == state.retirement_actions,
        };
        match trouble {
            Trouble::CutOff(at, ms) if is_now(at) => self.cut_off(rank, ms),
            _ => Ok(()),
        }
    }

    fn cut_off(&mut self, rank: u32, ms: u64) -> Result<(), Violation> {
        let until = self.now + 1000 * ms;
        self.rank(rank).cut_off = until;
        self.outage = Some(self.now..until);
        tell!(self, "rank {rank} is cut off from the store for {ms} ms");
        self.break_links(rank, true)
    }

    /// Records the state of the world after a step of `rank`. The number of distinct states shows how much the runs
    /// cover. A state consists of the kind of trouble and the [codes](Rank::code) of all ranks. It does not matter
    /// which rank has which code.
    fn visit(&mut self, rank: u32) {
        self.codes[rank as usize] = self.ranks[rank as usize].code();
        // The sum does not depend on the order of the ranks.
        let ranks = self.codes.iter().fold(0_u64, |sum, code| sum.wrapping_add(*code));
        let mut hasher = DefaultHasher::new();
        (std::mem::discriminant(&self.scenario.trouble), ranks).hash(&mut hasher);
        self.states.push(hasher.finish());
    }
}
