//! Every operation of a group against a reference in `f64`. Ranks are processes. Covers every type and
//! reduction, unequal and empty shares, in place, libraries that have an operation, and libraries for which
//! it consists of others.

use std::env;

use cuda_driver::{Stream, memory::DeviceMemory};
use nccl_sys::Version;
use process_group::{
    ProcessGroup,
    comm::{ArgumentError, CommError, DataType, ReduceOp},
    group::{Buffer, GroupError, GroupErrorKind, Request, Work},
    store::TcpStore,
};
use rusty_fork::rusty_fork_test;

use super::{
    common::{far, machine, machine_with},
    element::{decode, encode, number},
    processes::{all_succeed, spawn},
};

const RANKS: usize = 8;
const CASE: &str = "PROCESS_GROUP_TEST_OPERATIONS";

/// One rank of a group, with elements of one type.
struct Rank<'a> {
    group: &'a ProcessGroup,
    stream: &'a Stream,
    dtype: DataType,
}

/// Memory with elements.
struct Memory {
    device: DeviceMemory,
    buffer: Buffer,
}

impl Memory {
    fn values(&self) -> Vec<f64> {
        let mut bytes = vec![0u8; self.device.bytes()];
        self.device.copy_to_host(0, &mut bytes).unwrap();
        let used = &bytes[..self.buffer.bytes()];
        used.chunks_exact(self.buffer.dtype.size()).map(|bytes| decode(self.buffer.dtype, bytes)).collect()
    }

    /// Returns `elements` elements of it, beginning with index `start`.
    fn part(&self, start: usize, elements: usize) -> Buffer {
        let at = self.buffer.ptr + start * self.buffer.dtype.size();
        Buffer::new(at, elements, self.buffer.dtype)
    }
}

impl Rank<'_> {
    fn me(&self) -> usize {
        self.group.rank()
    }

    fn size(&self) -> usize {
        self.group.size()
    }

    /// Returns the value of rank `rank` at `i`: exact in every type.
    fn value(&self, rank: usize, i: usize) -> f64 {
        let value = (rank * 3 + i) % 8;
        if self.dtype == DataType::Bool { (value % 2) as f64 } else { value as f64 }
    }

    fn mine(&self, elements: std::ops::Range<usize>) -> Vec<f64> {
        elements.map(|i| self.value(self.me(), i)).collect()
    }

    /// Returns the operand of rank `rank` at `i` for reductions: small, so that products are exact.
    fn term(&self, rank: usize, i: usize) -> f64 {
        let large = (rank + i).is_multiple_of(4);
        if self.dtype == DataType::Bool { f64::from(large) } else { 1.0 + f64::from(large) }
    }

    fn terms(&self, count: usize) -> Vec<f64> {
        (0..count).map(|i| self.term(self.me(), i)).collect()
    }

    /// Returns the reduction of all members' terms at `i`, rounded to the type.
    fn reduced(&self, op: ReduceOp, i: usize) -> f64 {
        let terms = (0..self.size()).map(|rank| (rank, self.term(rank, i)));
        let plain = terms.clone().map(|(_, term)| term);
        let exact = match op {
            ReduceOp::Sum | ReduceOp::Max if self.dtype == DataType::Bool => plain.fold(0.0, f64::max),
            ReduceOp::Prod | ReduceOp::Min if self.dtype == DataType::Bool => plain.fold(1.0, f64::min),
            ReduceOp::Sum => plain.sum(),
            ReduceOp::Prod => plain.product(),
            ReduceOp::Max => plain.fold(f64::MIN, f64::max),
            ReduceOp::Min => plain.fold(f64::MAX, f64::min),
            ReduceOp::Avg => plain.sum::<f64>() / self.size() as f64,
            ReduceOp::PreMulSum(_) | ReduceOp::PreMulSumAt(_) => {
                terms.map(|(rank, term)| factor(rank) * term).sum()
            }
            other => panic!("the tests do not know {other:?}"),
        };
        number(self.dtype, exact)
    }

    fn memory(&self, values: &[f64]) -> Memory {
        let bytes: Vec<u8> = values.iter().flat_map(|value| encode(self.dtype, *value)).collect();
        let device = DeviceMemory::new(self.group.context(), bytes.len().max(8)).unwrap();
        device.copy_from_host(0, &bytes).unwrap();
        let buffer = Buffer::new(device.ptr(), values.len(), self.dtype);
        Memory { device, buffer }
    }

    fn empty(&self, count: usize) -> Memory {
        self.memory(&vec![0.0; count])
    }

    fn done(&self, work: Result<Work, GroupError>) {
        work.unwrap().wait_until(far()).unwrap();
    }
}

/// Returns the factor that each rank multiplies its elements by.
fn factor(rank: usize) -> f64 {
    0.5 * (rank + 1) as f64
}

/// Every operation that reduces.
fn reductions(rank: &Rank<'_>, op: ReduceOp, count: usize) {
    let (n, me, group, stream) = (rank.size(), rank.me(), rank.group, rank.stream);
    let all: Vec<f64> = (0..n * count).map(|i| rank.reduced(op, i)).collect();
    let label = format!("{op} of {count} {} on {n} ranks", rank.dtype);

    let (send, receive) = (rank.memory(&rank.terms(count)), rank.empty(count));
    rank.done(unsafe { group.raw().all_reduce(send.buffer, receive.buffer, op, stream) });
    assert_eq!(receive.values(), all[..count], "all_reduce, {label}");
    rank.done(unsafe { group.raw().all_reduce(send.buffer, send.buffer, op, stream) });
    assert_eq!(send.values(), all[..count], "all_reduce in place, {label}");

    let (send, receive) = (rank.memory(&rank.terms(count)), rank.empty(count));
    rank.done(unsafe { group.raw().reduce(send.buffer, receive.buffer, op, n - 1, stream) });
    let expected = if me == n - 1 { &all[..count] } else { &vec![0.0; count][..] };
    assert_eq!(receive.values(), expected, "reduce, {label}");

    let (send, receive) = (rank.memory(&rank.terms(n * count)), rank.empty(count));
    rank.done(unsafe { group.raw().reduce_scatter(send.buffer, receive.buffer, op, stream) });
    assert_eq!(receive.values(), all[me * count..][..count], "reduce_scatter, {label}");
    rank.done(unsafe { group.raw().reduce_scatter(send.buffer, send.part(me * count, count), op, stream) });
    assert_eq!(send.values()[me * count..][..count], all[me * count..][..count], "in place, {label}");

    // Member i has i elements more than count.
    let sizes: Vec<usize> = (0..n).map(|i| if i == 1 { 0 } else { count + i }).collect();
    let total: usize = sizes.iter().sum();
    let start: usize = sizes[..me].iter().sum();
    let (send, receive) = (rank.memory(&rank.terms(total)), rank.empty(sizes[me]));
    let parts = send.buffer.split(&sizes).unwrap();
    rank.done(unsafe { group.raw().reduce_scatter_list(&parts, receive.buffer, op, stream) });
    let expected: Vec<f64> = (start..start + sizes[me]).map(|i| rank.reduced(op, i)).collect();
    assert_eq!(receive.values(), expected, "reduce_scatter_list, {label}");
}

/// Every operation that moves data.
fn moves(rank: &Rank<'_>, count: usize) {
    let (n, me, group, stream) = (rank.size(), rank.me(), rank.group, rank.stream);
    let label = format!("{count} {} on {n} ranks", rank.dtype);
    let of = |rank_: usize, elements: std::ops::Range<usize>| elements.map(move |i| rank.value(rank_, i));
    let gathered: Vec<f64> = (0..n).flat_map(|r| of(r, 0..count)).collect();
    let root = n / 2;

    let buffer = rank.memory(&rank.mine(0..count));
    rank.done(unsafe { group.raw().broadcast(buffer.buffer, root, stream) });
    assert_eq!(buffer.values(), of(root, 0..count).collect::<Vec<_>>(), "broadcast, {label}");

    let (send, receive) = (rank.memory(&rank.mine(0..count)), rank.empty(n * count));
    rank.done(unsafe { group.raw().all_gather(send.buffer, receive.buffer, stream) });
    assert_eq!(receive.values(), gathered, "all_gather, {label}");
    let mut own = vec![0.0; n * count];
    own[me * count..][..count].copy_from_slice(&rank.mine(0..count));
    let receive = rank.memory(&own);
    rank.done(unsafe { group.raw().all_gather(receive.part(me * count, count), receive.buffer, stream) });
    assert_eq!(receive.values(), gathered, "all_gather in place, {label}");

    let receive = rank.empty(n * count);
    let given = (me == root).then_some(receive.buffer);
    rank.done(unsafe { group.raw().gather(send.buffer, given, root, stream) });
    let expected = if me == root { gathered.clone() } else { vec![0.0; n * count] };
    assert_eq!(receive.values(), expected, "gather, {label}");

    let (send, receive) = (rank.memory(&rank.mine(0..n * count)), rank.empty(count));
    let given = (me == root).then_some(send.buffer);
    rank.done(unsafe { group.raw().scatter(given, receive.buffer, root, stream) });
    let expected: Vec<f64> = of(root, me * count..(me + 1) * count).collect();
    assert_eq!(receive.values(), expected, "scatter, {label}");

    let receive = rank.empty(n * count);
    rank.done(unsafe { group.raw().all_to_all(send.buffer, receive.buffer, stream) });
    let expected: Vec<f64> = (0..n).flat_map(|r| of(r, me * count..(me + 1) * count)).collect();
    assert_eq!(receive.values(), expected, "all_to_all, {label}");

    let (next, former) = ((me + 1) % n, (me + n - 1) % n);
    let (send, receive) = (rank.memory(&rank.mine(0..count)), rank.empty(count));
    rank.done(group.batch(stream, |batch| unsafe {
        batch.send(send.buffer, next)?;
        batch.recv(receive.buffer, former)
    }));
    assert_eq!(receive.values(), of(former, 0..count).collect::<Vec<_>>(), "messages, {label}");
    // One way, outside a batch.
    let message = rank.memory(&rank.mine(0..count));
    if me == 0 {
        rank.done(unsafe { group.raw().send(message.buffer, 1, stream) });
    } else if me == 1 {
        rank.done(unsafe { group.raw().recv(message.buffer, 0, stream) });
        assert_eq!(message.values(), of(0, 0..count).collect::<Vec<_>>(), "a message, {label}");
    }
}

/// The operations on lists: of unequal and empty shares, in place on odd ranks.
fn lists(rank: &Rank<'_>, count: usize) {
    let (n, me, group, stream) = (rank.size(), rank.me(), rank.group, rank.stream);
    let label = format!("{count} {} on {n} ranks", rank.dtype);
    let sizes: Vec<usize> = (0..n).map(|i| if i == 1 { 0 } else { count + i }).collect();
    let start: usize = sizes[..me].iter().sum();
    let total: usize = sizes.iter().sum();
    let gathered: Vec<f64> =
        (0..n).flat_map(|r| (0..sizes[r]).map(move |i| (r, i))).map(|(r, i)| rank.value(r, i)).collect();
    let root = n - 1;

    let mut own = vec![0.0; total];
    own[start..][..sizes[me]].copy_from_slice(&rank.mine(0..sizes[me]));
    let apart = rank.memory(&rank.mine(0..sizes[me]));
    let receive = rank.memory(&own);
    let parts = receive.buffer.split(&sizes).unwrap();
    let send = if me % 2 == 1 { parts[me] } else { apart.buffer };
    rank.done(unsafe { group.raw().all_gather_list(send, &parts, stream) });
    assert_eq!(receive.values(), gathered, "all_gather_list, {label}");

    let receive = rank.memory(&own);
    let parts = receive.buffer.split(&sizes).unwrap();
    let list = if me == root { &parts[..] } else { &[] };
    rank.done(unsafe {
        group.raw().gather_list(if me % 2 == 1 { parts[me] } else { apart.buffer }, list, root, stream)
    });
    assert_eq!(receive.values(), if me == root { gathered } else { own }, "gather_list, {label}");

    let (send, receive) = (rank.memory(&rank.mine(0..total)), rank.empty(sizes[me]));
    let parts = send.buffer.split(&sizes).unwrap();
    let list = if me == root { &parts[..] } else { &[] };
    rank.done(unsafe { group.raw().scatter_list(list, receive.buffer, root, stream) });
    let expected: Vec<f64> = (start..start + sizes[me]).map(|i| rank.value(root, i)).collect();
    assert_eq!(receive.values(), expected, "scatter_list, {label}");

    // Rank a sends b (a + 2b) % 3 times count elements.
    let between = |a: usize, b: usize| (a + 2 * b) % 3 * count;
    let sends: Vec<usize> = (0..n).map(|peer| between(me, peer)).collect();
    let receives: Vec<usize> = (0..n).map(|peer| between(peer, me)).collect();
    let send = rank.memory(&rank.mine(0..sends.iter().sum()));
    let receive = rank.empty(receives.iter().sum());
    let (from, to) = (send.buffer.split(&sends).unwrap(), receive.buffer.split(&receives).unwrap());
    rank.done(unsafe { group.raw().all_to_all_list(&from, &to, stream) });
    let place = |peer: usize| (0..me).map(|to| between(peer, to)).sum::<usize>();
    let expected: Vec<f64> = (0..n)
        .flat_map(|peer| (place(peer)..place(peer) + between(peer, me)).map(move |i| (peer, i)))
        .map(|(peer, i)| rank.value(peer, i))
        .collect();
    assert_eq!(receive.values(), expected, "all_to_all_list, {label}");
}

/// Several operations under one number.
fn coalesced(rank: &Rank<'_>) {
    let (n, group) = (rank.size(), rank.group);
    let (a, b) = (rank.memory(&rank.terms(3)), rank.memory(&rank.terms(70)));
    let (send, receive) = (rank.memory(&rank.mine(0..2)), rank.empty(2 * n));
    let before = group.sequence();
    rank.done(group.batch(rank.stream, |batch| unsafe {
        batch.all_reduce(a.buffer, a.buffer, ReduceOp::Sum)?;
        batch.all_reduce(b.buffer, b.buffer, ReduceOp::Max)?;
        batch.all_gather(send.buffer, receive.buffer)
    }));
    assert_eq!(group.sequence(), before + 1);
    let reduced = |op, count| (0..count).map(|i| rank.reduced(op, i)).collect::<Vec<_>>();
    assert_eq!(a.values(), reduced(ReduceOp::Sum, 3));
    assert_eq!(b.values(), reduced(ReduceOp::Max, 70));
    let gathered: Vec<f64> =
        (0..n).flat_map(|r| (0..2).map(move |i| (r, i))).map(|(r, i)| rank.value(r, i)).collect();
    assert_eq!(receive.values(), gathered);
    rank.done(group.batch(rank.stream, |_| Ok(())));
}

/// Every operation of one group.
pub(crate) fn every_operation(group: &ProcessGroup, stream: &Stream) {
    for dtype in DataType::ALL {
        let rank = Rank { group, stream, dtype };
        moves(&rank, 5);
        lists(&rank, 2);
        if group.nccl().release() < dtype.since() {
            let memory = rank.empty(1);
            let refused =
                unsafe { group.raw().all_reduce(memory.buffer, memory.buffer, ReduceOp::Sum, stream) };
            let error = argument(refused);
            assert!(matches!(error, ArgumentError::TypeTooNew { .. }), "{error}");
            continue;
        }
        let own = factor(group.rank());
        let on_device = rank.memory(&[own]);
        let scaled = [ReduceOp::PreMulSum(own), ReduceOp::PreMulSumAt(on_device.device.ptr())];
        for op in ReduceOp::ALL.into_iter().chain(scaled).filter(|op| op.allows(dtype)) {
            reductions(&rank, op, 3);
        }
    }
    let rank = Rank { group, stream, dtype: DataType::F32 };
    for count in [0, 1, 1000] {
        moves(&rank, count);
        lists(&rank, count);
        reductions(&rank, ReduceOp::Sum, count);
    }
    coalesced(&rank);
}

/// The body of a rank, when it is started by one of the tests below.
#[test]
#[ignore = "the body of a process that a test starts"]
fn one_rank() {
    let release = env::var(CASE).expect("a test below starts this process");
    // SAFETY: this process runs one test, and no other thread of it uses the environment yet.
    unsafe { env::set_var("NCCL_CHECK_MODE", "DEBUG_LOCAL") };
    let machine = machine_with(RANKS, release.parse().unwrap());
    let device: usize = env::var("LOCAL_RANK").unwrap().parse().unwrap();
    let context = machine.context(device);
    let builder = ProcessGroup::builder().context(&context).nccl(&machine.nccl);
    let world = builder.timeout(std::time::Duration::from_secs(60)).build().unwrap();
    let stream = Stream::new(&context, cuda_driver::StreamFlags::NON_BLOCKING).unwrap();
    // Eight ranks, then five and three.
    let part = Request::Color { color: Some(u32::from(world.rank() >= 5)), key: 0 };
    let odd = world.split("odd", &part).unwrap().unwrap();
    every_operation(&world, &stream);
    every_operation(&odd, &stream);
    odd.destroy(far()).unwrap();
    // If a library has an operation, the group must call it.
    let native = machine.nccl.release() >= Version::new(2, 28, 3);
    for name in ["ncclAlltoAll", "ncclGather", "ncclScatter"] {
        assert_eq!(machine.world.calls(name) > 0, native, "{name}");
    }
    world.destroy(far()).unwrap();
    drop((stream, context));
    machine.world.finish().unwrap();
}

fn all_operations(release: &str) {
    let store = TcpStore::host(0).unwrap();
    let (test, address) = (concat!(module_path!(), "::one_rank"), store.address());
    all_succeed((0..RANKS).map(|rank| spawn(test, (CASE, release), rank, RANKS, &address)).collect());
}

#[test]
fn every_operation_on_eight_processes() {
    all_operations("22809");
}

#[test]
fn every_operation_of_a_library_without_all_to_all_gather_scatter_and_8_bit_floats() {
    all_operations("21705");
}

fn argument<T: std::fmt::Debug>(result: Result<T, GroupError>) -> ArgumentError {
    match result.unwrap_err().into_kind() {
        GroupErrorKind::Argument { source: error, .. } => error,
        other => panic!("{other}"),
    }
}

/// Every operation of which some or all shares are empty. The empty shares lie at the end of an allocation.
fn empty_shares(rank: &Rank<'_>) {
    let (me, group, stream) = (rank.me(), rank.group, rank.stream);
    // Memory of exactly the bytes of its elements, so that an address after the last element is in no allocation.
    let (send, receive) = (rank.memory(&rank.terms(2)), rank.empty(2));
    let (end, received_end) = (send.part(2, 0), receive.part(2, 0));
    let list = |memory: &Memory| memory.buffer.split(&[2, 0, 0]).unwrap();
    let (full, given) = if me == 0 { (send.buffer, receive.buffer) } else { (end, received_end) };
    let reduced = [rank.reduced(ReduceOp::Sum, 0), rank.reduced(ReduceOp::Sum, 1)];
    let of_first = [rank.term(0, 0), rank.term(0, 1)];
    let before = group.sequence();

    rank.done(unsafe { group.raw().all_gather_list(full, &list(&receive), stream) });
    assert_eq!(receive.values(), of_first, "all_gather_list");
    rank.done(unsafe { group.raw().reduce_scatter_list(&list(&send), given, ReduceOp::Sum, stream) });
    assert_eq!(receive.values(), if me == 0 { reduced } else { of_first }, "reduce_scatter_list");
    let at_root = |memory: &Memory| if me == 0 { list(memory) } else { Vec::new() };
    rank.done(unsafe { group.raw().gather_list(full, &at_root(&receive), 0, stream) });
    rank.done(unsafe { group.raw().scatter_list(&at_root(&send), given, 0, stream) });
    assert_eq!(receive.values(), of_first, "gather_list and scatter_list");
    let (from, to) = (if me == 0 { list(&send) } else { vec![end; 3] }, vec![received_end; 3]);
    let to = if me == 0 { list(&receive) } else { to };
    rank.done(unsafe { group.raw().all_to_all_list(&from, &to, stream) });
    assert_eq!(receive.values(), of_first, "all_to_all_list");

    // Nothing in any share.
    rank.done(unsafe { group.raw().all_gather_list(end, &[received_end; 3], stream) });
    rank.done(unsafe { group.raw().reduce_scatter_list(&[end; 3], received_end, ReduceOp::Sum, stream) });
    rank.done(unsafe { group.raw().all_reduce(end, received_end, ReduceOp::PreMulSum(2.0), stream) });
    rank.done(unsafe { group.raw().broadcast(end, 1, stream) });
    rank.done(unsafe { group.raw().all_gather(end, received_end, stream) });
    let nowhere = Buffer::new(cuda_driver::DevicePtr(0), 0, rank.dtype);
    rank.done(unsafe { group.raw().all_to_all(nowhere, nowhere, stream) });
    assert_eq!(receive.values(), of_first, "operations without elements");
    assert_eq!(group.sequence(), before + 11);
}

rusty_fork_test! {
    #[test]
    fn empty_shares_at_the_end_of_an_allocation_are_no_calls_of_nccl() {
        // SAFETY: this process runs one test, and no other thread of it uses the environment yet.
        unsafe { env::set_var("NCCL_CHECK_MODE", "DEBUG_GLOBAL") };
        for release in [21705, 22809] {
            let machine = machine_with(3, release);
            machine.ranks(3, |rank| {
                let (group, stream) = (rank.world(), rank.stream());
                empty_shares(&Rank { group: &group, stream: &stream, dtype: DataType::F32 });
                group.destroy(far()).unwrap();
            });
            // One share with elements on each of three ranks.
            for name in ["ncclBroadcast", "ncclReduce"] {
                assert_eq!(machine.world.calls(name), 3, "{name} of {release}");
            }
            machine.world.finish().unwrap();
        }
    }

    #[test]
    fn what_cannot_be_right_is_refused_and_nothing_is_launched() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let world = rank.world();
            let stream = rank.stream();
            let memory = Rank { group: &world, stream: &stream, dtype: DataType::F32 }.empty(64);
            let (me, part) = (rank.rank, |start, elements| memory.part(start, elements));
            let typed = |dtype| Buffer { dtype, ..part(0, 4) };
            unsafe {
                let error = argument(world.raw().all_reduce(typed(DataType::Bool), typed(DataType::Bool), ReduceOp::Avg, &stream));
                assert!(matches!(error, ArgumentError::Reduction { dtype: DataType::Bool, .. }), "{error}");
                let op = ReduceOp::PreMulSum(2.0);
                let error = argument(world.raw().all_reduce(typed(DataType::I32), typed(DataType::I32), op, &stream));
                assert!(matches!(error, ArgumentError::Reduction { dtype: DataType::I32, .. }), "{error}");
                for error in [
                    argument(world.raw().reduce(part(0, 1), part(1, 1), ReduceOp::Sum, 2, &stream)),
                    argument(world.raw().gather(part(0, 1), None, 7, &stream)),
                    argument(world.raw().scatter_list(&[], part(1, 1), 2, &stream)),
                    argument(world.raw().send(part(0, 1), 2, &stream)),
                ] {
                    assert!(matches!(error, ArgumentError::NoSuchRank { size: 2, .. }), "{error}");
                }
                for refused in [world.raw().send(part(0, 1), me, &stream), world.raw().recv(part(0, 1), me, &stream)] {
                    let error = argument(refused);
                    assert!(matches!(error, ArgumentError::ToOneself { .. }), "{error}");
                }
                let error = world.raw().gather(part(0, 1), None, me, &stream).unwrap_err();
                assert!(matches!(error.kind(), GroupErrorKind::Argument { source: ArgumentError::RootBuffer { buffer: "receive", .. }, .. }), "{error}");
                let error = world.raw().scatter(None, part(0, 1), me, &stream).unwrap_err();
                assert!(matches!(error.kind(), GroupErrorKind::Argument { source: ArgumentError::RootBuffer { buffer: "send", .. }, .. }), "{error}");
                for refused in [
                    world.raw().all_gather_list(part(0, 1), &[part(8, 1)], &stream),
                    world.raw().reduce_scatter_list(&[], part(0, 1), ReduceOp::Sum, &stream),
                    world.raw().all_to_all_list(&[part(0, 1), part(1, 1)], &[part(8, 1); 3], &stream),
                ] {
                    let error = refused.unwrap_err();
                    assert!(matches!(error.kind(), GroupErrorKind::Argument { source: ArgumentError::ListLength { size: 2, .. }, .. }), "{error}");
                }
                let error = argument(world.raw().all_gather_list(part(0, 2), &[part(8, 2), part(9, 2)], &stream));
                assert!(matches!(error, ArgumentError::ListOverlap { .. }), "{error}");
                let other = Buffer { dtype: DataType::I32, ..part(16, 2) };
                let error = world.raw().all_to_all_list(&[part(0, 2), part(2, 2)], &[part(8, 2), other], &stream).unwrap_err();
                assert!(matches!(error.kind(), GroupErrorKind::Argument { source: ArgumentError::Lengths { .. }, .. }), "{error}");
                let error = world.raw().all_gather_list(part(0, 2), &[part(8, 3), part(16, 3)], &stream).unwrap_err();
                assert!(matches!(error.kind(), GroupErrorKind::Argument { source: ArgumentError::Lengths { .. }, .. }), "{error}");
                // Operations queued before the invalid one are not launched.
                let error = argument(world.batch(&stream, |batch| {
                    batch.send(part(0, 1), 1 - me)?;
                    batch.recv(part(1, 1), 2)
                }));
                assert!(matches!(error, ArgumentError::NoSuchRank { .. }), "{error}");
                let error = world.batch(&stream, |batch| {
                    batch.send(part(0, 1), me)?;
                    batch.recv(part(1, 2), me)
                }).unwrap_err();
                assert!(matches!(error.kind(), GroupErrorKind::Argument { source: ArgumentError::Lengths { .. }, .. }), "{error}");
            }
            let other = rank.context.driver().device(1 - me as u32).unwrap().retain_primary().unwrap();
            let error = argument(world.track_graph_launch(&Stream::legacy_default(&other)));
            assert!(matches!(error, ArgumentError::ForeignStream { .. }), "{error}");
            let error = part(0, 4).split(&[3, 2]).unwrap_err();
            assert!(matches!(error.kind(), GroupErrorKind::Sizes { elements: 4, parts: 2, sum: 5 }), "{error}");
            assert_eq!(world.sequence(), 0);
            world.barrier(far()).unwrap();
            let end = world.abort_handle();
            end.abort(far()).unwrap();
            let closed = unsafe { world.raw().all_reduce(part(0, 1), part(0, 1), ReduceOp::Sum, &stream) };
            // The other rank aborts too, and that may be known first.
            let is_closed = matches!(closed.as_ref().map_err(GroupError::kind), Err(GroupErrorKind::Comm(CommError::Closed { .. }) | GroupErrorKind::Left { .. }));
            assert!(is_closed, "{closed:?}");
        });
        for name in ["ncclAllReduce", "ncclReduce", "ncclSend", "ncclRecv", "ncclGather", "ncclBroadcast"] {
            assert_eq!(machine.world.calls(name), 0, "{name}");
        }
        machine.world.finish().unwrap();
    }
}
