//! Results of a rendezvous on the members of a group, and their errors if members differ.

use std::{sync::Arc, time::Duration};

use cuda_driver::{Stream, StreamFlags, graph::CaptureMode};
use process_group::{
    comm::DataType,
    store::{HashStore, Store},
};
use symm_mem::{
    Error, ErrorKind, SymmetricBlock,
    exchange::{Exchange, ExchangeOptions},
    kernels::twins,
    rendezvous::{
        AllocationError, Allocators, Buffer, CudaAllocator, DeviceKind, GroupInfo, GroupInfoError, Groups,
        Layout, Origin, PeerAllocator, PeerMemory, Rendezvous, RendezvousOptions, RendezvousRefusal,
        SymmetricMemory, ViewError,
    },
};

use super::{array, each_reads_each};
use crate::embedded::job::{Rank, run, soon};

const NCCL: i32 = 22809;

fn on_ranks<T: Send>(size: u32, job: impl Fn(Rank) -> T + Sync) -> Vec<T> {
    run(size, NCCL, |_| {}, job)
}

fn options() -> RendezvousOptions {
    RendezvousOptions::default().deadline(Duration::from_secs(60))
}

/// For a rendezvous with an absent rank: half of the deadline passes.
fn short() -> RendezvousOptions {
    RendezvousOptions::default().deadline(Duration::from_secs(6))
}

impl Rank {
    fn meet(&self) {
        self.world.barrier(soon()).unwrap();
    }

    fn own(&self, bytes: usize) -> PeerMemory {
        CudaAllocator::new(&self.context).unwrap().allocate(bytes).unwrap()
    }
}

/// Checks that all ranks have the same refusal, and returns it.
fn all_refused(results: Vec<Result<SymmetricMemory, Error>>) -> RendezvousRefusal {
    let refusals: Vec<RendezvousRefusal> =
        results.into_iter().map(|result| result.unwrap_err().rendezvous_refusal().unwrap().clone()).collect();
    assert!(refusals.iter().all(|refusal| *refusal == refusals[0]), "{refusals:?}");
    refusals[0].clone()
}

#[test]
fn every_rank_has_the_memory_of_every_other() {
    on_ranks(4, |rank| {
        let rendezvous = Rendezvous::of(&rank.world, options()).unwrap();
        let memory = rank.own(5000);
        let missing = rendezvous.get(&memory).unwrap_err();
        assert!(matches!(missing.kind(), ErrorKind::RendezvousMissing { .. }), "{missing}");
        let symmetric = rendezvous.rendezvous(&memory).unwrap();
        each_reads_each(&symmetric, &|| rank.meet());

        let buffers = symmetric.buffers();
        assert_eq!((buffers.origin(), buffers.bytes(), symmetric.bytes()), (Origin::Mapped, 2 << 20, 5000));
        let words: Vec<u64> = buffers.addresses().iter().map(|address| address.0).collect();
        assert_eq!(array(&symmetric, buffers), words);
        assert_eq!(words[symmetric.rank()], memory.ptr().0);
        assert_eq!(symmetric.global_ranks(), [0, 1, 2, 3]);

        // A repeated rendezvous returns the same addresses, and one of a part returns the part's own offset.
        let again = rendezvous.rendezvous(&memory).unwrap();
        assert_eq!(again.buffers().addresses(), buffers.addresses());
        let part = Buffer::from(&memory).part(1000, 400).unwrap();
        let part = rendezvous.get(&part).unwrap();
        assert_eq!((part.offset(), part.bytes()), (1000, 400));
        assert_eq!(part.buffer_ptr(1).unwrap().0, words[1] + 1000);
        assert!(Buffer::from(&memory).part(4000, 1001).is_none());
        rank.meet();
        drop((symmetric, again, part, memory, rendezvous));
        rank.leave();
    });
}

/// Uses the capture mode with the most restrictions; the capturing thread itself makes all objects meanwhile.
#[test]
fn an_open_capture_goes_on() {
    on_ranks(2, |rank| {
        let memory = rank.own(64);
        let capture = rank.stream.begin_capture(CaptureMode::Global).unwrap();
        let rendezvous = Rendezvous::of(&rank.world, options()).unwrap();
        let symmetric = rendezvous.rendezvous(&memory).unwrap();
        let allocated = rendezvous.empty(&Layout::contiguous([16], DataType::F32)).unwrap();
        let exchange = Exchange::new(&rendezvous, ExchangeOptions::default()).unwrap();
        // SAFETY: the memory is as long; the graph is never launched.
        unsafe { rank.stream.fill_u8(memory.ptr(), 0, 64) }.unwrap();
        capture.end().unwrap();
        rank.meet();
        drop((symmetric, allocated, memory));
        // Its threads would otherwise end later than the machine.
        assert!(exchange.close(soon()).is_empty());
        drop(rendezvous);
        rank.leave();
    });
}

/// Dropping the pads waits for a barrier that runs. Another stream captures meanwhile, in the mode with the most
/// restrictions.
#[test]
fn pads_are_dropped_beside_a_capture() {
    run(2, NCCL, twins::register, |rank| {
        let rendezvous = Rendezvous::of(&rank.world, options()).unwrap();
        let memory = rank.own(64);
        let symmetric = rendezvous.rendezvous(&memory).unwrap();
        // SAFETY: nothing is captured on this stream.
        unsafe { symmetric.barrier(&rank.stream, 3, Duration::from_secs(60)) }.unwrap();
        let other = Stream::new(&rank.context, StreamFlags::NON_BLOCKING).unwrap();
        let capture = other.begin_capture(CaptureMode::Global).unwrap();
        drop((symmetric, rendezvous));
        capture.end().unwrap();
        rank.meet();
        assert!(rank.stream.query().unwrap(), "the barrier is over");
        drop(memory);
        rank.leave();
    });
}

#[test]
fn views_stay_in_their_buffers() {
    on_ranks(2, |rank| {
        let rendezvous = Rendezvous::of(&rank.world, options()).unwrap();
        let memory = rank.own(48);
        let symmetric = rendezvous.rendezvous(&memory).unwrap();
        let f32s = |shape: &[usize]| Layout::contiguous(shape, DataType::F32);
        let at = symmetric.buffer_ptr(1).unwrap();
        let view = |layout: &Layout, offset| symmetric.buffer(1, layout, offset).map(|view| view.ptr);
        assert_eq!(view(&f32s(&[3, 4]), 0), Ok(at));
        assert_eq!(view(&f32s(&[2, 4]), 4), Ok(at + 16usize));
        assert_eq!(view(&f32s(&[]), 11), Ok(at + 44usize));
        assert_eq!(view(&f32s(&[7, 0]), 12), Ok(at + 48usize));
        let columns = Layout::strided([4, 3], [1, 4], DataType::F32).unwrap();
        assert_eq!(view(&columns, 0), Ok(at));
        assert!(Layout::strided([4, 3], [1], DataType::F32).is_none());
        for (layout, offset) in [
            (f32s(&[13]), 0),
            (f32s(&[3, 4]), 1),
            (Layout::strided([4, 3], [2, 4], DataType::F32).unwrap(), 0),
            (f32s(&[usize::MAX, 2]), 0),
            (Layout::strided([2], [usize::MAX], DataType::F64).unwrap(), 0),
            (f32s(&[1]), usize::MAX),
        ] {
            let refused = view(&layout, offset).unwrap_err();
            assert!(matches!(refused, ViewError::OutOfBounds { bytes: 48, .. }), "{refused}");
        }
        assert_eq!(symmetric.buffer(2, &f32s(&[1]), 0), Err(ViewError::NoSuchRank { rank: 2, world: 2 }));
        let pad = |elements, offset| {
            symmetric.signal_pad(1, &Layout::contiguous([elements], DataType::U32), offset)
        };
        assert_eq!(pad(64, 0).unwrap().ptr, symmetric.signal_pads().addresses()[1]);
        assert!(pad(64, 1).is_err());
        rank.meet();
        drop((symmetric, memory, rendezvous));
        rank.leave();
    });
}

#[test]
fn blocks_of_a_segment_share_what_the_first_brought() {
    on_ranks(2, |rank| {
        let rendezvous = Rendezvous::of(&rank.world, options()).unwrap();
        let pool = rank.pool();
        let blocks: Vec<SymmetricBlock> = (0..3).map(|_| pool.allocate(512 << 10).unwrap()).collect();
        let first = rendezvous.rendezvous(&blocks[0]).unwrap();
        each_reads_each(&first, &|| rank.meet());
        let second = rendezvous.get(&blocks[1]).unwrap();
        assert_eq!(second.buffers().addresses(), first.buffers().addresses());
        assert_eq!(second.offset(), blocks[1].placement().offset as usize);
        each_reads_each(&second, &|| rank.meet());
        let third = rendezvous.rendezvous(&blocks[2]).unwrap();
        assert_eq!(third.buffers().array(), first.buffers().array());

        // A block of a new segment has had no rendezvous.
        let other = pool.allocate(4 << 20).unwrap();
        assert_eq!(rendezvous.get(&other).unwrap_err().name(), "RendezvousMissing");
        each_reads_each(&rendezvous.rendezvous(&other).unwrap(), &|| rank.meet());

        // Handles and mappings outlive the pool.
        drop((blocks, pool, other, first, third, rendezvous));
        each_reads_each(&second, &|| rank.meet());
        drop(second);
        rank.leave();
    });
}

#[test]
fn two_groups_share_an_allocation_and_no_pad() {
    on_ranks(4, |rank| {
        let [world, tp, dp] = rank.groups().map(|group| Rendezvous::of(group, options()).unwrap());
        let memory = rank.own(4096);
        let of_world = world.rendezvous(&memory).unwrap();
        let of_tp = tp.rendezvous(&memory).unwrap();
        let of_dp = dp.rendezvous(&memory).unwrap();
        each_reads_each(&of_world, &|| rank.meet());
        each_reads_each(&of_tp, &|| rank.tp.barrier(soon()).unwrap());
        each_reads_each(&of_dp, &|| rank.dp.barrier(soon()).unwrap());
        let pads = [&of_world, &of_tp, &of_dp].map(|memory| memory.signal_pads().addresses()[memory.rank()]);
        assert!(pads[0] != pads[1] && pads[1] != pads[2] && pads[0] != pads[2], "{pads:?}");
        rank.meet();
        drop((of_world, of_tp, of_dp, memory, world, tp, dp));
        rank.leave();
    });
}

/// The ranks of one pair have met more often than those of the other, when all meet in the world: by objects made before
/// and after.
#[test]
fn groups_that_have_met_unequally_often_meet_in_the_world() {
    on_ranks(4, |rank| {
        let [world, tp, dp] = rank.groups().map(|group| Rendezvous::of(group, options()).unwrap());
        for _ in 0..if rank.rank < 2 { 3 } else { 1 } {
            let memory = rank.own(4096);
            let shared = tp.rendezvous(&memory).unwrap();
            each_reads_each(&shared, &|| rank.tp.barrier(soon()).unwrap());
            rank.tp.barrier(soon()).unwrap();
        }
        let [again, _, _] = rank.groups().map(|group| Rendezvous::of(group, options()).unwrap());
        for meeting in [&world, &again] {
            let memory = rank.own(4096);
            let shared = meeting.rendezvous(&memory).unwrap();
            each_reads_each(&shared, &|| rank.meet());
            rank.meet();
        }
        drop((again, world, tp, dp));
        rank.leave();
    });
}

#[test]
fn who_comes_with_something_else_is_named_to_all() {
    type Come = fn(&Rank) -> Buffer;
    let cases: [(&str, &str, Come); 4] = [
        ("SizeMismatch", "the buffer differs in size (ranks 0, 2: 4096 bytes; rank 1: 8192 bytes)", |rank| {
            (&rank.own(if rank.rank == 1 { 8192 } else { 4096 })).into()
        }),
        ("OffsetMismatch", "(ranks 0, 2: at byte 0; rank 1: at byte 64)", |rank| {
            let offset = if rank.rank == 1 { 64 } else { 0 };
            Buffer::from(&rank.own(4096)).part(offset, 1024).unwrap()
        }),
        ("SubjectMismatch", "ranks 0, 2: an allocation; rank 1: the allocation of id 7", |rank| {
            let allocator = CudaAllocator::new(&rank.context).unwrap();
            let memory = match rank.rank {
                1 => allocator.persistent(7, 4096),
                _ => allocator.allocate(4096),
            };
            (&memory.unwrap()).into()
        }),
        ("SubjectMismatch", " of pool 0 of domain ", |rank| {
            let pool = rank.pool();
            let first = (rank.rank == 1).then(|| pool.allocate(64).unwrap());
            let block = pool.allocate(4 << 20).unwrap();
            drop(first);
            (&block).into()
        }),
    ];
    for (name, text, come) in cases {
        let refusal = all_refused(on_ranks(3, |rank| {
            let rendezvous = Rendezvous::of(&rank.world, options()).unwrap();
            let result = rendezvous.rendezvous(come(&rank));
            // Later rendezvous still succeed.
            let memory = rank.own(4096);
            each_reads_each(&rendezvous.rendezvous(&memory).unwrap(), &|| rank.meet());
            drop((memory, rendezvous));
            rank.leave();
            result
        }));
        assert_eq!(refusal.name(), name);
        assert!(refusal.to_string().contains(text), "{text:?} is not in {refusal}");
    }
}

#[test]
fn a_rank_that_never_comes_is_named_and_finds_out() {
    let refusal = all_refused(on_ranks(3, |rank| {
        let rendezvous = Rendezvous::of(&rank.world, short()).unwrap();
        let memory = rank.own(4096);
        if rank.rank == 2 {
            // It arrives when the others have given up, and is told the same.
            rank.world.store().wait(&["given up/0", "given up/1"], soon()).unwrap();
        }
        let result = rendezvous.rendezvous(&memory);
        rank.world.store().set(&format!("given up/{}", rank.rank), b"").unwrap();
        each_reads_each(&rendezvous.rendezvous(&memory).unwrap(), &|| rank.meet());
        drop((memory, rendezvous));
        rank.leave();
        result
    }));
    let RendezvousRefusal::RendezvousTimeout { missing, .. } = refusal else { panic!("{refusal}") };
    assert_eq!(missing, [2]);
}

#[test]
fn ranks_that_wait_for_each_other_in_rendezvous_of_two_groups_are_all_told() {
    let waits = on_ranks(2, |rank| {
        // Only the deadline of rank 0 passes.
        let (group, options) = if rank.rank == 0 { (&rank.world, short()) } else { (&rank.tp, options()) };
        let refused = Rendezvous::of(group, options).unwrap_err();
        let Some(RendezvousRefusal::RendezvousTimeout { missing, circle, .. }) = refused.rendezvous_refusal()
        else {
            panic!("{refused}")
        };
        let id = group.id();
        rank.meet();
        rank.leave();
        (missing.clone(), circle.clone(), id)
    });
    let [(missing, circle, world), (absent, other, tp)] = &waits[..] else { panic!("{waits:?}") };
    assert_eq!((missing, absent), (&vec![1], &vec![0]));
    assert_eq!(circle, other);
    let waits: Vec<(u32, bool)> = circle
        .iter()
        .map(|it| {
            let group = if it.rank == 0 { world } else { tp };
            (it.rank, it.place.name.contains(&format!("symm/meeting/{:x}.{}", group.uid, group.epoch)))
        })
        .collect();
    assert_eq!(waits, [(0, true), (1, true)]);
}

#[test]
fn nothing_is_left_in_the_store() {
    on_ranks(3, |rank| {
        let rendezvous = Rendezvous::of(&rank.world, options()).unwrap();
        let memory = rank.own(4096);
        rank.meet();
        let store = rank.world.job_store();
        let keys = |store: &dyn Store| -> Vec<String> {
            store.list_keys().unwrap().into_iter().filter(|key| key.contains("symm/meeting")).collect()
        };
        for _ in 0..3 {
            let symmetric = rendezvous.rendezvous(&memory).unwrap();
            drop(symmetric);
        }
        rank.meet();
        // Only the count of each rank's attempts is left.
        let left = keys(&store);
        assert!(left.iter().all(|key| key.contains("/life/")), "{left:?}");
        rank.meet();
        drop((memory, rendezvous));
        rank.leave();
    });
}

#[test]
fn persistent_memory_is_found_again() {
    on_ranks(2, |rank| {
        let rendezvous = Rendezvous::of(&rank.world, options()).unwrap();
        let allocators = Allocators::new(&rank.context).unwrap();
        let layout = Layout::contiguous([32, 32], DataType::F32);
        let make = |layout: &Layout| allocators.empty_strided(&DeviceKind::Cuda, layout, Some(7));
        let memory = make(&layout).unwrap();
        assert_eq!((memory.id(), memory.bytes()), (Some(7), 4096));
        let symmetric = rendezvous.rendezvous(&memory).unwrap();
        let at = symmetric.buffers().addresses().to_vec();
        drop(memory);
        let alive = make(&layout).unwrap_err();
        assert!(matches!(alive, AllocationError::StillAlive { id: 7 }), "{alive}");
        drop(symmetric);
        let other = make(&Layout::contiguous([32], DataType::F32)).unwrap_err();
        assert!(matches!(other, AllocationError::OtherSize { id: 7, bytes: 4096, asked: 128 }), "{other}");
        // Its peers' addresses are the same.
        let memory = make(&layout).unwrap();
        assert_eq!(rendezvous.get(&memory).unwrap().buffers().addresses(), at);
        let none = allocators.empty_strided(&DeviceKind::Other("tpu".into()), &layout, None).unwrap_err();
        assert!(matches!(none, AllocationError::NoAllocator { .. }), "{none}");
        rank.meet();
        drop((memory, allocators, rendezvous));
        rank.leave();
    });
}

#[test]
fn groups_are_set_once_by_name() {
    let stores: Arc<dyn Store> = Arc::new(HashStore::new());
    on_ranks(2, |rank| {
        let groups = Groups::new();
        let info = |name| GroupInfo::new(name, rank.rank as usize, [4, 9], stores.clone()).unwrap();
        groups.set(info("tp")).unwrap();
        let again = groups.set(info("tp")).unwrap_err();
        assert!(matches!(again, GroupInfoError::AlreadySet { .. }), "{again}");
        let unknown = groups.get("dp").unwrap_err();
        assert!(unknown.to_string().contains("[\"tp\"]"), "{unknown}");
        assert!(GroupInfo::new("tp", 2, [4, 9], stores.clone()).is_err());
        assert!(GroupInfo::new("tp", 0, [4, 4], stores.clone()).is_err());

        // A reused name is another group: the two do not meet each other's leftovers.
        for _ in 0..2 {
            let info = groups.get("tp").unwrap();
            let rendezvous = Rendezvous::new(info, &rank.context, options()).unwrap();
            let memory = rank.own(4096);
            let symmetric = rendezvous.rendezvous(&memory).unwrap();
            assert_eq!(symmetric.global_ranks(), [4, 9]);
            each_reads_each(&symmetric, &|| rank.meet());
            let set = groups.forget("tp").unwrap();
            groups.set(set).unwrap();
        }
        rank.leave();
    });
}

#[test]
fn ranks_on_one_device_are_refused_unless_they_may() {
    let stores: Arc<dyn Store> = Arc::new(HashStore::new());
    on_ranks(2, |rank| {
        // All ranks use the device of rank 0.
        let context = rank.context.driver().device(0).unwrap().retain_primary().unwrap();
        let info = || GroupInfo::new("one device", rank.rank as usize, [0, 1], stores.clone()).unwrap();
        let refused = Rendezvous::new(info(), &context, options()).unwrap_err();
        let Some(RendezvousRefusal::SameDevice { ranks, .. }) = refused.rendezvous_refusal() else {
            panic!("{refused}")
        };
        assert_eq!(ranks, &[0, 1]);
        let rendezvous = Rendezvous::new(info(), &context, options().shared_devices(true)).unwrap();
        let memory = CudaAllocator::new(&context).unwrap().allocate(4096).unwrap();
        each_reads_each(&rendezvous.rendezvous(&memory).unwrap(), &|| rank.meet());
        drop((memory, rendezvous, context));
        rank.leave();
    });
}

#[test]
fn fabric_handles_are_refused_where_there_are_none() {
    use cuda_driver::{Error, vmm::HandleTypes};
    on_ranks(1, |rank| {
        let allocator = CudaAllocator::new(&rank.context).unwrap();
        assert_eq!(allocator.handles(), HandleTypes::POSIX_FD);
        let fabric =
            CudaAllocator::with_handles(&rank.context, HandleTypes::FABRIC).allocate(4096).unwrap_err();
        let AllocationError::Driver(error) = &fabric else { panic!("{fabric}") };
        assert!(matches!(error, Error::NoFabric { .. } | Error::Driver { .. }), "{error}");
        rank.leave();
    });
}
