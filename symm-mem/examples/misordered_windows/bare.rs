//! A rank that calls NCCL directly, as programs do that share a pool: each group's communicator registers the
//! segments, one after the other.

use std::ffi::c_void;
use std::ptr::null_mut;

use cuda_driver::{DevicePtr, Stream, StreamFlags};
use nccl_sys::{NCCL_WIN_COLL_SYMMETRIC, ncclResult_t};
use process_group::{
    ProcessGroup,
    comm::{Communicator, Config, DataType, ReduceOp, UniqueId},
    store::Store,
};

use crate::{
    Mistake, members, ranks, sum,
    support::{Result, soon},
    value,
};

/// Line that a rank prints if its sums are correct.
const RIGHT: &str = "all sums are right";

/// Line that a rank prints if it gets no window.
const NO_WINDOW: &str = "no window: this NCCL has none here, and nothing can go wrong";

/// Prefix of the line that a rank prints if a call fails, or if its sums are wrong.
pub(crate) const WRONG: &str = "wrong: ";

/// Makes the mistake, prints the result, and exits at once: the library may be in a state that cannot be cleaned up.
pub(crate) fn attempt(world: &ProcessGroup, mistake: Mistake) -> Result<()> {
    let program = Program::prepare(world, mistake)?;
    println!("{}", ranks::BEGUN);
    match program.run() {
        Ok(()) => println!("{RIGHT}"),
        Err(error) if error.to_string() == NO_WINDOW => println!("{error}"),
        Err(error) => println!("{WRONG}{error}"),
    }
    std::process::exit(0)
}

struct Segment {
    ptr: *mut c_void,
    bytes: usize,
}

struct Program<'a> {
    world: &'a ProcessGroup,
    mistake: Mistake,
    groups: [(Communicator, [usize; 2]); 2],
    segments: [Segment; 2],
    stream: Stream,
}

impl<'a> Program<'a> {
    fn prepare(world: &'a ProcessGroup, mistake: Mistake) -> Result<Self> {
        let [first, second] = members(world.rank(), world.size());
        let groups = [
            (communicator(world, "first", &first)?, first),
            (communicator(world, "second", &second)?, second),
        ];
        let [small, large] = mistake.sizes();
        let segments = [segment(world, small)?, segment(world, large)?];
        let stream = Stream::new(world.context(), StreamFlags::NON_BLOCKING)?;
        world.barrier(soon())?;
        Ok(Self { world, mistake, groups, segments, stream })
    }

    fn run(&self) -> Result<()> {
        let (rank, ranks) = (self.world.rank(), self.world.size());
        for group in self.mistake.groups(rank, ranks) {
            for segment in self.mistake.segments(rank) {
                self.register(&self.groups[group].0, &self.segments[segment])?;
            }
        }
        for (communicator, members) in &self.groups {
            for segment in 0..2 {
                self.sum(communicator, members, segment)?;
            }
        }
        Ok(())
    }

    fn register(&self, communicator: &Communicator, segment: &Segment) -> Result<()> {
        let nccl = self.world.nccl().api();
        let mut window = null_mut();
        let flags = NCCL_WIN_COLL_SYMMETRIC.cast_signed();
        let call = nccl.ncclCommWindowRegister()?;
        // SAFETY: a live communicator, memory of NCCL that stays as long as the process, and a place for the handle that
        // outlives the call, which does not return before the handle is written.
        let register = || unsafe { call(communicator.raw(), segment.ptr, segment.bytes, &mut window, flags) };
        let code = self.world.context().with_current(register)?;
        check(self.world, "ncclCommWindowRegister", code)?;
        if window.is_null() { Err(NO_WINDOW.into()) } else { Ok(()) }
    }

    /// Sums a segment over a group.
    fn sum(&self, communicator: &Communicator, members: &[usize; 2], segment: usize) -> Result<()> {
        let stream = &self.stream;
        for (number, Segment { ptr, bytes }) in self.segments.iter().enumerate() {
            let mine = value(number, self.world.rank()).to_bits();
            // SAFETY: as much memory, of this rank.
            unsafe { stream.fill_u32(DevicePtr(*ptr as u64), mine, bytes / 4)? };
        }
        stream.synchronize()?;
        self.world.barrier(soon())?;
        let Segment { ptr, bytes } = self.segments[segment];
        let (at, count) = (DevicePtr(ptr as u64), bytes / 4);
        // SAFETY: as much memory, which stays.
        unsafe { communicator.all_reduce(at, at, count, DataType::F32, ReduceOp::Sum, stream)? };
        stream.synchronize()?;
        let mut sums = vec![0_f32; count];
        // SAFETY: as much memory, and this rank's work is done. Others' work should not be on it.
        unsafe { self.world.context().copy_to_host(&mut sums, at)? };
        let wanted = sum(segment, members);
        let wrong = sums.iter().filter(|sum| **sum != wanted).count();
        match sums.iter().find(|sum| **sum != wanted) {
            None => Ok(()),
            Some(found) => Err(format!(
                "no error, and {wrong} of {count} sums of segment {segment} over ranks {members:?} are not right, {found} \
                 for {wanted}"
            )
            .into()),
        }
    }
}

/// A communicator of some of the ranks.
fn communicator(world: &ProcessGroup, name: &str, members: &[usize; 2]) -> Result<Communicator> {
    let place =
        members.iter().position(|member| *member == world.rank()).ok_or("a group without this rank")?;
    let (key, store) = (format!("{name} of {members:?}"), world.store());
    if place == 0 {
        store.set(&key, world.nccl().unique_id()?.as_bytes())?;
    }
    let id = UniqueId::try_from(&store.get(&key, soon())?[..])?;
    let (nccl, context) = (world.nccl(), world.context());
    Ok(Communicator::init(nccl, context, &id, place, members.len(), &Config::new(), soon())?)
}

fn segment(world: &ProcessGroup, bytes: usize) -> Result<Segment> {
    let mut ptr = null_mut();
    let call = world.nccl().api().ncclMemAlloc()?;
    // SAFETY: a place for the pointer that outlives the call.
    let code = world.context().with_current(|| unsafe { call(&mut ptr, bytes) })?;
    check(world, "ncclMemAlloc", code)?;
    Ok(Segment { ptr, bytes })
}

fn check(world: &ProcessGroup, call: &str, code: ncclResult_t) -> Result<()> {
    if code == ncclResult_t::ncclSuccess {
        return Ok(());
    }
    Err(format!("{call} failed: {}", world.nccl().api().meaning(code)).into())
}
