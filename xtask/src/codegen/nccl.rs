//! `nccl-sys`: all of `nccl.h`.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};

use super::bindings::{self, Recipe};
use super::render::{self, Entry, Files};
use crate::headers::{self, Part};

pub(crate) fn generate() -> Result<Files> {
    let pin = headers::NCCL.last().context("a release is pinned")?;
    let [folder] = headers::fetch(pin, [Part::Headers])?;
    let header = headers::find(&folder, "include/nccl.h")?;
    let mut bindings = bindings::read(&Recipe {
        header: &header,
        file: r".*/nccl\.h",
        no_default: "nccl(Config|CollConfig|SimInfo|EncryptionConfig)_.*",
        arguments: &[format!("-I{}", headers::standin("cuda")?.display())],
    })?;
    let history = history()?;
    let entries: Vec<_> = std::mem::take(&mut bindings.functions)
        .into_iter()
        .filter(|function| !function.name.starts_with('p'))
        .map(|function| {
            let since = *history.get(&function.name).with_context(|| {
                format!("nccl_history.txt does not say since when there is {}", function.name)
            })?;
            Ok(Entry { base: function.name.clone(), function, since, declared: None })
        })
        .collect::<Result<_>>()?;

    let origin = format!("`nccl.h` of {} {}", pin.package, pin.version);
    render::tables(Path::new("nccl-sys/src/generated"), &origin, bindings, &entries)
}

/// For each function the release that first exports it.
fn history() -> Result<BTreeMap<String, [u32; 3]>> {
    let mut history = BTreeMap::new();
    let mut release = None;
    for line in include_str!("nccl_history.txt").lines() {
        let word = line.trim();
        if word.is_empty() || word.starts_with('#') {
            continue;
        }
        if line.starts_with(' ') {
            history.insert(word.to_owned(), release.context("nccl_history.txt begins with a release")?);
        } else {
            release = Some(headers::release(word)?);
        }
    }
    Ok(history)
}
