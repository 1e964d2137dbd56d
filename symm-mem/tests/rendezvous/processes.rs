//! Ranks as processes: each with a machine of its own, joined by a store; and what is left when one of them is killed.

use std::{
    env, fs,
    io::Write,
    os::unix::net::UnixStream,
    path::Path,
    process::{Child, Command},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use cuda_driver::{Driver, sys::Api, vmm::HandleTypes};
use gpu_sim::{Action, Injection, World};
use process_group::{
    local,
    store::{Deadline, Result, Store, TcpStore, barrier},
};
use symm_mem::rendezvous::{
    CudaAllocator, GroupInfo, PeerAllocator, Rendezvous, RendezvousError, RendezvousOptions,
    RendezvousRefusal,
};

use super::each_reads_each;

const RANKS: usize = 3;

/// The rank that is killed where one is.
const VICTIM: usize = 1;

pub(crate) fn far() -> Deadline {
    Deadline::after(Duration::from_secs(120))
}

/// A store that ends its process at one of its calls.
pub(crate) struct Fatal {
    pub(crate) inner: TcpStore,
    /// How many calls are left; none: it never does.
    pub(crate) left: AtomicU64,
}

impl Fatal {
    fn count(&self) {
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            // Nothing is dropped.
            std::process::abort();
        }
    }
}

/// The calls that a rendezvous makes are counted, all others passed on.
impl Store for Fatal {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.count();
        self.inner.set(key, value)
    }
    fn get(&self, key: &str, deadline: Deadline) -> Result<Vec<u8>> {
        self.count();
        self.inner.get(key, deadline)
    }
    fn check(&self, keys: &[&str]) -> Result<bool> {
        self.count();
        self.inner.check(keys)
    }
    fn wait(&self, keys: &[&str], deadline: Deadline) -> Result<()> {
        self.inner.wait(keys, deadline)
    }
    fn add(&self, key: &str, delta: i64) -> Result<i64> {
        self.count();
        self.inner.add(key, delta)
    }
    fn compare_set(&self, key: &str, expected: &[u8], new: &[u8]) -> Result<Vec<u8>> {
        self.count();
        self.inner.compare_set(key, expected, new)
    }
    fn append(&self, key: &str, value: &[u8]) -> Result<()> {
        self.inner.append(key, value)
    }
    fn multi_get(&self, keys: &[&str], deadline: Deadline) -> Result<Vec<Vec<u8>>> {
        self.count();
        self.inner.multi_get(keys, deadline)
    }
    fn multi_set(&self, entries: &[(&str, &[u8])]) -> Result<()> {
        self.inner.multi_set(entries)
    }
    fn delete(&self, key: &str) -> Result<bool> {
        self.count();
        self.inner.delete(key)
    }
    fn num_keys(&self) -> Result<u64> {
        self.inner.num_keys()
    }
    fn list_keys(&self) -> Result<Vec<String>> {
        self.inner.list_keys()
    }
    fn queue_push(&self, key: &str, value: &[u8]) -> Result<()> {
        self.inner.queue_push(key, value)
    }
    fn queue_pop(&self, key: &str, deadline: Deadline) -> Result<Vec<u8>> {
        self.inner.queue_pop(key, deadline)
    }
    fn queue_try_pop(&self, key: &str) -> Result<Option<Vec<u8>>> {
        self.inner.queue_try_pop(key)
    }
    fn queue_len(&self, key: &str) -> Result<u64> {
        self.inner.queue_len(key)
    }
}

/// Starts a rank of `one_rank`; doors lie in `folder`.
fn start(case: &str, rank: usize, store: &TcpStore, folder: &Path) -> Child {
    start_in(module_path!(), case, rank, store, folder)
}

/// Starts a rank of the test `one_rank` of a module.
pub(crate) fn start_in(module: &str, case: &str, rank: usize, store: &TcpStore, folder: &Path) -> Child {
    let (_, module) = module.split_once("::").unwrap();
    Command::new(env::current_exe().unwrap())
        .args(["--exact", &format!("{module}::one_rank"), "--nocapture"])
        .env("SYMM_MEM_TEST_CASE", case)
        .env("SYMM_MEM_TEST_RANK", rank.to_string())
        .env("SYMM_MEM_TEST_STORE", store.address())
        .env("XDG_RUNTIME_DIR", folder)
        .spawn()
        .unwrap()
}

pub(crate) fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// The body of a rank, when it is started by one of the tests below.
#[test]
fn one_rank() {
    let Ok(case) = env::var("SYMM_MEM_TEST_CASE") else { return };
    if case == "next" {
        return local::sweep();
    }
    let rank: usize = env::var("SYMM_MEM_TEST_RANK").unwrap().parse().unwrap();
    let address = env::var("SYMM_MEM_TEST_STORE").unwrap();
    let world = World::builder().devices(RANKS).capacity(256 << 20);
    let by_fabric = case.starts_with("fabric");
    let world = if by_fabric { world.fabric() } else { world }.start().unwrap();
    // SAFETY: the functions are those of the living world, and nothing of it outlives the world.
    let driver = Driver::new(unsafe { Api::from_parts(world.cuda()) }.unwrap()).unwrap();
    let context = driver.device(rank as u32).unwrap().retain_primary().unwrap();
    let store = Arc::new(Fatal { inner: TcpStore::connect(&address, far()).unwrap(), left: 0.into() });
    let meet = |name: &str, ranks| barrier(&store.inner, name, rank, ranks, far()).unwrap();
    let info = GroupInfo::new("processes", rank, 0..RANKS as u32, store.clone()).unwrap();
    let long = RendezvousOptions::default().deadline(Duration::from_secs(100));
    let (allocator, long) = match by_fabric {
        // No descriptor goes from process to process.
        true => {
            (CudaAllocator::with_handles(&context, HandleTypes::FABRIC), long.handles(HandleTypes::FABRIC))
        }
        false => (CudaAllocator::new(&context).unwrap(), long),
    };
    let first = Rendezvous::new(info.clone(), &context, long).unwrap();
    let memory = allocator.allocate(4096).unwrap();
    let symmetric = first.rendezvous(&memory).unwrap();
    let round = AtomicU64::new(0);
    let meet_next = || meet(&format!("met/{}", round.fetch_add(1, Ordering::Relaxed)), RANKS);
    each_reads_each(&symmetric, &meet_next);
    drop((symmetric, memory));
    let (what, nth) = case.split_once(' ').unwrap_or((&case, "0"));
    let nth: u64 = nth.parse().unwrap();
    if what == "well" || by_fabric {
        for _ in 0..nth {
            let memory = allocator.allocate(4096).unwrap();
            each_reads_each(&first.rendezvous(&memory).unwrap(), &meet_next);
        }
        meet("end", RANKS);
        drop((first, allocator, info));
        drop((context, driver));
        world.finish().unwrap();
        return;
    }

    // Those that are to come are there before the deadline runs.
    let short = RendezvousOptions::default().deadline(Duration::from_secs(6));
    let second = Rendezvous::new(info.clone(), &context, short).unwrap();
    let before = descriptors();
    let memory = allocator.allocate(4096).unwrap();
    meet("ready", RANKS);
    if rank == VICTIM {
        match what {
            "store" => store.left.store(nth, Ordering::Relaxed),
            call => world.faults().inject(Injection::new(call, Action::Kill).nth(nth)),
        }
    }
    let result = second.rendezvous(&memory);
    assert_ne!(rank, VICTIM, "it was to be killed at {case}, and came to {result:?}");
    let said = match &result {
        // It died when it had read that all was well, or before its peers could notice.
        Ok(_) => "well".to_owned(),
        Err(RendezvousError::Refused { refusal, .. }) => {
            let missing = match refusal {
                RendezvousRefusal::RendezvousTimeout { missing, .. }
                | RendezvousRefusal::MembersLost { missing, .. } => missing,
                other => panic!("{case}: {other}"),
            };
            assert_eq!(*missing, [VICTIM as u32], "{case}: {refusal}");
            refusal.name().to_owned()
        }
        Err(other) => panic!("{case}: {other}"),
    };
    // The survivors were told the same.
    store.inner.set(&format!("said/{rank}"), said.as_bytes()).unwrap();
    let other = RANKS - rank - VICTIM;
    assert_eq!(store.inner.get(&format!("said/{other}"), far()).unwrap(), said.as_bytes(), "{case}");
    // What was mapped lies with the memory.
    drop((result, memory));
    assert_eq!(descriptors(), before, "{case}: descriptors are left");
    drop((first, second, allocator, info));
    drop((context, driver));
    world.finish().unwrap_or_else(|left| panic!("{case}: {left}"));
}

/// Runs a case; whether each rank ended well.
fn run(case: &str) -> Vec<bool> {
    let folder = tempfile::tempdir().unwrap();
    let store = TcpStore::host(0).unwrap();
    let mut ranks: Vec<Child> = (0..RANKS).map(|rank| start(case, rank, &store, folder.path())).collect();
    let ended = ranks.iter_mut().map(|rank| rank.wait().unwrap().success()).collect();
    // Survivors that have noticed have removed what the dead has left; else whoever comes next does.
    assert!(start("next", 0, &store, folder.path()).wait().unwrap().success());
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().flatten().map(|entry| entry.path()).collect();
    assert!(left.is_empty(), "{case}: {left:?} is left");
    ended
}

/// Whether the victim, and only it, did not come to its end.
fn kills(case: &str) {
    let ended = run(case);
    for (rank, well) in ended.into_iter().enumerate() {
        assert_eq!(well, rank != VICTIM, "rank {rank} of {case}");
    }
}

#[test]
fn processes_have_the_memory_of_each_other() {
    assert_eq!(run("well 3"), [true; RANKS]);
}

#[test]
fn processes_have_the_memory_of_each_other_by_fabric_handle() {
    assert_eq!(run("fabric 3"), [true; RANKS]);
}

#[test]
fn a_rank_that_is_killed_at_any_step_is_named_and_leaves_nothing() {
    let calls = ["cuMemExportToShareableHandle", "cuMemImportFromShareableHandle"];
    let calls =
        calls.into_iter().chain(["cuMemAddressReserve", "cuMemMap", "cuMemSetAccess", "cuMemAlloc_v2"]);
    let cases: Vec<String> =
        (1..=10).map(|nth| format!("store {nth}")).chain(calls.map(|call| format!("{call} 1"))).collect();
    let next = AtomicU64::new(0);
    // They wait more than they work.
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
                    kills(case);
                }
            });
        }
    });
}

#[test]
fn a_stranger_disturbs_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let store = TcpStore::host(0).unwrap();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            // Of the same user, else it would not come so far: it knocks at every door, and says what it should not.
            while !over.load(Ordering::Relaxed) {
                for door in fs::read_dir(folder.path()).unwrap().flatten() {
                    let socket = door.path().join("door");
                    // Not of the kind that is listened for; and files in the doors' folder are nobody's business.
                    if let Ok(mut stranger) = UnixStream::connect(&socket) {
                        let _ = stranger.write_all(&[7; 28]);
                    }
                    let _ = fs::write(door.path().join("garbage"), b"garbage");
                }
                thread::yield_now();
            }
        });
        let ranks: Vec<Child> =
            (0..RANKS).map(|rank| start("well 10", rank, &store, folder.path())).collect();
        let ended: Vec<bool> = ranks.into_iter().map(|mut rank| rank.wait().unwrap().success()).collect();
        over.store(true, Ordering::Relaxed);
        assert_eq!(ended, [true; RANKS]);
    });
}
