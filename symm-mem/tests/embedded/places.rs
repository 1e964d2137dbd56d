//! Groups that compare where their buffers lie, before each operation.

use cuda_driver::{DevicePtr, memory::DeviceMemory};
use process_group::{
    comm::{DataType, ReduceOp},
    group::{Buffer, GroupError, Misplaced},
};
use symm_mem::{Domain, Geometry, SymmetricPool};

use super::{job::soon, on_ranks, options};

#[test]
fn a_buffer_elsewhere_is_told_to_all_before_anything_is_launched() {
    on_ranks(3, |rank| {
        let group = rank.builder().checked(true).build().expect("all ranks join");
        let domain = Domain::of(&group).expect("a rank of the job");
        let geometry = Geometry { first_segment: 2 << 20, largest_segment: 8 << 20 };
        let pool = SymmetricPool::new(&domain, &rank.context, geometry).expect("virtual memory");
        let blocks = [0, 1].map(|_| pool.allocate(4096).expect("there is room"));
        let outside = DeviceMemory::new(&rank.context, 4096).expect("there is room");
        let sum = |at: DevicePtr| {
            let buffer = Buffer::new(at, 64, DataType::F32);
            // SAFETY: the blocks are alive until the stream has been synchronised.
            unsafe { group.all_reduce(buffer, buffer, ReduceOp::Sum, &rank.stream) }.map(drop)
        };
        let here =
            |odd: u32, elsewhere: DevicePtr| if rank.rank == odd { elsewhere } else { blocks[0].ptr() };
        let mismatch = |result: Result<(), GroupError>| match result {
            Err(GroupError::SymmetricOffsetMismatch { misplaced, .. }) => {
                let Misplaced { rank, place, other, other_place, .. } = *misplaced;
                (rank, place, other, other_place)
            }
            other => panic!("{other:?}"),
        };
        // What is not committed may lie anywhere.
        sum(here(1, blocks[1].ptr())).expect("nothing is symmetric yet");
        pool.commit(&group, options()).expect("the ranks agree");
        pool.commit(&group, options()).expect("the ranks agree");
        sum(blocks[0].ptr()).expect("it lies alike");

        let at = |offset: u64| format!("in segment 0 of {} at offset {offset}", pool.id());
        assert_eq!(mismatch(sum(here(1, blocks[1].ptr()))), (1, at(4096), 0, at(0)));
        let nowhere = "in no symmetric memory".to_owned();
        assert_eq!(mismatch(sum(here(0, outside.ptr()))), (0, nowhere, 1, at(0)));
        // Nothing was launched, and the group goes on.
        sum(blocks[1].ptr()).expect("it lies alike");
        sum(outside.ptr()).expect("it is nowhere in the pool, on all ranks");
        rank.stream.synchronize().expect("the work is done");
        drop((blocks, pool));
        group.destroy(soon()).expect("all ranks leave");
        drop(outside);
        rank.leave();
    });
}
