//! Access of a [twin](super) (a host function that a simulated device runs in place of a kernel) to the ranks' memory:
//! their buffers and [signal pads](PadLayout), and the rank's own [fault record](crate::FaultRecord).

use std::sync::atomic::Ordering;
use std::time::Duration;

use gpu_sim::fault::Fault;
use gpu_sim::kernel::Launch;
use gpu_sim::memory::{Access, View};
use gpu_sim::sched::{self, WaitError};

use super::parameter;
use crate::fault::FaultLayout;
use crate::{Kernel, PadLayout, Ranks, WaitKind};

/// The result of a signal or a wait:
/// - `Ok(true)`: the kernel continues.
/// - `Ok(false)`: the kernel has [given up](crate).
/// - `Err`: an access to memory or the wait itself failed, and the launch fails with this fault.
pub(crate) type SignalResult = Result<bool, Fault>;

/// The ranks' memory, as the [`Ranks`] of a launch (its first parameter) describes it.
pub(crate) struct Peers<'a> {
    launch: &'a Launch<'a>,
    pub(crate) ranks: Ranks,
    kernel: Kernel,
    pads: Vec<u64>,
}

impl Peers<'_> {
    /// Runs `twin` with the memory that the launch describes. Does nothing if an earlier kernel of this rank has given
    /// up.
    pub(crate) fn enter(
        launch: &Launch<'_>,
        kernel: Kernel,
        twin: impl FnOnce(&Peers<'_>) -> SignalResult,
    ) -> Result<(), Fault> {
        // SAFETY: `Ranks` consists of numbers, so any bytes are a valid value.
        let ranks: Ranks = unsafe { parameter(launch, 0)? };
        let pads = addresses(launch, ranks.pads.0, ranks.world)?;
        let peers = Peers { launch, ranks, kernel, pads };
        if peers.has_given_up()? { Ok(()) } else { twin(&peers).map(drop) }
    }

    pub(crate) fn buffers(&self) -> Result<Vec<u64>, Fault> {
        addresses(self.launch, self.ranks.buffers.0, self.ranks.world)
    }

    fn layout(&self) -> PadLayout {
        PadLayout::new(self.ranks.world)
    }

    /// Returns a view of the 32-bit word at `offset` bytes in the pad at address `pad`.
    fn word(&self, pad: u64, offset: usize) -> Result<View, Fault> {
        self.launch.exec.view(pad + offset as u64, 4, Access::all())
    }

    fn gave_up_word(&self) -> Result<View, Fault> {
        self.word(self.ranks.pad.0, self.layout().gave_up())
    }

    /// Returns whether a kernel of this rank has given up.
    fn has_given_up(&self) -> Result<bool, Fault> {
        Ok(self.gave_up_word()?.atomic_u32(0)?.load(Ordering::SeqCst) != 0)
    }

    /// Waits until the peer has consumed this rank's previous signal on the channel (the signal's word in the peer's
    /// pad is 0), then signals the peer: sets the word to 1.
    pub(crate) fn put(&self, peer: u32, channel: u32) -> SignalResult {
        let slot = self.layout().slot(channel, self.ranks.rank);
        self.flip(WaitKind::Room, self.word(self.pads[peer as usize], slot)?, peer, channel)
    }

    /// Waits for a peer's signal, and resets the signal's word to 0.
    pub(crate) fn wait(&self, peer: u32, channel: u32) -> SignalResult {
        let slot = self.layout().slot(channel, peer);
        self.flip(WaitKind::Signal, self.word(self.ranks.pad.0, slot)?, peer, channel)
    }

    /// Synchronizes all ranks. The device uses one thread for each peer. Here one thread first signals all peers, then
    /// waits for the signal of each.
    pub(crate) fn meet(&self, channel: u32) -> SignalResult {
        let peers = || (0..self.ranks.world).filter(|peer| *peer != self.ranks.rank);
        for peer in peers() {
            if !self.put(peer, channel)? {
                return Ok(false);
            }
        }
        for peer in peers() {
            if !self.wait(peer, channel)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Waits until the word in `view` has the value that `waits` expects, and changes it from 0 to 1 or from 1 to 0.
    /// Gives up at the deadline.
    fn flip(&self, waits: WaitKind, view: View, peer: u32, channel: u32) -> SignalResult {
        let word = view.atomic_u32(0)?;
        let (from, to) = match waits {
            WaitKind::Room => (0, 1),
            WaitKind::Signal => (1, 0),
        };
        let began = sched::now();
        let deadline = began.saturating_add(Duration::from_nanos(self.ranks.deadline_ns));
        let reason = || {
            let rank = self.ranks.rank;
            format!("{} of rank {rank}: {waits:?} of rank {peer} on channel {channel}", self.kernel)
        };
        let flipped = view.wait_until(Some(deadline), reason, || {
            word.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        });
        match flipped {
            Ok(()) => Ok(true),
            Err(WaitError::TimedOut { .. }) => {
                let waited = sched::now().saturating_sub(began);
                self.give_up(waits, peer, channel, waited)?;
                Ok(false)
            }
            Err(other) => Err(other.into()),
        }
    }

    /// Sets the gave-up word. Writes the fault record if the word was 0.
    fn give_up(&self, waits: WaitKind, peer: u32, channel: u32, waited: Duration) -> Result<(), Fault> {
        if self.gave_up_word()?.atomic_u32(0)?.swap(1, Ordering::SeqCst) != 0 {
            return Ok(());
        }
        let view =
            self.launch.exec.view(self.ranks.fault.0, size_of::<FaultLayout>() as u64, Access::all())?;
        view.atomic_u32(0)?;
        // SAFETY: the view has the size of a `FaultLayout`. `FaultRecord` aligns the record to a page. A `FaultLayout`
        // consists of atomics.
        let record = unsafe { &*view.as_ptr().cast::<FaultLayout>() };
        record.kernel.store(self.kernel as u32, Ordering::Relaxed);
        record.waits.store(waits as u32, Ordering::Relaxed);
        record.peer.store(peer, Ordering::Relaxed);
        record.channel.store(channel, Ordering::Relaxed);
        record.waited_ns.store(u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        record.written.store(1, Ordering::SeqCst);
        Ok(())
    }
}

/// Reads an array of `count` addresses (u64), which begins at the device address `at`.
fn addresses(launch: &Launch<'_>, at: u64, count: u32) -> Result<Vec<u64>, Fault> {
    let view = launch.exec.view(at, u64::from(count) * 8, Access::READ)?;
    let address = |index| {
        let mut bytes = [0; 8];
        view.read(index * 8, &mut bytes);
        u64::from_ne_bytes(bytes)
    };
    Ok((0..count as usize).map(address).collect())
}
