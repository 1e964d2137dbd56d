//! One release's headers, read by bindgen, and their facts.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use anyhow::Result;
use quote::ToTokens;
use syn::{Fields, Item, Type};

use super::history::{Facts, Kind};
use crate::codegen::bindings::{self, Bindings, Recipe};
use crate::headers;

/// Structures whose layout differs by release and whose fields are private to NCCL: written by hand, as opaque
/// storage and as a handle.
pub(super) const BY_HAND: [&str; 2] = ["ncclDevComm", "ncclWindow_vidmem"];

/// Types that are used only by these structures, or only by device code.
const HIDDEN: &str = "ncclDevComm_t|ncclDevCommWindowTable.*|ncclResourceWindow_vidmem.*|ncclSegmentWindow\
    |ncclGinWindow_t|CUmemLocationType|ncclSymPtr.*|ncclTeamTag.*";

/// Reads `nccl.h` and the host side of the device headers, as C++: those of some releases are not valid C.
///
/// With `all`, also the structures that are [written by hand](BY_HAND).
pub(super) fn read(include: &Path, all: bool) -> Result<Bindings> {
    let by_hand = if all { HIDDEN.to_owned() } else { format!("{HIDDEN}|{}", BY_HAND.join("|")) };
    let stand_ins = headers::standin("cuda")?;
    let folder = headers::find(include, "include/nccl.h")?;
    let folder = folder.parent().unwrap_or(include);
    bindings::read(&Recipe {
        header: &stand_ins.join("nccl_host.h"),
        file: r".*/(nccl|nccl_device/(impl/\.\./)*(host|core|(lsa|mem|gin|cft)_barrier|ll_a2a))\.h",
        no_default: "nccl(Config|CollConfig|SimInfo|EncryptionConfig)_.*|ncclDevCommRequirements|ncclCommProperties",
        by_hand: &by_hand,
        arguments: &[
            "-xc++".to_owned(),
            "-std=c++17".to_owned(),
            "-DNCCL_OS_LINUX=1".to_owned(),
            // Older headers declare bfloat16 only if CUDA's headers define this macro.
            "-D__CUDA_BF16_TYPES_EXIST__=1".to_owned(),
            format!("-I{}", stand_ins.display()),
            format!("-I{}", folder.display()),
        ],
    })
}

/// Returns the declarations of a release as facts.
pub(super) fn facts(bindings: &Bindings) -> Facts {
    let mut facts = Facts::new();
    for function in &bindings.functions {
        if !function.name.starts_with('p') {
            let signature = format!("({}){}", function.types().join(", "), function.result);
            facts.insert((Kind::Function, function.name.clone()), without_revisions(&signature));
        }
    }
    for (name, value) in bindings.enumerations.iter().flat_map(|enumeration| &enumeration.constants) {
        facts.insert((Kind::Constant, name.clone()), value.clone());
    }
    for (name, value) in constants(bindings) {
        facts.insert((Kind::Constant, name), value);
    }
    let parts = parts(&bindings.types);
    for (what, value) in &bindings.layouts {
        if let Some(name) = what.strip_prefix("Size of ") {
            if !parts.contains_key(name) {
                facts.insert((Kind::Size, canonical(name)), value.to_string());
            }
        } else if let Some(field) = what.strip_prefix("Offset of field: ") {
            let (name, field) = outermost(field, &parts, &bindings.layouts);
            if BY_HAND.contains(&name.as_str()) {
                continue;
            }
            let at = value + field.1;
            facts.insert((Kind::Field, format!("{}.{}", canonical(&name), field.0)), at.to_string());
        }
    }
    facts
}

/// The macros that are numbers.
pub(super) fn constants(bindings: &Bindings) -> Vec<(String, String)> {
    let numbers = bindings.constants.iter().filter_map(|item| match item {
        Item::Const(item) if !matches!(&*item.ty, Type::Reference(_)) => {
            Some((item.ident.to_string(), item.expr.to_token_stream().to_string().replace(' ', "")))
        }
        _ => None,
    });
    numbers.collect()
}

/// Location of each unnamed structure inside another: the outer one, and the field.
type Parts = HashMap<String, (String, String)>;

/// Returns the unnamed structures of these types.
pub(super) fn parts(types: &[Item]) -> Parts {
    let mut parts = Parts::new();
    for item in types {
        let (name, fields) = match item {
            Item::Struct(item) => match &item.fields {
                Fields::Named(fields) => (&item.ident, fields),
                _ => continue,
            },
            Item::Union(item) => (&item.ident, &item.fields),
            _ => continue,
        };
        for field in &fields.named {
            let ty = field.ty.to_token_stream().to_string();
            if let (Some(field), true) = (&field.ident, ty.contains("__bindgen_ty_")) {
                parts.insert(ty, (name.to_string(), field.to_string()));
            }
        }
    }
    parts
}

/// Splits `Outer__bindgen_ty_1::field` into `Outer` and `inner.field`, with the offset of `inner`.
fn outermost(field: &str, parts: &Parts, layouts: &BTreeMap<String, u64>) -> (String, (String, u64)) {
    let (mut name, mut path) =
        field.split_once("::").map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap_or_default();
    let mut offset = 0;
    while let Some((outer, field)) = parts.get(&name) {
        offset += layouts.get(&format!("Offset of field: {outer}::{field}")).unwrap_or(&0);
        (name, path) = (outer.clone(), format!("{field}.{path}"));
    }
    (name, (path, offset))
}

/// Returns the name that a structure has in every release: `ncclConfig_t` for `ncclConfig_v23100`.
pub(super) fn canonical(name: &str) -> String {
    match name.rsplit_once("_v") {
        Some((base, revision)) if revision.bytes().all(|c| c.is_ascii_digit()) => format!("{base}_t"),
        _ => name.to_owned(),
    }
}

fn without_revisions(signature: &str) -> String {
    signature.split(' ').map(canonical).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_structures_revision_is_not_in_its_name() {
        assert_eq!(canonical("ncclConfig_v23100"), "ncclConfig_t");
        assert_eq!(canonical("ncclTeam"), "ncclTeam");
        assert_eq!(canonical("ncclWindow_vidmem"), "ncclWindow_vidmem");
    }

    #[test]
    fn what_lies_in_a_nameless_structure_is_told_from_outside() {
        let types: syn::File = syn::parse_quote! {
            struct Outer { next: *mut Outer, key: Outer__bindgen_ty_1 }
            struct Outer__bindgen_ty_1 { id: i32 }
        };
        let layouts = BTreeMap::from([("Offset of field: Outer::key".to_owned(), 8)]);
        let (name, field) = outermost("Outer__bindgen_ty_1::id", &parts(&types.items), &layouts);
        assert_eq!((name.as_str(), field.0.as_str(), field.1), ("Outer", "key.id", 8));
    }
}
