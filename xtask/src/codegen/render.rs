//! The texts of generated Rust files: the head, the body, rustfmt.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use syn::Item;

use super::bindings::{Bindings, Enumeration, Function, shorten};
use super::methods;
use crate::files::Files;
use crate::shell;

/// A function with its origin.
pub(crate) struct Entry {
    pub(crate) function: Function,
    /// The name without the suffix of its ABI, as `cuGetProcAddress` takes it.
    pub(crate) base: String,
    /// The first release whose library has it.
    pub(crate) since: [u32; 3],
    /// The first release whose header declares it, if that is later.
    pub(crate) declared: Option<[u32; 3]>,
}

/// The names that the functions of a raw crate have in common.
pub(crate) struct Names {
    /// The prefix of the C symbols.
    pub(crate) prefix: &'static str,
    /// The type of the result codes.
    pub(crate) status: &'static str,
}

/// The generated files of a raw crate, from its bindings and functions.
pub(crate) fn tables(
    folder: &Path,
    origin: &str,
    (bindings, entries): (Bindings, &[Entry]),
    names: &Names,
) -> Result<Files> {
    let ffi = "use core::ffi::*;\nuse super::enums::*;";
    let table = functions(entries, names)?;
    let mut files = Files::new();
    let mut put = |name: &str, subject: &str, imports: &str, body: &str| -> Result<()> {
        files.insert(folder.join(name), file(subject, origin, imports, body)?.into_bytes());
        Ok(())
    };
    put("enums.rs", "Enumerations.", "use dynload::enumeration;", &enumerations(&bindings.enumerations))?;
    put("constants.rs", "Constants.", "", &items(bindings.constants))?;
    put(
        "types.rs",
        "Structures, unions, handles.",
        &format!("{ffi}\nuse dynload::zeroed;"),
        &(items(bindings.types) + &zeroed(&bindings.zeroed)),
    )?;
    put("layouts.rs", "Sizes and offsets.", "use super::types::*;", &items(bindings.assertions))?;
    let imports = format!("{ffi}\nuse super::types::*;\nuse dynload::functions;");
    put("functions.rs", "Functions.", &imports, &table)?;
    Ok(files)
}

/// A generated file's text.
pub(crate) fn file(subject: &str, origin: &str, imports: &str, body: &str) -> Result<String> {
    let head =
        format!("//! {subject} Written by `cargo xtask codegen` from {origin}; not edited by hand.\n\n");
    rustfmt(&format!("{head}{imports}\n\n{body}"))
}

/// The items, as text.
fn items(items: Vec<Item>) -> String {
    shorten(&prettyplease::unparse(&syn::File { shebang: None, frontmatter: None, attrs: Vec::new(), items }))
}

/// The enumerations, as calls of `enumeration!`.
fn enumerations(enumerations: &[Enumeration]) -> String {
    let mut text = String::new();
    for item in enumerations {
        let flags = if is_flags(&item.name) { "flags " } else { "" };
        text += &format!("enumeration! {{\n    {}: {flags}{} {{\n", item.name, item.repr);
        for (name, value) in &item.constants {
            text += &format!("        {name} = {value},\n");
        }
        text += "    }\n}\n\n";
    }
    text
}

/// True if an enumeration's constants are combined as flags. C does not say so; names do.
fn is_flags(name: &str) -> bool {
    let by_other_names =
        ["CUmemAllocationHandleType", "CUflushGPUDirectRDMAWritesOptions", "ncclNvlsHostMode_t"];
    name.to_lowercase().contains("flags") || by_other_names.contains(&name)
}

/// The structures whose default is zero, as a call of `zeroed!`.
fn zeroed(names: &[String]) -> String {
    format!("\nzeroed! {{\n    {},\n}}\n", names.join(",\n    "))
}

/// The functions, as one call of `functions!`.
fn functions(entries: &[Entry], names: &Names) -> Result<String> {
    let mut text = format!("functions! {{\n    api crate::Api;\n    status {};\n", names.status);
    let status = format!(" -> {}", names.status);
    for (Entry { function, base, since, declared }, method) in
        entries.iter().zip(methods::names(entries, names.prefix)?)
    {
        let declared = declared.map_or(String::new(), |release| format!("declared {} ", triple(release)));
        let result = match function.result.strip_prefix(" -> ") {
            Some(value) if function.result != status => format!(" returns {value}"),
            _ => function.result.clone(),
        };
        text += &format!(
            "    {} {declared}\"{base}\" {method} => {}({}){result};\n",
            triple(*since),
            function.name,
            function.parameters,
        );
    }
    Ok(text + "}\n")
}

/// A release as the tables' macros take it.
pub(crate) fn triple([major, minor, patch]: [u32; 3]) -> String {
    format!("({major}, {minor}, {patch})")
}

fn rustfmt(text: &str) -> Result<String> {
    let mut child = Command::new("rustfmt")
        .args(["--edition", "2024", "--config-path"])
        .arg(shell::workspace()?)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("running rustfmt")?;
    child.stdin.take().context("rustfmt's input")?.write_all(text.as_bytes())?;
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "rustfmt refused a generated file");
    Ok(String::from_utf8(output.stdout)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_written_as_the_macro_reads_them() {
        let entry = |name: &str, result: &str, declared| Entry {
            function: Function {
                name: format!("{name}_v2"),
                parameters: "at: *mut c_int".into(),
                result: result.into(),
            },
            base: name.into(),
            since: [2, 1, 0],
            declared,
        };
        let names = Names { prefix: "cu", status: "R" };
        let entries = [entry("cuF", " -> R", None), entry("cuG", " -> *const c_char", Some([2, 3, 4]))];
        assert_eq!(
            functions(&entries, &names).unwrap(),
            "functions! {\n    api crate::Api;\n    status R;\n    \
             (2, 1, 0) \"cuF\" f => cuF_v2(at: *mut c_int) -> R;\n    \
             (2, 1, 0) declared (2, 3, 4) \"cuG\" g => cuG_v2(at: *mut c_int) returns *const c_char;\n}\n"
        );
    }

    #[test]
    fn constants_that_are_combined_are_flags() {
        let text = |name: &str| {
            let constants = vec![("A".to_owned(), "1".to_owned())];
            enumerations(&[Enumeration { name: name.into(), repr: "u32".into(), constants }])
        };
        assert!(text("CUevent_flags").contains("CUevent_flags: flags u32 {"));
        assert!(text("CUmemAllocationHandleType").contains(": flags u32 {"));
        assert!(text("CUresult").contains("CUresult: u32 {\n        A = 1,\n"));
    }
}
