//! `cuda-driver-sys`: all of `cuda.h`, in the ABI versions that a supported driver may need.
//!
//! - [`releases`]: the functions of the table, and the release of each
//! - [`macros`]: the macros that bindgen skips
//! - [`history`]: types, fields and constants by release, for `cargo xtask abi`

mod history;
mod macros;
mod releases;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::bindings::{self, Bindings, Function, Recipe};
use super::render::{self, Entry};
use crate::files::Files;
use crate::headers::{self, Part};
use crate::pins::{self, Pin};

/// Numbers of a release.
type Release = [u32; 3];

/// One release's `cuda.h`.
struct Header {
    release: Release,
    folder: PathBuf,
    bindings: Bindings,
    /// Constants that bindgen skips, with their values as numbers.
    macros: Vec<(String, i128)>,
}

impl Header {
    fn read(pin: &Pin) -> Result<Self> {
        let [major, minor, _] = headers::release(pin.version)?;
        let [folder] = headers::fetch(pin, [Part::Headers])?;
        let header = headers::find(&folder, "include/cuda.h")?;
        let mut bindings = bindings::read(&Recipe {
            header: &header,
            file: r".*/cuda\.h",
            no_default: "",
            by_hand: "",
            // Includes the revisions for older drivers.
            arguments: &["-D__CUDA_API_VERSION_INTERNAL".to_owned()],
        })?;
        let macros = macros::complete(&mut bindings, &fs::read_to_string(header)?)?;
        Ok(Self { release: [major, minor, 0], folder, bindings, macros })
    }
}

pub(crate) fn generate() -> Result<Files> {
    let mut headers = pins::CUDA_HEADERS.iter().map(Header::read).collect::<Result<Vec<_>>>()?;
    let list = history::render(&headers)?;
    let pin = pins::CUDA_HEADERS.last().context("a header is pinned")?;
    let mut newest = headers.pop().context("a header is pinned")?;
    let versions = releases::versions(&headers::find(&newest.folder, "include/cudaTypedefs.h")?)?;
    let functions = std::mem::take(&mut newest.bindings.functions);
    let mut table = releases::table(functions, &versions)?;
    releases::date_declarations(&mut table.entries, &headers, newest.release)?;
    for older in &headers {
        compare(&table, &newest.bindings, older)?;
    }

    let origin = format!("`cuda.h` of {} {}", pin.package, pin.version);
    let generated = Path::new("cuda-driver-sys/src/generated");
    let names = render::Names { prefix: "cu", status: "CUresult" };
    let mut files = render::tables(generated, &origin, (newest.bindings, &table.entries), &names)?;
    let subject = "Functions that the table leaves out.";
    let superseded = releases::superseded(&table.superseded);
    files.insert(
        generated.join("superseded.rs"),
        render::file(subject, &origin, "", &superseded)?.into_bytes(),
    );
    let subject = "Types, fields and constants by release.";
    let list = render::file(subject, "`cuda.h` of every pinned release", "", &list)?;
    files.insert("lab/src/abi/cuda/facts.rs".into(), list.into_bytes());
    Ok(files)
}

/// Fails if an older header has a function that the table lacks, or with another signature, or a field at another
/// offset.
fn compare(table: &releases::Table, newest: &Bindings, header: &Header) -> Result<()> {
    let release = header.release;
    for older in &header.bindings.functions {
        if releases::variant_of(&older.name).is_some() || table.superseded.contains_key(&older.name) {
            continue;
        }
        let entry = table.entries.iter().find(|entry| entry.function.name == older.name);
        let entry = entry.with_context(|| format!("{} of {release:?} is in no newer header", older.name))?;
        // If a type has several revisions, an older header has the bare name for the first.
        let bare =
            |function: &Function| function.types().iter().map(|name| name.replace("_v1", "")).collect();
        let (here, there): (Vec<_>, Vec<_>) = (bare(&entry.function), bare(older));
        ensure!(
            here == there && entry.function.result == older.result,
            "{} takes ({}) here and ({}) in the header of {release:?}",
            older.name,
            entry.function.parameters,
            older.parameters
        );
    }
    // Structures may grow into reserved fields or padding, but no field moves.
    let layouts = &header.bindings.layouts;
    let fields =
        layouts.iter().filter(|(name, _)| name.starts_with("Offset") && !name.ends_with("::reserved"));
    for (field, offset) in fields {
        let now = newest.layouts.get(field).unwrap_or(offset);
        ensure!(now == offset, "{field} is {offset} in the header of {release:?}, and {now} here");
    }
    Ok(())
}
