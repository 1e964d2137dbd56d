//! The vendors' wheels: downloaded by name, version and hash into `target/xtask/wheels`, never committed.

mod pins;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};

#[cfg(feature = "codegen")]
pub(crate) use pins::LIBCLANG;
pub(crate) use pins::{CUDA_HEADERS, NCCL, Pin};

use crate::shell;

/// Platforms that the pinned wheels were built for.
const PLATFORMS: [&str; 5] = [
    "manylinux2014_x86_64",
    "manylinux_2_17_x86_64",
    "manylinux_2_18_x86_64",
    "manylinux_2_27_x86_64",
    "manylinux2010_x86_64",
];

/// The folder of small headers that stand in for others: `c` for the C library's, `cuda` for the CUDA runtime's.
pub(crate) fn standin(which: &str) -> Result<PathBuf> {
    Ok(shell::workspace()?.join("xtask/src/headers/standin").join(which))
}

/// The three numbers of a release.
pub(crate) fn release(text: &str) -> Result<[u32; 3]> {
    let numbers: Vec<u32> = text.split('.').map(str::parse).collect::<Result<_, _>>().unwrap_or_default();
    numbers.try_into().map_err(|_| anyhow::anyhow!("{text:?} is no release: three numbers are expected"))
}

/// What a wheel holds for us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// C headers.
    Headers,
    /// Shared libraries.
    Library,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Self::Headers => "headers",
            Self::Library => "library",
        }
    }

    fn holds(self, file: &Path) -> bool {
        let folder = |name: &str| file.components().any(|part| part.as_os_str() == name);
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        match self {
            Self::Headers => folder("include") && name.ends_with(".h"),
            Self::Library => name.ends_with(".so") || name.contains(".so."),
        }
    }
}

/// Where the parts of `pin`'s wheel lie, extracted once into `target/xtask/wheels`.
///
/// # Errors
/// The download failed (no network, no pip), or what came has another hash than the pinned one.
pub(crate) fn fetch<const N: usize>(pin: &Pin, parts: [Part; N]) -> Result<[PathBuf; N]> {
    let cache = shell::workspace()?.join("target/xtask/wheels");
    let places = parts.map(|part| cache.join(format!("{}-{}-{}", pin.package, pin.version, part.name())));
    if places.iter().all(|place| place.is_dir()) {
        return Ok(places);
    }
    fs::create_dir_all(&cache)?;
    let scratch = tempfile::tempdir_in(&cache)?;
    let wheel = download(pin, scratch.path())?;
    for (part, place) in parts.into_iter().zip(&places) {
        let files = scratch.path().join(part.name());
        unpack(&wheel, part, &files)?;
        ensure!(files.is_dir(), "the wheel of {} {} holds no {}", pin.package, pin.version, part.name());
        // Another run may have been faster: what is there is the same.
        if let Err(error) = fs::rename(&files, place)
            && !place.is_dir()
        {
            return Err(error).with_context(|| format!("moving {} to {}", part.name(), place.display()));
        }
    }
    Ok(places)
}

fn unpack(wheel: &Path, part: Part, target: &Path) -> Result<()> {
    let mut archive = zip::ZipArchive::new(File::open(wheel)?)
        .with_context(|| format!("{} is not a readable wheel", wheel.display()))?;
    for index in 0..archive.len() {
        let mut entry = archive.by_index(index)?;
        let Some(name) = entry.enclosed_name() else { continue };
        if !entry.is_file() || !part.holds(&name) {
            continue;
        }
        let file = target.join(name);
        fs::create_dir_all(file.parent().unwrap_or(target))?;
        io::copy(&mut entry, &mut File::create(&file)?)?;
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_are_in_order_and_whole() {
        let releases: Vec<_> = NCCL.iter().map(|pin| release(pin.version).unwrap()).collect();
        assert!(releases.is_sorted_by(|one, next| one < next), "{releases:?}");
        for pin in NCCL {
            assert!(pin.sha256.len() == 64 && pin.sha256.bytes().all(|c| c.is_ascii_hexdigit()), "{pin:?}");
        }
    }

    #[test]
    fn a_release_has_three_numbers() {
        assert_eq!(release("2.32.3").unwrap(), [2, 32, 3]);
        for text in ["", "2", "2.32", "2.32.x", "2.32.3.1", "2..3"] {
            assert!(release(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn parts_are_told_by_place_and_name() {
        let holds = |part: Part, file: &str| part.holds(Path::new(file));
        assert!(holds(Part::Headers, "nvidia/nccl/include/nccl.h"));
        assert!(!holds(Part::Headers, "nvidia/nccl/lib/libnccl.so.2"));
        assert!(holds(Part::Library, "nvidia/nccl/lib/libnccl.so.2"));
        assert!(holds(Part::Library, "clang/native/libclang.so"));
        assert!(!holds(Part::Library, "nvidia/nccl/lib/libnccl.so.2.txt/readme"));
    }
}
