//! `cargo xtask soak`: what the tests run for seconds, for as long as one likes.

mod abort;
mod footprint;

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

use anyhow::Result;

use crate::shell;

#[derive(clap::Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// The caching allocator: threads that check who owns each block, then random operations beside its model until
    /// they differ, or there have been enough
    Alloc(Alloc),
    /// Communicators aborted with work in flight, and inside each call that waits: over within a second, nothing left
    Abort(abort::Options),
    /// Makes unique ids for `abort`, in a process that ends with it
    #[command(hide = true)]
    Ids(abort::IdOptions),
}

#[derive(clap::Args)]
struct Alloc {
    /// How many operations are enough
    #[arg(long, default_value_t = 100_000_000)]
    operations: u64,
    /// What they are drawn from; by default another one each time
    #[arg(long)]
    seed: Option<u64>,
    /// Threads; by default one for each processor
    #[arg(long)]
    threads: Option<usize>,
    /// Seconds that threads stress it before
    #[arg(long, default_value_t = 120)]
    stress: u64,
    /// Only this scenario of the seed: again what a failure has named
    #[arg(long, value_name = "SCENARIO")]
    only: Option<u64>,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    match &options.what {
        What::Alloc(alloc) => soak_alloc(alloc),
        What::Abort(abort) => abort::run(abort),
        What::Ids(ids) => abort::make_ids(ids),
    }
}

fn soak_alloc(alloc: &Alloc) -> Result<()> {
    let seed = alloc.seed.unwrap_or_else(|| RandomState::new().build_hasher().finish());
    let threads = alloc.threads.or_else(|| Some(std::thread::available_parallelism().ok()?.get()));
    let words = [alloc.operations, seed, threads.unwrap_or(1) as u64, alloc.stress];
    let package = shell::package("caching-alloc");
    let arguments = ["test", "--quiet", "--release", "--package", &package, "--test", "soak", "--"];
    let mut command = shell::cargo(&shell::workspace()?, &arguments);
    command.args(words.iter().chain(&alloc.only).map(u64::to_string));
    shell::run(&mut command)
}
