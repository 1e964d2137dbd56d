//! Registration of allocators' memory: of one rank's segments, by agreement of many, and after failures.

mod buffers;
mod churn;
mod faults;
mod hook;
mod messages;
mod policy;
mod pools;
mod segments;
mod trouble;

use std::sync::Arc;

use caching_alloc::{
    core::{Allocator, SegmentSource, Settings, StreamId},
    driver::{DriverEvents, DriverSource, Sharing, VirtualMemorySource},
};
use cuda_driver::Stream;
use process_group::{
    ProcessGroup,
    comm::{Communicator, DataType::F32},
    group::Buffer,
    registration::{RegistrarError, SegmentRegistrar},
};

use super::common::{Machine, Rank, far};

/// Larger than a segment for small requests.
const LARGE: u64 = 24 << 20;

fn add(registrar: &SegmentRegistrar, communicator: &Communicator) -> Result<(), RegistrarError> {
    // SAFETY: all ranks of the tests register the same, and no graph captures their operations.
    unsafe { registrar.add(communicator) }
}

/// The kind of an allocator's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Memory {
    Exportable,
    Plain,
    Remappable,
}

fn allocator_of(rank: &Rank, memory: Memory) -> (Allocator, StreamId, Stream) {
    let events = Arc::new(DriverEvents::new(&rank.context));
    let stream = rank.stream();
    let id = events.register(&stream);
    let sharing = if memory == Memory::Exportable { Sharing::by_descriptor() } else { Sharing::none() };
    let virtual_memory = || VirtualMemorySource::new(&rank.context, sharing).unwrap();
    let source: Arc<dyn SegmentSource> = match memory {
        Memory::Plain => Arc::new(DriverSource::new(&rank.context)),
        _ => Arc::new(virtual_memory()),
    };
    let allocator = match memory {
        Memory::Remappable => Allocator::remapping(source, events, Settings::default()).unwrap(),
        _ => Allocator::new(source, events, Settings::default()),
    };
    (allocator, id, stream)
}

fn allocator(rank: &Rank) -> (Allocator, StreamId) {
    let (allocator, id, _) = allocator_of(rank, Memory::Exportable);
    (allocator, id)
}

/// Runs a single rank, for tests of local behaviour.
fn alone(machine: &Machine, body: impl Fn(Rank) + Sync) {
    machine.ranks(1, body);
}

/// Gathers the numbers of a group's ranks through the allocator's memory, and returns the result.
fn gather(world: &ProcessGroup, allocator: &Allocator, id: StreamId, stream: &Stream) -> Vec<f32> {
    let bytes = (world.size() * 4) as u64;
    let (send, receive) = (allocator.allocate(4, id).unwrap(), allocator.allocate(bytes, id).unwrap());
    let at = |address: u64| cuda_driver::DevicePtr(address);
    unsafe {
        world.context().copy_from_host(at(send.address()), &[world.rank() as f32]).unwrap();
        let from = Buffer::new(at(send.address()), 1, F32);
        let to = Buffer::new(at(receive.address()), world.size(), F32);
        world.raw().all_gather(from, to, stream).unwrap().wait_until(far()).unwrap();
        let mut found = vec![-1f32; world.size()];
        world.context().copy_to_host(&mut found, at(receive.address())).unwrap();
        found
    }
}

/// Returns 0, 1, 2 and so on.
fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|number| number as f32).collect()
}
