//! `cargo xtask abi`: compares the raw crates with real releases, without a GPU.
//!
//! | module | subject |
//! |---|---|
//! | [`cuda`] | the CUDA driver's headers, of which there is no library without a driver |
//! | [`nccl`] | NCCL's headers and libraries |
//! | [`program`] | a program that compares a header with what is said of it |
//! | [`probe`] | a library, loaded in a process of its own |

mod cuda;
mod nccl;
pub(crate) mod probe;
mod program;

use std::path::PathBuf;

use anyhow::{Result, bail};

/// Options of `cargo xtask abi`.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// The releases of NCCL, separated by commas, or `all`, or `none`; each is a download of 80 to 350 MB, kept under
    /// `target` (of `all` only the usual five and the headers are)
    #[arg(long, value_delimiter = ',', default_values = nccl::DEFAULT)]
    releases: Vec<String>,
    /// The releases of `cuda.h`, separated by commas, or `all`, or `none`; each is a small download
    #[arg(long, value_delimiter = ',', default_value = cuda::DEFAULT)]
    cuda: Vec<String>,
    /// Every pinned release of both: 7 GB of downloads, few on the disk at a time
    #[arg(long, conflicts_with_all = ["releases", "cuda"])]
    all: bool,
    /// Load one library of this kind and print what it has, for the process that compares several
    #[arg(long, hide = true)]
    probe: Option<probe::Kind>,
    /// The library's file; the one that `Api::load` takes if this is left out
    #[arg(long, hide = true, requires = "probe")]
    library: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<()> {
    if let Some(kind) = options.probe {
        return probe::print(kind, options.library.as_deref());
    }
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
