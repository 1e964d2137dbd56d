//! Types, fields and constants by release, read from every header. `cargo xtask abi` compares the real headers with
//! this list.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write;

use anyhow::{Context, Result, bail, ensure};
use quote::ToTokens;
use syn::{Item, Type};

use super::{Bindings, Header, Release};

/// The facts of one header.
#[derive(Default)]
struct Facts {
    /// Sizes of types.
    sizes: Vec<(String, u64)>,
    /// Structures and unions: offset and size of every field, by the path that C reaches it by.
    fields: BTreeMap<String, Fields>,
    constants: Vec<(String, i128)>,
}

/// Offset and size of each field.
type Fields = Vec<(String, (u64, u64))>;

/// A value from a release on, ascending.
type Changes<T> = Vec<(Release, T)>;

/// Types that have grown, and the reason why a driver of another release is not affected. No other type may grow.
const GROWN: &[(&str, &str)] = &[
    ("CUDA_HOST_NODE_PARAMS_v2", NODE),
    ("CUDA_EXT_SEM_SIGNAL_NODE_PARAMS_v2", NODE),
    ("CUDA_EXT_SEM_WAIT_NODE_PARAMS_v2", NODE),
    ("CUDA_CHILD_GRAPH_NODE_PARAMS", NODE),
    ("CUDA_EVENT_RECORD_NODE_PARAMS", NODE),
    ("CUdevSmResource", "lies only in the union of CUdevResource, whose size stays"),
    ("CUkernelNodeAttrValue", ATTRIBUTE),
    ("CUstreamAttrValue", ATTRIBUTE),
    ("CUDA_KERNEL_NODE_PARAMS", "names the newest revision; each revision's functions name theirs"),
];

/// Names of older headers that the newest lacks, and the reason. No other name may disappear.
const GONE: &[(&str, &str)] = &[
    ("CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS", "named ..._V1 from 12.0 on"),
    ("CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V2", "named without _V2 from 12.0 on"),
    ("CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR_V2", "named without _V2 from 12.0 on"),
    ("CU_TARGET_COMPUTE_20", "a device that no driver supports any more"),
    ("CU_TARGET_COMPUTE_21", "a device that no driver supports any more"),
    ("CU_TARGET_COMPUTE_101", "named CU_TARGET_COMPUTE_110 from 13.0 on"),
    ("CU_TARGET_COMPUTE_101A", "named CU_TARGET_COMPUTE_110A from 13.0 on"),
    ("CU_TARGET_COMPUTE_101F", "named CU_TARGET_COMPUTE_110F from 13.0 on"),
    ("CU_DEV_RESOURCE_TYPE_MAX", "no longer declared"),
    ("RESOURCE_ABI_VERSION", "private to the header"),
    ("RESOURCE_ABI_EXTERNAL_BYTES", "private to the header"),
    ("CUcheckpointRestoreArgs_st.reserved1", "in use under other names"),
    ("CUdevSmResourceSplit_flags", "named CUdevSmResourceSplitByCount_flags from 13.1 on"),
    (
        "CUkernelNodeAttrValue_union",
        "CUlaunchAttributeValue_union from 11.8 on, which has its fields at their places",
    ),
    (
        "CUstreamAttrValue_union",
        "CUlaunchAttributeValue_union from 11.8 on, which has its fields at their places",
    ),
];

/// Constants with another value in older headers. Besides these, only constants that count or cover others may
/// change.
const CHANGED: &[(&str, &str)] = &[
    ("CUDA_VERSION", "the header's own release"),
    (
        "CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS",
        "that of the second revision, from 11.7 on at this value",
    ),
    (
        "CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR",
        "that of the second revision, from 11.7 on at this value",
    ),
];

/// Suffixes of constants that count or cover others.
const TOTALS: [&str; 4] = ["_MAX", "_MASK", "_NUM_OPTIONS", "_FLAGS"];

const NODE: &str = "lies only in the union of CUgraphNodeParams, whose size stays";
const ATTRIBUTE: &str = "is passed by its address, and a driver of 11.7 reads and writes its first 32 bytes";

/// The list, as Rust.
pub(super) fn render(headers: &[Header]) -> Result<String> {
    let facts: Vec<_> =
        headers.iter().map(|header| Ok((header.release, facts(header)?))).collect::<Result<_>>()?;
    let (_, newest) = facts.last().context("a header is pinned")?;
    gone(&facts, newest)?;
    let mut text = String::from(
        "use super::{Constant, Field, Kind};\n\n#[rustfmt::skip]\npub(super) static TYPES: &[Kind] = &[\n",
    );
    for (name, _) in &newest.sizes {
        let sizes = changes(&facts, |facts| find(&facts.sizes, name));
        let sizes = sizes.with_context(|| name.clone())?;
        let known = || {
            GROWN.iter().any(|(grown, _)| {
                name.strip_prefix(grown).is_some_and(|end| ["", "_st", "_v1"].contains(&end))
            })
        };
        ensure!(
            sizes.len() == 1 || known(),
            "{name} has grown: {sizes:?}; say in GROWN why this does no harm"
        );
        let _ = write!(text, "    Kind(\"{name}\", &{}, &[", list(&sizes, |size| size.to_string()));
        let fields = newest.fields.get(name).map_or(&[][..], Vec::as_slice);
        for (field, _) in fields {
            let places = changes(&facts, |facts| find(facts.fields.get(name)?, field));
            let places = places.with_context(|| format!("{name}.{field}"))?;
            let places = list(&places, |(offset, size)| format!("{offset}, {size}"));
            let _ = write!(text, "\n        Field(\"{field}\", &{places}),");
        }
        text += if fields.is_empty() { "]),\n" } else { "\n    ]),\n" };
    }
    text += "];\n\n#[rustfmt::skip]\npub(super) static CONSTANTS: &[Constant] = &[\n";
    for (name, _) in &newest.constants {
        let values = changes(&facts, |facts| find(&facts.constants, name));
        let values = values.with_context(|| name.clone())?;
        let known =
            CHANGED.iter().any(|(known, _)| known == name) || TOTALS.iter().any(|end| name.ends_with(end));
        ensure!(values.len() == 1 || known, "{name} has changed: {values:?}; say in CHANGED what this does");
        let _ = writeln!(text, "    Constant(\"{name}\", &{}),", list(&values, i128::to_string));
    }
    Ok(text + "];\n")
}

/// Fails if an older header has a name that the newest lacks, except [`GONE`] and new names of first revisions.
fn gone(facts: &[(Release, Facts)], newest: &Facts) -> Result<()> {
    for (release, older) in facts {
        let is_gone = |name: &str| GONE.iter().any(|(known, _)| *known == name);
        let lost = |name: &str| find(&newest.constants, name).is_none() && !is_gone(name);
        if let Some((name, value)) = older.constants.iter().find(|(name, _)| lost(name)) {
            bail!("{name}, {value} in the header of {release:?}, is gone; say in GONE what became of it");
        }
        for (name, size) in older.sizes.iter().filter(|(name, _)| !is_gone(name)) {
            // With a second revision, the first gets a new tag.
            let first = name.strip_suffix("_st").map(|plain| format!("{plain}_v1_st"));
            let now = first.filter(|_| find(&newest.sizes, name).is_none()).unwrap_or_else(|| name.clone());
            ensure!(find(&newest.sizes, &now).is_some(), "{name}, in the header of {release:?}, is gone");
            let (Some(then), Some(fields)) = (older.fields.get(name), newest.fields.get(&now)) else {
                continue;
            };
            if now != *name {
                ensure!(
                    then == fields && find(&newest.sizes, &now) == Some(*size),
                    "{now} is not the {name} of {release:?}"
                );
            }
            let lost = then.iter().find(|(field, _)| find(fields, field).is_none());
            let lost = lost.map(|(field, _)| format!("{name}.{field}")).filter(|field| !is_gone(field));
            ensure!(lost.is_none(), "{lost:?}, in the header of {release:?}, is gone");
        }
    }
    Ok(())
}

fn find<T: Copy>(list: &[(String, T)], name: &str) -> Option<T> {
    list.iter().find(|(known, _)| known == name).map(|(_, value)| *value)
}

/// Returns the values with the first release of each. A name must not disappear again.
fn changes<T: Copy + PartialEq>(
    facts: &[(Release, Facts)],
    value: impl Fn(&Facts) -> Option<T>,
) -> Result<Changes<T>> {
    let mut changes: Changes<T> = Vec::new();
    for (release, facts) in facts {
        match value(facts) {
            Some(value) if changes.last().is_none_or(|(_, last)| *last != value) => {
                changes.push((*release, value));
            }
            None if !changes.is_empty() => bail!("is not in the header of {release:?}, and in an older one"),
            _ => {}
        }
    }
    Ok(changes)
}

fn list<T>(changes: &Changes<T>, value: impl Fn(&T) -> String) -> String {
    let one = |([major, minor, _], held): &(Release, T)| format!("({major}, {minor}, {})", value(held));
    format!("[{}]", changes.iter().map(one).collect::<Vec<_>>().join(", "))
}

fn facts(header: &Header) -> Result<Facts> {
    let bindings = &header.bindings;
    let sizes = Sizes::of(bindings)?;
    let mut facts = Facts::default();
    let mut nested = BTreeSet::new();
    let mut fields = BTreeMap::new();
    for name in sizes.structures.keys() {
        let mut list = Vec::new();
        sizes.flatten(name, "", 0, &mut list, &mut nested)?;
        fields.insert(name.clone(), list);
    }
    fields.retain(|name, _| !nested.contains(name));
    for item in &bindings.types {
        let name = match item {
            Item::Struct(item) => item.ident.to_string(),
            Item::Union(item) => item.ident.to_string(),
            Item::Type(item) => item.ident.to_string(),
            _ => continue,
        };
        // The header does not define a handle's structure.
        let opaque = matches!(item, Item::Struct(_)) && !fields.contains_key(&name);
        if !opaque && !nested.contains(&name) {
            let size = sizes.named(&name).with_context(|| name.clone())?;
            facts.sizes.push((name, size));
        }
    }
    for enumeration in &bindings.enumerations {
        facts.sizes.push((enumeration.name.clone(), sizes.named(&enumeration.name)?));
        for (name, value) in &enumeration.constants {
            facts.constants.push((name.clone(), value.parse().with_context(|| name.clone())?));
        }
    }
    for (name, value) in bindings.macros() {
        facts.constants.push((name, value?));
    }
    facts.constants.extend(header.macros.iter().cloned());
    facts.fields = fields;
    Ok(facts)
}

/// A structure or union.
struct Structure<'a> {
    union: bool,
    fields: Vec<(String, &'a Type)>,
}

/// Sources of a type's size.
struct Sizes<'a> {
    layouts: &'a BTreeMap<String, u64>,
    /// The fields of structures and unions.
    structures: BTreeMap<String, Structure<'a>>,
    aliases: HashMap<String, &'a Type>,
    enumerations: HashMap<&'a str, u64>,
}

impl<'a> Sizes<'a> {
    fn of(bindings: &'a Bindings) -> Result<Self> {
        let mut sizes = Self {
            layouts: &bindings.layouts,
            structures: BTreeMap::new(),
            aliases: HashMap::new(),
            enumerations: HashMap::new(),
        };
        for enumeration in &bindings.enumerations {
            let bits: u64 = enumeration.repr[1..].parse()?;
            sizes.enumerations.insert(&enumeration.name, bits / 8);
        }
        for item in &bindings.types {
            let (name, fields) = match item {
                Item::Struct(item) => (&item.ident, item.fields.iter().collect::<Vec<_>>()),
                Item::Union(item) => (&item.ident, item.fields.named.iter().collect()),
                Item::Type(item) => {
                    sizes.aliases.insert(item.ident.to_string(), &item.ty);
                    continue;
                }
                _ => continue,
            };
            if bindings.layouts.contains_key(&format!("Size of {name}")) {
                let named = |field: &'a syn::Field| Some((field.ident.as_ref()?.to_string(), &field.ty));
                let fields = fields.into_iter().filter_map(named).collect();
                let union = matches!(item, Item::Union(_));
                sizes.structures.insert(name.to_string(), Structure { union, fields });
            }
        }
        Ok(sizes)
    }

    fn named(&self, name: &str) -> Result<u64> {
        if let Some(size) = self.layouts.get(&format!("Size of {name}")).or(self.enumerations.get(name)) {
            return Ok(*size);
        }
        if let Some(target) = self.aliases.get(name) {
            return self.size(target);
        }
        Ok(match name {
            "c_char" | "c_schar" | "c_uchar" | "u8" => 1,
            "c_short" | "c_ushort" => 2,
            "c_int" | "c_uint" | "u32" | "f32" => 4,
            "c_longlong" | "c_ulonglong" | "u64" | "usize" | "f64" | "Option" => 8,
            other => bail!("the size of {other} is not known"),
        })
    }

    fn size(&self, ty: &Type) -> Result<u64> {
        match ty {
            Type::Ptr(_) => Ok(8),
            Type::Array(array) => {
                let length = array.len.to_token_stream().to_string();
                let length: u64 = length.trim_end_matches("usize").parse()?;
                Ok(length * self.size(&array.elem)?)
            }
            Type::Path(_) => self.named(&last(ty)),
            other => bail!("the size of {} is not known", other.to_token_stream()),
        }
    }

    /// Lists the fields of `name`, which lies in `root` at `path` and `start`. Fields of types that are declared
    /// within are listed too, since C cannot name these types.
    fn flatten(
        &self,
        name: &str,
        path: &str,
        start: u64,
        list: &mut Fields,
        nested: &mut BTreeSet<String>,
    ) -> Result<()> {
        let Structure { union, fields } = &self.structures[name];
        let mut end = 0_u64;
        for (field, ty) in fields {
            let inner = last(ty);
            let (place, size) = (format!("Offset of field: {name}::{field}"), self.size(ty)?);
            let offset = match self.layouts.get(&place) {
                Some(offset) => *offset,
                // bindgen reports no offset for an unnamed member, so it is computed by C's layout rules.
                None if *union => 0,
                None => {
                    end.next_multiple_of(*self.layouts.get(&format!("Alignment of {inner}")).context(place)?)
                }
            };
            end = offset + size;
            let offset = start + offset;
            // In C the members of an unnamed structure are accessed directly.
            let path = match field.starts_with("__bindgen_anon") {
                true => path.to_owned(),
                false if path.is_empty() => c_name(field).to_owned(),
                false => format!("{path}.{}", c_name(field)),
            };
            if !field.starts_with("__bindgen_anon") {
                list.push((path.clone(), (offset, size)));
            }
            if inner.starts_with(&format!("{name}_")) && self.structures.contains_key(&inner) {
                nested.insert(inner.clone());
                self.flatten(&inner, &path, offset, list, nested)?;
            }
        }
        Ok(())
    }
}

/// Returns a field's name in C: bindgen appends `_` to names that are keywords of Rust.
fn c_name(field: &str) -> &str {
    match field.strip_suffix('_') {
        Some(plain) if syn::parse_str::<syn::Ident>(plain).is_err() => plain,
        _ => field,
    }
}

/// The last word of a type's path.
fn last(ty: &Type) -> String {
    match ty {
        Type::Path(path) => path.path.segments.last().map_or(String::new(), |last| last.ident.to_string()),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: Release = [11, 7, 0];
    const NEW: Release = [12, 0, 0];

    /// A header's facts: a structure with fields of 4 bytes each, and constants.
    fn facts(fields: &[&str], constants: &[(&str, i128)]) -> Facts {
        let place = |(at, name): (usize, &&str)| ((*name).to_owned(), (4 * at as u64, 4));
        Facts {
            sizes: vec![("CUthing_st".into(), 64)],
            fields: [("CUthing_st".to_owned(), fields.iter().enumerate().map(place).collect())].into(),
            constants: constants.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
        }
    }

    #[test]
    fn a_value_is_dated_by_the_release_that_it_holds_from() {
        let values = |values: &[(Release, Option<i128>)]| {
            let facts = |value: Option<i128>| {
                facts(&[], &value.map(|value| ("C", value)).into_iter().collect::<Vec<_>>())
            };
            let facts: Vec<_> = values.iter().map(|(release, value)| (*release, facts(*value))).collect();
            changes(&facts, |facts| find(&facts.constants, "C"))
        };
        assert_eq!(values(&[(OLD, Some(1)), (NEW, Some(1))]).unwrap(), [(OLD, 1)]);
        assert_eq!(values(&[(OLD, None), (NEW, Some(1))]).unwrap(), [(NEW, 1)]);
        assert_eq!(values(&[(OLD, Some(1)), (NEW, Some(2))]).unwrap(), [(OLD, 1), (NEW, 2)]);
        assert!(values(&[(OLD, Some(1)), (NEW, None)]).is_err());
    }

    #[test]
    fn what_goes_without_a_word_is_an_error() {
        let check =
            |older: Facts, newest: &Facts| gone(&[(OLD, older)], newest).map_err(|error| error.to_string());
        let newest = facts(&["a", "b"], &[("CU_C", 1)]);
        assert_eq!(check(facts(&["a"], &[("CU_C", 1)]), &newest), Ok(()));
        // Listed in `GONE`.
        assert_eq!(check(facts(&[], &[("CU_DEV_RESOURCE_TYPE_MAX", 1)]), &newest), Ok(()));
        assert!(
            check(facts(&[], &[("CU_LOST", 1)]), &newest)
                .unwrap_err()
                .starts_with("CU_LOST, 1 in the header")
        );
        assert!(check(facts(&["a", "lost"], &[]), &newest).unwrap_err().contains("CUthing_st.lost"));
        let renamed = Facts { sizes: vec![("CUother_st".into(), 64)], ..facts(&[], &[]) };
        assert!(check(renamed, &newest).unwrap_err().starts_with("CUother_st, in the header"));
    }

    #[test]
    fn a_first_revision_may_take_a_new_tag_and_no_new_shape() {
        let under = |tag: &str, fields: &[&str]| {
            let mut facts = facts(fields, &[]);
            facts.sizes[0].0 = tag.to_owned();
            facts.fields = facts.fields.into_values().map(|fields| (tag.to_owned(), fields)).collect();
            facts
        };
        let newest = under("CUthing_v1_st", &["a", "b"]);
        assert!(gone(&[(OLD, facts(&["a", "b"], &[]))], &newest).is_ok());
        assert!(gone(&[(OLD, facts(&["b", "a"], &[]))], &newest).is_err());
    }

    #[test]
    fn fields_of_nameless_parts_are_told_from_outside() {
        let file: syn::File = syn::parse_quote! {
            struct Outer { type_: c_int, __bindgen_anon_1: Outer__bindgen_ty_1, named: Outer__bindgen_ty_2 }
            union Outer__bindgen_ty_1 { wide: c_ulonglong, narrow: [c_uint; 1usize] }
            struct Outer__bindgen_ty_2 { last: *mut c_void }
        };
        let layouts = [
            ("Size of Outer", 24),
            ("Offset of field: Outer::type_", 0),
            ("Offset of field: Outer::named", 16),
            ("Size of Outer__bindgen_ty_1", 8),
            ("Alignment of Outer__bindgen_ty_1", 8),
            ("Size of Outer__bindgen_ty_2", 8),
            ("Offset of field: Outer__bindgen_ty_2::last", 0),
        ];
        let bindings = Bindings {
            types: file.items,
            layouts: layouts.map(|(what, value)| (what.to_owned(), value)).into(),
            ..Bindings::default()
        };
        let header = Header { release: NEW, folder: "".into(), bindings, macros: vec![("CU_M".into(), 3)] };
        let facts = super::facts(&header).unwrap();
        assert_eq!(facts.sizes, [("Outer".to_owned(), 24)]);
        assert_eq!(facts.constants, [("CU_M".to_owned(), 3)]);
        let place = |name: &str| find(&facts.fields["Outer"], name);
        assert_eq!(
            (place("type"), place("wide"), place("narrow")),
            (Some((0, 4)), Some((8, 8)), Some((8, 4)))
        );
        assert_eq!((place("named"), place("named.last")), (Some((16, 8)), Some((16, 8))));
    }
}
