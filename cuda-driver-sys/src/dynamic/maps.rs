//! Which files are mapped into this process, from `/proc/self/maps`.

use std::collections::HashSet;
use std::fs;
use std::path::PathBuf;

use crate::{Table, binding};

/// A mapped file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mapped {
    pub(crate) path: PathBuf,
    /// Device and inode: the loader takes files for one by these.
    pub(crate) identity: (String, u64),
}

/// Every copy of the library that is mapped, by its usual file names.
pub(crate) fn copies() -> Vec<Mapped> {
    let mut seen = HashSet::new();
    lines(&read())
        .map(|(_, mapped)| mapped)
        .filter(|mapped| {
            let name = mapped.path.file_name().unwrap_or_default().to_string_lossy();
            binding::FILES.iter().any(|file| name == *file || name.starts_with(&format!("{file}.")))
        })
        .filter(|mapped| seen.insert(mapped.identity.clone()))
        .collect()
}

/// The file that the table's version function lies in; `None` if it lies in no file.
pub(crate) fn file_of(table: &Table) -> Option<PathBuf> {
    let address = table.address(binding::REQUIRED.first()?)?;
    file_at(address.addr())
}

/// The file mapped at `address`.
pub(crate) fn file_at(address: usize) -> Option<PathBuf> {
    lines(&read()).find(|(range, _)| range.contains(&address)).map(|(_, mapped)| mapped.path)
}

fn read() -> String {
    // Without /proc nothing is known to be mapped.
    fs::read("/proc/self/maps").map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

/// The lines that map a file: `start-end perms offset device inode path`.
fn lines(text: &str) -> impl Iterator<Item = (std::ops::Range<usize>, Mapped)> + '_ {
    text.lines().filter_map(|line| {
        let mut rest = line;
        let mut field = || {
            let (field, tail) = rest.split_once(' ')?;
            rest = tail.trim_start();
            Some(field)
        };
        let (start, end) = field()?.split_once('-')?;
        let range = usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?;
        let (_permissions, _offset, device) = (field()?, field()?, field()?);
        let inode = field()?.parse().ok()?;
        let path = rest.strip_suffix(" (deleted)").unwrap_or(rest);
        path.starts_with('/')
            .then(|| (range, Mapped { path: PathBuf::from(path), identity: (device.to_owned(), inode) }))
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
        assert_eq!(found[0].0, 0x7f00..0x7f10);
        assert_eq!(found[0].1.path, PathBuf::from("/opt/a b/libx.so.2"));
        assert_eq!(found[0].1.identity, ("fd:01".to_owned(), 42));
        assert_eq!(found[1].1.path, PathBuf::from("/tmp/gone.so"));
    }

    #[test]
    fn an_address_of_this_program_lies_in_this_program() {
        let here = an_address_of_this_program_lies_in_this_program as fn() as usize;
        assert_eq!(file_at(here), std::env::current_exe().ok());
    }
}
