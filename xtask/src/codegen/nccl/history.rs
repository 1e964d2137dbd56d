//! Exports and declarations of NCCL by release: `history.txt`, which `cargo xtask codegen --history` writes from all
//! pinned wheels.
//!
//! The file lists the changes of each release, oldest first: `+` for a fact that is new or has another value, `-` for
//! one that is gone.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::reading;
use crate::headers::{self, Part};
use crate::pins::NCCL;
use crate::shell;

/// Path of the file, relative to the repository's root.
const PLACE: &str = "xtask/src/codegen/nccl/history.txt";

const HEAD: &str = "# What each release of NCCL exports and declares: the changes from one to the next.
# Written by `cargo xtask codegen --history` from the pinned wheels; not edited by hand.
";

/// Kind of a fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// The library exports a symbol.
    Export,
    /// A header declares a function, with these types.
    Function,
    /// A structure's size in bytes.
    Size,
    /// A field's offset in bytes.
    Field,
    /// A constant's value.
    Constant,
}

impl Kind {
    const ALL: [(Self, &str); 5] = [
        (Self::Export, "export"),
        (Self::Function, "function"),
        (Self::Size, "size"),
        (Self::Field, "field"),
        (Self::Constant, "constant"),
    ];

    fn word(self) -> &'static str {
        Self::ALL.iter().find(|(kind, _)| *kind == self).map_or("", |(_, word)| word)
    }

    fn named(word: &str) -> Result<Self> {
        let found = Self::ALL.iter().find(|(_, name)| *name == word);
        Ok(found.with_context(|| format!("{word:?} is no kind of fact"))?.0)
    }
}

/// Values by kind and name.
pub(super) type Facts = BTreeMap<(Kind, String), String>;

/// The facts of every release, oldest first.
#[derive(Debug, PartialEq)]
pub(super) struct History(Vec<([u32; 3], Facts)>);

impl History {
    /// Reads the committed file.
    pub(super) fn load() -> Result<Self> {
        let place = shell::workspace()?.join(PLACE);
        let text = std::fs::read_to_string(&place).with_context(|| {
            format!("reading {}; `cargo xtask codegen --history` writes it", place.display())
        })?;
        Self::parse(&text).with_context(|| format!("in {PLACE}"))
    }

    /// Reads every pinned release: its headers, and the symbols of its library.
    pub(super) fn read() -> Result<Self> {
        let mut releases = Vec::new();
        for pin in NCCL {
            let release = || -> Result<_> {
                let exports = headers::nccl_exports(pin)?;
                let [include] = headers::fetch(pin, [Part::Headers])?;
                let mut facts = reading::facts(&reading::read(&include, true)?);
                let ours = exports.into_iter().filter(|name| name.starts_with("nccl"));
                facts.extend(ours.map(|name| ((Kind::Export, name), String::new())));
                Ok((headers::release(pin.version)?, facts))
            };
            releases.push(release().with_context(|| format!("NCCL {}", pin.version))?);
        }
        Ok(Self(releases))
    }

    /// The file's path and text.
    pub(super) fn file(&self) -> (&'static Path, String) {
        (Path::new(PLACE), self.text())
    }

    fn text(&self) -> String {
        let mut text = HEAD.to_owned();
        let mut before = &Facts::new();
        for ([major, minor, patch], facts) in &self.0 {
            let _ = writeln!(text, "\n{major}.{minor}.{patch}");
            for ((kind, name), _) in before.iter().filter(|(key, _)| !facts.contains_key(key)) {
                let _ = writeln!(text, "- {} {name}", kind.word());
            }
            for (key, value) in facts.iter().filter(|(key, value)| before.get(key) != Some(value)) {
                let line = format!("+ {} {} {value}", key.0.word(), key.1);
                let _ = writeln!(text, "{}", line.trim_end());
            }
            before = facts;
        }
        text
    }

    pub(super) fn parse(text: &str) -> Result<Self> {
        let mut releases: Vec<([u32; 3], Facts)> = Vec::new();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let mut words = line.splitn(4, ' ');
            let sign = words.next().unwrap_or_default();
            if !["+", "-"].contains(&sign) {
                let facts = releases.last().map(|(_, facts)| facts.clone()).unwrap_or_default();
                releases.push((headers::release(line)?, facts));
                continue;
            }
            let (Some(kind), Some(name)) = (words.next(), words.next()) else { bail!("{line:?} is cut off") };
            let key = (Kind::named(kind)?, name.to_owned());
            let (_, facts) = releases.last_mut().context("the file begins with a release")?;
            if sign == "-" {
                facts.remove(&key).with_context(|| format!("{line:?}: it was not there"))?;
            } else {
                facts.insert(key, words.next().unwrap_or_default().to_owned());
            }
        }
        Ok(Self(releases))
    }

    /// The newest release's facts.
    pub(super) fn newest(&self) -> Result<&Facts> {
        Ok(&self.0.last().context("the history has a release")?.1)
    }

    /// Returns the release since which this fact has the same value as in the newest; `None` if the newest lacks it.
    pub(super) fn since(&self, kind: Kind, name: &str) -> Option<[u32; 3]> {
        let key = (kind, name.to_owned());
        let value = self.0.last()?.1.get(&key)?;
        let same = self.0.iter().rev().take_while(|(_, facts)| facts.get(&key) == Some(value));
        same.last().map(|(release, _)| *release)
    }

    /// Returns the first release with a fact of this name, with any value.
    pub(super) fn first(&self, kind: Kind, name: &str) -> Option<[u32; 3]> {
        let key = (kind, name.to_owned());
        Some(self.0.iter().find(|(_, facts)| facts.contains_key(&key))?.0)
    }

    /// Returns a fact's values, each with its first release.
    pub(super) fn values(&self, kind: Kind, name: &str) -> Vec<([u32; 3], &str)> {
        let key = (kind, name.to_owned());
        let mut values: Vec<([u32; 3], &str)> = Vec::new();
        for (release, facts) in &self.0 {
            let Some(value) = facts.get(&key) else { continue };
            if values.last().is_none_or(|(_, last)| last != value) {
                values.push((*release, value));
            }
        }
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "
2.1.0
+ export f
+ size S 8
+ constant C 1

2.2.0
- export f
+ size S 16
+ field S.a 8

2.3.0
+ export f
+ function f (c_int, *mut S) -> T
+ constant C 2
";

    #[test]
    fn a_history_is_read_as_it_is_written() {
        let history = History::parse(TEXT).unwrap();
        assert_eq!(history.text(), format!("{HEAD}{TEXT}"));
        assert_eq!(History::parse(&history.text()).unwrap(), history);
    }

    #[test]
    fn a_fact_is_dated_by_its_last_change() {
        let history = History::parse(TEXT).unwrap();
        assert_eq!(history.since(Kind::Export, "f"), Some([2, 3, 0]));
        assert_eq!(history.first(Kind::Export, "f"), Some([2, 1, 0]));
        assert_eq!(history.since(Kind::Size, "S"), Some([2, 2, 0]));
        assert_eq!(history.since(Kind::Constant, "D"), None);
        assert_eq!(history.values(Kind::Size, "S"), [([2, 1, 0], "8"), ([2, 2, 0], "16")]);
        assert_eq!(history.newest().unwrap()[&(Kind::Function, "f".to_owned())], "(c_int, *mut S) -> T");
    }

    #[test]
    fn a_broken_file_is_an_error() {
        for text in ["+ size S 8", "2.1.0\n+ export", "2.1.0\n- export f", "2.1.0\n+ wish f", "2.1\n"] {
            assert!(History::parse(text).is_err(), "{text:?}");
        }
    }
}
