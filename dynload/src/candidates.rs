//! Finds the copies of a library on this host, without loading any.

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::library::Library;
use crate::{file, maps};

/// A copy of a library on this host, built for this machine's kind of processor.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Candidate {
    /// The path of the copy's file, with symbolic links resolved.
    pub path: PathBuf,
    /// Every way by which the search found the copy, in the order of the search. Never empty.
    pub origins: Vec<Origin>,
}

/// The way by which a copy of a library is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Origin {
    /// The environment variable of this name holds the path of the copy.
    Variable(&'static str),
    /// This process has loaded the copy.
    Loaded,
    /// The copy lies in a folder of `LD_LIBRARY_PATH`.
    LibraryPath,
    /// The copy lies in a folder that the system's loader searches by default.
    DefaultFolder,
    /// A package installed the copy in a folder that [`Loaded::load`](crate::Loaded::load) does not search. The text
    /// describes the package.
    Package(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Variable(name) => name,
            Self::Loaded => "loaded in this process",
            Self::LibraryPath => "LD_LIBRARY_PATH",
            Self::DefaultFolder => "the loader's default folders",
            Self::Package(description) => description,
        })
    }
}

impl Library {
    /// Returns the copies of the library on this host, in the order in which [`Loaded::load`](crate::Loaded::load)
    /// prefers them. Copies that `Loaded::load` does not find, because they lie in the folders of packages, come
    /// last.
    ///
    /// Nothing is loaded, so a listed file need not be a working library. The search leaves out folders that are named
    /// only in the running program's `RUNPATH` or in `/etc/ld.so.conf`.
    pub fn candidates(&self) -> Vec<Candidate> {
        let named = env::var_os(self.variable).map(PathBuf::from);
        let path = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        let folders: Vec<_> = env::split_paths(&path).collect();
        let multiarch = format!("{}-linux-gnu", env::consts::ARCH);
        let defaults = [&*format!("/lib/{multiarch}"), &format!("/usr/lib/{multiarch}")];
        let defaults = [&defaults[..], &["/lib64", "/usr/lib64", "/lib", "/usr/lib"]].concat();
        let loaded = maps::copies(self).into_iter().filter(|copy| !copy.deleted).map(|copy| copy.path);

        let mut found = Vec::new();
        add(&mut found, Origin::Variable(self.variable), named);
        add(&mut found, Origin::Loaded, loaded);
        for name in self.names {
            add(&mut found, Origin::LibraryPath, folders.iter().map(|folder| folder.join(name)));
            add(
                &mut found,
                Origin::DefaultFolder,
                defaults.iter().map(|folder| Path::new(folder).join(name)),
            );
        }
        add(&mut found, Origin::Package(self.packages), (self.packaged)());
        found
    }
}

/// Adds those of `files` that are ELF files for this kind of machine. If that kind is unknown, because /proc is not
/// available, adds none. For a file that is already in `found`, adds only the origin.
fn add(found: &mut Vec<Candidate>, origin: Origin, files: impl IntoIterator<Item = PathBuf>) {
    let machine = file::target(Path::new("/proc/self/exe"));
    for path in files.into_iter().filter_map(|file| file.canonicalize().ok()) {
        match found.iter_mut().find(|known| known.path == path) {
            Some(known) if known.origins.contains(&origin) => {}
            Some(known) => known.origins.push(origin),
            None if machine.is_none() || file::target(&path) != machine => {}
            None => found.push(Candidate { path, origins: vec![origin] }),
        }
    }
}
