//! Plans in which ranks differ, and invalid calls.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use cuda_driver::{Driver, sys::Api};
use gpu_sim::World;
use process_group::{comm::DataType, store::Store};
use symm_mem::{
    ErrorKind,
    exchange::{ExchangeOptions, ExchangeRefusal, Memory, Part, Plan, Transfer, TransferError},
    rendezvous::Layout,
};

use super::{LONG, Rank, on_ranks, options, pattern, threads_on};
use crate::common::{
    intercept::{Intercept, Intercepted},
    turn,
};

/// Two ranks exchange the transfers that `job` gives them; both are told the same refusal. Then they exchange valid
/// ones.
fn refused(job: impl Fn(&Rank<'_>) -> Vec<Transfer> + Sync) -> ExchangeRefusal {
    let told = Mutex::new(Vec::new());
    on_ranks(2, options(), |rank| {
        let error = rank.exchange.exchange("plan", &job(rank)).unwrap_err();
        told.lock().unwrap().push(error.exchange_refusal().unwrap().clone());
        assert_eq!((rank.exchange.open_handles(), rank.exchange.free_channels()), (0, 64));
        let memory = rank.plain(10);
        let part = [Part::PutInitiator, Part::PutTarget][rank.rank];
        let plan = rank.exchange.exchange("plan", &[rank.transfer(1 - rank.rank, part, &memory)]).unwrap();
        assert_eq!(plan.generation(), 1);
        rank.write(&memory, &pattern(rank.rank, 0, 10));
        rank.round(&plan, &[part]);
        assert_eq!(rank.read(&memory), pattern(0, 0, 10));
        (rank.meet)();
    });
    let told = told.into_inner().unwrap();
    assert_eq!(told[0], told[1]);
    told[0].clone()
}

#[test]
fn both_ends_are_told_how_they_differ() {
    let sizes = refused(|rank| {
        let memory = rank.mapped(100 + rank.rank);
        vec![rank.transfer(1 - rank.rank, [Part::PutInitiator, Part::PutTarget][rank.rank], &memory)]
    });
    let expected = ExchangeRefusal::SizeMismatch { at: 0, rank: 0, bytes: 100, peer: 1, found: 101 };
    assert_eq!(sizes, expected);
    let parts = refused(|rank| vec![rank.transfer(1 - rank.rank, Part::GetFrom, &rank.mapped(100))]);
    let (part, found) = (Part::GetFrom, Part::GetFrom);
    assert_eq!(parts, ExchangeRefusal::PartMismatch { at: 0, rank: 0, part, peer: 1, found });
    let missing = refused(|rank| match rank.rank {
        0 => Vec::new(),
        _ => vec![rank.transfer(0, Part::PutTarget, &rank.mapped(100))],
    });
    let expected = ExchangeRefusal::CounterpartMissing { rank: 1, transfers: 1, peer: 0, found: 0 };
    assert_eq!(missing, expected);
}

#[test]
fn different_plans_do_not_meet() {
    on_ranks(2, options(), |rank| {
        let names = ["here", "there"];
        let error = rank.exchange.exchange(names[rank.rank], &[]).unwrap_err();
        let Some(ExchangeRefusal::PlanMismatch { plans }) = error.exchange_refusal() else {
            panic!("{error}")
        };
        assert_eq!(plans.entries.len(), 2);
        assert!(error.to_string().contains("\"there\""), "{error}");
        (rank.meet)();
    });
}

#[test]
fn who_does_not_come_is_named() {
    let short = ExchangeOptions { deadline: Duration::from_secs(4), ..options() };
    on_ranks(3, short, |rank| {
        if rank.rank != 1 {
            let error = rank.exchange.exchange("plan", &[]).unwrap_err();
            let Some(ExchangeRefusal::ExchangeTimeout { missing, .. }) = error.exchange_refusal() else {
                panic!("{error}")
            };
            assert_eq!(*missing, [1]);
        }
        (rank.meet)();
        let error = rank.exchange.exchange_among(&[0, 3], "plan", &[]).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::NotAMember { world: 3, .. }), "{error}");
        (rank.meet)();
    });
}

#[test]
fn a_plan_that_was_exchanged_again_is_stale() {
    on_ranks(2, options(), |rank| {
        let part = [Part::PutInitiator, Part::PutTarget][rank.rank];
        let exchange = |memory: &Memory| {
            let transfer = rank.transfer(1 - rank.rank, part, memory);
            rank.exchange.exchange("plan", &[transfer]).unwrap()
        };
        let memory = rank.plain(64);
        let first = exchange(&memory);
        rank.round(&first, &[part]);
        let second = exchange(&rank.plain(128));
        assert_eq!((first.generation(), second.generation()), (1, 2));
        // SAFETY: refused.
        let stale = unsafe {
            match rank.rank {
                0 => first.put(0, &rank.stream, LONG),
                _ => first.ready(0, &rank.stream),
            }
        };
        let stale = stale.unwrap_err();
        assert!(matches!(stale, TransferError::StalePlan { expected: 2, found: 1, .. }), "{stale}");
        assert!(stale.to_string().contains("generation 1, expected generation 2"), "{stale}");
        rank.round(&second, &[part]);
        (rank.meet)();
    });
}

#[test]
fn channels_run_out_by_type() {
    on_ranks(2, ExchangeOptions { channels: 3, ..options() }, |rank| {
        let memory = rank.plain(64);
        let part = [Part::PutInitiator, Part::PutTarget][rank.rank];
        let transfers: Vec<_> =
            (0..2 + rank.rank).map(|_| rank.transfer(1 - rank.rank, part, &memory)).collect();
        let two = rank.exchange.exchange("two", &transfers[..2]).unwrap();
        let error = rank.exchange.exchange("more", &transfers).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::NoChannels { free: 1, channels: 3, .. }), "{error}");
        drop(two);
        // Slots of a plan that both ends dropped are free again.
        while rank.exchange.free_channels() < 3 {
            std::thread::yield_now();
        }
        (rank.meet)();
        let plan: Plan = rank.exchange.exchange("more", &transfers[..2]).unwrap();
        rank.round(&plan, &[part, part]);
        (rank.meet)();
        // Only one rank has too many transfers: the other is told which rank.
        drop(plan);
        while rank.exchange.free_channels() < 3 {
            std::thread::yield_now();
        }
        (rank.meet)();
        let count = [2, 4][rank.rank];
        let transfers: Vec<_> = (0..count).map(|_| rank.transfer(1 - rank.rank, part, &memory)).collect();
        let error = rank.exchange.exchange("most", &transfers).unwrap_err();
        match rank.rank {
            0 => {
                let Some(ExchangeRefusal::PeerPrepareFailed { rank: 1, cause }) = error.exchange_refusal()
                else {
                    panic!("{error}")
                };
                assert!(cause.starts_with("NoChannels"), "{cause}");
            }
            _ => assert!(matches!(error.kind(), ErrorKind::NoChannels { wanted: 4, .. }), "{error}"),
        }
        (rank.meet)();
    });
}

#[test]
fn what_cannot_be_transferred_is_refused_before_anything_is_said() {
    on_ranks(2, options(), |rank| {
        let memory = rank.plain(4 * 12);
        let to_self = rank.exchange.transfer(rank.rank, Part::PutInitiator, &memory).unwrap_err();
        assert!(matches!(to_self, TransferError::ToSelf { .. }), "{to_self}");
        let nobody = rank.exchange.transfer(2, Part::PutInitiator, &memory).unwrap_err();
        assert!(matches!(nobody, TransferError::NoSuchRank { rank: 2, world: 2 }), "{nobody}");
        let nothing = memory.part(5, 0).unwrap();
        let nothing = rank.exchange.transfer(1 - rank.rank, Part::PutInitiator, &nothing).unwrap_err();
        assert!(matches!(nothing, TransferError::Empty), "{nothing}");
        assert!(matches!(memory.part(40, 9), Err(TransferError::OutOfBounds { whole: 48, .. })));
        // A contiguous tensor in row-major order is a range of bytes; a tensor with gaps is not.
        let layout =
            |shape: &[usize], strides: &[usize]| Layout::strided(shape, strides, DataType::F32).unwrap();
        let at = |layout: &Layout, offset| memory.view(layout, offset).map(|view| (view.ptr(), view.bytes()));
        assert_eq!(at(&layout(&[3, 4], &[4, 1]), 0).unwrap(), (memory.ptr(), 48));
        assert_eq!(at(&layout(&[2, 1, 4], &[4, 77, 1]), 4).unwrap(), (memory.ptr() + 16usize, 32));
        for strided in [layout(&[3, 4], &[1, 3]), layout(&[3, 2], &[4, 1]), layout(&[4], &[0])] {
            let error = at(&strided, 0).unwrap_err();
            assert!(matches!(error, TransferError::NotContiguous { .. }), "{error}");
        }
        assert!(matches!(at(&layout(&[3, 4], &[4, 1]), 1), Err(TransferError::OutOfBounds { .. })));

        let part = [Part::PutInitiator, Part::PutTarget][rank.rank];
        let plan = rank.exchange.exchange("plan", &[rank.transfer(1 - rank.rank, part, &memory)]).unwrap();
        // SAFETY: all are refused.
        unsafe {
            let stream = &rank.stream;
            let wrong = match rank.rank {
                0 => plan.ready(0, stream),
                _ => plan.put(0, stream, LONG),
            };
            let wrong = wrong.unwrap_err();
            assert!(matches!(wrong, TransferError::WrongPart { at: 0, .. }), "{wrong}");
            let none = plan.get(1, stream, LONG).unwrap_err();
            assert!(matches!(none, TransferError::NoSuchTransfer { at: 1, transfers: 1 }), "{none}");
            if rank.rank == 1 {
                let early = plan.wait(0, stream, LONG).unwrap_err();
                assert!(matches!(early, TransferError::OutOfTurn { expected: "ready", .. }), "{early}");
                plan.ready(0, stream).unwrap();
                let twice = plan.ready(0, stream).unwrap_err();
                assert!(matches!(twice, TransferError::OutOfTurn { expected: "wait", .. }), "{twice}");
                plan.wait(0, stream, LONG).unwrap();
            }
        }
        if rank.rank == 0 {
            rank.round(&plan, &[part]);
        }
        rank.stream.synchronize().unwrap();
        plan.check().unwrap();
        (rank.meet)();
    });
}

/// Another process that takes part as rank 0: it posts a record before this rank does. Counts the ranks that tell
/// their peer that they have closed a plan.
#[derive(Clone, Default)]
struct SecondProcess {
    posts: Arc<AtomicBool>,
    closed: Arc<AtomicU64>,
}

impl<S: Store> Intercept<S> for SecondProcess {
    fn before(&self, store: &S, call: &'static str, key: &str) -> process_group::store::Result<()> {
        if key.contains("/exchange/")
            && key.ends_with("/records/0")
            && self.posts.swap(false, Ordering::SeqCst)
        {
            store.set(key, b"a record of another process")?;
        }
        if call == "set" && key.contains("/closed/") {
            self.closed.fetch_add(1, Ordering::SeqCst);
        }
        Ok(())
    }
}

#[test]
fn after_a_second_process_with_the_same_rank_the_peers_are_told() {
    let _turn = turn();
    let world = World::builder().devices(2).capacity(512 << 20).start().unwrap();
    // SAFETY: the functions are those of the living world, and nothing of it outlives the world.
    let driver = Driver::new(unsafe { Api::from_parts(world.cuda()) }.unwrap()).unwrap();
    let intercept = SecondProcess::default();
    let store_of = |inner| Arc::new(Intercepted { inner, intercept: intercept.clone() }) as Arc<dyn Store>;
    threads_on(store_of, &driver, 2, 2, options(), |rank| {
        let part = [Part::PutInitiator, Part::PutTarget][rank.rank];
        let memory = rank.plain(64);
        let transfers = [rank.transfer(1 - rank.rank, part, &memory)];
        let refused = || {
            let error = rank.exchange.exchange("plan", &transfers).unwrap_err();
            let Some(ExchangeRefusal::PeerPrepareFailed { rank: 0, cause }) = error.exchange_refusal() else {
                panic!("{error}")
            };
            assert!(cause.contains("rank 0"), "{cause}");
        };
        (rank.meet)();
        if rank.rank == 0 {
            intercept.posts.store(true, Ordering::SeqCst);
            refused();
        }
        (rank.meet)();
        if rank.rank == 1 {
            refused();
        }
        (rank.meet)();
    });
    // The other process may have the plan, so its memory must not be reused before it is told.
    assert_eq!(intercept.closed.load(Ordering::SeqCst), 2);
    drop(driver);
    world.finish().expect("nothing is left behind");
}
