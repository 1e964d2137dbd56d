//! Signals between ranks, on their streams.

use std::{
    sync::{Arc, Barrier},
    thread,
    time::Duration,
};

use cuda_driver::{Driver, Stream, StreamFlags, sys::Api};
use gpu_sim::World;
use process_group::store::{HashStore, Store};
use symm_mem::{
    kernels::{KernelError, WaitKind},
    rendezvous::{CudaAllocator, GroupInfo, PeerAllocator, Rendezvous, RendezvousOptions, SymmetricMemory},
};

use crate::common::turn;

/// Longer than anything should take.
const LONG: Duration = Duration::from_secs(60);

struct Rank<'a> {
    memory: SymmetricMemory,
    rendezvous: Rendezvous,
    meet: &'a (dyn Fn() + Sync),
}

impl Rank<'_> {
    fn stream(&self) -> Stream {
        Stream::new(self.memory.context(), StreamFlags::NON_BLOCKING).unwrap()
    }

    fn word(&self) -> u32 {
        let mut word = [0u32];
        // SAFETY: the callers have waited for the rank that writes it.
        unsafe { self.memory.context().copy_to_host(&mut word, self.memory.own().ptr()) }.unwrap();
        word[0]
    }
}

/// Runs `job` on ranks that have had a rendezvous for 4096 bytes, in a world that reports leaks.
fn on_ranks(size: u32, job: impl Fn(Rank<'_>) + Sync) {
    let _turn = turn();
    let world = World::builder().devices(size as usize).capacity(256 << 20).start().unwrap();
    symm_mem::kernels::twins::register(&world);
    // SAFETY: the functions are those of the living world, and nothing of it outlives the world.
    let driver = Driver::new(unsafe { Api::from_parts(world.cuda()) }.unwrap()).unwrap();
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    let barrier = Barrier::new(size as usize);
    let meet = || {
        barrier.wait();
    };
    thread::scope(|scope| {
        for rank in 0..size {
            let (job, meet, driver, store) = (&job, &meet, &driver, store.clone());
            scope.spawn(move || {
                let context = driver.device(rank).unwrap().retain_primary().unwrap();
                let info = GroupInfo::new("signals", rank as usize, 0..size, store).unwrap();
                let options = RendezvousOptions::default().deadline(LONG);
                let rendezvous = Rendezvous::new(info, &context, options).unwrap();
                let memory = CudaAllocator::new(&context).unwrap().allocate(4096).unwrap();
                let memory = rendezvous.rendezvous(&memory).unwrap();
                job(Rank { memory, rendezvous, meet });
            });
        }
    });
    drop(driver);
    world.finish().expect("nothing is left behind");
}

#[test]
fn who_waits_for_a_signal_sees_what_was_written_before() {
    on_ranks(2, |rank| {
        let (memory, stream) = (&rank.memory, rank.stream());
        let peer = 1 - memory.rank();
        for round in 1..20u32 {
            if memory.rank() == 0 {
                // SAFETY: the peer reads it when it is told, and answers before it is written again.
                unsafe {
                    stream.fill_u32(memory.buffer_ptr(peer).unwrap(), round, 1).unwrap();
                    memory.put_signal(&stream, peer, 3, LONG).unwrap();
                    memory.wait_signal(&stream, peer, 4, LONG).unwrap();
                }
                stream.synchronize().unwrap();
            } else {
                // SAFETY: as above.
                unsafe { memory.wait_signal(&stream, peer, 3, LONG) }.unwrap();
                stream.synchronize().unwrap();
                assert_eq!(rank.word(), round);
                // SAFETY: as above.
                unsafe { memory.put_signal(&stream, peer, 4, LONG) }.unwrap();
            }
        }
        memory.check().unwrap();
        (rank.meet)();
    });
}

#[test]
fn all_meet_at_a_barrier_on_any_stream() {
    on_ranks(4, |rank| {
        let memory = &rank.memory;
        let streams = [rank.stream(), rank.stream()];
        for round in 0..12u32 {
            let stream = &streams[round as usize % 2];
            // SAFETY: the others write this rank's word between two barriers, each its turn.
            unsafe {
                if round as usize % 4 == memory.rank() {
                    for peer in 0..4 {
                        stream.fill_u32(memory.buffer_ptr(peer).unwrap(), round, 1).unwrap();
                    }
                }
                memory.barrier(stream, 0, LONG).unwrap();
            }
            stream.synchronize().unwrap();
            assert_eq!(rank.word(), round);
            // SAFETY: as above.
            unsafe { memory.barrier(stream, 0, LONG) }.unwrap();
            // The next writer uses the other stream.
            stream.synchronize().unwrap();
        }
        memory.check().unwrap();
        (rank.meet)();
    });
}

#[test]
fn a_wait_does_not_hold_up_what_lets_its_peer_answer() {
    on_ranks(2, |rank| {
        let memory = &rank.memory;
        let peer = 1 - memory.rank();
        let [first, second] = [rank.stream(), rank.stream()];
        // Both ranks first wait on one stream, and then put on another: on the same channel, and on two channels.
        for put in [5, 6] {
            // SAFETY: nothing is captured.
            unsafe {
                memory.wait_signal(&first, peer, put, LONG).unwrap();
                memory.put_signal(&second, peer, put, LONG).unwrap();
            }
            first.synchronize().unwrap();
            second.synchronize().unwrap();
        }
        memory.check().unwrap();
        (rank.meet)();
    });
}

#[test]
fn barriers_of_one_channel_pair_in_their_order() {
    on_ranks(2, |rank| {
        let memory = &rank.memory;
        let streams = [rank.stream(), rank.stream()];
        // Many barriers on two streams without a host wait in between: each runs behind the one before.
        for round in 0..40 {
            // SAFETY: nothing is captured.
            unsafe { memory.barrier(&streams[round % 2], 1, LONG) }.unwrap();
        }
        streams.iter().for_each(|stream| stream.synchronize().unwrap());
        memory.check().unwrap();
        (rank.meet)();
    });
}

#[test]
fn a_late_signal_is_an_error_and_the_context_lives() {
    on_ranks(2, |rank| {
        let (memory, stream) = (&rank.memory, rank.stream());
        if memory.rank() == 0 {
            // SAFETY: nothing is captured.
            unsafe { memory.wait_signal(&stream, 1, 7, Duration::from_millis(50)) }.unwrap();
            stream.synchronize().unwrap();
            let Err(KernelError::Late(late)) = memory.check() else { panic!() };
            assert_eq!((late.waiting, late.peer, late.channel), (WaitKind::Signal, 1, 7));
            assert_eq!(memory.late(), Some(late));
        }
        // The memory is unchanged, and a new rendezvous gives new pads.
        let again = Rendezvous::new(
            rank.rendezvous.group().clone(),
            memory.context(),
            RendezvousOptions::default().deadline(LONG),
        );
        let memory = again.unwrap().rendezvous(memory.own()).unwrap();
        // SAFETY: nothing is captured.
        unsafe { memory.barrier(&stream, 7, LONG) }.unwrap();
        stream.synchronize().unwrap();
        memory.check().unwrap();
        (rank.meet)();
    });
}

#[test]
fn ranks_and_channels_that_there_are_not_are_refused() {
    on_ranks(2, |rank| {
        let (memory, stream) = (&rank.memory, rank.stream());
        // SAFETY: nothing is captured.
        unsafe {
            let refused = memory.put_signal(&stream, 2, 0, LONG).unwrap_err();
            assert!(matches!(refused, KernelError::NoSuchRank { rank: 2, .. }), "{refused}");
            let refused = memory.barrier(&stream, 32, LONG).unwrap_err();
            assert!(matches!(refused, KernelError::NoSuchChannel { channel: 32, .. }), "{refused}");
            let refused = memory.wait_signal(&stream, 0, 0, Duration::ZERO).unwrap_err();
            assert!(matches!(refused, KernelError::NoDeadline { .. }), "{refused}");
        }
        (rank.meet)();
    });
}
