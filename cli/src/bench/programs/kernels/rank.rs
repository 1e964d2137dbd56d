//! One rank of the benchmark.

use std::cell::Cell;
use std::sync::Arc;

use cuda_driver::graph::CaptureMode;
use cuda_driver::{Context, DevicePtr, Event, EventFlags, Stream, StreamFlags};
use process_group::store::{Deadline, Store, rendezvous};

use super::arguments::Arguments;
use super::case::{COLLECTIVES, Case, ELEMENT, Mode, case_name, input};
use super::contenders::{Contender, Contenders, PATIENCE};
use super::devices::Devices;
use crate::bench::programs::support::{Result, far};

/// Channel on which the ranks meet before a measurement. The collective kernels use others.
const CHANNEL: u32 = 0;

pub(super) struct Rank<'a> {
    rank: usize,
    devices: &'a Devices,
    arguments: &'a Arguments,
    context: &'a Context,
    store: Arc<dyn Store>,
    /// Number of meetings so far.
    meetings: Cell<usize>,
    contenders: Contenders,
    stream: Stream,
    begin: Event,
    end: Event,
}

impl<'a> Rank<'a> {
    pub(super) fn new(
        devices: &'a Devices,
        rank: usize,
        context: &'a Context,
        store: Arc<dyn Store>,
        arguments: &'a Arguments,
    ) -> Result<Self> {
        let largest = arguments.rounds.iter().copied().max().ok_or("no lengths")?.next_multiple_of(1 << 20);
        let contenders = Contenders::new(devices, rank, context, &store, largest)?;
        let values: Vec<u16> = (0..largest / ELEMENT).map(|index| input(rank, index).to_bits()).collect();
        for (_, buffer) in contenders.buffers() {
            // SAFETY: the values fit into the first half of the buffer, and no kernel runs.
            unsafe { context.copy_from_host(buffer, &values)? };
        }
        let event = || Event::new(context, EventFlags::default());
        let stream = Stream::new(context, StreamFlags::NON_BLOCKING)?;
        let (begin, end, meetings) = (event()?, event()?, Cell::new(0));
        Ok(Self { rank, devices, arguments, context, store, meetings, contenders, stream, begin, end })
    }

    /// Prints `line` on rank 0 only.
    fn say(&self, line: impl FnOnce() -> String) {
        if self.rank == 0 {
            println!("{}", line());
        }
    }

    /// Waits for all ranks. Returns the largest of their numbers.
    fn meet(&self, number: f64) -> Result<f64> {
        let name = format!("kernels/{}", self.meetings.get());
        self.meetings.set(self.meetings.get() + 1);
        let card = number.to_le_bytes();
        let cards = rendezvous(&*self.store, &name, self.rank, self.devices.ranks, &card, far())?;
        let numbers = cards.iter().filter_map(|card| Some(f64::from_le_bytes(card[..].try_into().ok()?)));
        Ok(numbers.fold(number, f64::max))
    }

    /// Waits until all ranks may begin a round.
    fn turn(&self) -> Result<()> {
        // The turn may come late: the limit of a meeting does not begin before it.
        let turn = format!("kernels/turn {}", self.meetings.get());
        if self.rank == 0 {
            if self.arguments.in_turn && std::io::stdin().read_line(&mut String::new())? == 0 {
                return Err("the input ended before the last round".into());
            }
            self.store.set(&turn, b"")?;
        } else {
            let patient = Deadline::after(10 * PATIENCE);
            self.store.get(&turn, patient)?;
        }
        Ok(())
    }

    pub(super) fn measure(self) -> Result<()> {
        self.turn()?;
        self.say(|| format!("machine\t{}", self.devices.description));
        for (contender, why) in &self.contenders.left_out {
            let why = why.split_whitespace().collect::<Vec<_>>().join(" ");
            self.say(|| format!("left out\t{}\t{why}", contender.name()));
        }
        self.meet(0.0)?;
        self.say(String::new);
        let rounds = &self.arguments.rounds;
        for (round, &bytes) in rounds.iter().enumerate() {
            self.turn()?;
            let is_first = round == 0 || rounds[round - 1] != bytes;
            self.round(round, bytes, is_first)?;
            self.say(String::new);
        }
        // No rank frees memory that another one's kernels access.
        self.meet(0.0)?;
        self.contenders.close()
    }

    /// Times all contenders with buffers of one length.
    fn round(&self, round: usize, bytes: usize, is_first: bool) -> Result<()> {
        let buffers: Vec<_> = self.contenders.buffers().collect();
        for (name, collective) in COLLECTIVES {
            let Some(case) = Case::of(collective, bytes, self.devices.ranks) else { continue };
            // The order rotates, because each contender finds the state that the one before it left.
            for turn in 0..buffers.len() {
                let (contender, buffer) = buffers[(round + turn) % buffers.len()];
                let Some(name) = contender.collective_name(name, collective) else { continue };
                let times = self.case((contender, buffer), case, bytes, is_first);
                let times = times
                    .map_err(|error| format!("{}, {name} of {bytes} bytes: {error}", contender.name()))?;
                for (mode, us) in times {
                    let case = case_name(name, bytes, mode);
                    self.say(|| format!("{case}\t{}\t{:.1}", contender.name(), us * 1e3));
                }
            }
        }
        Ok(())
    }

    /// Times a case, eagerly and from a graph. In the first round of a length, checks the results of both.
    fn case(
        &self,
        contender: (Contender, DevicePtr),
        case: Case,
        bytes: usize,
        is_first: bool,
    ) -> Result<[(Mode, f64); 2]> {
        // Also in `peers/kernels_bench.py`.
        let (calls, launches) = match bytes {
            _ if self.devices.is_embedded() => (2, 1),
            0..=0xFFFF => (100, 10),
            0x1_0000..=0xFF_FFFF => (50, 4),
            _ => (10, 2),
        };
        // SAFETY: the contenders go after all work and all graphs.
        let call = || unsafe { self.contenders.call(contender, case, &self.stream) };
        if is_first {
            self.clear(contender.1, case)?;
        }
        call()?;
        self.stream.synchronize()?;
        self.contenders.memory.check()?;
        if is_first {
            self.compare(contender.1, case)?;
        }
        let eager = self.time(calls * launches, || (0..calls * launches).try_for_each(|_| call()))?;
        let capture = self.stream.begin_capture(CaptureMode::ThreadLocal)?;
        (0..calls).try_for_each(|_| call())?;
        let graph = capture.end()?.instantiate()?;
        if is_first {
            self.clear(contender.1, case)?;
        }
        // The first launch loads the graph, so it is not timed.
        self.stream.launch(&graph)?;
        self.stream.synchronize()?;
        if is_first {
            self.compare(contender.1, case)?;
        }
        let launch = || Ok((0..launches).try_for_each(|_| self.stream.launch(&graph))?);
        let graph = self.time(calls * launches, launch)?;
        Ok([(Mode::Eager, eager), (Mode::Graph, graph)])
    }

    /// Clears the place of the result, and waits for all ranks: from then on a peer's kernel may write there.
    fn clear(&self, buffer: DevicePtr, case: Case) -> Result<()> {
        let bytes = (case.result_elements(self.devices.ranks) * ELEMENT).next_multiple_of(4);
        // SAFETY: the place lies in the buffer, and no kernel runs.
        unsafe { self.stream.fill_u32(buffer + self.contenders.result_offset(), 0, bytes / 4)? };
        self.stream.synchronize()?;
        self.context.synchronize()?;
        self.meet(0.0)?;
        Ok(())
    }

    /// Checks the result. Then waits for all ranks, whose next call may write to it.
    fn compare(&self, buffer: DevicePtr, case: Case) -> Result<()> {
        let mut found = vec![0_u16; case.result_elements(self.devices.ranks)];
        // SAFETY: the result lies in the second half of the buffer. No kernel writes there, because no rank launches
        // another one before all have compared.
        unsafe { self.context.copy_to_host(&mut found, buffer + self.contenders.result_offset())? };
        case.compare(self.rank, self.devices.ranks, &found)?;
        self.meet(0.0)?;
        Ok(())
    }

    /// Returns the µs per call of `calls` calls that `enqueue` enqueues, on the slowest rank.
    fn time(&self, calls: usize, enqueue: impl FnOnce() -> Result<()>) -> Result<f64> {
        self.meet(0.0)?;
        // Processes leave a meeting at different times, so their devices meet, too.
        // SAFETY: no graph captures this call.
        unsafe { self.contenders.memory.barrier(&self.stream, CHANNEL, PATIENCE)? };
        self.stream.record(&self.begin)?;
        enqueue()?;
        self.stream.record(&self.end)?;
        self.stream.synchronize()?;
        self.contenders.memory.check()?;
        self.meet(self.end.elapsed_us(&self.begin)? / calls as f64)
    }
}
