//! The functions of the table, and the release of each.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use super::{Entry, Function, Header, Release};

/// The oldest supported driver, as `cuDriverGetVersion` reports it.
const OLDEST: u32 = 11070;

/// The header's functions, sorted into kept and omitted ones.
pub(super) struct Table {
    pub(super) entries: Vec<Entry>,
    /// Functions that are omitted because every supported driver has a newer revision; the value is that revision.
    pub(super) superseded: BTreeMap<String, String>,
}

/// Returns for each base name the versions of its ABI, ascending: `cuCtxCreate` has 2000, 3020, 11040, 12050.
pub(super) fn versions(typedefs: &Path) -> Result<BTreeMap<String, Vec<u32>>> {
    let mut versions: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    let text = fs::read_to_string(typedefs)?;
    for (at, _) in text.match_indices("*PFN_cu") {
        let name = &text[at + "*PFN_".len()..];
        let name = &name[..name.find(')').context("a function pointer's name is in brackets")?];
        let Some((base, version)) = name.rsplit_once("_v") else { bail!("{name} has no version") };
        // Skip variants for the per-thread default stream.
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

/// Returns the header's functions with the versions of their ABI. Only two kinds are omitted:
/// - `…_ptds` and `…_ptsz`, which use the per-thread default stream: streams are passed explicitly;
/// - revisions of which every supported driver has a newer one, such as those with addresses of 32 bits.
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
        // The newest revision that the oldest supported driver has; earlier ones are not needed.
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

/// Records the header's release if it declares a function only after the function's own release. It must not do so
/// before.
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

/// Returns the omitted functions, as Rust.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::codegen::bindings::Bindings;

    fn function(name: &str) -> Function {
        Function { name: name.into(), parameters: String::new(), result: String::new() }
    }

    fn header(release: Release, names: &[&str]) -> Header {
        let functions = names.iter().map(|name| function(name)).collect();
        let bindings = Bindings { functions, ..Bindings::default() };
        Header { release, folder: "".into(), bindings, macros: Vec::new() }
    }

    /// Returns a family's functions, named like in the header: the first without a number.
    fn family(base: &str, revisions: usize) -> Vec<Function> {
        let name = |revision| if revision == 1 { base.to_owned() } else { format!("{base}_v{revision}") };
        (1..=revisions).map(|revision| function(&name(revision))).collect()
    }

    proptest! {
        /// For any versions, each revision is in the table, or omitted for one that every driver has.
        #[test]
        fn no_function_is_lost(
            families in proptest::collection::vec(
                proptest::collection::btree_set((2..14_u32, 0..10_u32), 1..5), 1..6,
            )
        ) {
            let codes = |set: &std::collections::BTreeSet<(u32, u32)>| -> Vec<u32> {
                set.iter().map(|(major, minor)| major * 1000 + minor * 10).collect()
            };
            let versions: BTreeMap<_, _> =
                families.iter().enumerate().map(|(at, set)| (format!("cuF{at}"), codes(set))).collect();
            let functions: Vec<_> =
                versions.iter().flat_map(|(base, codes)| family(base, codes.len())).collect();
            let names: Vec<_> = functions.iter().map(|function| function.name.clone()).collect();
            let table = table(functions, &versions).unwrap();
            prop_assert_eq!(table.entries.len() + table.superseded.len(), names.len());
            // Only the newest of the revisions that every driver has is kept.
            let old: Vec<_> = table.entries.iter().filter(|entry| entry.since <= [11, 7, 0]).collect();
            for entry in &old {
                prop_assert_eq!(old.iter().filter(|other| other.base == entry.base).count(), 1);
            }
            for name in names {
                let entry = |name: &str| table.entries.iter().find(|entry| entry.function.name == name);
                match table.superseded.get(&name) {
                    None => prop_assert!(entry(&name).is_some()),
                    Some(newer) => prop_assert!(entry(newer).unwrap().since <= [11, 7, 0]),
                }
            }
        }
    }

    #[test]
    fn revisions_are_dated_in_their_order() {
        let versions = BTreeMap::from([("cuCtxCreate".to_owned(), vec![2000, 3020, 11040, 12050])]);
        let table = table(family("cuCtxCreate", 4), &versions).unwrap();
        let dated: Vec<_> =
            table.entries.iter().map(|entry| (entry.function.name.as_str(), entry.since)).collect();
        assert_eq!(dated, [("cuCtxCreate_v3", [11, 4, 0]), ("cuCtxCreate_v4", [12, 5, 0])]);
        let kept = "cuCtxCreate_v3".to_owned();
        let left_out = ["cuCtxCreate", "cuCtxCreate_v2"].map(|old| (old.to_owned(), kept.clone()));
        assert_eq!(table.superseded, BTreeMap::from(left_out));
    }

    #[test]
    fn what_the_two_headers_say_otherwise_is_an_error() {
        let versions = |names: &[(&str, &[u32])]| -> BTreeMap<String, Vec<u32>> {
            names.iter().map(|(name, codes)| ((*name).to_owned(), codes.to_vec())).collect()
        };
        let fault = |functions: &[&str], dated: &[(&str, &[u32])]| {
            let functions = functions.iter().map(|name| function(name)).collect();
            table(functions, &versions(dated)).map(|_| ()).unwrap_err().to_string()
        };
        assert!(fault(&["cuA"], &[]).contains("does not date cuA"));
        assert!(fault(&["cuA"], &[("cuA", &[2000]), ("cuB", &[2000])]).contains("dates cuB"));
        assert!(fault(&["cuA"], &[("cuA", &[2000, 3020])]).contains("revisions [\"cuA\"]"));
        assert!(fault(&["cuA", "cuB_ptsz"], &[("cuA", &[2000])]).contains("variant of cuB"));
    }

    #[test]
    fn versions_are_read_without_the_variants_for_threads() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = "typedef CUresult (CUDAAPI *PFN_cuA_v3020)(int);\ntypedef CUresult (CUDAAPI *PFN_cuA_v2000)(int);\n\
                    typedef CUresult (CUDAAPI *PFN_cuA_v7000_ptsz)(int);\n#define PFN_cuA PFN_cuA_v3020\n";
        fs::write(file.path(), text).unwrap();
        assert_eq!(versions(file.path()).unwrap(), BTreeMap::from([("cuA".to_owned(), vec![2000, 3020])]));
    }

    #[test]
    fn declarations_are_dated_and_do_not_go_again() {
        let entry = |since| Entry { function: function("cuA"), base: "cuA".into(), since, declared: None };
        let date = |since, older: &[Header]| {
            let mut entries = [entry(since)];
            date_declarations(&mut entries, older, [13, 0, 0]).map(|()| entries[0].declared)
        };
        let headers =
            |first: &[&str], second: &[&str]| [header([11, 7, 0], first), header([12, 0, 0], second)];
        // Due in the first header that is as new, and declared there.
        assert_eq!(date([3, 2, 0], &headers(&["cuA"], &["cuA"])).unwrap(), None);
        assert_eq!(date([11, 8, 0], &headers(&[], &["cuA"])).unwrap(), None);
        // Declared only in a later header.
        assert_eq!(date([11, 6, 0], &headers(&[], &["cuA"])).unwrap(), Some([12, 0, 0]));
        assert_eq!(date([11, 6, 0], &headers(&[], &[])).unwrap(), Some([13, 0, 0]));
        // Declared too early, gone again, newer than all headers.
        for (since, older) in [
            ([12, 0, 0], headers(&["cuA"], &["cuA"])),
            ([3, 2, 0], headers(&["cuA"], &[])),
            ([13, 1, 0], headers(&[], &[])),
        ] {
            assert!(date(since, &older).is_err(), "{since:?}");
        }
    }
}
