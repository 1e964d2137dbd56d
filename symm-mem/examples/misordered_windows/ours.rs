//! A rank that uses a pool: the same mistakes, each refused on every rank, and then the correct way.

use std::time::Duration;

use cuda_driver::{Stream, StreamFlags};
use process_group::{
    ProcessGroup,
    comm::{DataType, ReduceOp},
    group::{Buffer, GroupError, GroupErrorKind, Request},
};
use symm_mem::{
    CommitOptions, Domain, Error, Geometry, RegistrationState, SymmetricBlock, SymmetricGroup, SymmetricPool,
    commit_all,
};

use crate::{
    Mistake, members, ranks, sum,
    support::{Result, soon},
    value,
};

/// Deadline of a commit.
const DEADLINE: Duration = Duration::from_secs(4);

pub(crate) fn show(world: ProcessGroup) -> Result<()> {
    let program = Program::prepare(world)?;
    println!("{}", ranks::BEGUN);
    program.groups()?;
    program.segments()?;
    program.sizes()?;
    program.leave()
}

struct Program {
    world: ProcessGroup,
    domain: Domain,
    groups: [ProcessGroup; 2],
    stream: Stream,
}

impl Program {
    fn prepare(world: ProcessGroup) -> Result<Self> {
        let [first, second] = members(world.rank(), world.size());
        let split = |name: &str, members: [usize; 2]| -> Result<ProcessGroup> {
            let request = Request::Color { color: Some(members[0] as u32), key: world.rank() as i64 };
            Ok(world.split(name, &request)?.ok_or("every rank has a color")?)
        };
        let groups = [split("first", first)?, split("second", second)?];
        let (domain, stream) =
            (Domain::of(&world)?, Stream::new(world.context(), StreamFlags::NON_BLOCKING)?);
        world.barrier(soon())?;
        Ok(Self { world, domain, groups, stream })
    }

    fn rank(&self) -> usize {
        self.world.rank()
    }

    /// A pool with a segment for each block, and two blocks, allocated in this rank's order.
    fn pool(&self, mistake: Mistake) -> Result<(SymmetricPool, [SymmetricBlock; 2])> {
        let geometry = Geometry { first_segment: 2 << 20, largest_segment: 2 << 20 };
        let pool = SymmetricPool::new(&self.domain, self.world.context(), geometry)?;
        let [one, other] = mistake.segments(self.rank());
        let block = |number: usize| {
            pool.allocate_tagged(mistake.sizes()[number] as u64, ["weights", "gradients"][number])
        };
        let blocks = (block(one)?, block(other)?);
        let blocks = if one == 0 { [blocks.0, blocks.1] } else { [blocks.1, blocks.0] };
        Ok((pool, blocks))
    }

    /// Commits for both groups, in any order, and sums both blocks over both groups.
    fn right(&self, what: &str, pool: &SymmetricPool, blocks: &[SymmetricBlock; 2]) -> Result<()> {
        let mut commits = self.groups.each_ref().map(|group| (pool, group as &dyn SymmetricGroup));
        if self.rank() == 0 {
            commits.reverse();
        }
        let reports = commit_all(&commits, CommitOptions::default());
        let windows: usize =
            reports.into_iter().map(|it| it.map(|it| it.new_windows)).sum::<Result<_, _>>()?;
        let mut windowed = true;
        for (group, members) in self.groups.iter().zip(members(self.rank(), self.world.size())) {
            for (number, block) in blocks.iter().enumerate() {
                self.sum(group, block, value(number, self.rank()), sum(number, &members))?;
                let found = pool.lookup(block.ptr(), block.bytes(), group.id())?;
                windowed &=
                    found.is_some_and(|found| matches!(found.state, RegistrationState::Window { .. }));
            }
        }
        let how = match self.world.windows_supported() {
            Ok(()) if windowed => format!("from {windows} windows"),
            Ok(()) => return Err("the library has windows, and the sums are not from there".into()),
            Err(why) => format!("without windows: {why}"),
        };
        println!("{what}: all sums are right, {how}");
        Ok(())
    }

    fn sum(&self, group: &ProcessGroup, block: &SymmetricBlock, mine: f32, wanted: f32) -> Result<()> {
        let (count, stream) = (block.bytes() as usize / 4, &self.stream);
        let buffer = Buffer::new(block.ptr(), count, DataType::F32);
        // SAFETY: the block is as long, and lives until the stream is done.
        unsafe {
            stream.fill_u32(block.ptr(), mine.to_bits(), count)?;
            group.raw().all_reduce(buffer, buffer, ReduceOp::Sum, stream)?;
        }
        stream.synchronize()?;
        let mut sums = vec![0_f32; count];
        // SAFETY: as much memory, and what was enqueued on all ranks is done with this rank's.
        unsafe { self.world.context().copy_to_host(&mut sums, block.ptr())? };
        match sums.iter().find(|sum| **sum != wanted) {
            None => Ok(()),
            Some(found) => Err(format!("a sum over {} is {found}, not {wanted}", group.name()).into()),
        }
    }

    /// The groups in different orders.
    fn groups(&self) -> Result<()> {
        let (pool, blocks) = self.pool(Mistake::Groups)?;
        for group in Mistake::Groups.groups(self.rank(), self.world.size()) {
            let refused = pool.commit(&self.groups[group], CommitOptions::default().deadline(DEADLINE));
            self.expect("SyncTimeout", refused.map(drop))?;
        }
        // Nothing was registered, and the groups stay usable.
        self.world.barrier(soon())?;
        self.right(Mistake::Groups.words(), &pool, &blocks)
    }

    /// Two segments of one size in different orders. To the pool these are equal requests. A checked group finds that
    /// the ranks combine different segments, before anything is launched.
    fn segments(&self) -> Result<()> {
        let (pool, blocks) = self.pool(Mistake::Segments)?;
        let commits = self.groups.each_ref().map(|group| (&pool, group as &dyn SymmetricGroup));
        commit_all(&commits, CommitOptions::default()).into_iter().try_for_each(|report| report.map(drop))?;
        let found = self.sum(&self.groups[0], &blocks[0], value(0, self.rank()), 0.0);
        let found = found.err().ok_or("ranks have summed different segments")?;
        match found.downcast_ref::<GroupError>().map(GroupError::kind) {
            Some(GroupErrorKind::SymmetricOffsetMismatch { .. }) => {
                println!("refused: SymmetricOffsetMismatch: {found}")
            }
            _ => return Err(found),
        }
        drop((pool, blocks));
        let (pool, mut blocks) = self.pool(Mistake::Segments)?;
        // The correct program names which of its blocks is which.
        if self.rank() % 2 == 1 {
            blocks.reverse();
        }
        self.right(Mistake::Segments.words(), &pool, &blocks)
    }

    /// Two segments of different sizes in different orders.
    fn sizes(&self) -> Result<()> {
        let (pool, blocks) = self.pool(Mistake::Sizes)?;
        let refused = pool.commit(&self.groups[0], CommitOptions::default());
        self.expect("SegmentShapeMismatch", refused.map(drop))?;
        drop((pool, blocks));
        let geometry = Geometry { first_segment: 2 << 20, largest_segment: 2 << 20 };
        let pool = SymmetricPool::new(&self.domain, self.world.context(), geometry)?;
        let [small, large] = Mistake::Sizes.sizes().map(|bytes| pool.allocate(bytes as u64));
        self.right(Mistake::Sizes.words(), &pool, &[small?, large?])
    }

    /// Checks that the call failed with the error of this name.
    fn expect(&self, name: &str, result: Result<(), Error>) -> Result<()> {
        match result {
            Err(error) if error.name() == name => {
                println!("refused: {error}");
                Ok(())
            }
            Err(error) => Err(error.into()),
            Ok(()) => Err(format!("{name} was expected, but the ranks agree").into()),
        }
    }

    fn leave(self) -> Result<()> {
        let Self { world, groups: [first, second], .. } = self;
        for group in [second, first, world] {
            group.destroy(soon())?;
        }
        Ok(())
    }
}
