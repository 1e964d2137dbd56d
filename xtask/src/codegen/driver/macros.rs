//! The macros of `cuda.h` that bindgen skips: handles with a special value, and other names of an enumeration's
//! constants.

use std::collections::HashSet;

use anyhow::{Context, Result, bail};
use syn::Item;

use super::Bindings;
use crate::codegen::bindings::Enumeration;

/// Adds macros of the text that `bindings` lacks, and drops macros that the text defines only for itself. Returns the
/// values of the added ones.
pub(super) fn complete(bindings: &mut Bindings, text: &str) -> Result<Vec<(String, i128)>> {
    let undefined = |name: &str| text.lines().any(|line| line.trim_start() == format!("#undef {name}"));
    bindings
        .constants
        .retain(|item| !matches!(item, Item::Const(item) if undefined(&item.ident.to_string())));
    let bound: HashSet<_> = bindings.macros().map(|(name, _)| name).collect();
    let mut added: Vec<(String, i128)> = Vec::new();
    for line in text.lines() {
        let Some(definition) = line.trim().strip_prefix("#define ") else { continue };
        let Some((name, value)) = definition.trim().split_once(char::is_whitespace) else { continue };
        let value = value.split("/*").next().unwrap_or_default().trim();
        mend_sign(bindings, name, value)?;
        let constant = name.starts_with("CU") && !name.contains('(') && !value.is_empty();
        // Calling conventions of Windows are not constants.
        let windows = value.starts_with("__");
        let known = bound.contains(name) || added.iter().any(|(known, _)| known == name);
        if constant && !windows && !known && !undefined(name) {
            let (item, value) = translate(bindings, name, value)?;
            bindings.types.push(item);
            added.push((name.to_owned(), value));
        }
    }
    Ok(added)
}

/// Makes a constant unsigned if its literal is: bindgen reads `~0u` as -1.
fn mend_sign(bindings: &mut Bindings, name: &str, value: &str) -> Result<()> {
    let unsigned = value.trim_end_matches(')').ends_with(['u', 'U']);
    let negative = bindings
        .macros()
        .find(|(known, number)| unsigned && known == name && number.as_ref().is_ok_and(|number| *number < 0));
    if let Some((_, number)) = negative {
        let text = format!("pub const {name}: u32 = {};", number? + (1 << 32));
        let mended = syn::parse_str(&text)?;
        let item = bindings
            .constants
            .iter_mut()
            .find(|item| matches!(item, Item::Const(item) if item.ident == name));
        *item.context("the constant was found just now")? = mended;
    }
    Ok(())
}

/// Returns the macro as Rust, and its value as a number.
fn translate(bindings: &Bindings, name: &str, value: &str) -> Result<(Item, i128)> {
    for Enumeration { name: of, constants, .. } in &bindings.enumerations {
        if let Some((constant, number)) = constants.iter().find(|(constant, _)| constant == value) {
            let text = format!("pub const {name}: {of} = {of}::{constant};");
            return Ok((syn::parse_str(&text)?, number.parse()?));
        }
    }
    // `((CUstream)0x1)`.
    let cast = value.strip_prefix("((").and_then(|value| value.strip_suffix(')'));
    let Some((target, value)) = cast.and_then(|value| value.split_once(')')) else {
        bail!("the macro {name} is {value}, which is not understood")
    };
    let number = match value.strip_prefix("0x") {
        Some(digits) => i128::from_str_radix(digits, 16)?,
        None => match bindings.macros().find(|(name, _)| name == value) {
            Some((_, number)) => number?,
            None => value.parse()?,
        },
    };
    let text = match target.trim() {
        "CUdevice" => format!("pub const {name}: CUdevice = {number};"),
        "CUstream" => format!("pub const {name}: CUstream = ::core::ptr::without_provenance_mut({number});"),
        "void*" | "void *" => {
            format!("pub const {name}: *mut c_void = ::core::ptr::without_provenance_mut({number});")
        }
        other => bail!("the macro {name} is of the type {other}, which is not understood"),
    };
    Ok((syn::parse_str(&text)?, number))
}

#[cfg(test)]
mod tests {
    use quote::ToTokens;

    use super::*;

    /// The output of bindgen for a header with these constants.
    fn bindings(constants: &[&str]) -> Bindings {
        Bindings {
            constants: constants.iter().map(|text| syn::parse_str(text).unwrap()).collect(),
            enumerations: vec![Enumeration {
                name: "CUflags".into(),
                repr: "u32".into(),
                constants: vec![("CU_FLAG_A".into(), "2".into())],
            }],
            ..Bindings::default()
        }
    }

    fn added(bindings: &mut Bindings, text: &str) -> (Vec<(String, i128)>, Vec<String>) {
        let values = complete(bindings, text).unwrap();
        let written = |item: &Item| item.to_token_stream().to_string();
        (values, bindings.types.iter().map(written).collect())
    }

    #[test]
    fn a_macro_that_bindgen_passes_over_is_a_constant_of_its_type() {
        let text = "  #define CU_OLD CU_FLAG_A /* as it was */\n#define CU_STREAM_X ((CUstream)0x2)\n\
                    #define CU_DEVICE_NONE ((CUdevice)-1)\n#define CU_WHOLE ((void*)CU_NUMBER)\n\
                    #define CU_NUMBER 7\n#define CU_CALL(x) x\n#define CUDAAPI __stdcall\n#define CU_EMPTY \n";
        let (values, items) = added(&mut bindings(&["pub const CU_NUMBER: u32 = 7;"]), text);
        let value = |name: &str, value| (name.to_owned(), value);
        assert_eq!(
            values,
            [value("CU_OLD", 2), value("CU_STREAM_X", 2), value("CU_DEVICE_NONE", -1), value("CU_WHOLE", 7)]
        );
        assert_eq!(items[0], "pub const CU_OLD : CUflags = CUflags :: CU_FLAG_A ;");
        assert_eq!(items[2], "pub const CU_DEVICE_NONE : CUdevice = - 1 ;");
    }

    #[test]
    fn what_the_header_undefines_is_its_own() {
        let mut bindings = bindings(&["pub const CU_PRIVATE: u32 = 7;"]);
        assert!(added(&mut bindings, "#define CU_PRIVATE 7\n#undef CU_PRIVATE\n").0.is_empty());
        assert!(bindings.constants.is_empty());
    }

    #[test]
    fn an_unsigned_literal_is_no_negative_number() {
        let mut bindings = bindings(&["pub const CU_ALL: i32 = -1;", "pub const CU_LESS: i32 = -1;"]);
        complete(&mut bindings, "#define CU_ALL (~0u)\n#define CU_LESS (-1)\n").unwrap();
        let values: Vec<_> = bindings.macros().map(|(_, value)| value.unwrap()).collect();
        assert_eq!(values, [0xffff_ffff, -1]);
    }

    #[test]
    fn a_macro_that_is_not_understood_is_an_error() {
        for value in ["CU_UNKNOWN", "((CUfuture)0x1)", "((CUstream)CU_UNKNOWN)", "sizeof(int)"] {
            let text = format!("#define CU_NEW {value}\n");
            assert!(complete(&mut bindings(&[]), &text).is_err(), "{value}");
        }
    }
}
