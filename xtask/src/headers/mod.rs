//! The vendors' wheels: downloaded by name, version and hash into `target/xtask/wheels`, never committed.

mod pins;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};

pub(crate) use pins::{CUDA_HEADERS, LIBCLANG, NCCL, Pin};

/// Platforms that the pinned wheels were built for.
const PLATFORMS: [&str; 5] = [
    "manylinux2014_x86_64",
    "manylinux_2_17_x86_64",
    "manylinux_2_18_x86_64",
    "manylinux_2_27_x86_64",
    "manylinux2010_x86_64",
];

/// The folder of small headers that stand in for others: `c` for the C library's, `cuda` for the CUDA runtime's.
pub(crate) fn standin(which: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/headers/standin").join(which)
}

/// The three numbers of a release.
pub(crate) fn release(text: &str) -> Result<[u32; 3]> {
    let numbers: Vec<u32> = text.split('.').map(str::parse).collect::<Result<_, _>>().unwrap_or_default();
    numbers.try_into().map_err(|_| anyhow::anyhow!("{text:?} is no release: three numbers are expected"))
}

/// The repository's root.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the workspace")
}

/// The files of `pin`'s wheel that `wanted` accepts, extracted once; answers the folder they lie in.
///
/// # Errors
/// The download failed (no network, no pip), or what came has another hash than the pinned one.
pub(crate) fn extract(pin: &Pin, what: &str, wanted: impl Fn(&str) -> bool) -> Result<PathBuf> {
    let cache = root().join("target/xtask/wheels");
    let place = cache.join(format!("{}-{}-{what}", pin.package, pin.version));
    if place.is_dir() {
        return Ok(place);
    }
    fs::create_dir_all(&cache)?;
    let scratch = tempfile::tempdir_in(&cache)?;
    let wheel = download(pin, scratch.path())?;
    let files = scratch.path().join("files");
    let mut archive = zip::ZipArchive::new(File::open(&wheel)?)
        .with_context(|| format!("{} is not a readable wheel", wheel.display()))?;
    for index in 0..archive.len() {
        let mut entry = archive.by_index(index)?;
        let Some(name) = entry.enclosed_name() else { continue };
        if !entry.is_file() || !wanted(&name.to_string_lossy()) {
            continue;
        }
        let target = files.join(name);
        fs::create_dir_all(target.parent().unwrap_or(&files))?;
        io::copy(&mut entry, &mut File::create(&target)?)?;
    }
    ensure!(files.is_dir(), "the wheel of {} {} holds no {what}", pin.package, pin.version);
    match fs::rename(&files, &place) {
        Ok(()) => Ok(place),
        // Another run was faster.
        Err(_) if place.is_dir() => Ok(place),
        Err(error) => Err(error).with_context(|| format!("moving {what} to {}", place.display())),
    }
}

/// The one file below `folder` whose path ends in `tail`.
pub(crate) fn find(folder: &Path, tail: &str) -> Result<PathBuf> {
    let mut open = vec![folder.to_path_buf()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_dir() {
                open.push(path);
            } else if path.ends_with(tail) {
                return Ok(path);
            }
        }
    }
    bail!("no {tail} below {}", folder.display())
}

fn download(pin: &Pin, folder: &Path) -> Result<PathBuf> {
    let wanted = format!("{}=={}", pin.package, pin.version);
    eprintln!("fetching {wanted}");
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]);
    pip.args(["--no-cache-dir", "--only-binary=:all:", "--dest"]).arg(folder);
    for platform in PLATFORMS {
        pip.args(["--platform", platform]);
    }
    let output =
        pip.arg(&wanted).output().context("running `python3 -m pip download`; is Python installed?")?;
    if !output.status.success() {
        bail!(
            "could not download {wanted}; this command needs the network and pip. pip said:\n{}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    let mut wheels = fs::read_dir(folder)?.filter_map(|entry| Some(entry.ok()?.path()));
    let wheel = wheels
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .with_context(|| format!("pip downloaded no wheel for {wanted}"))?;
    let mut hasher = Sha256::new();
    io::copy(&mut File::open(&wheel)?, &mut hasher)?;
    let found: String = hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    ensure!(
        found == pin.sha256,
        "{wanted} has another hash than the pinned one: found {found}, pinned {}",
        pin.sha256
    );
    Ok(wheel)
}
