//! `cuda-driver-sys`: all of `cuda.h`, in the ABI versions that a supported driver may need.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use super::bindings::{self, Bindings, Function, Recipe};
use super::render::{self, Entry, Files};
use crate::headers::{self, Part, Pin};

/// The oldest driver that we support, as `cuDriverGetVersion` reports it.
const OLDEST: u32 = 11070;

pub(crate) fn generate() -> Result<Files> {
    let pin = headers::CUDA_HEADERS.last().context("a header is pinned")?;
    let [folder] = headers::fetch(pin, [Part::Headers])?;
    let mut bindings = read(&folder)?;
    let versions = versions(&headers::find(&folder, "include/cudaTypedefs.h")?)?;
    let entries = entries(std::mem::take(&mut bindings.functions), &versions)?;
    for pin in headers::CUDA_HEADERS {
        compare(&entries, &bindings.layouts, pin)?;
    }

    let origin = format!("`cuda.h` of {} {}", pin.package, pin.version);
    render::tables(Path::new("cuda-driver-sys/src/generated"), &origin, bindings, &entries)
}

fn read(folder: &Path) -> Result<Bindings> {
    bindings::read(&Recipe {
        header: &headers::find(folder, "include/cuda.h")?,
        file: r".*/cuda\.h",
        no_default: "",
        // With the revisions that older drivers have.
        arguments: &["-D__CUDA_API_VERSION_INTERNAL".to_owned()],
    })
}

/// Fails if an older header has a function before its release or with another signature, or a field elsewhere.
fn compare(entries: &[Entry], newest: &BTreeMap<String, u64>, pin: &Pin) -> Result<()> {
    let [major, minor, _] = headers::release(pin.version)?;
    let [folder] = headers::fetch(pin, [Part::Headers])?;
    let older = read(&folder)?;
    for older in &older.functions {
        let Some(entry) = entries.iter().find(|entry| entry.function.name == older.name) else { continue };
        ensure!(
            entry.since <= [major, minor, 0],
            "{} is in the header of {}, and dated {:?}",
            older.name,
            pin.version,
            entry.since
        );
        // Where a type has several revisions, an older header calls its first by the bare name.
        let bare =
            |function: &Function| function.types().iter().map(|name| name.replace("_v1", "")).collect();
        let (here, there): (Vec<_>, Vec<_>) = (bare(&entry.function), bare(older));
        ensure!(
            here == there && entry.function.result == older.result,
            "{} takes ({}) here and ({}) in the header of {}",
            older.name,
            entry.function.parameters,
            older.parameters,
            pin.version
        );
    }
    // Structures grow into what was reserved or padding, but nothing in them moves.
    let fields =
        older.layouts.iter().filter(|(name, _)| name.starts_with("Offset") && !name.ends_with("::reserved"));
    for (field, offset) in fields {
        let now = newest.get(field).unwrap_or(offset);
        ensure!(now == offset, "{field} is {offset} in the header of {}, and {now} here", pin.version);
    }
    Ok(())
}

/// For each base name the versions of its ABI, ascending: `cuCtxCreate` has 2000, 3020, 11040, 12050.
fn versions(typedefs: &Path) -> Result<BTreeMap<String, Vec<u32>>> {
    let mut versions: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    let text = fs::read_to_string(typedefs)?;
    for (at, _) in text.match_indices("*PFN_cu") {
        let name = &text[at + "*PFN_".len()..];
        let name = &name[..name.find(')').context("a function pointer's name is in brackets")?];
        let Some((base, version)) = name.rsplit_once("_v") else { bail!("{name} has no version") };
        // Variants for the per-thread default stream; we pass streams ourselves.
        let Ok(version) = version.parse() else { continue };
        versions.entry(base.to_owned()).or_default().push(version);
    }
    for list in versions.values_mut() {
        list.sort_unstable();
        list.dedup();
    }
    Ok(versions)
}

/// Matches functions with the versions of their ABI, and drops what every supported driver has newer.
fn entries(functions: Vec<Function>, versions: &BTreeMap<String, Vec<u32>>) -> Result<Vec<Entry>> {
    let mut families: BTreeMap<String, Vec<(u32, Function)>> = BTreeMap::new();
    for function in functions {
        if function.name.ends_with("_ptds") || function.name.ends_with("_ptsz") {
            continue;
        }
        let (base, revision) = match function.name.rsplit_once("_v") {
            Some((base, revision)) if revision.parse::<u32>().is_ok() => (base.to_owned(), revision.parse()?),
            _ => (function.name.clone(), 1),
        };
        families.entry(base).or_default().push((revision, function));
    }
    let mut entries = Vec::new();
    for (base, mut family) in families {
        family.sort_by_key(|(revision, _)| *revision);
        let Some(versions) = versions.get(&base) else {
            eprintln!("no version known: {base}");
            continue;
        };
        if versions.len() != family.len() {
            eprintln!("{base}: {versions:?} {:?}", family.iter().map(|f| &f.1.name).collect::<Vec<_>>());
        }
        for (index, (_, function)) in family.into_iter().enumerate() {
            if versions.get(index + 1).is_some_and(|next| *next <= OLDEST) {
                continue;
            }
            let code = *versions.get(index).unwrap_or(&0);
            let since = [code / 1000, code % 1000 / 10, 0];
            entries.push(Entry { function, base: base.clone(), since, declared: None });
        }
    }
    Ok(entries)
}
