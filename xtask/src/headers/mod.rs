//! The vendors' wheels: downloaded by name, version and hash into `target/xtask/wheels`, never committed.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use hmac_sha256::Hash;
use object::{Object, ObjectSymbol};

use crate::pins::Pin;
use crate::shell;

/// Platforms that the pinned wheels were built for.
const PLATFORMS: [&str; 6] = [
    "manylinux2014_x86_64",
    "manylinux_2_17_x86_64",
    "manylinux_2_18_x86_64",
    "manylinux_2_27_x86_64",
    "manylinux2010_x86_64",
    // PyTorch's smallest wheel; the Python files are the same in all.
    "macosx_14_0_arm64",
];

/// The Python release of wheels that support only one.
const PYTHON: &str = "3.12";

/// Attempts per download.
const ATTEMPTS: u32 = 3;

/// Pause before the second attempt; the pause before the third is twice as long.
const PAUSE: Duration = Duration::from_secs(2);

/// The folder of small headers that stand in for others: `c` for the C library's, `cuda` for the CUDA runtime's.
pub fn standin(which: &str) -> Result<PathBuf> {
    Ok(shell::workspace()?.join("xtask/src/headers/standin").join(which))
}

/// The three numbers of a release.
pub fn release(text: &str) -> Result<[u32; 3]> {
    let numbers: Vec<u32> = text.split('.').map(str::parse).collect::<Result<_, _>>().unwrap_or_default();
    numbers.try_into().map_err(|_| anyhow::anyhow!("{text:?} is no release: three numbers are expected"))
}

/// Contents of a wheel that these tools use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// C headers.
    Headers,
    /// Shared libraries.
    Library,
    /// PyTorch's viewer of memory snapshots.
    MemoryViewer,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Self::Headers => "headers",
            Self::Library => "library",
            Self::MemoryViewer => "memory-viewer",
        }
    }

    fn holds(self, file: &Path) -> bool {
        let folder = |name: &str| file.components().any(|part| part.as_os_str() == name);
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        match self {
            Self::Headers => folder("include") && name.ends_with(".h"),
            Self::Library => name.ends_with(".so") || name.contains(".so."),
            Self::MemoryViewer => file.ends_with("torch/cuda/_memory_viz.py"),
        }
    }
}

/// Returns the folders of the parts of `pin`'s wheel, extracted once into `target/xtask/wheels`.
///
/// # Errors
/// The download failed (no network, no pip), or its hash differs from the pinned one.
pub fn fetch<const N: usize>(pin: &Pin, parts: [Part; N]) -> Result<[PathBuf; N]> {
    let cache = cache()?;
    let mut places = parts.map(|_| PathBuf::new());
    for (part, slot) in parts.into_iter().zip(&mut places) {
        *slot = place(pin, part)?;
    }
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
        // A concurrent run may have been faster; its result is the same.
        if let Err(error) = fs::rename(&files, place)
            && !place.is_dir()
        {
            return Err(error).with_context(|| format!("moving {} to {}", part.name(), place.display()));
        }
    }
    Ok(places)
}

/// The releases of NCCL whose libraries, 80 to 470 MB each, stay in the cache: the oldest, the newest, and widely
/// used ones.
pub const KEPT: [&str; 5] = ["2.13.4", "2.18.3", "2.21.5", "2.27.7", "2.32.3"];

/// True if a part of `pin`'s wheel is in the cache.
pub fn is_cached(pin: &Pin, part: Part) -> Result<bool> {
    Ok(place(pin, part)?.is_dir())
}

/// Deletes the library of a release of NCCL from the cache, unless it is one that [stays](KEPT).
pub fn delete_library(pin: &Pin) -> Result<()> {
    if KEPT.contains(&pin.version) {
        return Ok(());
    }
    let place = place(pin, Part::Library)?;
    fs::remove_dir_all(&place).with_context(|| format!("deleting {}", place.display()))
}

/// Returns the symbols that the library of a release of NCCL exports. The list stays in the cache.
#[cfg(feature = "codegen")]
pub(crate) fn nccl_exports(pin: &Pin) -> Result<BTreeSet<String>> {
    let list = cache()?.join(format!("{}-{}-exports.txt", pin.package, pin.version));
    if let Ok(text) = fs::read_to_string(&list) {
        return Ok(text.lines().map(str::to_owned).collect());
    }
    let was_there = is_cached(pin, Part::Library)?;
    let [_, library] = fetch(pin, [Part::Headers, Part::Library])?;
    let symbols = exports(&find(&library, "libnccl.so.2")?)?;
    if !was_there {
        delete_library(pin)?;
    }
    fs::write(&list, symbols.iter().flat_map(|symbol| [symbol.as_str(), "\n"]).collect::<String>())?;
    Ok(symbols)
}

/// The symbols that a shared library exports.
pub fn exports(library: &Path) -> Result<BTreeSet<String>> {
    let file = object::ReadCache::new(File::open(library)?);
    let file = object::File::parse(&file).with_context(|| format!("reading {}", library.display()))?;
    let symbols = file.dynamic_symbols().filter(|symbol| symbol.is_definition());
    Ok(symbols.filter_map(|symbol| Some(symbol.name().ok()?.to_owned())).collect())
}

fn cache() -> Result<PathBuf> {
    Ok(shell::workspace()?.join("target/xtask/wheels"))
}

/// Returns the folder of a part of `pin`'s wheel after extraction.
fn place(pin: &Pin, part: Part) -> Result<PathBuf> {
    Ok(cache()?.join(format!("{}-{}-{}", pin.package, pin.version, part.name())))
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
pub fn find(folder: &Path, tail: &str) -> Result<PathBuf> {
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
    pip.args(["--no-cache-dir", "--only-binary=:all:", "--python-version", PYTHON, "--dest"]).arg(folder);
    for platform in PLATFORMS {
        pip.args(["--platform", platform]);
    }
    pip.arg(&wanted);
    for attempt in 1.. {
        let output = pip.output().context("running `python3 -m pip download`; is Python installed?")?;
        if output.status.success() {
            break;
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        if attempt == ATTEMPTS {
            bail!(
                "could not download {wanted} in {ATTEMPTS} attempts; this needs the network, pip, and a package \
                 index that has it: see that `{}` works, then run this again (what has come stays in {}). pip \
                 said:\n{said}",
                shell::line(&pip),
                cache()?.display()
            );
        }
        eprintln!("{wanted}: {}; once more", said.lines().last().unwrap_or("pip failed"));
        std::thread::sleep(PAUSE * attempt);
    }
    let mut wheels = fs::read_dir(folder)?.filter_map(|entry| Some(entry.ok()?.path()));
    let wheel = wheels
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .with_context(|| format!("pip downloaded no wheel for {wanted}"))?;
    let mut hasher = Hash::new();
    let mut file = BufReader::with_capacity(1 << 20, File::open(&wheel)?);
    loop {
        let chunk = file.fill_buf()?;
        if chunk.is_empty() {
            break;
        }
        hasher.update(chunk);
        let read = chunk.len();
        file.consume(read);
    }
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
    use crate::pins::NCCL;

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
        assert!(holds(Part::MemoryViewer, "torch/cuda/_memory_viz.py"));
        assert!(!holds(Part::MemoryViewer, "torch/cuda/memory.py"));
    }
}
