//! Commits and retirements on a member whose group ends, or whose store is written to by others.

use std::{thread, time::Duration};

use gpu_sim::{Action, Injection};
use process_group::{
    ProcessGroup,
    comm::Communicator,
    group::{GroupError, GroupErrorKind},
    store::{Deadline, Store},
};
use symm_mem::{Error, ErrorKind, GroupId, Poison, Policy, Refusal, RegistrationState, SymmetricGroup};

use super::{
    NCCL_2_28_9,
    job::{Rank, commit_key, options, pool_key, run, soon},
    on_ranks, windows,
};

/// A group that ends on this rank as soon as a vote of its first commit has a result.
struct OverAfter<'a> {
    group: &'a ProcessGroup,
    decided: String,
}

impl SymmetricGroup for OverAfter<'_> {
    fn id(&self) -> GroupId {
        self.group.id()
    }
    fn name(&self) -> Option<&str> {
        Some(self.group.name())
    }
    fn ranks(&self) -> Vec<u32> {
        SymmetricGroup::ranks(self.group)
    }
    fn communicator(&self) -> &Communicator {
        self.group.communicator()
    }
    fn standing(&self) -> Result<(), GroupError> {
        match self.group.job_store().get(&self.decided, Deadline::now()) {
            Ok(_) => Err(GroupErrorKind::Setting { problem: "it is over".to_owned() }.into()),
            Err(_) => Ok(()),
        }
    }
}

/// Ends a job of which some groups may be aborted already.
fn give_up(rank: Rank) {
    let Rank { world, tp, dp, .. } = rank;
    for group in [dp, tp, world] {
        let _ = group.abort(soon());
    }
}

#[test]
fn what_was_agreed_is_told_to_all_though_the_group_ends_after_it() {
    for (vote, fails) in [("records", false), ("outcomes0", true)] {
        let fail = Injection::new("ncclCommWindowRegister", Action::Fail(1));
        let errors = run(
            2,
            NCCL_2_28_9,
            |world| {
                if fails {
                    world.faults().inject(fail).unwrap();
                }
            },
            |rank| {
                let (pool, bucket) = rank.pool_with_bucket();
                let policy = if !fails && rank.rank == 1 { Policy::Prefix } else { Policy::Strict };
                let decided = commit_key(&pool, rank.world.id(), &format!("{vote}/result"));
                let group = OverAfter { group: &rank.world, decided };
                let group: &dyn SymmetricGroup = if rank.rank == 0 { &group } else { &rank.world };
                let error = pool.commit(group, options().policy(policy)).expect_err("the ranks differ");
                drop((pool, bucket));
                give_up(rank);
                error
            },
        );
        let wanted = if fails { "RegistrationFailed" } else { "PolicyMismatch" };
        assert_eq!(errors.iter().map(Error::name).collect::<Vec<_>>(), [wanted; 2], "{errors:?}");
        assert_eq!(errors[0].to_string(), errors[1].to_string());
    }
}

/// The group of rank 1 has ended there, and rank 0 has not heard of it when it comes.
#[test]
fn a_commit_names_the_rank_whose_group_has_ended() {
    on_ranks(2, |rank| {
        let (pool, bucket) = rank.pool_with_bucket();
        let (store, decision) =
            (rank.world.job_store(), commit_key(&pool, rank.world.id(), "records/result"));
        if rank.rank == 1 {
            store.set("over", b"1").expect("it answers");
            let group = OverAfter { group: &rank.world, decided: "over".to_owned() };
            let error = pool.commit(&group, options()).expect_err("the group has ended");
            assert!(matches!(error.kind(), ErrorKind::GroupOver { .. }), "{error}");
        } else {
            store.get(&decision, soon()).expect("rank 1 ends the commit");
            match pool.commit(&rank.world, options()).map_err(Error::into_kind) {
                Err(ErrorKind::Refused(Refusal::MemberLost { rank: 1, cause })) => {
                    assert!(cause.contains("it is over"), "{cause}");
                }
                other => panic!("{other:?}"),
            }
        }
        // Nothing was registered, so the next commit can succeed.
        assert_eq!(windows(&pool.commit(&rank.world, options())), (1, 1));
        drop((pool, bucket));
        rank.leave();
    });
}

#[test]
fn who_cannot_read_how_a_registration_ended_has_a_dead_group() {
    on_ranks(2, |rank| {
        let (pool, bucket) = rank.pool_with_bucket();
        let id = rank.world.id();
        rank.world.job_store().set(&commit_key(&pool, id, "outcomes0/result"), b"?").expect("it answers");
        let error = pool.commit(&rank.world, options()).expect_err("the verdict is none");
        let poison = pool.poison(id);
        let again = pool.commit(&rank.world, options()).expect_err("the group is dead");
        // The first rank that finds this ends the group, and the other may hear of it before it has looked itself.
        let is_told = matches!(
            error.kind(),
            ErrorKind::GroupOver { cause }
                if matches!(cause.kind(), GroupErrorKind::Left { .. } | GroupErrorKind::MemberFailed { .. })
        );
        if !is_told {
            assert!(matches!(error.kind(), ErrorKind::Unreadable { poisoned: true, .. }), "{error}");
            assert!(matches!(poison, Some(Poison::StoreLost { .. })), "{poison:?}");
            assert_eq!(again.name(), "StoreLost");
        }
        drop((pool, bucket));
        give_up(rank);
    });
}

#[test]
fn who_cannot_read_how_a_retirement_ended_has_dead_groups_and_no_windows() {
    on_ranks(2, |rank| {
        let pool = rank.pool();
        let block = pool.allocate(2 << 20).expect("there is room");
        let groups: [&dyn SymmetricGroup; 2] = [&rank.world, &rank.tp];
        for group in groups {
            assert_eq!(windows(&pool.commit(group, options())), (1, 1));
        }
        let at = block.ptr();
        drop(block);
        // The first vote is on the quiet devices.
        let key = format!("{}/retire/0/outcomes1/result", pool_key(&pool));
        rank.world.job_store().set(&key, b"?").expect("it answers");
        let error = pool.retire(&[0], &groups, Duration::from_secs(60)).expect_err("the verdict is none");
        assert!(matches!(error.kind(), ErrorKind::Unreadable { poisoned: true, .. }), "{error}");
        for group in groups.map(SymmetricGroup::id) {
            assert!(matches!(pool.poison(group), Some(Poison::StoreLost { .. })));
            let found = pool.lookup(at, 4, group).expect("in one segment").expect("in the pool");
            assert_eq!(found.state, RegistrationState::Pending);
        }
        drop(pool);
        give_up(rank);
    });
}

#[test]
fn who_asks_whether_a_group_is_dead_does_not_wait_for_its_commit() {
    on_ranks(2, |rank| {
        let (pool, bucket) = rank.pool_with_bucket();
        let store = rank.world.job_store();
        if rank.rank == 0 {
            thread::scope(|scope| {
                let commit = scope.spawn(|| pool.commit(&rank.world, options()));
                store
                    .wait(&[&commit_key(&pool, rank.world.id(), "records/0")], soon())
                    .expect("the commit begins");
                assert_eq!(pool.poison(rank.world.id()), None);
                store.set("asked", b"1").expect("it answers");
                assert_eq!(windows(&commit.join().expect("no panic")), (1, 1));
            });
        } else {
            store.wait(&["asked"], soon()).expect("rank 0 has its answer while it waits for this rank");
            assert_eq!(windows(&pool.commit(&rank.world, options())), (1, 1));
        }
        drop((pool, bucket));
        rank.leave();
    });
}
