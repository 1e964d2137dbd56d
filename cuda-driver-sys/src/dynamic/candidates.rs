//! Finds the copies of the library on this host, without loading any.

use std::env;
use std::ffi::CStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::{file, maps};
use crate::binding;

/// A copy of the library on this host, for this machine's kind of processor.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Candidate {
    /// Its file, with links resolved.
    pub path: PathBuf,
    /// Every way that leads to it, in the order of the search. Not empty.
    pub origins: Vec<Origin>,
}

/// The way by which a copy of the library is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Origin {
    /// The environment variable [`VARIABLE`](crate::VARIABLE) names it.
    Variable,
    /// This process has it loaded.
    Loaded,
    /// It lies in a folder of `LD_LIBRARY_PATH`.
    LibraryPath,
    /// The system's loader has it in its cache, which `ldconfig` writes.
    LoaderCache,
    /// It lies in a folder where the system's loader looks in any case.
    DefaultFolder,
    /// A package put it where the system's loader does not look. [`Api::load`](crate::Api::load) does not either.
    Package,
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Variable => binding::VARIABLE,
            Self::Loaded => "loaded in this process",
            Self::LibraryPath => "LD_LIBRARY_PATH",
            Self::LoaderCache => "the loader's cache",
            Self::DefaultFolder => "the loader's default folders",
            Self::Package => binding::PACKAGES,
        })
    }
}

/// Returns the copies of the library on this host, in the order in which [`Api::load`](crate::Api::load)
/// prefers them. Nothing is loaded, so a file that is listed need not be a working library. Folders that only
/// the running program's own `RUNPATH` names are not searched.
pub fn candidates() -> Vec<Candidate> {
    let named = env::var_os(binding::VARIABLE).map(PathBuf::from);
    let path = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let folders: Vec<_> = path.as_bytes().split(|byte| matches!(byte, b':' | b';')).map(folder).collect();
    let defaults = ["/lib64", "/usr/lib64", "/lib", "/usr/lib"].map(PathBuf::from);
    let cache = fs::read("/etc/ld.so.cache").unwrap_or_default();
    let loaded = maps::copies().into_iter().filter(|copy| !copy.deleted).map(|copy| copy.path);

    let mut found = Found::default();
    found.add(Origin::Variable, named);
    found.add(Origin::Loaded, loaded);
    for name in binding::NAMES {
        found.add(Origin::LibraryPath, folders.iter().map(|folder| folder.join(name)));
        found.add(Origin::LoaderCache, cached(&cache, name));
        found.add(Origin::DefaultFolder, defaults.iter().map(|folder| folder.join(name)));
    }
    found.add(Origin::Package, binding::packaged());
    found.0
}

/// A folder of a search path, where an empty one is the current.
fn folder(bytes: &[u8]) -> PathBuf {
    PathBuf::from(std::ffi::OsStr::from_bytes(if bytes.is_empty() { b"." } else { bytes }))
}

#[derive(Default)]
struct Found(Vec<Candidate>);

impl Found {
    /// Adds those of `files` that are libraries for this kind of machine.
    fn add(&mut self, origin: Origin, files: impl IntoIterator<Item = PathBuf>) {
        for path in files.into_iter().filter_map(|file| file.canonicalize().ok()) {
            if let Some(known) = self.0.iter_mut().find(|known| known.path == path) {
                if !known.origins.contains(&origin) {
                    known.origins.push(origin);
                }
            } else if file::target(&path)
                .is_some_and(|found| Some(found) == file::target(Path::new("/proc/self/exe")))
            {
                self.0.push(Candidate { path, origins: vec![origin] });
            }
        }
    }
}

/// Returns the files that the loader's cache lists for `name`. The cache is a header with the number of
/// entries, then an array of flags, key and value. Key and value are offsets of strings from the start of the
/// file.
fn cached(cache: &[u8], name: &str) -> Vec<PathBuf> {
    const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
    const HEADER: usize = 48;
    const ENTRY: usize = 24;
    let number = |bytes: &[u8], at: usize| -> Option<usize> {
        let bytes = bytes.get(at..at + 4)?;
        Some(u32::from_ne_bytes(bytes.try_into().ok()?) as usize)
    };
    let string = |at: usize| CStr::from_bytes_until_nul(cache.get(at..)?).ok();
    if !cache.starts_with(MAGIC) {
        return Vec::new();
    }
    let entries = cache.get(HEADER..).unwrap_or_default().chunks_exact(ENTRY);
    entries
        .take(number(cache, MAGIC.len()).unwrap_or(0))
        .filter_map(|entry| {
            let key = string(number(entry, 4)?)?;
            let value = string(number(entry, 8)?)?;
            (key.to_bytes() == name.as_bytes()).then(|| folder(value.to_bytes()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cache with these keys and values.
    fn cache(entries: &[(&str, &str)]) -> Vec<u8> {
        let mut strings = Vec::new();
        let start = 48 + 24 * entries.len();
        let mut string = |text: &str| {
            let at = start + strings.len();
            strings.extend_from_slice(text.as_bytes());
            strings.push(0);
            at as u32
        };
        let entries: Vec<_> = entries.iter().map(|(key, value)| (string(key), string(value))).collect();
        let mut cache = b"glibc-ld.so.cache1.1".to_vec();
        cache.extend((entries.len() as u32).to_ne_bytes());
        cache.resize(48, 0);
        for (key, value) in entries {
            cache.extend(0x303_u32.to_ne_bytes());
            cache.extend(key.to_ne_bytes());
            cache.extend(value.to_ne_bytes());
            cache.extend([0; 12]);
        }
        cache.extend(strings);
        cache
    }

    #[test]
    fn the_loaders_cache_is_read() {
        let cache = cache(&[("libx.so.2", "/a/libx.so.2"), ("libx.so", "/b/libx.so"), ("libx.so.2", "/c/y")]);
        assert_eq!(cached(&cache, "libx.so.2"), [PathBuf::from("/a/libx.so.2"), PathBuf::from("/c/y")]);
        assert!(cached(&cache, "lib").is_empty());
        // Entries that are cut off are not reported.
        for length in 0..cache.len() {
            assert!(cached(&cache[..length], "libx.so.2").len() <= 2);
        }
        let real = fs::read("/etc/ld.so.cache").unwrap_or_default();
        for path in cached(&real, "libc.so.6") {
            assert!(path.is_absolute(), "{path:?}");
        }
    }
}
