//! `cargo xtask abi`: compares the raw crates with real releases, without a GPU.
//!
//! | module | subject |
//! |---|---|
//! | [`cuda`] | the CUDA driver's headers; its library exists only with a driver |
//! | [`nccl`] | NCCL's headers and libraries |
//! | [`program`] | a program that compares a header with the crate's tables |

mod cuda;
mod nccl;
mod program;

use anyhow::{Result, bail};

/// Options of `cargo xtask abi`.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// Releases of NCCL, separated by commas, or `all`, or `none`; each is a download of 80 to 350 MB, kept under
    /// `target` (with `all`, only the default five and the headers are kept)
    #[arg(long, value_delimiter = ',', default_values = nccl::DEFAULT)]
    releases: Vec<String>,
    /// Releases of `cuda.h`, separated by commas, or `all`, or `none`; each is a small download
    #[arg(long, value_delimiter = ',', default_value = cuda::DEFAULT)]
    cuda: Vec<String>,
    /// Every pinned release of both: 7 GB of downloads, of which few are on the disk at a time
    #[arg(long, conflicts_with_all = ["releases", "cuda"])]
    all: bool,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<()> {
    let all = ["all".to_owned()];
    let chosen = |releases| if options.all { &all[..] } else { releases };
    let nothing = |releases: &[String]| releases.iter().all(|release| release == "none");
    if !options.all && nothing(&options.releases) && nothing(&options.cuda) {
        bail!("nothing to compare: both `--releases` and `--cuda` are `none`; leave one of them out");
    }
    let mut faults = cuda::run(chosen(&options.cuda))?;
    faults.extend(nccl::run(chosen(&options.releases))?);
    if !faults.is_empty() {
        bail!("the table and the real releases differ:\n{}", faults.join("\n"));
    }
    println!(
        "Every function is there from its release on and not before; sizes, offsets, initial values and constants \
         agree."
    );
    Ok(())
}
