//! Writes generated files: the head, rustfmt, and the comparison of `--check`.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use syn::Item;

use super::bindings::{Bindings, Enumeration, Function, shorten};
use crate::shell;

/// Path below the repository's root, and text.
pub(crate) type Files = BTreeMap<PathBuf, String>;

/// A function with where it comes from.
pub(crate) struct Entry {
    pub(crate) function: Function,
    /// The name without the suffix of its ABI, as `cuGetProcAddress` takes it.
    pub(crate) base: String,
    /// The release whose library first has it.
    pub(crate) since: [u32; 3],
    /// The release whose header first declares it, where that is a later one.
    pub(crate) declared: Option<[u32; 3]>,
}

/// The generated files of a raw crate.
pub(crate) fn tables(folder: &Path, origin: &str, bindings: Bindings, entries: &[Entry]) -> Result<Files> {
    let ffi = "use core::ffi::*;\nuse super::enums::*;";
    let mut files = Files::new();
    let mut put = |name: &str, subject: &str, imports: &str, body: &str| -> Result<()> {
        files.insert(folder.join(name), file(subject, origin, imports, body)?);
        Ok(())
    };
    put("enums.rs", "Enumerations.", "", &enumerations(&bindings.enumerations))?;
    put("constants.rs", "Constants.", "", &items(bindings.constants))?;
    put(
        "types.rs",
        "Structures, unions, handles.",
        ffi,
        &(items(bindings.types) + &zeroed(&bindings.zeroed)),
    )?;
    put("layouts.rs", "Sizes and offsets.", "use super::types::*;", &items(bindings.assertions))?;
    put("functions.rs", "Functions.", &format!("{ffi}\nuse super::types::*;"), &functions(entries))?;
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

/// Whether an enumeration's constants are combined: C does not tell, names do.
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
fn functions(entries: &[Entry]) -> String {
    let mut text = String::from("functions! {\n");
    for Entry { function, base, since, declared } in entries {
        let declared = declared.map_or(String::new(), |release| format!("declared {} ", triple(release)));
        text += &format!(
            "    {} {declared}\"{base}\" => {}({}){};\n",
            triple(*since),
            function.name,
            function.parameters,
            function.result
        );
    }
    text + "}\n"
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

/// Writes the files below `root`, or with `check` fails if one differs from what is there.
pub(crate) fn write(root: &Path, files: &Files, check: bool) -> Result<()> {
    let mut differing = Vec::new();
    for (path, text) in files {
        let place = root.join(path);
        if fs::read_to_string(&place).is_ok_and(|found| found == *text) {
            continue;
        }
        if check {
            differing.push(path.display().to_string());
        } else {
            fs::create_dir_all(place.parent().context("a file lies in a folder")?)?;
            fs::write(&place, text).with_context(|| format!("writing {}", place.display()))?;
            eprintln!("wrote {}", path.display());
        }
    }
    if !differing.is_empty() {
        bail!(
            "what is committed is not what the headers give: `cargo xtask codegen` would change {}; run it, and \
             commit what it writes",
            differing.join(", ")
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_written_as_the_macro_reads_them() {
        let entry = |declared| Entry {
            function: Function {
                name: "f_v2".into(),
                parameters: "at: *mut c_int".into(),
                result: " -> R".into(),
            },
            base: "f".into(),
            since: [2, 1, 0],
            declared,
        };
        let text = functions(&[entry(None), entry(Some([2, 3, 4]))]);
        let line = "\"f\" => f_v2(at: *mut c_int) -> R;";
        assert_eq!(
            text,
            format!("functions! {{\n    (2, 1, 0) {line}\n    (2, 1, 0) declared (2, 3, 4) {line}\n}}\n")
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

    #[test]
    fn a_check_fails_when_one_line_is_altered_and_changes_nothing() {
        let root = tempfile::tempdir().unwrap();
        let names = ["one/functions.rs", "two/functions.rs"];
        let files = Files::from(names.map(|name| (PathBuf::from(name), "first\nsecond\n".to_owned())));
        let check = || write(root.path(), &files, true).map_err(|error| error.to_string());
        assert!(
            check().unwrap_err().contains("one/functions.rs, two/functions.rs"),
            "nothing is written yet"
        );

        write(root.path(), &files, false).unwrap();
        assert_eq!(check(), Ok(()));

        let altered = root.path().join(names[1]);
        fs::write(&altered, "first\nsecond \n").unwrap();
        assert!(check().unwrap_err().contains("would change two/functions.rs; run it"));
        assert_eq!(fs::read_to_string(&altered).unwrap(), "first\nsecond \n");
    }
}
