//! Reports of a group about its path, and the conditions for a path.

use process_group::group::{Explanation, GroupErrorKind, P2pPolicy, PeerChannel, Request};
use symm_mem::{
    ErrorKind,
    direct::{self, DirectOptions},
};

use super::rig::{Machine, buffer, bytes, far, pattern, small};

#[test]
fn without_a_path_a_message_says_what_installs_one() {
    let machine = Machine::start(2);
    machine.ranks(2, |rank| {
        let group = rank.builder().build().unwrap();
        let (peer, stream, memory) = (1 - rank.rank, rank.stream(), rank.memory(&[1; 8]));
        assert_eq!(group.p2p().peers, [PeerChannel::Undecided; 2]);
        // SAFETY: nothing is enqueued.
        let refused = unsafe {
            [
                group.raw().send(buffer(&memory), peer, &stream),
                group.raw().recv(buffer(&memory), peer, &stream),
                group.batch(&stream, |batch| batch.send(buffer(&memory), peer)),
            ]
        };
        for error in
            refused.into_iter().map(Result::unwrap_err).chain([group.connect_to(peer, far()).unwrap_err()])
        {
            assert!(matches!(error.kind(), GroupErrorKind::NoPath { .. }), "{error}");
            assert!(error.to_string().contains("symm_mem::direct::install"), "{error}");
        }
        assert_eq!((group.sequence(), group.dump().entries.len()), (0, 0));
        group.destroy(far()).unwrap();
    });
    machine.finish();
}

#[test]
fn a_group_tells_its_path_and_the_recorder_what_went_there() {
    let machine = Machine::start(2);
    machine.ranks(2, |rank| {
        let group = rank.group(small());
        let (me, peer, stream) = (rank.rank, 1 - rank.rank, rank.stream());
        let (from, to) = (rank.memory(&pattern(me, 90)), rank.memory(&[0; 90]));
        let own = rank.memory(&[0; 90]);
        let work = group.batch(&stream, |batch| {
            // SAFETY: the memory lives until the work is done.
            unsafe {
                batch.send(buffer(&from), peer)?;
                batch.recv(buffer(&to), peer)?;
                batch.send(buffer(&from), me)?;
                batch.recv(buffer(&own), me)
            }
        });
        work.unwrap().wait_until(far()).unwrap();
        assert_eq!((bytes(&to), bytes(&own)), (pattern(peer, 90), pattern(me, 90)));

        let report = group.p2p();
        assert_eq!((report.policy, report.communicators, report.ctas), (P2pPolicy::Direct, 0, None));
        assert_eq!(report.peers, [PeerChannel::Path; 2]);
        assert_eq!(report.explanations, [Explanation::OnPath]);
        let path = report.path.unwrap();
        assert_eq!((path.name, path.device_bytes), ("direct", 2 << 20));
        assert!(path.description.contains("3 slots of 64 bytes, and 2 for graphs"), "{}", path.description);

        let dump = group.dump();
        let messages: Vec<_> = dump.entries.iter().filter(|entry| !entry.operation.is_end()).collect();
        assert_eq!(messages.len(), 4);
        assert!(messages.iter().all(|entry| entry.is_on_path && entry.is_batched));
        assert_ne!(group.send_stream(peer).unwrap().raw(), group.recv_stream(peer).unwrap().raw());
        group.connect_to(peer, far()).unwrap();
        group.destroy(far()).unwrap();
    });
    machine.finish();
}

#[test]
fn a_path_is_for_groups_that_agreed_on_it_once() {
    let machine = Machine::start(2);
    machine.ranks(2, |rank| {
        let other = rank.builder().name("other").p2p(P2pPolicy::PerPair).build().unwrap();
        let refused = direct::install(&other, small()).unwrap_err();
        assert!(refused.to_string().contains("agreed on messages by per-pair"), "{refused}");
        other.destroy(far()).unwrap();

        let group = rank.builder().build().unwrap();
        for options in
            [small().slot_bytes(0), small().slot_bytes(40), small().slots(0), small().slots(usize::MAX)]
        {
            let refused = direct::install(&group, options).unwrap_err();
            assert!(matches!(refused.kind(), ErrorKind::Options { .. }), "{refused}");
        }
        direct::install(&group, small()).unwrap();
        let refused = direct::install(&group, small()).unwrap_err();
        // The text names the group once.
        assert!(!refused.to_string().contains("world: "), "{refused}");
        let ErrorKind::Group(refused) = refused.into_kind() else { panic!("it has a path") };
        assert!(matches!(refused.kind(), GroupErrorKind::PathRefused { .. }), "{refused}");
        assert_eq!(refused.group(), Some(group.name()));
        // A subgroup needs a path of its own.
        let pair = group.split("pair", &Request::Color { color: Some(0), key: 0 }).unwrap().unwrap();
        let (stream, memory) = (rank.stream(), rank.memory(&pattern(rank.rank * 3, 1000)));
        // SAFETY: nothing is enqueued.
        let error = unsafe { pair.raw().send(buffer(&memory), 1 - rank.rank, &stream) }.unwrap_err();
        assert!(matches!(error.kind(), GroupErrorKind::NoPath { .. }), "{error}");
        direct::install(&pair, small()).unwrap();
        // SAFETY: the memory lives until the work is done.
        let work = unsafe {
            if rank.rank == 0 {
                pair.raw().send(buffer(&memory), 1, &stream)
            } else {
                pair.raw().recv(buffer(&memory), 0, &stream)
            }
        };
        work.unwrap().wait_until(far()).unwrap();
        assert_eq!(bytes(&memory), pattern(0, 1000));
        pair.destroy(far()).unwrap();
        group.destroy(far()).unwrap();
    });
    machine.finish();
}

/// Includes options that need the same amount of memory.
#[test]
fn options_that_differ_are_named_on_every_member_and_all_may_try_again() {
    let machine = Machine::start(3);
    machine.ranks(3, |rank| {
        let group = rank.builder().build().unwrap();
        let told = |odd| if rank.rank == 2 { odd } else { small() };
        for odd in [small().slots(2).graph_slots(3), small().slots(1 << 10)] {
            let error = direct::install(&group, told(odd)).unwrap_err();
            let named = matches!(error.kind(), ErrorKind::OptionsDiffer { rank: other, .. } if (*other == 2) == (rank.rank != 2));
            assert!(named || error.rendezvous_refusal().is_some(), "{error}");
        }
        // One rank alone refuses its options, and tells the others.
        let error = direct::install(&group, told(small().slot_bytes(1000))).unwrap_err();
        let [is_own, is_told] =
            [matches!(error.kind(), ErrorKind::Options { .. }), error.rendezvous_refusal().is_some()];
        assert!(if rank.rank == 2 { is_own } else { is_told }, "{error}");
        direct::install(&group, small()).unwrap();
        group.destroy(far()).unwrap();
    });
    machine.finish();
}

/// The member that waits is told that the group ended, with the operation that it has called.
#[test]
fn an_installation_that_a_member_leaves_names_the_group_and_the_end() {
    let machine = Machine::start(2);
    machine.ranks(2, |rank| {
        let group = rank.builder().build().unwrap();
        if rank.rank == 0 {
            let error = direct::install(&group, small()).unwrap_err();
            let ErrorKind::GroupOver { cause } = error.kind() else { panic!("{error}") };
            assert!(matches!(cause.kind(), GroupErrorKind::Left { rank: 1, .. }), "{cause}");
            let start =
                format!("direct path of group {} ({}): the group ended: rank 1 ", group.name(), group.id());
            assert!(error.to_string().starts_with(&start), "{error}");
            assert_eq!((error.operation(), error.group()), ("direct path", Some(group.id())));
        }
        group.abort(far()).unwrap();
    });
    machine.finish();
}

/// With the default options, installing the path allocates at most 2 MiB of device memory for each peer. The addresses
/// of the ranks' memory take less than 64 KiB more.
#[test]
fn a_path_takes_at_most_2_mib_for_each_peer() {
    for size in [2, 4] {
        let machine = Machine::start(size);
        machine.ranks(size, |rank| {
            let group = rank.builder().build().unwrap();
            let free = || rank.context.memory_info().unwrap().0;
            let before = free();
            direct::install(&group, DirectOptions::default()).unwrap();
            let taken = before - free();
            assert!(taken <= (size - 1) * (2 << 20) + (64 << 10), "{taken} bytes for {} peers", size - 1);
            assert!(group.p2p().path.unwrap().device_bytes as usize <= taken);
            rank.installed.wait();
            group.destroy(far()).unwrap();
        });
        machine.finish();
    }
}
