//! Which functions the table has, and since when.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use super::{Entry, Function, Header, Release};

/// The oldest driver that we support, as `cuDriverGetVersion` reports it.
const OLDEST: u32 = 11070;

/// What becomes of the header's functions.
pub(super) struct Table {
    pub(super) entries: Vec<Entry>,
    /// Functions that are left out as every supported driver has a newer revision: the one to call, by each.
    pub(super) superseded: BTreeMap<String, String>,
}

/// For each base name the versions of its ABI, ascending: `cuCtxCreate` has 2000, 3020, 11040, 12050.
pub(super) fn versions(typedefs: &Path) -> Result<BTreeMap<String, Vec<u32>>> {
    let mut versions: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    let text = fs::read_to_string(typedefs)?;
    for (at, _) in text.match_indices("*PFN_cu") {
        let name = &text[at + "*PFN_".len()..];
        let name = &name[..name.find(')').context("a function pointer's name is in brackets")?];
        let Some((base, version)) = name.rsplit_once("_v") else { bail!("{name} has no version") };
        // Variants for the per-thread default stream.
        let Ok(version) = version.parse() else { continue };
        versions.entry(base.to_owned()).or_default().push(version);
    }
    for list in versions.values_mut() {
        list.sort_unstable();
        list.dedup();
    }
    Ok(versions)
}

/// The function that this one is a variant of, for the thread's default stream.
pub(super) fn variant_of(name: &str) -> Option<&str> {
    ["_ptds", "_ptsz"].iter().find_map(|end| name.strip_suffix(end))
}

/// The header's functions with the versions of their ABI. Two kinds are left out, and nothing else:
/// - `…_ptds` and `…_ptsz`, which take the default stream of the thread: streams are passed explicitly;
/// - revisions that every supported driver has a newer one of, such as those with addresses of 32 bits.
pub(super) fn table(functions: Vec<Function>, versions: &BTreeMap<String, Vec<u32>>) -> Result<Table> {
    let mut families: BTreeMap<String, Vec<(u32, Function)>> = BTreeMap::new();
    let mut variants = Vec::new();
    for function in functions {
        if let Some(plain) = variant_of(&function.name) {
            variants.push(plain.to_owned());
            continue;
        }
        let (base, revision) = match function.name.rsplit_once("_v") {
            Some((base, revision)) if revision.parse::<u32>().is_ok() => (base.to_owned(), revision.parse()?),
            _ => (function.name.clone(), 1),
        };
        families.entry(base).or_default().push((revision, function));
    }
    let named = |name: &String| families.values().flatten().any(|(_, function)| function.name == *name);
    if let Some(orphan) = variants.iter().find(|plain| !named(plain)) {
        bail!("a variant of {orphan} for the thread's default stream, and no {orphan}");
    }
    if let Some(unknown) = versions.keys().find(|base| !families.contains_key(*base)) {
        bail!("cudaTypedefs.h dates {unknown}, which cuda.h does not declare");
    }
    let mut table = Table { entries: Vec::new(), superseded: BTreeMap::new() };
    for (base, mut family) in families {
        family.sort_by_key(|(revision, _)| *revision);
        let versions = versions.get(&base).with_context(|| format!("cudaTypedefs.h does not date {base}"))?;
        ensure!(
            versions.len() == family.len(),
            "{base} has the revisions {:?}, dated {versions:?}",
            family.iter().map(|(_, function)| &function.name).collect::<Vec<_>>()
        );
        // The newest that the oldest supported driver has; what comes before it nobody needs.
        let first = versions.iter().rposition(|version| *version <= OLDEST).unwrap_or(0);
        let kept = family[first].1.name.clone();
        for (index, (_, function)) in family.into_iter().enumerate() {
            if index < first {
                table.superseded.insert(function.name, kept.clone());
                continue;
            }
            let code = versions[index];
            let since = [code / 1000, code % 1000 / 10, 0];
            table.entries.push(Entry { function, base: base.clone(), since, declared: None });
        }
    }
    Ok(table)
}

/// Notes where a header declares a function only after its release; it must not do so before.
pub(super) fn date_declarations(entries: &mut [Entry], older: &[Header], newest: Release) -> Result<()> {
    let mut names: Vec<(Release, Vec<&str>)> = Vec::new();
    for Header { release, bindings, .. } in older {
        names.push((*release, bindings.functions.iter().map(|function| function.name.as_str()).collect()));
    }
    for entry in entries {
        let name = entry.function.name.as_str();
        let releases = || names.iter().map(|(release, _)| *release).chain([newest]);
        let declared =
            names.iter().find(|(_, names)| names.contains(&name)).map_or(newest, |(release, _)| *release);
        let due = releases().find(|release| *release >= entry.since);
        let due = due.with_context(|| format!("{name} is of {:?}, newer than its header", entry.since))?;
        ensure!(declared >= due, "{name} is in the header of {declared:?}, and dated {:?}", entry.since);
        if let Some((release, _)) =
            names.iter().find(|(release, names)| *release > declared && !names.contains(&name))
        {
            bail!("{name} is in the header of {declared:?}, and not in that of {release:?}");
        }
        entry.declared = (declared > due).then_some(declared);
    }
    Ok(())
}

/// The functions that are left out, as Rust.
pub(super) fn superseded(functions: &BTreeMap<String, String>) -> String {
    let mut text = String::from(
        "/// Functions that are left out of the table because every supported driver has a newer revision: each \
         with the\n/// one to call. The variants `…_ptds` and `…_ptsz`, for the thread's default stream, are left \
         out too: pass\n/// [`CU_STREAM_PER_THREAD`](crate::CU_STREAM_PER_THREAD).\n\
         pub static SUPERSEDED: &[(&str, &str)] = &[\n",
    );
    for (old, new) in functions {
        let _ = writeln!(text, "    (\"{old}\", \"{new}\"),");
    }
    text + "];\n"
}
