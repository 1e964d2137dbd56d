//! `cargo xtask bench`: our crates beside what they replace, in one run.

mod alloc;
mod peer;
mod store;
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
    /// Set, get and add through a store's server, and the joining of many clients, beside PyTorch's server
    Store(store::Options),
}

pub(crate) fn run(options: &Options) -> Result<()> {
    match &options.what {
        What::Alloc(options) => alloc::run(options),
        What::Store(options) => store::run(options),
    }
}
