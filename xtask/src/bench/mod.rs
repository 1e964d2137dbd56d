//! `cargo xtask bench`: our crates beside what they replace, in one run.

mod alloc;
mod call;
mod figures;
mod p2p;
mod peer;
mod pool;
mod store;
mod symm;
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
    /// Symmetric pools: the same requests with a pool a group and with one that groups share; entry, exit, look-up
    Pool(pool::Options),
    /// Set, get and add through a store's server, and the joining of many clients, beside PyTorch's server
    Store(store::Options),
    /// Symmetric memory: commits, rendezvous, signals and transfers beside what they stand on, and beside PyTorch's
    Symm(symm::Options),
}

pub(crate) fn run(options: &Options) -> Result<()> {
    match &options.what {
        What::Alloc(options) => alloc::run(options),
        What::Call(options) => call::run(options),
        What::P2p(options) => p2p::run(options),
        What::Pool(options) => pool::run(options),
        What::Store(options) => store::run(options),
        What::Symm(options) => symm::run(options),
    }
}

/// A benchmark of ours, started. In a bundle it lies beside this program; in a checkout cargo builds it.
fn ours(folder: &str, bench: &str, arguments: &[&str]) -> Result<Player> {
    let bundled = std::env::current_exe()?.with_file_name("benches").join(format!("{folder}-{bench}"));
    let mut command = if bundled.exists() {
        Command::new(bundled)
    } else {
        let (root, package) = (shell::workspace()?, shell::package(folder));
        // The twins of its kernels; other crates' adapters would be measured with them.
        let features = if folder == "symm-mem" { shell::adapters(Some(folder)) } else { String::new() };
        let cargo = |last| {
            let what = ["bench", "--quiet", "--package", &package, "--features", &features, "--bench", bench];
            shell::cargo(&root, &[&what[..], &[last]].concat())
        };
        // By itself: it takes longer than a round may.
        shell::run(&mut cargo("--no-run"))?;
        cargo("--")
    };
    command.args(arguments);
    eprintln!("$ {}", shell::line(&command));
    Player::start(&mut command)
}
