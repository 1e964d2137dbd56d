//! The generated file with the first release of each structure, field and constant in its present form.

use std::fmt::Write;

use anyhow::{Context, Result, ensure};
use quote::ToTokens;
use syn::Item;

use super::history::{History, Kind};
use super::reading::{self, BY_HAND, canonical};
use crate::codegen::bindings::Bindings;
use crate::codegen::render::triple;

/// The structure whose fields users query by release.
const CONFIGURATION: &str = "ncclConfig_t";

/// The first fields of every structure that contains its own size; users do not set them.
const HEAD: [&str; 3] = ["size", "magic", "version"];

/// The text, as calls of `structures!`, `config_fields!` and `constants!`.
pub(super) fn text(bindings: &Bindings, history: &History) -> Result<String> {
    let mut text = String::from("structures! {\n    known {\n");
    for name in structures(&bindings.types) {
        writeln!(text, "        {name}: {} {{", sizes(&name, history))?;
        for (field, since) in fields(&name, history)? {
            writeln!(text, "            {field} {},", triple(since))?;
        }
        text += "        }\n";
    }
    text += "    }\n    opaque {\n";
    for name in BY_HAND {
        writeln!(text, "        {name}: {}", sizes(name, history))?;
    }
    text += "    }\n}\n\nconfig_fields! {\n";
    for (field, since) in fields(CONFIGURATION, history)? {
        if !HEAD.contains(&field.as_str()) {
            writeln!(text, "    {field} {},", triple(since))?;
        }
    }
    text += "}\n\nconstants! {\n    enumerations {\n";
    let since = |name: &str| {
        let since = history.since(Kind::Constant, name);
        since.map(triple).with_context(|| format!("no release has the constant {name}"))
    };
    for enumeration in &bindings.enumerations {
        writeln!(text, "        {} {{", enumeration.name)?;
        for (name, _) in &enumeration.constants {
            writeln!(text, "            {name} {},", since(name)?)?;
        }
        text += "        }\n";
    }
    text += "    }\n    macros {\n";
    for (name, _) in reading::constants(bindings) {
        writeln!(text, "        {name} {},", since(&name)?)?;
    }
    Ok(text + "    }\n}\n")
}

/// The structures and unions that have a name and a size.
fn structures(types: &[Item]) -> Vec<String> {
    let parts = reading::parts(types);
    let named = types.iter().filter_map(|item| match item {
        Item::Struct(item) if !item.to_token_stream().to_string().contains("_unused") => Some(&item.ident),
        Item::Union(item) => Some(&item.ident),
        _ => None,
    });
    let named = named.map(ToString::to_string).filter(|name| !parts.contains_key(name));
    named.map(|name| canonical(&name)).collect()
}

/// `[(2, 14, 3) = 24, …]`: the sizes in bytes, with the release since which each holds.
fn sizes(name: &str, history: &History) -> String {
    let sizes = history.values(Kind::Size, name);
    let sizes: Vec<_> =
        sizes.iter().map(|(release, size)| format!("{} = {size}", triple(*release))).collect();
    format!("[{}]", sizes.join(", "))
}

/// Returns the fields in their order, with the release since which each has its offset.
fn fields(structure: &str, history: &History) -> Result<Vec<(String, [u32; 3])>> {
    let mut fields = Vec::new();
    for ((kind, name), offset) in history.newest()? {
        let Some(field) = name.strip_prefix(structure).and_then(|rest| rest.strip_prefix('.')) else {
            continue;
        };
        if *kind == Kind::Field {
            let since = history.since(Kind::Field, name).context("the newest release has it")?;
            fields.push((offset.parse::<u64>()?, field.to_owned(), since));
        }
    }
    ensure!(!fields.is_empty(), "{structure} has no fields in the history");
    fields.sort();
    Ok(fields.into_iter().map(|(_, field, since)| (field, since)).collect())
}
