//! Time of creating communicators through each layer.

use std::ptr;

use nccl_sys::{ncclComm_t, ncclUniqueId};
use process_group::{
    comm::{Communicator, Config},
    group::Request,
};

use super::rank::Rank;
use crate::bench::programs::support::{Result, far, median, timed};

/// Communicators created per layer.
const COMMUNICATORS: usize = 3;
const LAYERS: [&str; 3] = ["raw table", "Communicator", "ProcessGroup"];

/// Times of init and of split in µs.
pub(crate) struct Times {
    /// Init of the process's first communicator, which also initialises the library.
    first: f64,
    layers: [(f64, f64); LAYERS.len()],
}

pub(crate) fn measure(rank: &Rank<'_>) -> Result<Times> {
    let (first, _) = rank.raw("first")?;
    Ok(Times { first, layers: rank.making()? })
}

impl Times {
    pub(crate) fn print(&self) {
        println!("\nmaking, ms (the first of the process: {:.1})", self.first / 1e3);
        println!("{:24}{:>10}{:>8}{:>10}{:>8}", "", "init", "ratio", "split", "ratio");
        let raw = self.layers[0];
        for (name, (init, split)) in LAYERS.into_iter().zip(self.layers) {
            let ratios = (init / raw.0, split / raw.1);
            println!("{name:24}{:10.2}{:8.2}{:10.2}{:8.2}", init / 1e3, ratios.0, split / 1e3, ratios.1);
        }
        println!();
    }
}

impl Rank<'_> {
    /// µs of ncclCommInitRank, and of ncclCommSplit into a communicator of the same ranks.
    fn raw(&self, name: &str) -> Result<(f64, f64)> {
        self.context.with_current(|| self.raw_in_current(name))?
    }

    fn raw_in_current(&self, name: &str) -> Result<(f64, f64)> {
        let api = self.nccl().api();
        let id = ncclUniqueId { internal: self.id(name)?.as_bytes().map(u8::cast_signed) };
        let (size, rank) = (self.size() as i32, self.rank as i32);
        let (mut parent, mut child): (ncclComm_t, ncclComm_t) = (ptr::null_mut(), ptr::null_mut());
        self.barrier.wait();
        // SAFETY: both communicators are written to locals, and destroyed once, by all ranks, with no work in them;
        // a null configuration asks for the parent's.
        unsafe {
            let (init, ()) = timed(|| Ok(api.comm_init_rank(&mut parent, size, id, rank)?))?;
            self.barrier.wait();
            let config = ptr::null_mut();
            let (split, ()) = timed(|| Ok(api.comm_split(parent, 0, rank, &mut child, config)?))?;
            for comm in [child, parent] {
                api.comm_destroy(comm)?;
            }
            Ok((init, split))
        }
    }

    fn communicator(&self, name: &str) -> Result<(f64, f64)> {
        let (id, config) = (self.id(name)?, Config::new());
        self.barrier.wait();
        let init = || {
            Ok(Communicator::init(self.nccl(), self.context, &id, self.rank, self.size(), &config, far())?)
        };
        let (init, parent) = timed(init)?;
        self.barrier.wait();
        let (split, child) = timed(|| Ok(parent.split(Some(0), self.rank as i32, &config, far())?))?;
        child.ok_or("every rank has a color")?.destroy(far())?;
        parent.destroy(far())?;
        Ok((init, split))
    }

    fn process_group(&self, name: &str) -> Result<(f64, f64)> {
        self.barrier.wait();
        let (init, parent) = timed(|| self.world(name))?;
        self.barrier.wait();
        let request = Request::Color { color: Some(0), key: self.rank as i64 };
        let (split, child) = timed(|| Ok(parent.split("all", &request)?))?;
        child.ok_or("every rank has a color")?.destroy(far())?;
        parent.destroy(far())?;
        Ok((init, split))
    }

    /// Returns medians of (init, split) in µs; the layers alternate.
    fn making(&self) -> Result<[(f64, f64); 3]> {
        let mut samples: [(Vec<f64>, Vec<f64>); 3] = Default::default();
        for round in 0..COMMUNICATORS {
            let turn = [
                self.raw(&format!("raw {round}"))?,
                self.communicator(&format!("communicator {round}"))?,
                self.process_group(&format!("group {round}"))?,
            ];
            for ((inits, splits), (init, split)) in samples.iter_mut().zip(turn) {
                inits.push(init);
                splits.push(split);
            }
        }
        Ok(samples.map(|(inits, splits)| (median(inits), median(splits))))
    }
}
