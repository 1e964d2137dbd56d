//! `nccl-sys`: all of `nccl.h`.

use std::path::Path;

use anyhow::{Context, Result};

use super::bindings;
use super::render::{self, Entry, Files};
use crate::headers;

pub(crate) fn generate() -> Result<Files> {
    let pin = headers::NCCL.last().context("a release is pinned")?;
    let folder = headers::extract(pin, "headers", |name| name.contains("/include/"))?;
    let header = headers::find(&folder, "include/nccl.h")?;
    let mut bindings =
        bindings::read(&header, r".*/nccl\.h", &[format!("-I{}", headers::standin("cuda").display())])?;
    let entries: Vec<_> = std::mem::take(&mut bindings.functions)
        .into_iter()
        .filter(|function| !function.name.starts_with('p'))
        .map(|function| Entry { base: function.name.clone(), function, since: [0, 0, 0] })
        .collect();

    let origin = format!("`nccl.h` of {} {}", pin.package, pin.version);
    let generated = Path::new("nccl-sys/src/generated");
    let ffi = "use core::ffi::*;";
    let mut files = Files::new();
    let mut put = |name: &str, subject: &str, imports: &str, body: &str| -> Result<()> {
        files.insert(generated.join(name), render::file(subject, &origin, imports, body)?);
        Ok(())
    };
    put("enums.rs", "Enumerations.", "", &render::enumerations(&bindings.enumerations))?;
    put("constants.rs", "Constants.", "", &render::items(bindings.constants))?;
    put(
        "types.rs",
        "Structures and handles.",
        &format!("{ffi}\nuse super::enums::*;"),
        &(render::items(bindings.types) + &render::zeroed(&bindings.zeroed)),
    )?;
    put("layouts.rs", "Sizes and offsets.", "use super::types::*;", &render::items(bindings.layouts))?;
    put(
        "functions.rs",
        "Functions.",
        &format!("{ffi}\nuse super::enums::*;\nuse super::types::*;"),
        &render::functions(&entries),
    )?;
    Ok(files)
}
