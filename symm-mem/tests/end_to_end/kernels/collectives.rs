//! Collectives of every kind, type, operation, length and alignment, checked against the reference. All ranks get the
//! same bits, and nothing beside the result is written.

use cuda_driver::graph::CaptureMode;
use cuda_driver::{DevicePtr, Driver};
use process_group::comm::{DataType, ReduceOp};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{Config, TestRunner};
use symm_mem::kernels::{
    Algorithm, AllGather, AllReduce, AllToAll, KernelError, PadLayout, ReduceScatter, Target, WaitKind,
};

use super::rig::{self, Rank, all_done};
use super::{LONG, SHORT, on_devices, reference};
use crate::random::Random;

/// The collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    AllReduce(Algorithm),
    ReduceScatter,
    AllGather,
    AllToAll,
}

/// Destination of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum To {
    InPlace,
    /// An address in the own block: this many bytes behind its middle, plus the rank's number.
    Address(u64),
    /// An offset this many bytes behind the middle of the block.
    Offset(u64),
}

/// One call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) kind: Kind,
    pub(crate) to: To,
    pub(crate) dtype: DataType,
    pub(crate) op: ReduceOp,
    /// Number of elements of each rank, or for each rank.
    pub(crate) elements: u64,
    /// First byte of the input.
    pub(crate) input: u64,
}

/// Every kind with every target that it has.
pub(crate) const KINDS: [(Kind, &[To]); 5] = {
    const ANY: &[To] = &[To::InPlace, To::Address(0), To::Offset(0)];
    [
        (Kind::AllReduce(Algorithm::OneShot), ANY),
        (Kind::AllReduce(Algorithm::TwoShot), &[To::InPlace, To::Offset(0)]),
        (Kind::ReduceScatter, ANY),
        (Kind::AllGather, ANY),
        (Kind::AllToAll, &[To::Address(0), To::Offset(0)]),
    ]
};

impl To {
    /// The same destination, `by` bytes further.
    pub(crate) fn shifted(self, by: u64) -> Self {
        match self {
            Self::InPlace => Self::InPlace,
            Self::Address(at) => Self::Address(at + by),
            Self::Offset(at) => Self::Offset(at + by),
        }
    }
}

impl Case {
    fn is_all_reduce(&self) -> bool {
        matches!(self.kind, Kind::AllReduce(_))
    }

    fn part(&self) -> usize {
        self.elements as usize * self.dtype.size()
    }

    /// Number of bytes of the input on each rank, and of the result if it lies elsewhere.
    fn sizes(&self, world: usize) -> (usize, usize) {
        let part = self.part();
        match self.kind {
            Kind::AllReduce(_) => (part, part),
            Kind::ReduceScatter => (part * world, part),
            Kind::AllGather if self.to == To::InPlace => (part * world, part * world),
            Kind::AllGather => (part, part * world),
            Kind::AllToAll => (part * world, part * world),
        }
    }

    /// First byte of the result in a rank's block.
    fn place(&self, rank: usize, block: usize) -> usize {
        let input = self.input as usize;
        match (self.to, self.kind) {
            (To::InPlace, Kind::ReduceScatter) => input + rank * self.part(),
            (To::InPlace, _) => input,
            (To::Address(past), _) => block / 2 + past as usize + rank,
            (To::Offset(past), _) => block / 2 + past as usize,
        }
    }

    /// Launches it on a rank.
    ///
    /// # Safety
    /// As the collectives; input and outcome lie in the ranks' blocks.
    unsafe fn launch(&self, rank: &Rank) -> Result<(), KernelError> {
        let (kernels, stream, ranks) = (&rank.kernels, &rank.stream, &rank.ranks);
        let place = self.place(ranks.rank as usize, rank.block.bytes()) as u64;
        let target = match self.to {
            To::InPlace => Target::InPlace,
            To::Address(_) => Target::Address(DevicePtr(rank.block.ptr().0 + place)),
            To::Offset(_) => Target::Offset(place),
        };
        let Self { input, elements, dtype, op, .. } = *self;
        let bytes = self.part() as u64;
        // SAFETY: the caller's promise.
        unsafe {
            match self.kind {
                Kind::AllReduce(algorithm) => {
                    let call = AllReduce { input, target, elements, dtype, op, algorithm };
                    kernels.all_reduce(stream, ranks, &call)
                }
                Kind::ReduceScatter => kernels.reduce_scatter(
                    stream,
                    ranks,
                    &ReduceScatter { input, target, elements, dtype, op },
                ),
                Kind::AllGather => kernels.all_gather(stream, ranks, &AllGather { input, target, bytes }),
                Kind::AllToAll => kernels.all_to_all(stream, ranks, &AllToAll { input, target, bytes }),
            }
        }
    }

    /// The expected result on `rank`, computed from the initial blocks; `None` for collectives that combine values.
    fn moved(&self, rank: usize, before: &[Vec<u8>]) -> Option<Vec<u8>> {
        let (part, input) = (self.part(), self.input as usize);
        let of = |peer: usize, at: usize| &before[peer][at..at + part];
        let parts = (0..before.len()).map(|peer| match (self.kind, self.to) {
            (Kind::AllGather, To::InPlace) => of(peer, input + peer * part),
            (Kind::AllGather, _) => of(peer, input),
            _ => of(peer, input + rank * part),
        });
        matches!(self.kind, Kind::AllGather | Kind::AllToAll).then(|| parts.collect::<Vec<_>>().concat())
    }

    /// Checks a rank's result.
    fn check(&self, rank: usize, before: &[Vec<u8>], found: &[u8]) -> Result<(), String> {
        if let Some(expected) = self.moved(rank, before) {
            let at = expected.iter().zip(found).position(|(expected, found)| expected != found);
            return at.map_or(Ok(()), |at| Err(format!("byte {at} is {}, not {}", found[at], expected[at])));
        }
        let size = self.dtype.size();
        let from = match self.kind {
            Kind::ReduceScatter => self.input as usize + rank * self.part(),
            _ => self.input as usize,
        };
        for (index, found) in found.chunks_exact(size).enumerate() {
            let at = from + index * size;
            let elements: Vec<_> = before.iter().map(|block| &block[at..at + size]).collect();
            reference::check(self.dtype, self.op, &elements, found)
                .map_err(|why| format!("element {index}: {why}"))?;
        }
        Ok(())
    }
}

/// Runs a case on ranks whose blocks are large enough, and checks everything.
pub(crate) fn run(ranks: &[Rank], case: &Case, seed: u64) {
    let mut random = Random(seed);
    let world = ranks.len();
    let (read, written) = case.sizes(world);
    let input = case.input as usize;
    let before: Vec<Vec<u8>> = ranks
        .iter()
        .map(|rank| {
            let mut block = vec![0xa5; rank.block.bytes()];
            assert!(input + read <= block.len() / 2 && written + 64 <= block.len() / 2, "room for {case:?}");
            for element in block[input..input + read].chunks_exact_mut(case.dtype.size()) {
                element.copy_from_slice(&reference::element(case.dtype, random.next()));
            }
            rank.block.copy_from_host(0, &block).unwrap();
            block
        })
        .collect();
    rig::settle(ranks);
    for rank in ranks {
        // SAFETY: the rig keeps the kernels' contract; all lies in the blocks, which live until all is done.
        unsafe { case.launch(rank) }.unwrap_or_else(|error| panic!("{case:?}: {error}"));
    }
    all_done(ranks);
    let mut outcomes = Vec::new();
    for (number, rank) in ranks.iter().enumerate() {
        let told = |why: String| format!("{case:?}, rank {number} of {world}: {why}");
        let mut after = vec![0; rank.block.bytes()];
        rank.block.copy_to_host(0, &mut after).unwrap();
        let place = case.place(number, after.len());
        let outcome = place..place + written;
        // All ranks of an all-reduce have the same result; the comparison at the end checks that.
        if number == 0 || !case.is_all_reduce() {
            case.check(number, &before, &after[outcome.clone()])
                .unwrap_or_else(|why| panic!("{}", told(why)));
        }
        outcomes.push(after[outcome.clone()].to_vec());
        for beside in [0..outcome.start, outcome.end..after.len()] {
            let is_same = after[beside.clone()] == before[number][beside];
            assert!(is_same, "{}", told("a byte beside the outcome was written".into()));
        }
    }
    if case.is_all_reduce() {
        assert!(outcomes.iter().all(|outcome| *outcome == outcomes[0]), "{case:?}: ranks differ");
    }
}

/// Every kind, target, type and operation, with lengths around vectors of 16 bytes, rows of a block and shares of a
/// grid.
pub(crate) fn everything(ranks: &[Rank], lengths: &[u64]) -> u64 {
    let mut cases = 0;
    for dtype in reference::TYPES {
        for (kind, targets) in KINDS {
            let combines = matches!(kind, Kind::AllReduce(_) | Kind::ReduceScatter);
            for op in
                ReduceOp::ALL.into_iter().filter(|op| op.allows(dtype)).take(if combines { 5 } else { 1 })
            {
                for to in targets {
                    for elements in lengths {
                        // Alternates alignments of 1 to 16 bytes, for input and result.
                        let [input, past] = [cases * 7 % 33, cases * 5 % 17];
                        let case = Case { kind, to: to.shifted(past), dtype, op, elements: *elements, input };
                        run(ranks, &case, cases);
                        cases += 1;
                    }
                }
            }
        }
    }
    cases
}

/// Loads the ranks' device code for every type, before any of it is launched.
pub(crate) fn prepare(ranks: &[Rank]) {
    for rank in ranks {
        reference::TYPES.iter().for_each(|dtype| rank.kernels.prepare(*dtype).unwrap());
    }
}

/// Ranks with blocks of this many bytes, with all kernels loaded.
pub(crate) fn ranks(driver: &Driver, devices: u32, world: u32, bytes: usize) -> Vec<Rank> {
    let ranks = rig::ranks(driver, devices, world, bytes, LONG).unwrap();
    prepare(&ranks);
    ranks
}

/// Lengths around a vector of 16 bytes of each type, and around a row of a block of one-byte elements.
pub(crate) const SHORT_LENGTHS: [u64; 6] = [0, 1, 7, 17, 64, 519];

/// Collectives of a megabyte, with rows that no grid shares evenly: two of each kind with each target, and different
/// ones for another number of ranks, since the host comparison is slow.
pub(crate) fn some_long(ranks: &[Rank]) -> u64 {
    let mut cases = 0;
    let world = ranks.len() as u64;
    for (kind, targets) in KINDS {
        for to in targets {
            for dtype in [DataType::U8, DataType::Bf16, DataType::F32] {
                for shift in [0, 5] {
                    cases += 1;
                    if (cases + world).is_multiple_of(3) {
                        let parts = if matches!(kind, Kind::AllReduce(_)) { 1 } else { world };
                        let (elements, to) = (300_037 / dtype.size() as u64 / parts, to.shifted(shift));
                        let case = Case { kind, to, dtype, op: ReduceOp::Sum, elements, input: shift };
                        run(ranks, &case, cases);
                    }
                }
            }
        }
    }
    cases / 3
}

/// Random collectives: any length up to 300,000 bytes, alignment, type and operation.
pub(crate) fn random(ranks: &[Rank], mut runner: TestRunner) {
    let outcome = runner.run(&case(ranks.len()), |(case, seed)| {
        run(ranks, &case, seed);
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
}

/// The configuration of [`random`] for this many cases.
pub(crate) fn config(cases: u32) -> Config {
    Config { cases, failure_persistence: None, ..Config::default() }
}

fn case(world: usize) -> impl Strategy<Value = (Case, u64)> {
    let place = (0..KINDS.len(), any::<Index>(), 0_u64..40, 0_u64..17);
    let what = (select(&reference::TYPES[..]), select(&ReduceOp::ALL[..]));
    // Around vectors of 16 bytes, around a row of a block, and around all rows of all blocks.
    let bytes = prop_oneof![0_u64..70, 8_100_u64..8_300, 196_500_u64..196_700, 0_u64..300_000];
    (place, what, bytes, any::<u64>())
        .prop_map(move |((kind, target, input, past), (dtype, op), bytes, seed)| {
            let (kind, targets) = KINDS[kind];
            let parts = if matches!(kind, Kind::AllReduce(_)) { 1 } else { world as u64 };
            let elements = bytes / dtype.size() as u64 / parts;
            let to = targets[target.index(targets.len())].shifted(past);
            (Case { kind, to, dtype, op, elements, input }, seed)
        })
        .prop_filter("averages are not of truth values", |(case, _)| case.op.allows(case.dtype))
}

/// A graph of several collectives; each reads the result of the one before.
pub(crate) fn graphs(driver: &Driver, devices: u32, world: u32) {
    const N: u64 = 3000;
    let ranks = ranks(driver, devices, world, 1 << 18);
    let half = 1 << 17;
    let (dtype, op) = (DataType::I32, ReduceOp::Sum);
    let in_place = AllReduce {
        input: 4,
        target: Target::InPlace,
        elements: N,
        dtype,
        op,
        algorithm: Algorithm::OneShot,
    };
    let copied = AllReduce { target: Target::Offset(half), algorithm: Algorithm::TwoShot, ..in_place };
    let graphs: Vec<_> = ranks
        .iter()
        .map(|rank| {
            let capture = rank.stream.begin_capture(CaptureMode::ThreadLocal).unwrap();
            // SAFETY: the rig keeps the kernels' contract; all lies in the blocks, which live until all is done.
            unsafe {
                rank.kernels.all_reduce(&rank.stream, &rank.ranks, &in_place).unwrap();
                rank.kernels.all_reduce(&rank.stream, &rank.ranks, &copied).unwrap();
            }
            capture.end().unwrap().instantiate().unwrap()
        })
        .collect();
    for rank in &ranks {
        rank.block.copy_from_host(4, &[1_i32; N as usize]).unwrap();
    }
    rig::settle(&ranks);
    for launch in 1..=3 {
        for (rank, graph) in ranks.iter().zip(&graphs) {
            rank.stream.launch(graph).unwrap();
        }
        all_done(&ranks);
        let world = world as i32;
        for rank in &ranks {
            let mut found = vec![0_i32; N as usize];
            rank.block.copy_to_host(half as usize, &mut found).unwrap();
            assert_eq!(found, vec![world.pow(launch + 1); N as usize], "launch {launch}");
        }
    }
}

/// A collective that only one rank launches: it gives up with any number of blocks, and names a rank that did not
/// arrive.
pub(crate) fn absent(driver: &Driver, devices: u32) {
    for (kind, targets) in KINDS {
        let ranks = rig::ranks(driver, devices, 3, 1 << 20, SHORT).unwrap();
        prepare(&ranks);
        let (dtype, op) = (DataType::F32, ReduceOp::Sum);
        let case = Case { kind, to: targets[0], dtype, op, elements: 20_000, input: 0 };
        // SAFETY: the rig keeps the kernels' contract; all lies in the blocks, which live until all is done.
        unsafe { case.launch(&ranks[0]) }.unwrap();
        let result = ranks[0].done();
        let Err(KernelError::Late(late)) = result else { panic!("{kind:?}: {result:?}") };
        assert!(late.peer != 0 && late.waiting == WaitKind::Signal, "{kind:?}: {late}");
        assert!(late.channel >= PadLayout::USER_CHANNELS && late.waited >= SHORT, "{late}");
    }
}

#[test]
fn every_collective_of_every_type_is_right() {
    for (devices, world) in [(1, 1), (2, 2), (3, 3)] {
        on_devices(devices as usize, |_, driver| {
            let ranks = ranks(driver, devices, world, 1 << 16);
            assert!(everything(&ranks, &SHORT_LENGTHS) > 2000);
        });
    }
}

#[test]
fn any_collective_is_right() {
    on_devices(4, |_, driver| {
        for world in 1..=8 {
            random(&ranks(driver, 4, world, 1 << 20), TestRunner::new(config(12)));
        }
    });
}

#[test]
fn long_collectives_are_right() {
    on_devices(2, |_, driver| {
        assert_eq!(some_long(&ranks(driver, 2, 3, 4 << 20)), 26);
    });
}

#[test]
fn collectives_in_graphs() {
    on_devices(3, |_, driver| graphs(driver, 3, 3));
}

#[test]
fn collectives_without_a_rank_give_up() {
    on_devices(3, |_, driver| absent(driver, 3));
}

#[test]
fn what_no_collective_can_do_is_refused_before_a_launch() {
    on_devices(1, |world, driver| {
        let ranks = ranks(driver, 1, 2, 1 << 16);
        let Some(rank) = ranks.first() else { unreachable!("two ranks") };
        let launches = world.calls("cuLaunchKernel");
        let good = AllReduce {
            input: 64,
            target: Target::InPlace,
            elements: 16,
            dtype: DataType::F32,
            op: ReduceOp::Sum,
            algorithm: Algorithm::TwoShot,
        };
        let refused = |call: AllReduce| {
            // SAFETY: refused before anything is launched.
            let refused = unsafe { rank.kernels.all_reduce(&rank.stream, &rank.ranks, &call) };
            refused.unwrap_err().to_string()
        };
        assert_eq!(
            refused(AllReduce { target: Target::Address(DevicePtr(512)), ..good }),
            "two-shot all_reduce writes to all ranks: it needs an offset in their buffers, not an address"
        );
        for offset in [1, 127] {
            assert_eq!(
                refused(AllReduce { target: Target::Offset(offset), ..good }),
                format!(
                    "two-shot all_reduce would write 64 bytes at offset {offset} over its input, 64 bytes at offset 64"
                )
            );
        }
        assert_eq!(
            refused(AllReduce { dtype: DataType::F8E4M3, ..good }),
            "two-shot all_reduce does not combine f8e4m3 to the sum"
        );
        assert_eq!(
            refused(AllReduce { op: ReduceOp::PreMulSum(2.0), ..good }),
            "two-shot all_reduce does not combine f32 to the sum of 2 times"
        );
        assert_eq!(
            refused(AllReduce { elements: 1 << 62, ..good }),
            format!(
                "two-shot all_reduce of {} elements a rank: the ranks' bytes cannot be counted",
                1_u64 << 62
            )
        );
        let call = AllToAll { input: 0, target: Target::InPlace, bytes: 8 };
        // SAFETY: refused before anything is launched.
        let refused = unsafe { rank.kernels.all_to_all(&rank.stream, &rank.ranks, &call) };
        assert_eq!(
            refused.unwrap_err().to_string(),
            "all_to_all cannot work in place: it would overwrite data that other ranks still read"
        );
        assert_eq!(world.calls("cuLaunchKernel"), launches);
    });
}
