//! Addresses of peers' buffers from NCCL's windows.

use std::time::Duration;

use process_group::comm::{CommError, Communicator, Window, WindowOutcome, WindowRequest};
use symm_mem::rendezvous::{
    CudaAllocator, Origin, PeerAllocator, PeerBuffers, PeerMemory, Rendezvous, RendezvousOptions,
    WindowPeersError,
};

use crate::embedded::job::{Rank, options, run, soon};

/// Runs `test` on `size` ranks, with memory that is a window of the world's communicator during the test.
fn with_windows(size: u32, release: i32, test: impl Fn(&Rank, &Communicator, &PeerMemory, &Window) + Sync) {
    run(
        size,
        release,
        |_| {},
        |rank| {
            let memory = CudaAllocator::new(&rank.context).unwrap().allocate(4096).unwrap();
            let communicator = rank.world.communicator();
            let request = [WindowRequest::symmetric(memory.ptr(), 4096)];
            // SAFETY: the memory outlives the window, which is deregistered below.
            let outcomes = unsafe { communicator.register_windows(&request, soon()) }.unwrap();
            let Some(WindowOutcome::Registered(window)) = outcomes.into_iter().next() else { panic!() };
            test(&rank, communicator, &memory, &window);
            // SAFETY: no work and no graph uses the window.
            unsafe { communicator.deregister_windows(vec![window], soon()) }.unwrap();
            drop(memory);
            rank.leave();
        },
    );
}

#[test]
fn a_window_tells_where_its_peers_lie() {
    with_windows(3, 22907, |rank, communicator, memory, window| {
        // SAFETY: used while the window is registered.
        let peers = unsafe { PeerBuffers::of_window(communicator, window, soon()) }.unwrap();
        assert_eq!((peers.origin(), peers.bytes()), (Origin::Window, 4096));
        assert_eq!(peers.addresses()[rank.rank as usize], memory.ptr());
        // SAFETY: the word is this rank's until the ranks meet, and read until they meet again.
        unsafe { rank.context.fill_u32(memory.ptr(), 7 + rank.rank, 1024) }.unwrap();
        rank.context.synchronize().unwrap();
        rank.world.barrier(soon()).unwrap();
        let mut array = vec![0u64; 3];
        // SAFETY: as above; nothing writes the array.
        unsafe { rank.context.copy_to_host(&mut array, peers.array()) }.unwrap();
        for ((peer, at), word) in (0..).zip(peers.addresses()).zip(array) {
            assert_eq!(at.0, word);
            let mut found = vec![0u32; 1024];
            // SAFETY: as above.
            unsafe { rank.context.copy_to_host(&mut found, *at) }.unwrap();
            assert_eq!(found, vec![7 + peer; 1024]);
        }
        rank.world.barrier(soon()).unwrap();
        // SAFETY: the window is of another communicator, which is refused before it is used.
        let other = unsafe { PeerBuffers::of_window(rank.tp.communicator(), window, soon()) }.unwrap_err();
        assert!(matches!(other, WindowPeersError::Comm(CommError::WindowRequest(_))), "{other}");
    });
}

#[test]
fn a_release_without_addresses_is_told_by_name() {
    with_windows(2, 22809, |_, communicator, _, window| {
        // SAFETY: there are no addresses.
        let refused = unsafe { PeerBuffers::of_window(communicator, window, soon()) }.unwrap_err();
        assert!(matches!(refused, WindowPeersError::Comm(CommError::Missing(_))), "{refused}");
    });
}

#[test]
fn a_retired_segment_is_unmapped_by_its_peers() {
    run(
        2,
        22809,
        |_| {},
        |rank| {
            let meeting = RendezvousOptions::default().deadline(Duration::from_secs(60));
            let rendezvous = Rendezvous::of(&rank.world, meeting).unwrap();
            let pool = rank.pool();
            let (before, _) = rank.context.memory_info().unwrap();
            let block = pool.allocate(2 << 20).unwrap();
            pool.commit(&rank.world, options().map_peers(false)).unwrap();
            let symmetric = rendezvous.rendezvous(&block).unwrap();
            let (held, _) = rank.context.memory_info().unwrap();
            assert!(held < before);
            drop((symmetric, block));
            let (kept, _) = rank.context.memory_info().unwrap();
            assert_eq!(kept, held, "other blocks of the segment may want the mappings");
            pool.retire(&[0], &[&rank.world], Duration::from_secs(60)).unwrap();
            rank.world.barrier(soon()).unwrap();
            assert_eq!(rank.context.memory_info().unwrap().0, before, "a peer would keep the memory");
            drop((rendezvous, pool));
            rank.leave();
        },
    );
}
