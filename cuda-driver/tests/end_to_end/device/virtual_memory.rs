//! Physical memory, reservations and mappings.

use std::ffi::{c_ulonglong, c_void};
use std::os::fd::{AsFd as _, AsRawFd as _};

use cuda_driver::memory::MemoryPool;
use cuda_driver::sys::{CUmemAllocationHandleType, CUresult};
use cuda_driver::vmm::{Access, Granularity, HandleTypes, Mapping, PhysicalMemory, Reservation};
use cuda_driver::{Context, DevicePtr, Error};
use gpu_sim::{Action, Injection, World};
use proptest::prelude::*;

use super::{CAPACITY, INJECTED, context, driver, drops, failed, on_devices, on_stream, turn};

pub(super) const PAGE: usize = 2 << 20;

/// Writes a word at an address.
pub(super) fn write(context: &Context, at: DevicePtr, word: u32) {
    // SAFETY: every test passes an address that is mapped with access.
    unsafe { context.copy_from_host(at, &[word]) }.unwrap();
}

pub(super) fn read(context: &Context, at: DevicePtr) -> u32 {
    let mut word = [0];
    // SAFETY: as in `write`.
    unsafe { context.copy_to_host(&mut word, at) }.unwrap();
    word[0]
}

pub(super) fn map_whole(context: &Context, memory: &PhysicalMemory) -> Mapping {
    let mapping = Reservation::new(context.driver(), memory.bytes(), 0)
        .unwrap()
        .map(0, memory, 0, memory.bytes())
        .unwrap();
    mapping.set_access(&[(context.device(), Access::ReadWrite)]).unwrap();
    mapping
}

#[test]
fn sizes_have_a_granularity() {
    on_stream(|_, context, _| {
        let granularity = Granularity::of(context.device(), HandleTypes::POSIX_FD).unwrap();
        assert!(granularity.minimum > 0 && granularity.recommended.is_multiple_of(granularity.minimum));
        assert_eq!(granularity.round_up(0), 0);
        assert_eq!(granularity.round_up(1), granularity.recommended);
        let odd = PhysicalMemory::create(context, granularity.minimum + 1, HandleTypes::empty()).unwrap_err();
        assert_eq!(failed(&odd), ("cuMemCreate", 1));
    });
}

#[test]
fn the_same_pages_may_be_mapped_twice() {
    on_stream(|_, context, _| {
        let memory = PhysicalMemory::create(context, PAGE, HandleTypes::empty()).unwrap();
        let [first, second] = [(); 2].map(|()| map_whole(context, &memory));
        write(context, first.ptr(), 77);
        assert_eq!(read(context, second.ptr()), 77);
        assert_eq!(memory.device_ordinal().unwrap(), 0);
    });
}

#[test]
fn parents_outlive_the_mapping_whatever_is_dropped_first() {
    on_stream(|world, context, _| {
        let memory = PhysicalMemory::create(context, PAGE, HandleTypes::empty()).unwrap();
        let reservation = Reservation::new(context.driver(), PAGE, 0).unwrap();
        let mapping = reservation.map(0, &memory, 0, PAGE).unwrap();
        mapping.set_access(&[(context.device(), Access::ReadWrite)]).unwrap();
        drop(memory);
        drop(reservation);
        assert_eq!((world.calls("cuMemRelease"), world.calls("cuMemAddressFree")), (0, 0));
        write(context, mapping.ptr(), 5);
        assert_eq!(read(context, mapping.ptr()), 5);
        mapping.unmap().unwrap();
        assert_eq!((world.calls("cuMemRelease"), world.calls("cuMemAddressFree")), (1, 1));
    });
}

#[test]
fn access_is_given_device_by_device() {
    on_devices(2, |_, driver| {
        let (first, second) = (context(driver, 0), context(driver, 1));
        let memory = PhysicalMemory::create(&first, PAGE, HandleTypes::empty()).unwrap();
        let mapping = map_whole(&first, &memory);
        mapping.set_access(&[(second.device(), Access::Read)]).unwrap();
        write(&first, mapping.ptr(), 11);
        assert_eq!(read(&second, mapping.ptr()), 11);
    });
}

#[test]
fn ranges_that_leave_their_object_are_refused_with_figures() {
    on_stream(|_, context, _| {
        let memory = PhysicalMemory::create(context, PAGE, HandleTypes::empty()).unwrap();
        let reservation = Reservation::new(context.driver(), 2 * PAGE, 0).unwrap();
        for (offset, memory_offset, bytes) in
            [(2 * PAGE, 0, PAGE), (0, PAGE, PAGE), (usize::MAX, 0, PAGE), (0, 0, 2 * PAGE)]
        {
            let refused = reservation.map(offset, &memory, memory_offset, bytes).unwrap_err();
            assert!(matches!(refused, Error::OutOfBounds { bytes: b, .. } if b == bytes), "{refused}");
        }
        let refused = reservation.set_access(PAGE, 2 * PAGE, &[]).unwrap_err();
        assert!(matches!(refused, Error::OutOfBounds { .. }), "{refused}");
    });
}

#[test]
fn only_what_was_made_for_it_is_exported() {
    on_stream(|_, context, _| {
        let private = PhysicalMemory::create(context, PAGE, HandleTypes::empty()).unwrap();
        assert!(matches!(private.export_fd(), Err(Error::NotExportable { .. })));
        let shared = PhysicalMemory::create(context, PAGE, HandleTypes::POSIX_FD).unwrap();
        let descriptor = shared.export_fd().unwrap();
        let imported = PhysicalMemory::import_fd(context, descriptor.as_fd(), PAGE).unwrap();
        drop(descriptor);
        let (here, there) = (map_whole(context, &shared), map_whole(context, &imported));
        write(context, here.ptr(), 123);
        assert_eq!(read(context, there.ptr()), 123);
        let file = std::fs::File::open("/dev/null").unwrap();
        let refused = PhysicalMemory::import_fd(context, file.as_fd(), PAGE).unwrap_err();
        assert_eq!(failed(&refused).0, "cuMemImportFromShareableHandle");
    });
}

/// The driver takes descriptor 0 for a null pointer and refuses it. The crate therefore passes a duplicate, so the
/// driver's error is not the one for a null pointer.
#[test]
fn a_descriptor_numbered_zero_is_no_null_handle() {
    on_stream(|_, context, _| {
        let stdin = std::io::stdin();
        assert_eq!(stdin.as_raw_fd(), 0);
        let refused = PhysicalMemory::import_fd(context, stdin.as_fd(), PAGE).unwrap_err();
        assert_eq!(failed(&refused), ("cuMemImportFromShareableHandle", 999), "it is something else");
        let refused = MemoryPool::import_fd(context, stdin.as_fd()).unwrap_err();
        assert_eq!(failed(&refused), ("cuMemPoolImportFromShareableHandle", 801), "not modelled");
    });
}

/// A step of the property test below. A step has a number for each object that it uses; [`chosen`] selects a live
/// object by it.
#[derive(Clone, Debug)]
enum Step {
    Create { pages: usize },
    Reserve { pages: usize },
    Map { reservation: usize, offset: usize, memory: usize, memory_offset: usize, pages: usize },
    Unmap { mapping: usize },
    DropMemory { memory: usize },
    DropReservation { reservation: usize },
    Write { mapping: usize, page: usize, word: u32 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let number = 0..64usize;
    let step = prop_oneof![
        2 => (1..4usize).prop_map(|pages| Step::Create { pages }),
        2 => (1..5usize).prop_map(|pages| Step::Reserve { pages }),
        6 => (number.clone(), 0..4usize, number.clone(), 0..3usize, 1..3usize).prop_map(
            |(reservation, offset, memory, memory_offset, pages)| Step::Map { reservation, offset, memory, memory_offset, pages }
        ),
        3 => number.clone().prop_map(|mapping| Step::Unmap { mapping }),
        1 => number.clone().prop_map(|memory| Step::DropMemory { memory }),
        1 => number.clone().prop_map(|reservation| Step::DropReservation { reservation }),
        5 => (number, 0..3usize, any::<u32>()).prop_map(|(mapping, page, word)| Step::Write { mapping, page, word }),
    ];
    proptest::collection::vec(step, 1..40)
}

/// A mapping of the model. The offsets are those of its first page in the reservation and in the memory, in pages.
struct Mapped {
    reservation: u64,
    offset: usize,
    memory: u64,
    memory_offset: usize,
    pages: usize,
}

/// Returns the live object that a step's number selects, and its index; `None` if there is no object.
fn chosen<T>(objects: &mut [T], number: usize) -> Option<(usize, &mut T)> {
    let index = number.checked_rem(objects.len())?;
    Some((index, &mut objects[index]))
}

fn overlap(a: (usize, usize), b: (usize, usize)) -> bool {
    a.0 < b.0 + b.1 && b.0 < a.0 + a.1
}

#[test]
fn pages_are_what_the_model_says_through_every_mapping() {
    on_stream(|_, context, _| {
        let free = || context.memory_info().unwrap().0;
        let all = free();
        let own = [(context.device(), Access::ReadWrite)];
        proptest!(ProptestConfig::with_cases(96), |(steps in steps())| {
            let mut memories: Vec<PhysicalMemory> = Vec::new();
            let mut reservations: Vec<Reservation> = Vec::new();
            let mut mappings: Vec<(Mapping, Mapped)> = Vec::new();
            let mut words = std::collections::HashMap::<(u64, usize), u32>::new();
            for step in steps {
                match step {
                    Step::Create { pages } => match PhysicalMemory::create(context, pages * PAGE, HandleTypes::empty()) {
                        Ok(memory) => memories.push(memory),
                        Err(error) => {
                            prop_assert!(error.is_out_of_memory());
                            prop_assert!(free() < pages * PAGE);
                        }
                    },
                    Step::Reserve { pages } => {
                        reservations.push(Reservation::new(context.driver(), pages * PAGE, 0).unwrap());
                    }
                    Step::Map { reservation, offset, memory, memory_offset, pages } => {
                        let Some((_, reservation)) = chosen(&mut reservations, reservation) else { continue };
                        let Some((_, memory)) = chosen(&mut memories, memory) else { continue };
                        // Drivers so far map only whole memory and refuse to map a part of it.
                        let whole = memory_offset == 0;
                        let pages = if whole { memory.bytes() / PAGE } else { pages };
                        let fits = (offset + pages) * PAGE <= reservation.bytes()
                            && (memory_offset + pages) * PAGE <= memory.bytes();
                        let taken = mappings.iter().any(|(_, mapped)| {
                            mapped.reservation == reservation.ptr().0
                                && overlap((mapped.offset, mapped.pages), (offset, pages))
                        });
                        match reservation.map(offset * PAGE, memory, memory_offset * PAGE, pages * PAGE) {
                            Ok(mapping) => {
                                prop_assert!(fits && !taken && whole);
                                prop_assert_eq!(mapping.ptr(), reservation.ptr() + offset * PAGE);
                                mapping.set_access(&own).unwrap();
                                let (reservation, memory) = (reservation.ptr().0, memory.raw());
                                mappings.push((mapping, Mapped { reservation, offset, memory, memory_offset, pages }));
                            }
                            Err(Error::OutOfBounds { .. }) => prop_assert!(!fits),
                            Err(error) => {
                                prop_assert!(fits && (taken || !whole), "{}", error);
                                prop_assert_eq!(failed(&error).0, "cuMemMap");
                            }
                        }
                    }
                    Step::Unmap { mapping } => {
                        if let Some((index, _)) = chosen(&mut mappings, mapping) {
                            mappings.swap_remove(index).0.unmap().unwrap();
                        }
                    }
                    Step::DropMemory { memory } => {
                        if let Some((index, _)) = chosen(&mut memories, memory) {
                            memories.swap_remove(index);
                        }
                    }
                    Step::DropReservation { reservation } => {
                        if let Some((index, _)) = chosen(&mut reservations, reservation) {
                            reservations.swap_remove(index);
                        }
                    }
                    Step::Write { mapping, page, word } => {
                        if let Some((_, (mapping, mapped))) = chosen(&mut mappings, mapping) {
                            let page = page % mapped.pages;
                            write(context, mapping.ptr() + page * PAGE, word);
                            words.insert((mapped.memory, mapped.memory_offset + page), word);
                        }
                    }
                }
                for (mapping, mapped) in &mappings {
                    for page in 0..mapped.pages {
                        if let Some(word) = words.get(&(mapped.memory, mapped.memory_offset + page)) {
                            prop_assert_eq!(read(context, mapping.ptr() + page * PAGE), *word);
                        }
                    }
                }
                let mut live: Vec<(u64, usize)> = memories
                    .iter()
                    .chain(mappings.iter().map(|(mapping, _)| mapping.memory()))
                    .map(|memory| (memory.raw(), memory.bytes()))
                    .collect();
                live.sort_unstable();
                live.dedup();
                words.retain(|(memory, _), _| live.iter().any(|(raw, _)| raw == memory));
                prop_assert_eq!(free(), all - live.iter().map(|(_, bytes)| bytes).sum::<usize>());
            }
        });
        assert_eq!(free(), all);
        assert!(all as u64 <= CAPACITY);
    });
}

/// An export that reports success and writes nothing.
unsafe extern "C" fn export_nothing<T>(
    _: *mut c_void,
    _: T,
    _: CUmemAllocationHandleType,
    _: c_ulonglong,
) -> CUresult {
    CUresult::CUDA_SUCCESS
}

#[test]
fn an_export_without_a_descriptor_is_an_error() {
    on_devices(1, |world, _| {
        let mut table = world.cuda();
        table.cuMemExportToShareableHandle = Some(export_nothing);
        table.cuMemPoolExportToShareableHandle = Some(export_nothing);
        let context = context(&driver(table), 0);
        let physical = PhysicalMemory::create(&context, PAGE, HandleTypes::POSIX_FD).unwrap();
        let pool = MemoryPool::new(&context, HandleTypes::empty(), 0).unwrap();
        for exported in [physical.export_fd(), pool.export_fd()] {
            assert!(matches!(exported, Err(Error::NoDescriptor { found: -1, .. })), "{exported:?}");
        }
    });
}

#[test]
fn sizes_that_no_multiple_holds_are_sizes_that_no_driver_gives() {
    on_stream(|_, context, _| {
        let granularity = Granularity::of(context.device(), HandleTypes::POSIX_FD).unwrap();
        let bytes = granularity.round_up(usize::MAX - 1);
        assert_eq!(bytes, usize::MAX);
        PhysicalMemory::create(context, bytes, HandleTypes::POSIX_FD).unwrap_err();
    });
}

/// Queries the granted handle types twice in a fresh world with one device. Returns both results, and the number of
/// calls of `cuMemCreate`. If `fault` is a function and a code, the first call of this function returns the code.
fn granted(fabric: bool, fault: Option<(&str, u32)>) -> (Vec<Result<HandleTypes, Error>>, u64) {
    let _turn = turn();
    let world = World::builder().devices(1).capacity(CAPACITY);
    let world = if fabric { world.fabric() } else { world }.start().unwrap();
    let driver = driver(world.cuda());
    if let Some((function, code)) = fault {
        world.faults().inject(Injection::new(function, Action::Fail(code))).unwrap();
    }
    // The second query uses the result of the first, because both contexts are of one driver.
    let found = (0..2).map(|_| HandleTypes::granted(&context(&driver, 0))).collect();
    let made = world.calls("cuMemCreate");
    drop(driver);
    assert_eq!(*drops(), Vec::<String>::new());
    world.finish().expect("nothing is left of it");
    (found, made)
}

#[test]
fn fabric_handles_are_granted_where_one_goes_round_and_that_is_tried_once() {
    let both = HandleTypes::POSIX_FD | HandleTypes::FABRIC;
    let is = |found: &(Vec<Result<HandleTypes, Error>>, u64), ways, made| {
        found.0.iter().all(|found| found.as_ref().is_ok_and(|found| *found == ways)) && found.1 == made
    };
    let found = granted(true, None);
    assert!(is(&found, both, 1), "{found:?}");
    // On a device without support, nothing is allocated.
    let found = granted(false, None);
    assert!(is(&found, HandleTypes::POSIX_FD, 0), "{found:?}");
    let refusals = [CUresult::CUDA_ERROR_NOT_PERMITTED.0, CUresult::CUDA_ERROR_NOT_SUPPORTED.0, INJECTED];
    let steps = [
        ("cuDeviceGetAttribute", 0),
        ("cuMemGetAllocationGranularity", 0),
        ("cuMemCreate", 1),
        ("cuMemExportToShareableHandle", 1),
        ("cuMemImportFromShareableHandle", 1),
    ];
    for (step, made) in steps {
        for refusal in refusals {
            let found = granted(true, Some((step, refusal)));
            assert!(is(&found, HandleTypes::POSIX_FD, made), "{step}, {refusal}: {found:?}");
        }
    }
}

#[test]
fn a_full_device_grants_what_it_grants_later() {
    let code = CUresult::CUDA_ERROR_OUT_OF_MEMORY.0;
    let (found, made) = granted(true, Some(("cuMemCreate", code)));
    let [Err(full), Ok(later)] = &found[..] else { panic!("{found:?}") };
    assert_eq!(failed(full), ("cuMemCreate", code));
    assert_eq!((*later, made), (HandleTypes::POSIX_FD | HandleTypes::FABRIC, 2));
}
