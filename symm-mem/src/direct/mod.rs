//! Messages without a communicator: `P2pPolicy::Direct` of process-group, through symmetric memory and copy engines.
//!
//! A group whose members agreed on [`P2pPolicy::Direct`] is built, [`install`] makes the way, and then its `send`, `recv`
//! and batches of those go there: on the caller's streams, in the group's order, with its work, recorder and ends.
//!
//! ```no_run
//! # use process_group::{ProcessGroup, comm::DataType, group::{Buffer, P2pPolicy}, store::Deadline};
//! # use symm_mem::direct::{self, DirectOptions};
//! # fn rank(from: Buffer, to: Buffer) -> Result<(), Box<dyn std::error::Error>> {
//! let world = ProcessGroup::builder().p2p(P2pPolicy::Direct).build()?;
//! direct::install(&world, DirectOptions::default())?;
//! let stream = cuda_driver::Stream::new(world.context(), cuda_driver::StreamFlags::NON_BLOCKING)?;
//! let (next, before) = ((world.rank() + 1) % world.size(), (world.rank() + world.size() - 1) % world.size());
//! let work = world.batch(&stream, |batch| {
//!     // SAFETY: the buffers outlive the work.
//!     unsafe {
//!         batch.send(from, next)?;
//!         batch.recv(to, before)
//!     }
//! })?;
//! work.wait_timeout(world.timeout())?;
//! # Ok(()) }
//! ```
//!
//! # How
//! For every ordered pair of ranks the receiver's memory holds a ring of slots. A message goes through it in chunks of a
//! slot: the sender's stream waits until the slot is empty, copies the chunk there by its copy engine and says so; the
//! receiver's waits for that, copies it to where it is received, and says that the slot is empty. They say it in words of
//! host memory, each of which one stream waits for and then resets, so that after a message all are as before: what a graph
//! captured is right in every run. No kernel takes part, nor any multiprocessor. The chunks of a message of more than two
//! take turns on two streams at each end, so that the one copies while the other tells and waits.
//!
//! | | |
//! |---|---|
//! | device memory of a rank | [`slot_bytes`](DirectOptions::slot_bytes) · ([`slots`](DirectOptions::slots) + [`graph_slots`](DirectOptions::graph_slots)) for each other member, by default 96 MiB |
//! | pinned host memory of a rank | about 17 KiB for each member |
//! | at once | messages with different peers, and both directions of one pair |
//! | one after the other | messages of one rank to another, in the order of calls, whatever the streams |
//! | one call | a batch of memory operations and a copy for each chunk, and one more operation; of several peers or ways, one more for each chunk |
//!
//! # The ring
//! Over NVLink (H200, 395 GB/s) 8 MiB take about 21 µs; what a stream tells and waits for around a chunk takes 8 to 10 µs,
//! which a second stream hides while a copy takes longer than that: from 4 MiB on. What is left for each chunk are a few
//! µs in which the engine goes from one stream to the other, and two to three calls of the driver's on the host, a few µs
//! each, that hold up what the same thread calls next. So half as many chunks of twice the size are better, until a ring
//! takes too much: slots of 16 MiB, of which a message of 256 MiB fills 16. Four of them keep two streams busy: two slots
//! are filled while two are emptied. One who sends large messages now and then, or has many peers, gives less. Measured, in µs
//! (`cargo xtask bench p2p`, four slots, NCCL by one communicator 1559 and 2264):
//!
//! | slots of | 256 MiB both ways, 2 GPUs, apart and in a batch | to three peers, 4 GPUs, likewise | memory for a peer |
//! |---|---|---|---|
//! | 8 MiB | 1186, 1075 | 2540, 2707 | 48 MiB |
//! | 16 MiB | 1010 to 1018, 908 to 940 | 2365, 2432 | 96 MiB |
//! | 32 MiB | 881, 823 | 2208, 2248 | 192 MiB |
//! | a bare copy | 699 | 2047 | |
//!
//! A send is done when its last chunk is in the receiver's memory: up to a ring of messages is done before it is received.
//! Both ends say what they call before they launch it: if it is not the same number of elements of the same type, whoever
//! comes second has [`MessagesDiffer`](process_group::group::GroupError::MessagesDiffer), and so have all members; what
//! differs is never sent. A rank may call 512 messages that its peer has not called for yet, as far as the device's queues
//! take them; then it waits on the host.
//!
//! What is called together comes to its end in whatever order, and so do calls that come in one order on all ranks. What
//! ranks call apart in orders that differ, as when two of them first receive and then send, needs streams that do not hold
//! up each other, and so hardware queues of their own, for the lanes' streams too: where a device has more than eight
//! streams, `CUDA_DEVICE_MAX_CONNECTIONS=32` gives more queues, and a batch needs none.
//!
//! A queue holds 1,022 calls of the driver's (H200, driver 580). A chunk is two, in a batch or with fewer than four slots
//! three, and a message two more: on one stream about 200 messages of a chunk, or one of 8 GiB with the default slots. Who
//! calls more ahead of its peer waits in the call until the peer has called too; if that never is, the group ends when
//! [work is late](process_group::group::Builder::work_timeout).
//!
//! # Graphs
//! A message that one end captures, the other end captures too; a graph's messages have slots of their own. Within a graph
//! they are in the order of calls. Runs of graphs that have messages of the same pair are ordered by the program, alike on
//! both ends, as by launching them on one stream. Graphs run no more when the group is gone; runs that are under way when it
//! is aborted, or are launched from then until it is gone, come to their end, undone.
//!
//! # When it ends
//! An abort, a lost member or a deadline ends the group, and with it every wait: a thread sets the words that this
//! rank's streams wait for until they have run out. The works say why; what they received is not valid, and the context
//! goes on.
//!
//! | file | subject |
//! |---|---|
//! | root | [`install`], [`DirectOptions`], the path as the group knows it |
//! | `core` | rings, and how messages go through them; the end |
//! | `lane` | one direction of a pair: order, chunks, what the two ends compare |
//! | `rounds` | in which order a call's chunks are enqueued, on which streams, and why all comes to its end |
//! | `conveyor` | a lane's chunks, as they are enqueued |
//! | `board`, `half` | words to wait for, and what was called, in shared host memory |
//! | `meeting` | how the ranks come by each other's boards, and agree that all have a path or none |
//!
//! [`P2pPolicy::Direct`]: process_group::group::P2pPolicy::Direct

mod board;
mod conveyor;
mod core;
mod error;
mod half;
mod lane;
mod meeting;
mod rounds;

use std::{fmt, sync::Arc, time::Duration};

use cuda_driver::{Context, Stream, sys::Feature, vmm::HandleTypes};
use process_group::{
    ProcessGroup,
    group::{
        GroupError, P2pPolicy,
        path::{Declined, Message, Operation, Path, PathError},
    },
    store::Deadline,
};

pub use self::error::DirectError;
use self::{core::Core, lane::Ring};
use crate::rendezvous::{PeerMemory, Rendezvous, RendezvousOptions, explained};

/// The path's name.
const NAME: &str = "direct";

/// What a direct path is made of. All members give the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectOptions {
    /// How many bytes a slot has (default 16 MiB), a multiple of 16. Messages go through in chunks of this; large ones take
    /// fewer steps, a first chunk comes later. Why so many: [the ring](self#the-ring).
    pub slot_bytes: usize,
    /// How many slots a ring has (default 4): as many chunks are under way, or messages sent that nobody has received. With
    /// one, chunks follow each other on one stream; an odd number is a little slower than the next even one.
    pub slots: usize,
    /// How many further slots a ring has for messages that graphs capture (default 2). With none, such messages are
    /// refused.
    pub graph_slots: usize,
    /// The time after which every member has an answer to [`install`] (default 30 s).
    pub deadline: Duration,
}

impl Default for DirectOptions {
    fn default() -> Self {
        Self { slot_bytes: 16 << 20, slots: 4, graph_slots: 2, deadline: Duration::from_secs(30) }
    }
}

impl DirectOptions {
    /// With slots of so many bytes.
    #[must_use]
    pub fn slot_bytes(self, slot_bytes: usize) -> Self {
        Self { slot_bytes, ..self }
    }

    /// With so many slots a ring.
    #[must_use]
    pub fn slots(self, slots: usize) -> Self {
        Self { slots, ..self }
    }

    /// With so many further slots a ring for graphs.
    #[must_use]
    pub fn graph_slots(self, graph_slots: usize) -> Self {
        Self { graph_slots, ..self }
    }

    /// With this deadline.
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }

    /// What it takes of each rank's device in a group of `world`, in bytes; `None` if more than addresses can count.
    ///
    /// ```
    /// # use symm_mem::direct::DirectOptions;
    /// assert_eq!(DirectOptions::default().device_bytes(2), Some(96 << 20));
    /// ```
    #[must_use]
    pub fn device_bytes(self, world: usize) -> Option<usize> {
        let slots = self.slots.checked_add(self.graph_slots)?;
        slots.checked_mul(self.slot_bytes)?.checked_mul(world.saturating_sub(1))
    }

    fn ring(self) -> Ring {
        Ring { slot_bytes: self.slot_bytes, slots: [self.slots, self.graph_slots] }
    }

    /// What is wrong with them, if anything.
    fn check(self, world: usize) -> Result<usize, DirectError> {
        const MOST: usize = 1 << 16;
        let wrong = |problem: String| Err(DirectError::Options { problem });
        let Self { slot_bytes, slots, graph_slots, .. } = self;
        if slot_bytes == 0 || !slot_bytes.is_multiple_of(16) {
            return wrong(format!("slots of {slot_bytes} bytes; expected a multiple of 16"));
        }
        if slots == 0 || slots > MOST || graph_slots > MOST {
            return wrong(format!(
                "{slots} slots and {graph_slots} for graphs; expected 1 and 0, and at most {MOST}"
            ));
        }
        match self.device_bytes(world) {
            Some(bytes) => Ok(bytes),
            None => wrong(format!("{self} for {world} ranks; that is more than addresses can count")),
        }
    }
}

impl fmt::Display for DirectOptions {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { slot_bytes, slots, graph_slots, .. } = self;
        write!(out, "{slots} slots of {slot_bytes} bytes, and {graph_slots} for graphs")
    }
}

/// Has the messages of `group` go directly. Collective: all members call it, with the same options, once, before the
/// group's first message. A group that is split off has none until it is installed there.
///
/// Members are ranks of one host whose devices reach each other's memory.
///
/// # Errors
/// [`DirectError`]; no member has a path then, and all may try again.
pub fn install(group: &ProcessGroup, options: DirectOptions) -> Result<(), DirectError> {
    let (rank, world, context) = (group.rank(), group.size(), group.context());
    let report = group.p2p();
    let problem = match report {
        ref report if report.policy != P2pPolicy::Direct => {
            format!("its members agreed on messages by {}; build it with P2pPolicy::Direct", report.policy)
        }
        report if report.path.is_some() => "it has one already".to_owned(),
        _ => String::new(),
    };
    if !problem.is_empty() {
        let (path, group) = (NAME, group.name().to_owned());
        return Err(GroupError::PathRefused { path, group, problem }.into());
    }
    let own = group.members()[rank].host;
    let away = group.members().iter().filter(|member| member.host != own).map(|member| member.rank);
    let ranks: Vec<_> = away.collect();
    if !ranks.is_empty() {
        let (group, own) = (group.name().to_owned(), group.global_rank());
        return Err(DirectError::OtherHosts { group, own, ranks });
    }
    let deadline = Deadline::after(options.deadline);
    // All are on one host.
    let meeting = RendezvousOptions::default().deadline(options.deadline).handles(HandleTypes::POSIX_FD);
    let rendezvous = Rendezvous::of(group, meeting)?;
    let memory = match options.check(world).and_then(|bytes| rings(context, bytes)) {
        Ok(memory) => memory,
        Err(error) => {
            // Whoever has none says so to the others.
            rendezvous.decline(explained(&error));
            return Err(error);
        }
    };
    let memory = rendezvous.rendezvous(&memory)?;
    let attempt = rendezvous.prefix(&memory).unwrap_or_default();
    let make = |boards| Core::new(context, rank, options.ring(), boards, memory);
    let core = Arc::new(meeting::agreed(group, &options, (&attempt, deadline), make)?);
    Ok(group.install(Arc::new(DirectPath { core: Some(core) }))?)
}

/// This rank's rings, which nobody else knows yet, where the driver can do what a path needs.
fn rings(context: &Context, bytes: usize) -> Result<PeerMemory, DirectError> {
    let feature = Feature::STREAM_MEMORY_OPERATIONS;
    context.driver().api().require(feature).map_err(cuda_driver::Error::from)?;
    // Of a group of one nothing is used.
    Ok(PeerMemory::new(context, bytes.max(1), HandleTypes::POSIX_FD)?)
}

/// The path as its group has it.
#[derive(Debug)]
struct DirectPath {
    /// There until it is dropped.
    core: Option<Arc<Core>>,
}

impl DirectPath {
    fn core(&self) -> &Arc<Core> {
        self.core.as_ref().unwrap_or_else(|| unreachable!("a path has its core until it is dropped"))
    }
}

impl Path for DirectPath {
    fn name(&self) -> &'static str {
        NAME
    }

    fn describe(&self) -> String {
        let Ring { slot_bytes, slots: [slots, graph_slots] } = self.core().ring;
        let options = DirectOptions { slot_bytes, slots, graph_slots, ..DirectOptions::default() };
        format!("symmetric memory and copy engines: from each of the other ranks {options}")
    }

    fn device_bytes(&self) -> u64 {
        self.core().device_bytes()
    }

    fn plan(&self, operation: Operation) -> Result<(), Declined> {
        let world = self.core().world;
        match operation {
            Operation::Message { from, to } if from < world && to < world => Ok(()),
            other => Err(Declined(format!("{other:?} is no message between ranks of {world}"))),
        }
    }

    unsafe fn launch(
        &self,
        messages: &[Message],
        stream: &Stream,
        deadline: Deadline,
    ) -> Result<(), PathError> {
        // SAFETY: the caller's contract.
        unsafe { self.core().launch(messages, stream, deadline) }
    }

    fn abort(&self, deadline: Deadline) {
        self.core().abort(deadline);
    }

    fn given_up(&self) -> Option<usize> {
        self.core().given_up()
    }
}

impl Drop for DirectPath {
    fn drop(&mut self) {
        if let Some(core) = self.core.take() {
            core.end();
        }
    }
}
