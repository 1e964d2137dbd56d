//! Init of a communicator: its ranks meet, get their shared memory, and exchange facts about their devices.

use std::sync::{Arc, PoisonError};

use super::bootstrap::{Hello, JoinError, Joining, UniqueId};
use super::comm::{Comm, Parts, Scratch, Topology};
use super::config::Config;
use super::error::{Failure, Result};
use super::group::cuda;
use super::library::Library;
use super::shm::{CARD_WORDS, Plane, RankMessage, Shared};
use crate::abi::DriverError;
use crate::memory::GRANULARITY;
use crate::sched::{self, Scheduler};
use crate::world::{Machine, Mode};

/// Unit of the symmetric address space in bytes.
const STRIDE_UNIT: u64 = 4 << 30;

/// Creates a rank's end of a communicator before the ranks meet. Its handle is known from now on, so that an abort
/// can end the bootstrap.
pub(crate) fn create(
    machine: &Machine,
    library: &Library,
    rank: usize,
    size: usize,
    device: usize,
    config: Config,
) -> Arc<Comm> {
    let comm = Comm::new(Parts {
        handle: library.handle(),
        rank,
        size,
        device,
        release: machine.nccl_release as u32,
        strict: machine.mode == Mode::Strict,
        config,
    });
    library.insert(&comm);
    comm
}

/// Meets the other ranks under `id`. The caller decides what happens to a communicator that fails here.
pub(crate) fn meet(machine: &Machine, library: &Library, comm: &Comm, id: UniqueId) -> Result {
    let met = join(machine, library, comm, id).map_err(|error| match error {
        JoinError::Lost { .. } if comm.is_aborted() => Failure::internal("the communicator was aborted"),
        other => other.into(),
    });
    comm.set_shared(met?);
    furnish(machine, comm)?;
    introduce(machine, comm)
}

fn join(
    machine: &Machine,
    library: &Library,
    comm: &Comm,
    id: UniqueId,
) -> std::result::Result<Arc<Shared>, JoinError> {
    let hello = Hello {
        rank: comm.rank,
        size: comm.size,
        pid: std::process::id(),
        release: comm.release,
        faithful: !comm.strict,
    };
    if let Scheduler::Seeded(_) = machine.sched {
        return library.meetings.join(id, hello, |arrived| {
            let reason = || format!("the ranks of a new communicator of {} to meet", comm.size);
            comm.wait(Plane::Host, reason, arrived).is_ok()
        });
    }
    let joining = Arc::new(Joining::connect(id)?);
    comm.set_joining(Some(joining.clone()));
    let shared = sched::blocking(|| joining.finish(hello));
    comm.set_joining(None);
    shared.map(Arc::new)
}

/// Takes the device memory of the communicator itself. Real NCCL takes far more, and most of it at first use.
fn furnish(machine: &Machine, comm: &Comm) -> Result {
    let arena = &machine.devices[comm.device].arena;
    let take = |bytes: u64| arena.allocate(bytes, 0).map_err(|error| cuda(DriverError::from(error)));
    let buffer_bytes = GRANULARITY * (comm.size as u64 - 1).max(1);
    let scratch =
        Scratch { persistent: take(GRANULARITY)?, buffers: Some(take(buffer_bytes)?), buffer_bytes };
    *comm.scratch.lock().unwrap_or_else(PoisonError::into_inner) = Some(scratch);
    Ok(())
}

/// Takes the memory of the buffers again.
pub(crate) fn resume(machine: &Machine, comm: &Comm) -> Result {
    let arena = &machine.devices[comm.device].arena;
    let mut scratch = comm.scratch.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(Scratch { buffers, buffer_bytes, .. }) = scratch.as_mut() {
        let taken = arena.allocate(*buffer_bytes, 0).map_err(|error| cuda(DriverError::from(error)))?;
        *buffers = Some(taken);
    }
    Ok(())
}

/// The ranks exchange facts about their devices.
fn introduce(machine: &Machine, comm: &Comm) -> Result {
    let mut card: RankMessage = [0; CARD_WORDS];
    card[0] = comm.device as u64;
    card[1] = machine.devices[comm.device].arena.capacity();
    let cards = comm.exchange(Plane::Host, "the communicator's init", &card)?;
    let devices: Vec<usize> = cards.iter().map(|card| card[0] as usize).collect();
    for (rank, device) in devices.iter().enumerate() {
        if let Some(first) = devices[..rank].iter().position(|other| other == device) {
            return Err(Failure::usage(format!(
                "ranks {first} and {rank} are both on device {device}: one rank a device"
            )));
        }
    }
    let largest = cards.iter().map(|card| card[1]).max().unwrap_or(0);
    comm.set_topology(Topology {
        symmetric: std::env::var_os("NCCL_WIN_ENABLE").is_none_or(|value| value != "0"),
        checks_buffers: std::env::var("NCCL_CHECK_MODE").is_ok_and(|mode| mode.starts_with("DEBUG")),
        stride: largest.next_multiple_of(STRIDE_UNIT),
    });
    Ok(())
}
