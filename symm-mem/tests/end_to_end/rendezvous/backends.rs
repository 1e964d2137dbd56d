//! Allocators of peer memory outside of the crate, memory of another kind of device, and a rendezvous with memory of its
//! own.

use std::{
    collections::HashMap,
    fs::File,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    process,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use cuda_driver::{
    Context, DevicePtr,
    memory::DeviceMemory,
    vmm::{Access, Granularity, HandleTypes, PhysicalMemory, Reservation},
};
use gpu_sim::World;
use process_group::{
    comm::DataType,
    link::{self, SharedMemory},
    store::Store,
};
use symm_mem::{
    ErrorKind,
    exchange::{Exchange, ExchangeOptions, ExchangeRefusal, Memory, Part, TransferError},
    rendezvous::{
        AllocationError, Allocators, CudaAllocator, DeviceKind, GroupInfo, Layout, PeerAllocator, PeerMemory,
        Rendezvous, RendezvousOptions, RendezvousRefusal, SymmetricMemory,
    },
    sharing::{ForeignError, ForeignMemory, OpenedMemory, PeerHandle},
};

use super::each_reads_each;
use crate::{
    embedded::job::{Rank, run, soon},
    processes::{End, Told, descriptors, far, meets, run as run_processes},
};

fn on_ranks<T: Send>(size: u32, job: impl Fn(Rank) -> T + Sync) -> Vec<T> {
    run(size, 22809, |_| {}, job)
}

/// Memory of a kind of device that the crate does not know: behind pages that stay free, and shared by descriptor only.
struct Guarded {
    context: Context,
    persistent: Mutex<HashMap<u64, PeerMemory>>,
}

impl Guarded {
    fn make(&self, bytes: usize, id: Option<u64>) -> Result<PeerMemory, AllocationError> {
        let handles = HandleTypes::POSIX_FD;
        let step = Granularity::of(self.context.device(), handles)?;
        let whole = step.round_up(bytes.max(1));
        let reservation = Reservation::new(self.context.driver(), whole + 2 * step.minimum, 0)?;
        let memory = PhysicalMemory::create(&self.context, whole, handles)?;
        let mapping = reservation.map(step.minimum, &memory, 0, whole)?;
        mapping.set_access(&[(self.context.device(), Access::ReadWrite)])?;
        PeerMemory::from_mapping(mapping, bytes, id)
    }
}

impl PeerAllocator for Guarded {
    fn allocate(&self, bytes: usize) -> Result<PeerMemory, AllocationError> {
        self.make(bytes, None)
    }

    fn persistent(&self, id: u64, bytes: usize) -> Result<PeerMemory, AllocationError> {
        let mut persistent = self.persistent.lock().unwrap();
        if let Some(memory) = persistent.get(&id) {
            return match memory.is_unique() {
                true => Ok(memory.clone()),
                false => Err(AllocationError::StillAlive { id }),
            };
        }
        let memory = self.make(bytes, Some(id))?;
        persistent.insert(id, memory.clone());
        Ok(memory)
    }
}

#[test]
fn an_allocator_of_another_crate_serves_a_rendezvous() {
    on_ranks(3, |rank| {
        let kind = DeviceKind::Other("guarded".into());
        let mut allocators = Allocators::new(&rank.context).unwrap();
        let own = Guarded { context: rank.context.clone(), persistent: Mutex::default() };
        assert!(allocators.register(kind.clone(), Arc::new(own)).is_none());
        let layout = Layout::contiguous([1000], DataType::F32);
        let rendezvous = Rendezvous::of(&rank.world, RendezvousOptions::default()).unwrap();
        let memory = allocators.empty_strided(&kind, &layout, None).unwrap();
        assert_eq!((memory.bytes(), memory.id()), (4000, None));
        each_reads_each(&rendezvous.rendezvous(&memory).unwrap(), &|| rank.world.barrier(soon()).unwrap());
        let kept = allocators.empty_strided(&kind, &layout, Some(5)).unwrap();
        assert_eq!(kept.id(), Some(5));
        each_reads_each(&rendezvous.rendezvous(&kept).unwrap(), &|| rank.world.barrier(soon()).unwrap());
        let alive = allocators.empty_strided(&kind, &layout, Some(5)).unwrap_err();
        assert!(matches!(alive, AllocationError::StillAlive { id: 5 }), "{alive}");
        drop(kept);
        let kept = allocators.empty_strided(&kind, &layout, Some(5)).unwrap();
        let none = allocators.of(&kind).unwrap().allocate(0).unwrap_err();
        assert!(matches!(none, AllocationError::Size { bytes: Some(0) }), "{none}");
        rank.world.barrier(soon()).unwrap();
        drop((memory, kept, allocators, rendezvous));
        rank.leave();
    });
}

#[test]
fn memory_is_allocated_and_mapped_in_one_call() {
    on_ranks(2, |rank| {
        let rendezvous = Rendezvous::of(&rank.world, RendezvousOptions::default()).unwrap();
        let layout = Layout::contiguous([32, 32], DataType::F32);
        let symmetric = rendezvous.empty(&layout).unwrap();
        assert_eq!(symmetric.bytes(), 4096);
        each_reads_each(&symmetric, &|| rank.world.barrier(soon()).unwrap());

        // A rank without memory is named to the others, and the group has its next rendezvous.
        let taken = (rank.rank == 1).then(|| {
            let (free, _) = rank.context.memory_info().unwrap();
            DeviceMemory::new(&rank.context, free).unwrap()
        });
        let error = rendezvous.empty(&layout).unwrap_err();
        match rank.rank {
            0 => assert!(
                matches!(
                    error.rendezvous_refusal(),
                    Some(RendezvousRefusal::PeerPrepareFailed { rank: 1, .. })
                ),
                "{error}"
            ),
            _ => assert!(matches!(error.kind(), ErrorKind::Allocation(_)), "{error}"),
        }
        drop(taken);
        drop(rendezvous.empty(&layout).unwrap());
        rank.world.barrier(soon()).unwrap();
        drop((symmetric, rendezvous));
        rank.leave();
    });
}

/// How ranks of other processes open memory of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Descriptor,
    Handle,
    /// The memory cannot be exported.
    Unexportable,
}

/// Allocates memory of the host, as a kind of device that the crate does not know.
#[derive(Debug, Clone, Copy)]
struct Host {
    kind: &'static str,
    way: Way,
    /// False if this rank fails to open memory.
    opens: bool,
}

const HOST: Host = Host { kind: "host", way: Way::Descriptor, opens: true };

#[derive(Debug)]
struct HostMemory {
    host: Host,
    memory: SharedMemory,
    descriptor: OwnedFd,
}

#[derive(Debug)]
struct OpenedHostMemory(SharedMemory);

fn address(memory: &SharedMemory) -> DevicePtr {
    DevicePtr(memory.start().as_ptr().expose_provenance() as u64)
}

impl ForeignMemory for HostMemory {
    fn kind(&self) -> &str {
        self.host.kind
    }

    fn ptr(&self) -> DevicePtr {
        address(&self.memory)
    }

    fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    fn has_descriptor(&self) -> bool {
        self.host.way == Way::Descriptor
    }

    fn descriptor(&self) -> Result<OwnedFd, ForeignError> {
        Ok(self.descriptor.try_clone()?)
    }

    /// A path to the memory, for processes of the same user on this host.
    fn handle(&self) -> Result<Option<Vec<u8>>, ForeignError> {
        let path = format!("/proc/{}/fd/{}", process::id(), self.descriptor.as_raw_fd());
        match self.host.way {
            Way::Descriptor => Ok(None),
            Way::Handle => Ok(Some(path.into_bytes())),
            Way::Unexportable => Err("the host has no handles left".into()),
        }
    }

    fn open(&self, peer: &PeerHandle<'_>) -> Result<Box<dyn OpenedMemory>, ForeignError> {
        if !self.host.opens {
            return Err("the host has no addresses left".into());
        }
        let open = |memory: BorrowedFd<'_>| -> Result<Box<dyn OpenedMemory>, ForeignError> {
            Ok(Box::new(OpenedHostMemory(SharedMemory::open(memory, peer.bytes)?)))
        };
        match (peer.descriptor, peer.handle) {
            (Some(descriptor), None) => open(descriptor),
            (None, Some(path)) => {
                let path = str::from_utf8(path)?;
                open(File::options().read(true).write(true).open(path)?.as_fd())
            }
            other => Err(format!("{other:?}, expected a file descriptor or a path").into()),
        }
    }
}

impl OpenedMemory for OpenedHostMemory {
    fn ptr(&self) -> DevicePtr {
        address(&self.0)
    }
}

impl PeerAllocator for Host {
    fn allocate(&self, bytes: usize) -> Result<PeerMemory, AllocationError> {
        let created = SharedMemory::create(bytes.max(1).next_multiple_of(4096));
        let (descriptor, memory) = created.map_err(ForeignError::from)?;
        PeerMemory::from_foreign(Arc::new(HostMemory { host: *self, memory, descriptor }), bytes, None)
    }

    fn persistent(&self, _: u64, _: usize) -> Result<PeerMemory, AllocationError> {
        Err(ForeignError::from("the host has no persistent memory").into())
    }
}

/// The words of a rank's buffer of host memory.
fn words(memory: &SymmetricMemory, rank: usize) -> &[AtomicU64] {
    let address = memory.buffer_ptr(rank).unwrap();
    let address = std::ptr::with_exposed_provenance::<AtomicU64>(address.0 as usize);
    // SAFETY: the memory is as long, and mapped while `memory` is alive. All accesses to it are atomic.
    unsafe { std::slice::from_raw_parts(address, memory.bytes() / 8) }
}

/// Writes this rank's buffer in host memory, and reads every other rank's.
fn each_reads_each_on_host(memory: &SymmetricMemory, meet: &dyn Fn()) {
    words(memory, memory.rank())
        .iter()
        .for_each(|word| word.store(memory.rank() as u64 + 9, Ordering::Relaxed));
    meet();
    for rank in 0..memory.world_size() {
        let expected = |word: &AtomicU64| word.load(Ordering::Relaxed) == rank as u64 + 9;
        assert!(words(memory, rank).iter().all(expected), "rank {rank} as rank {} sees it", memory.rank());
    }
    meet();
}

#[test]
fn ranks_of_a_process_use_memory_of_another_kind_of_device_where_it_is() {
    on_ranks(3, |rank| {
        let meet = || rank.world.barrier(soon()).unwrap();
        let kind = DeviceKind::Other("host".into());
        let mut allocators = Allocators::new(&rank.context).unwrap();
        assert!(allocators.register(kind.clone(), Arc::new(HOST)).is_none());
        let rendezvous = Rendezvous::of(&rank.world, RendezvousOptions::default()).unwrap();
        let layout = Layout::contiguous([1000], DataType::F64);
        let none = allocators.empty_strided(&kind, &layout, Some(5)).unwrap_err();
        assert_eq!(none.to_string(), "the host has no persistent memory");
        let none = HOST.allocate(0).unwrap_err();
        assert!(matches!(none, AllocationError::Size { bytes: Some(0) }), "{none}");
        let memory = allocators.empty_strided(&kind, &layout, None).unwrap();
        assert_eq!((memory.bytes(), memory.id(), memory.kind()), (8000, None, kind));
        let symmetric = rendezvous.rendezvous(&memory).unwrap();
        each_reads_each_on_host(&symmetric, &meet);
        assert_eq!(rendezvous.get(&memory).unwrap().buffers().addresses(), symmetric.buffers().addresses());

        // Rank 1 drops its memory, and the others keep it alive.
        drop(memory);
        let kept = (rank.rank != 1).then_some(symmetric);
        meet();
        if let Some(symmetric) = &kept {
            assert!(words(symmetric, 1).iter().all(|word| word.load(Ordering::Relaxed) == 10));
        }
        meet();
        drop((kept, rendezvous));
        rank.leave();
    });
}

#[test]
fn memory_that_a_backend_cannot_export_is_the_same_error_on_all_ranks() {
    let told = on_ranks(3, |rank| {
        let rendezvous = Rendezvous::of(&rank.world, RendezvousOptions::default()).unwrap();
        let way = if rank.rank == 2 { Way::Unexportable } else { Way::Descriptor };
        let error = rendezvous.rendezvous(&Host { way, ..HOST }.allocate(4096).unwrap()).unwrap_err();
        let refusal = error.rendezvous_refusal().cloned();
        each_reads_each_on_host(&rendezvous.rendezvous(&HOST.allocate(4096).unwrap()).unwrap(), &|| {
            rank.world.barrier(soon()).unwrap();
        });
        drop(rendezvous);
        rank.leave();
        refusal
    });
    let cause = "the host has no handles left".to_owned();
    assert_eq!(told, vec![Some(RendezvousRefusal::PeerPrepareFailed { rank: 2, cause }); 3]);
}

#[test]
fn ranks_with_different_kinds_of_devices_are_refused() {
    let told = on_ranks(3, |rank| {
        let rendezvous = Rendezvous::of(&rank.world, RendezvousOptions::default()).unwrap();
        let memory = match rank.rank {
            0 => HOST.allocate(4096),
            1 => CudaAllocator::new(&rank.context).unwrap().allocate(4096),
            _ => Host { kind: "disk", ..HOST }.allocate(4096),
        };
        let error = rendezvous.rendezvous(&memory.unwrap()).unwrap_err();
        drop(rendezvous);
        rank.leave();
        error.rendezvous_refusal().cloned().unwrap()
    });
    let RendezvousRefusal::HandleKindMismatch { kinds } = &told[0] else { panic!("{:?}", told[0]) };
    assert_eq!(kinds.entries.len(), 3);
    let text = told[0].to_string();
    for kind in ["rank 0: file descriptor of \"host\" memory", "rank 2: file descriptor of \"disk\" memory"] {
        assert!(text.contains(kind), "{text}");
    }
    assert!(told.iter().all(|refusal| *refusal == told[0]), "{told:?}");
}

#[test]
fn copy_engines_are_not_given_memory_of_another_kind_of_device() {
    on_ranks(2, |rank| {
        let rendezvous = Rendezvous::of(&rank.world, RendezvousOptions::default()).unwrap();
        let exchange = Exchange::new(&rendezvous, ExchangeOptions::default()).unwrap();
        let memory = HOST.allocate(4096).unwrap();
        let peer = 1 - rank.rank as usize;
        let refused = exchange.transfer(peer, Part::PutInitiator, &memory).unwrap_err();
        let TransferError::OtherDevice { kind } = &refused else { panic!("{refused}") };
        assert_eq!(*kind, DeviceKind::Other("host".into()));
        let error = exchange.share_regions("regions", &[("host", Memory::from(&memory))]).unwrap_err();
        let refusal = error.exchange_refusal().unwrap();
        let ExchangeRefusal::PeerPrepareFailed { rank: 0, cause } = refusal else { panic!("{refusal}") };
        assert_eq!(*cause, refused.to_string());
        assert!(exchange.close(soon()).is_empty());
        drop(rendezvous);
        rank.leave();
    });
}

const RANKS: usize = 3;

/// The rank that fails in some cases.
const FAILING: usize = 1;

/// Name of the test that runs one rank.
const BODY: &str = concat!(module_path!(), "::one_rank");

/// The body of a rank; the test below starts it.
#[test]
#[ignore = "the body of a process that a test starts"]
fn one_rank() {
    let told = Told::hear();
    if told.case == "next" {
        return link::sweep();
    }
    let world = World::builder().devices(RANKS).capacity(256 << 20).start().unwrap();
    let context = told.context(&world);
    let store = Arc::new(told.store());
    let meet = meets(&*store, told.rank, RANKS);
    let info = GroupInfo::new("backends", told.rank, 0..RANKS as u32, store.clone()).unwrap();
    let rendezvous = Rendezvous::new(info, &context, RendezvousOptions::default()).unwrap();
    let is_failing = told.rank == FAILING;
    let refused = |host: Host| {
        let before = descriptors();
        let memory = host.allocate(4096).unwrap();
        let error = rendezvous.rendezvous(&memory).unwrap_err();
        drop(memory);
        assert_eq!(descriptors(), before, "{}: descriptors are left", told.case);
        let refusal = error.rendezvous_refusal().cloned().unwrap();
        // All ranks have the same error.
        store.set(&format!("told/{}", told.rank), refusal.to_string().as_bytes()).unwrap();
        for rank in 0..RANKS {
            let other = store.get(&format!("told/{rank}"), far()).unwrap();
            assert_eq!(String::from_utf8(other).unwrap(), refusal.to_string(), "rank {rank}");
        }
        refusal
    };
    match &*told.case {
        "descriptors" => {}
        "handles" => {
            let host = Host { way: Way::Handle, ..HOST };
            each_reads_each_on_host(&rendezvous.rendezvous(&host.allocate(8000).unwrap()).unwrap(), &meet);
        }
        "fails" => {
            let refusal = refused(Host { opens: !is_failing, ..HOST });
            let RendezvousRefusal::SharingFailed { rank, cause } = &refusal else { panic!("{refusal}") };
            assert_eq!(*rank, FAILING as u32);
            assert!(cause.starts_with("memory of rank ") && cause.ends_with("no addresses left"), "{cause}");
        }
        "kinds" => {
            let refusal = refused(Host { kind: if is_failing { "disk" } else { "host" }, ..HOST });
            assert!(matches!(refusal, RendezvousRefusal::HandleKindMismatch { .. }), "{refusal}");
        }
        other => panic!("{other}"),
    }
    // After a refusal too, the members share memory.
    each_reads_each_on_host(&rendezvous.rendezvous(&HOST.allocate(8000).unwrap()).unwrap(), &meet);
    drop(rendezvous);
    drop(context);
    world.finish().unwrap();
}

#[test]
fn processes_open_memory_of_another_kind_of_device_by_a_backend() {
    for case in ["descriptors", "handles", "fails", "kinds"] {
        assert_eq!(run_processes(BODY, case, RANKS), [End::Well; RANKS], "{case}");
    }
}
