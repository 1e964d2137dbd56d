//! The archive of a GPU bundle: a GPU host need not have zstd.

use std::fs::File;
use std::io::BufRead as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use zstd::{Decoder, Encoder};

/// The compression level.
const LEVEL: i32 = 12;

/// The distance at which repetitions are found, as a power of 2. The programs share much code.
const WINDOW: u32 = 27;

#[derive(clap::Args)]
pub(crate) struct Pack {
    /// The archive to write; standard input has a line for each file: its path, a tab, and its name in the archive
    archive: PathBuf,
}

#[derive(clap::Args)]
pub(crate) struct Unpack {
    /// The archive to read
    archive: PathBuf,
    /// The folder to extract to
    folder: PathBuf,
}

pub(crate) fn pack(options: &Pack) -> Result<()> {
    let file = File::create(&options.archive)
        .with_context(|| format!("cannot create {}", options.archive.display()))?;
    let mut encoder = Encoder::new(file, LEVEL)?;
    encoder.long_distance_matching(true)?;
    encoder.window_log(WINDOW)?;
    let mut archive = tar::Builder::new(encoder);
    for line in std::io::stdin().lock().lines() {
        let line = line.context("cannot read the list of files")?;
        let (path, name) =
            line.split_once('\t').with_context(|| format!("expected a path, a tab and a name: {line:?}"))?;
        archive
            .append_path_with_name(path, name)
            .with_context(|| format!("cannot put {path} into the archive"))?;
    }
    archive.into_inner().and_then(Encoder::finish).context("cannot write the archive")?;
    Ok(())
}

pub(crate) fn unpack(options: &Unpack) -> Result<()> {
    let Unpack { archive, folder } = options;
    let file = File::open(archive).with_context(|| format!("cannot open {}", archive.display()))?;
    let mut decoder = Decoder::new(file)?;
    decoder.window_log_max(WINDOW)?;
    tar::Archive::new(decoder).unpack(folder).with_context(|| format!("cannot extract {}", archive.display()))
}
