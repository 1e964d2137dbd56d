use std::collections::BTreeSet;

use caching_alloc::{core::symmetric::Geometry, host::HostSource};
use proptest::{prelude::*, sample::Index};

use super::*;
use crate::pool::SymmetricBlock;

#[derive(Debug, Clone)]
enum PoolStep {
    Allocate(u64),
    Share(Index),
    Drop(Index),
    /// Declares a capture that uses these blocks, and ends it. Its pin stays until `Unpin`.
    Pin(Vec<Index>),
    Unpin(Index),
}

fn step() -> impl Strategy<Value = PoolStep> {
    let index = any::<Index>;
    prop_oneof![
        3 => (1..4096u64).prop_map(PoolStep::Allocate),
        2 => index().prop_map(PoolStep::Share),
        4 => index().prop_map(PoolStep::Drop),
        1 => prop::collection::vec(index(), 1..3).prop_map(PoolStep::Pin),
        1 => index().prop_map(PoolStep::Unpin),
    ]
}

fn host_memory() -> Arc<PoolMemory> {
    let geometry = Geometry { first_segment: 2 << 20, largest_segment: 2 << 20 };
    let arena = SymmetricArena::new(Arc::new(HostSource::new(u64::MAX)), geometry).unwrap();
    PoolMemory::new(PoolId { domain: 0, generation: 1, instance: 0, pool: 0 }, None, arena)
}

/// One thread declares captures. Meanwhile, another one pins a block for graphs of captures that another library has
/// begun. Such a graph cannot keep a pin alive, so the block is added to the pins of the declared captures.
#[test]
fn a_pin_that_is_removed_meanwhile_is_not_made_again() {
    let memory = host_memory();
    let placed = memory.arena().allocate(512).unwrap();
    std::thread::scope(|threads| {
        threads.spawn(|| {
            for _ in 0..20_000 {
                let pin = memory.begin_capture();
                memory.end_capture(pin);
                memory.unpin(pin);
            }
        });
        for _ in 0..20_000 {
            memory.hold_without_graph(|arena, pins| arena.hold_range(pins, placed.address, 512));
        }
    });
    let mut arena = memory.arena();
    let pins: Vec<_> = arena.pins().used.keys().copied().filter(|pin| *pin != FOR_GOOD).collect();
    assert!(pins.is_empty(), "pins without an owner: {pins:?}");
}

proptest! {
    #[test]
    fn a_block_is_freed_with_its_last_owner_and_pin(steps in prop::collection::vec(step(), 1..60)) {
        let memory = host_memory();
        let mut owners: Vec<SymmetricBlock> = Vec::new();
        let mut pins: Vec<(u64, Vec<Placement>)> = Vec::new();
        for step in steps {
            match step {
                PoolStep::Allocate(bytes) => {
                    let placed = memory.arena().allocate(bytes).unwrap();
                    owners.push(SymmetricBlock::new(memory.clone(), placed, bytes, 0));
                }
                PoolStep::Unpin(index) if !pins.is_empty() => {
                    memory.unpin(pins.swap_remove(index.index(pins.len())).0);
                }
                _ if owners.is_empty() => {}
                PoolStep::Share(index) => owners.push(index.get(&owners).clone()),
                PoolStep::Drop(index) => drop(owners.swap_remove(index.index(owners.len()))),
                PoolStep::Pin(indices) => {
                    let used: Vec<_> = indices.iter().map(|index| index.get(&owners)).collect();
                    let pin = memory.begin_capture();
                    used.iter().for_each(|block| memory.note_use(block.placement(), block.bytes()));
                    memory.end_capture(pin);
                    pins.push((pin, used.iter().map(|block| block.placement()).collect()));
                }
                PoolStep::Unpin(_) => {}
            }
            let pinned = pins.iter().flat_map(|(_, places)| places.iter().copied());
            let expected: BTreeSet<_> = owners.iter().map(SymmetricBlock::placement).chain(pinned).collect();
            let found: BTreeSet<_> = memory.arena().blocks().map(|(place, _)| place).collect();
            prop_assert_eq!(found, expected);
        }
        drop(owners);
        pins.into_iter().for_each(|(pin, _)| memory.unpin(pin));
        let mut arena = memory.arena();
        prop_assert_eq!(arena.blocks().count(), 0);
        prop_assert!(arena.pins().blocks.is_empty(), "no hold is left");
    }
}
