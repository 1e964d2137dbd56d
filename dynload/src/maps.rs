//! The files that are mapped into this process, from `/proc/self/maps`.

use std::collections::HashSet;
use std::fs;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::library::Library;

/// A mapped file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mapped {
    pub(crate) path: PathBuf,
    /// True if the file was deleted after it was mapped. A file that has this path now is another file.
    pub(crate) deleted: bool,
    /// Device and inode. The loader identifies a file by these two numbers.
    identity: (String, u64),
}

impl Mapped {
    /// Returns true if the mapped file still exists and is the file at `path`.
    pub(crate) fn is(&self, path: &Path) -> bool {
        let id = |path: &Path| path.metadata().ok().map(|found| (found.dev(), found.ino()));
        !self.deleted && (self.path == path || (id(path).is_some() && id(&self.path) == id(path)))
    }
}

/// Returns every loaded copy of the library. A copy is recognised by the usual file name of the library and by an
/// executable mapping. A file that is only mapped to be read, for example by a debugger or a profiler, does not
/// count.
pub(crate) fn copies(library: &Library) -> Vec<Mapped> {
    executable(&read(), library.stem)
}

fn executable(maps: &str, stem: &str) -> Vec<Mapped> {
    let mut seen = HashSet::new();
    lines(maps)
        .filter(|line| line.executable && is_named(&line.mapped.path, stem))
        .map(|line| line.mapped)
        .filter(|mapped| seen.insert(mapped.identity.clone()))
        .collect()
}

/// Returns true if the file name is `stem`, with or without a version after it. Plug-ins, such as `libnccl-net.so`, do
/// not match.
fn is_named(path: &Path, stem: &str) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.strip_prefix(stem).is_some_and(|version| version.is_empty() || version.starts_with('.'))
}

/// Returns the file that is mapped at `address`; `None` if there is none.
pub(crate) fn file_at(address: usize) -> Option<PathBuf> {
    lines(&read()).find(|line| line.range.contains(&address)).map(|line| line.mapped.path)
}

fn read() -> String {
    // Without /proc, no mapping is known.
    fs::read("/proc/self/maps").map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

/// One mapping of a file.
struct Line {
    range: Range<usize>,
    executable: bool,
    mapped: Mapped,
}

/// Returns the mappings of files in the text of `/proc/self/maps`. The line of such a mapping has the form
/// `start-end perms offset device inode path`.
fn lines(text: &str) -> impl Iterator<Item = Line> + '_ {
    text.lines().filter_map(|line| {
        let mut rest = line;
        let mut field = || {
            let (field, tail) = rest.split_once(' ')?;
            rest = tail.trim_start();
            Some(field)
        };
        let (start, end) = field()?.split_once('-')?;
        let range = usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?;
        let (permissions, _offset, device) = (field()?, field()?, field()?);
        let inode = field()?.parse().ok()?;
        let path = rest.strip_suffix(" (deleted)");
        let (path, deleted) = (path.unwrap_or(rest), path.is_some());
        path.starts_with('/').then(|| Line {
            range,
            executable: permissions.contains('x'),
            mapped: Mapped { path: PathBuf::from(path), deleted, identity: (device.to_owned(), inode) },
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_with_files_are_read() {
        let text = "\
7f00-7f10 r-xp 00000000 fd:01 42                         /opt/a b/libx.so.2
7f10-7f20 rw-p 00000000 00:00 0
7f20-7f30 rw-p 00000000 00:00 0                          [heap]
7f30-7f40 r--p 00001000 fd:01 43                         /tmp/gone.so (deleted)
";
        let found: Vec<_> = lines(text).collect();
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].range, 0x7f00..0x7f10);
        assert_eq!(found[0].mapped.path, PathBuf::from("/opt/a b/libx.so.2"));
        assert_eq!(found[0].mapped.identity, ("fd:01".to_owned(), 42));
        assert!(found[0].executable && !found[0].mapped.deleted);
        assert_eq!(found[1].mapped.path, PathBuf::from("/tmp/gone.so"));
        assert!(!found[1].executable && found[1].mapped.deleted);
    }

    #[test]
    fn a_copy_is_executable_and_counts_once() {
        let name = "libx.so";
        let maps = format!(
            "\
7f00-7f10 r--p 00000000 fd:01 42                         /a/{name}.2
7f10-7f20 r-xp 00010000 fd:01 42                         /a/{name}.2
7f20-7f30 r-xp 00020000 fd:01 42                         /a/{name}.2
7f30-7f40 r--p 00000000 fd:01 43                         /read/{name}.2
7f40-7f50 r-xp 00000000 fd:01 44                         /b/{name} (deleted)
7f50-7f60 r-xp 00000000 fd:01 45                         /c/{name}-plugin
"
        );
        let paths: Vec<_> =
            executable(&maps, name).into_iter().map(|copy| (copy.path, copy.deleted)).collect();
        let (a, b) = (format!("/a/{name}.2"), format!("/b/{name}"));
        assert_eq!(paths, [(PathBuf::from(a), false), (PathBuf::from(b), true)]);
    }

    #[test]
    fn an_address_of_this_program_lies_in_this_program() {
        let here = an_address_of_this_program_lies_in_this_program as fn() as usize;
        assert_eq!(file_at(here), std::env::current_exe().ok());
    }
}
