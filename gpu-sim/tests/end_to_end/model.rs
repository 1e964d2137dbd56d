//! Virtual memory against a model: any sequence of calls returns the codes and shows the bytes of the driver's rules.

use std::collections::BTreeMap;

use super::common::{Cuda, GRANULE, cu, ok};
use cuda_driver_sys::*;
use gpu_sim::World;
use gpu_sim::memory::{Access, view};
use proptest::prelude::*;
use rusty_fork::rusty_fork_test;

const SLOTS: usize = 6;
const RESERVED: u64 = 16;
const CAPACITY: u64 = 24;
const G: u64 = GRANULE as u64;

/// A call, with places and sizes in granules.
#[derive(Debug, Clone)]
enum Call {
    Create { slot: usize, granules: u64, device: i32 },
    Release { slot: usize },
    Retain { slot: usize, at: u64 },
    Map { at: u64, granules: Option<u64>, slot: usize },
    Unmap { at: u64, granules: u64 },
    Allow { at: u64, granules: u64, device: i32, flags: u32 },
    Write { at: u64, granules: u64, value: u8, device: usize },
}

fn call() -> impl Strategy<Value = Call> {
    let (slot, at, granules, device) = (0..SLOTS, 0..RESERVED, 1..5u64, 0..2i32);
    prop_oneof![
        (slot.clone(), granules.clone(), device.clone()).prop_map(|(slot, granules, device)| Call::Create {
            slot,
            granules,
            device
        }),
        slot.clone().prop_map(|slot| Call::Release { slot }),
        (slot.clone(), at.clone()).prop_map(|(slot, at)| Call::Retain { slot, at }),
        (at.clone(), prop_oneof![3 => Just(None), 1 => granules.prop_map(Some)], slot)
            .prop_map(|(at, granules, slot)| Call::Map { at, granules, slot }),
        (at.clone(), 1..8u64).prop_map(|(at, granules)| Call::Unmap { at, granules }),
        (at.clone(), 1..8u64, device.clone(), prop_oneof![Just(0u32), Just(1), Just(3)])
            .prop_map(|(at, granules, device, flags)| Call::Allow { at, granules, device, flags }),
        (at, 1..8u64, any::<u8>(), 0..2usize).prop_map(|(at, granules, value, device)| Call::Write {
            at,
            granules,
            value,
            device
        }),
    ]
}

/// Physical memory of the model: one byte stands for a granule.
#[derive(Debug)]
struct Physical {
    device: usize,
    bytes: Vec<u8>,
}

#[derive(Debug, Clone)]
struct Mapping {
    granules: u64,
    physical: usize,
    rights: [u32; 2],
}

#[derive(Debug, Default)]
struct Model {
    physical: Vec<Physical>,
    /// Slot → physical memory. Each slot holds one reference.
    held: BTreeMap<usize, usize>,
    mapped: BTreeMap<u64, Mapping>,
}

impl Model {
    /// Mappings that tile `[at, at + granules)` exactly.
    fn tile(&self, at: u64, granules: u64) -> Option<Vec<u64>> {
        let (mut bases, mut next) = (Vec::new(), at);
        while next < at + granules {
            bases.push(next);
            next += self.mapped.get(&next)?.granules;
        }
        (next == at + granules).then_some(bases)
    }

    fn around(&self, at: u64) -> Option<(u64, &Mapping)> {
        let (base, mapping) = self.mapped.range(..=at).next_back()?;
        (at < base + mapping.granules).then_some((*base, mapping))
    }

    fn used(&self, device: usize) -> u64 {
        let alive =
            |i: &usize| self.held.values().any(|h| h == i) || self.mapped.values().any(|m| m.physical == *i);
        let own = (0..self.physical.len()).filter(alive).filter(|&i| self.physical[i].device == device);
        own.map(|i| self.physical[i].bytes.len() as u64).sum()
    }

    /// Returns a device's view of a granule: its physical memory, its offset there, and the device's rights.
    fn see(&self, at: u64, device: usize) -> Option<(usize, usize, u32)> {
        let (base, mapping) = self.around(at)?;
        Some((mapping.physical, (at - base) as usize, mapping.rights[device]))
    }
}

rusty_fork_test! {
    #[test]
    fn any_sequence_of_calls_follows_the_rules() {
        let world = World::builder().devices(2).capacity(CAPACITY * G).start().unwrap();
        let cuda = Cuda::of(&world);
        proptest!(ProptestConfig::with_cases(200), |(calls in prop::collection::vec(call(), 1..80))| {
            run(&cuda, &calls)?;
        });
        cuda.leave(0);
        world.finish().unwrap();
    }
}

fn run(cuda: &Cuda, calls: &[Call]) -> Result<(), TestCaseError> {
    let start = cuda.reserve((RESERVED * G) as usize);
    let mut model = Model::default();
    let mut handles: BTreeMap<usize, u64> = BTreeMap::new();
    let place = |at: u64| start + at * G;
    let bytes = |granules: u64| (granules * G) as usize;
    let expect = |code: CUresult, allowed: bool| {
        prop_assert_eq!(code == CUresult::CUDA_SUCCESS, allowed, "{:?}", code);
        Ok(())
    };
    for call in calls {
        match *call {
            Call::Create { slot, granules, device } if !model.held.contains_key(&slot) => {
                let mut handle = 0;
                let code = cu!(
                    cuda,
                    cuMemCreate(&mut handle, bytes(granules), &cuda.properties(device, slot % 2 == 0), 0)
                );
                let fits = model.used(device as usize) + granules <= CAPACITY;
                expect(code, fits)?;
                if fits {
                    let fresh = Physical { device: device as usize, bytes: vec![0; granules as usize] };
                    model.physical.push(fresh);
                    model.held.insert(slot, model.physical.len() - 1);
                    handles.insert(slot, handle);
                }
            }
            Call::Release { slot } => {
                let code = cu!(cuda, cuMemRelease(handles.remove(&slot).unwrap_or(1)));
                expect(code, model.held.remove(&slot).is_some())?;
            }
            Call::Retain { slot, at } if !model.held.contains_key(&slot) => {
                let mut handle = 0;
                let code = cu!(cuda, cuMemRetainAllocationHandle(&mut handle, place(at) as *mut _));
                let found = model.around(at).map(|(_, m)| m.physical);
                expect(code, found.is_some())?;
                if let Some(physical) = found {
                    model.held.insert(slot, physical);
                    handles.insert(slot, handle);
                }
            }
            Call::Create { .. } | Call::Retain { .. } => {}
            Call::Map { at, granules, slot } => {
                let handle = handles.get(&slot).copied().unwrap_or(1);
                let whole = model.held.get(&slot).map(|&p| model.physical[p].bytes.len() as u64);
                let granules = granules.or(whole).unwrap_or(1);
                let code = cu!(cuda, cuMemMap(place(at), bytes(granules), 0, handle, 0));
                let free = (at..at + granules).all(|g| model.around(g).is_none());
                let allowed = free && whole == Some(granules) && at + granules <= RESERVED;
                expect(code, allowed)?;
                if allowed {
                    model
                        .mapped
                        .insert(at, Mapping { granules, physical: model.held[&slot], rights: [0; 2] });
                }
            }
            Call::Unmap { at, granules } => {
                let code = cu!(cuda, cuMemUnmap(place(at), bytes(granules)));
                let end = at + granules;
                let cut = |(base, m): (&u64, &Mapping)| {
                    let apart = base + m.granules <= at || *base >= end;
                    !apart && (*base < at || base + m.granules > end)
                };
                let allowed = end <= RESERVED && !model.mapped.iter().any(cut);
                expect(code, allowed)?;
                if allowed {
                    model.mapped.retain(|base, _| *base < at || *base >= end);
                }
            }
            Call::Allow { at, granules, device, flags } => {
                let right =
                    CUmemAccessDesc { location: cuda.location(device), flags: CUmemAccess_flags(flags) };
                let code = cu!(cuda, cuMemSetAccess(place(at), bytes(granules), &right, 1));
                let tiles = model.tile(at, granules);
                expect(code, tiles.is_some())?;
                for base in tiles.into_iter().flatten() {
                    model.mapped.get_mut(&base).unwrap().rights[device as usize] = flags;
                }
            }
            Call::Write { at, granules, value, device } => {
                // The first byte of each granule, and the range as a whole.
                let seen: Option<Vec<_>> = (at..at + granules).map(|g| model.see(g, device)).collect();
                let allowed = seen.as_ref().is_some_and(|s| s.iter().all(|g| g.2 == 3));
                let found = view(device, place(at), granules * G, Access::all());
                prop_assert_eq!(found.is_ok(), allowed, "{:?}", found);
                if let (Ok(view), Some(seen)) = (found, seen) {
                    for (i, (physical, offset, _)) in seen.into_iter().enumerate() {
                        view.write(i * GRANULE, &[value]);
                        model.physical[physical].bytes[offset] = value;
                    }
                }
            }
        }
        for device in 0..2 {
            for at in 0..RESERVED {
                let found = view(device, place(at), 1, Access::READ);
                let seen = model.see(at, device).filter(|g| g.2 & 1 != 0);
                prop_assert_eq!(found.is_ok(), seen.is_some());
                if let (Ok(view), Some((physical, offset, _))) = (found, seen) {
                    let mut byte = [0];
                    view.read(0, &mut byte);
                    prop_assert_eq!(byte[0], model.physical[physical].bytes[offset]);
                }
            }
        }
        let (mut free, mut total) = (0, 0);
        ok!(cuda, cuMemGetInfo_v2(&mut free, &mut total));
        prop_assert_eq!(free as u64, (CAPACITY - model.used(0)) * G);
    }
    for (at, mapping) in &model.mapped {
        ok!(cuda, cuMemUnmap(place(*at), bytes(mapping.granules)));
    }
    handles.values().for_each(|h| ok!(cuda, cuMemRelease(*h)));
    ok!(cuda, cuMemAddressFree(start, bytes(RESERVED)));
    Ok(())
}
