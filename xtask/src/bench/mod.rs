//! `cargo xtask bench`: our crates beside what they replace, in one run.

mod alloc;
mod call;
mod figures;
mod p2p;
mod peer;
mod store;
mod turns;

use std::process::Command;

use anyhow::Result;

use crate::shell;
use turns::Player;

#[derive(clap::Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// Host cost of the caching allocator, beside a best-fit map and, on a GPU, `cuMemAllocAsync` and PyTorch
    Alloc(alloc::Options),
    /// Host cost of an all-reduce of 8 bytes through each layer, beside NCCL's own function and PyTorch
    Call(call::Options),
    /// Messages under each policy: time, and device memory
    P2p(p2p::Options),
    /// Set, get and add through a store's server, and the joining of many clients, beside PyTorch's server
    Store(store::Options),
}

pub(crate) fn run(options: &Options) -> Result<()> {
    match &options.what {
        What::Alloc(options) => alloc::run(options),
        What::Call(options) => call::run(options),
        What::P2p(options) => p2p::run(options),
        What::Store(options) => store::run(options),
    }
}

/// A benchmark of ours, started. In a bundle it lies beside this program; in a checkout cargo builds it.
fn ours(folder: &str, bench: &str, arguments: &[&str]) -> Result<Player> {
    let bundled = std::env::current_exe()?.with_file_name("benches").join(format!("{folder}-{bench}"));
    let mut command = if bundled.exists() {
        Command::new(bundled)
    } else {
        let (root, package) = (shell::workspace()?, shell::package(folder));
        let cargo =
            |last| shell::cargo(&root, &["bench", "--quiet", "--package", &package, "--bench", bench, last]);
        // By itself: it takes longer than a round may.
        shell::run(&mut cargo("--no-run"))?;
        cargo("--")
    };
    command.args(arguments);
    eprintln!("$ {}", shell::line(&command));
    Player::start(&mut command)
}
