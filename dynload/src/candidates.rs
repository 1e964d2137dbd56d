//! Finds the copies of a library on this host, without loading any.

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::library::Library;
use crate::{file, maps};

/// A copy of a library on this host, for this machine's kind of processor.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Candidate {
    /// Its file, with links resolved.
    pub path: PathBuf,
    /// Every way that leads to it, in the order of the search. Not empty.
    pub origins: Vec<Origin>,
}

/// The way by which a copy of a library is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Origin {
    /// The environment variable of this name gives its path.
    Variable(&'static str),
    /// This process has it loaded.
    Loaded,
    /// It lies in a folder of `LD_LIBRARY_PATH`.
    LibraryPath,
    /// It lies in a folder that the system's loader searches by default.
    DefaultFolder,
    /// A package of this description put it where neither the system's loader nor `Api::load` looks.
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
    /// Returns the copies of the library on this host, in the order in which `Api::load` prefers them.
    ///
    /// Nothing is loaded, so a file that is listed need not be a working library. Folders that only the running
    /// program's `RUNPATH` or `/etc/ld.so.conf` names are not searched.
    pub fn candidates(&self) -> Vec<Candidate> {
        let named = env::var_os(self.variable).map(PathBuf::from);
        let path = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        let folders: Vec<_> = env::split_paths(&path).collect();
        let multiarch = format!("{}-linux-gnu", env::consts::ARCH);
        let defaults = ["/lib", "/usr/lib"].map(|folder| Path::new(folder).join(&multiarch));
        let defaults =
            defaults.into_iter().chain(["/lib64", "/usr/lib64", "/lib", "/usr/lib"].map(PathBuf::from));
        let defaults: Vec<_> = defaults.collect();
        let loaded = maps::copies(self).into_iter().filter(|copy| !copy.deleted).map(|copy| copy.path);

        let mut found = Found::default();
        found.add(Origin::Variable(self.variable), named);
        found.add(Origin::Loaded, loaded);
        for name in self.names {
            found.add(Origin::LibraryPath, folders.iter().map(|folder| folder.join(name)));
            found.add(Origin::DefaultFolder, defaults.iter().map(|folder| folder.join(name)));
        }
        found.add(Origin::Package(self.packages), (self.packaged)());
        found.0
    }
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
