//! `cargo xtask soak`: stress tests that run for as long as wanted.

mod abort;
mod footprint;

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

use anyhow::Result;

use xtask::shell;

#[derive(clap::Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// Caching allocator: threads that verify the owner of each block, then random operations compared with a model
    Alloc(Alloc),
    /// Communicators: aborts with work in flight and inside each blocking call must end in time and leak nothing
    Abort(abort::Options),
    /// Make unique ids for `abort`
    #[command(hide = true)]
    Ids(abort::IdOptions),
}

#[derive(clap::Args)]
struct Alloc {
    /// Number of random operations
    #[arg(long, default_value_t = 100_000_000)]
    operations: u64,
    /// Seed of the operations [default: random]
    #[arg(long)]
    seed: Option<u64>,
    /// Number of threads [default: one for each processor]
    #[arg(long)]
    threads: Option<usize>,
    /// Duration of the threads' test, in seconds
    #[arg(long, default_value_t = 120)]
    stress: u64,
    /// Only this scenario of the seed, as a failure reports it
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
