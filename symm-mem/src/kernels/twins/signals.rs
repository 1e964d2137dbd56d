//! Twins of `signals.cu`.

use gpu_sim::fault::Fault;
use gpu_sim::kernel::Launch;

use super::Peers;
use crate::kernels::Kernel;

pub(super) fn barrier(launch: &Launch<'_>) -> Result<(), Fault> {
    let channel = launch.u32(1)?;
    match Peers::enter(launch, Kernel::Barrier)? {
        Some(peers) => peers.meet(channel).map(drop),
        None => Ok(()),
    }
}

pub(super) fn put(launch: &Launch<'_>) -> Result<(), Fault> {
    let (to, channel) = (launch.u32(1)?, launch.u32(2)?);
    match Peers::enter(launch, Kernel::PutSignal)? {
        Some(peers) => peers.put(to, channel).map(drop),
        None => Ok(()),
    }
}

pub(super) fn wait(launch: &Launch<'_>) -> Result<(), Fault> {
    let (from, channel) = (launch.u32(1)?, launch.u32(2)?);
    match Peers::enter(launch, Kernel::WaitSignal)? {
        Some(peers) => peers.wait(from, channel).map(drop),
        None => Ok(()),
    }
}
