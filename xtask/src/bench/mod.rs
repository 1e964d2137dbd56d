//! `cargo xtask bench`: our crates beside what they replace, in one run.

mod alloc;
mod peer;
mod turns;

use anyhow::Result;

#[derive(clap::Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// Host cost of the caching allocator, beside a best-fit map and, on a GPU, `cuMemAllocAsync` and PyTorch
    Alloc(alloc::Options),
}

pub(crate) fn run(options: &Options) -> Result<()> {
    match &options.what {
        What::Alloc(options) => alloc::run(options),
    }
}
