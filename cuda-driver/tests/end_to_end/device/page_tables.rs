//! Page tables in which pages are mapped and unmapped.

use cuda_driver::vmm::{Access, HandleTypes, PageTable, PhysicalMemory, Reservation};
use proptest::prelude::*;

use super::on_stream;
use super::virtual_memory::{PAGE, map_whole, read, write};

#[test]
fn a_table_shows_the_pages_that_the_model_has() {
    const SLOTS: usize = 12;
    on_stream(|world, context, _| {
        let pages: Vec<PhysicalMemory> = [1, 1, 2, 3]
            .map(|pages| PhysicalMemory::create(context, pages * PAGE, HandleTypes::empty()).unwrap())
            .into();
        let own = [(context.device(), Access::ReadWrite)];
        let step = (any::<bool>(), 0..SLOTS, 0..SLOTS, any::<u32>());
        proptest!(ProptestConfig::with_cases(96), |(steps in proptest::collection::vec(step, 1..40))| {
            let mut table = PageTable::new(Reservation::new(context.driver(), SLOTS * PAGE, 0).unwrap());
            // For each slot of the table, the model has the index of the page and the part of the page that is mapped
            // there. `words` has the expected first word of each part of each page.
            let mut model = [None::<(usize, usize)>; SLOTS];
            let mut words = [[0; 3]; 4];
            for memory in &pages {
                let mapping = map_whole(context, memory);
                (0..memory.bytes()).step_by(PAGE).for_each(|at| write(context, mapping.ptr() + at, 0));
            }
            for (maps, at, number, word) in steps {
                if maps {
                    let page = number % pages.len();
                    let length = pages[page].bytes() / PAGE;
                    let free = model.get(at..at + length).is_some_and(|slots| slots.iter().all(Option::is_none));
                    let mapped = table.map(at * PAGE, &pages[page]);
                    prop_assert_eq!(mapped.is_ok(), free, "{:?}", mapped);
                    if free {
                        table.set_access(at * PAGE, length * PAGE, &own).unwrap();
                        (0..length).for_each(|part| model[at + part] = Some((page, part)));
                        write(context, mapped.unwrap(), word);
                        words[page][0] = word;
                    }
                } else {
                    let range = at..(at + number).min(SLOTS);
                    let first = |slot: Option<&Option<(usize, usize)>>| {
                        !matches!(slot, Some(Some((_, part))) if *part > 0)
                    };
                    let whole = !range.is_empty()
                        && model[range.clone()].iter().all(Option::is_some)
                        && first(model.get(range.start))
                        && first(model.get(range.end));
                    let before = world.calls("cuMemUnmap");
                    let unmapped = table.unmap(range.start * PAGE, range.len() * PAGE);
                    prop_assert_eq!(unmapped.is_ok(), whole, "{:?}", unmapped);
                    prop_assert_eq!(world.calls("cuMemUnmap") - before, u64::from(whole));
                    if whole {
                        range.for_each(|slot| model[slot] = None);
                    }
                }
                for (slot, found) in model.iter().enumerate() {
                    let shown = table.page_at(slot * PAGE).map(|(start, memory)| (memory.raw(), slot - start / PAGE));
                    prop_assert_eq!(shown, found.map(|(page, part)| (pages[page].raw(), part)));
                    if let Some((page, part)) = found {
                        let word = read(context, table.reservation().ptr() + slot * PAGE);
                        prop_assert_eq!(word, words[*page][*part]);
                    }
                }
            }
        });
    });
}
