//! `nccl-sys`: all of `nccl.h`, and the host side of the device headers.
//!
//! | module | subject |
//! |---|---|
//! | `reading` | one release's headers |
//! | `history` | the changes from release to release |
//! | `dates` | the generated file with the first release of each item |

mod dates;
mod history;
mod reading;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::bindings::{Bindings, Function};
use super::render::{self, Entry};
use crate::files::Files;
use crate::headers;
use crate::pins;
use history::{History, Kind};

/// Functions that headers declare but no library exports: `codegen` fails if another one appears.
const NEVER_EXPORTED: [&str; 1] = ["ncclCftBarrierCreateRequirement"];

/// Macros whose value bindgen cannot read: `nccl-sys` defines them by hand, and `abi` compares them.
const MACROS_BY_HAND: [&str; 3] = ["NCCL_COMM_NULL", "NCCL_CONFIG_UNDEF_INT", "NCCL_CONFIG_UNDEF_PTR"];

/// Functions with a renamed parameter type; their ABI is unchanged.
const RENAMED: &str = "ncclParam";

/// The generated files, from the newest headers and the committed history.
pub(crate) fn generate() -> Result<Files> {
    let pin = pins::NCCL.last().context("a release is pinned")?;
    let [include] = headers::fetch(pin, [headers::Part::Headers])?;
    let mut bindings = reading::read(&include, false)?;
    let by_hand = syn::parse_quote!(
        pub use crate::device::{ncclDevComm, ncclDevComm_t, ncclWindow_vidmem};
    );
    bindings.types.insert(0, by_hand);
    let history = History::load()?;
    for (key, value) in reading::facts(&bindings) {
        ensure!(
            history.newest()?.get(&key) == Some(&value),
            "history.txt ends with another {} than {}: run `cargo xtask codegen --history`",
            key.1,
            pin.version
        );
    }
    let unread = unread(&include, &bindings)?;
    ensure!(unread.is_empty(), "macros of {} that nothing here has: {}", pin.version, unread.join(", "));
    for name in NEVER_EXPORTED {
        ensure!(
            history.first(Kind::Export, name).is_none(),
            "{name} is exported by now: let the table have it"
        );
    }
    let mut functions = std::mem::take(&mut bindings.functions);
    functions.retain(|function| {
        !function.name.starts_with('p') && !NEVER_EXPORTED.contains(&function.name.as_str())
    });
    let entries =
        functions.into_iter().map(|function| entry(function, &history)).collect::<Result<Vec<_>>>()?;

    let folder = Path::new("nccl-sys/src/generated");
    let origin = format!("`nccl.h` and `nccl_device.h` of {} {}", pin.package, pin.version);
    let dates = dates::text(&bindings, &history)?;
    let names = render::Names { prefix: "nccl", status: "ncclResult_t" };
    let mut files = render::tables(folder, &origin, (bindings, &entries), &names)?;
    let subject = "Since when structures, fields and constants are as they are.";
    files.insert(
        folder.join("dates.rs"),
        render::file(subject, "the headers of every release", "", &dates)?.into_bytes(),
    );
    Ok(files)
}

/// Reads every pinned release and returns the history file.
pub(crate) fn history() -> Result<Files> {
    let (place, text) = History::read()?.file();
    Ok(Files::from([(place.to_owned(), text.into_bytes())]))
}

/// Returns the macros with a value that are neither generated nor written by hand.
fn unread(include: &Path, bindings: &Bindings) -> Result<Vec<String>> {
    let constants: BTreeSet<_> = bindings
        .constants
        .iter()
        .filter_map(
            |item| if let syn::Item::Const(item) = item { Some(item.ident.to_string()) } else { None },
        )
        .collect();
    let mut unread = Vec::new();
    for header in ["include/nccl.h", "nccl_device/host.h", "nccl_device/core.h"] {
        let text = fs::read_to_string(headers::find(include, header)?)?;
        for line in text.lines().filter_map(|line| line.trim_start().strip_prefix("#define ")) {
            // The name of a macro with arguments contains its bracket.
            let Some((name, _)) = line.trim_start().split_once(' ') else { continue };
            let by_hand = MACROS_BY_HAND.contains(&name) || name.ends_with("_INITIALIZER");
            if !name.contains('(') && !by_hand && !constants.contains(name) {
                unread.push(name.to_owned());
            }
        }
    }
    Ok(unread)
}

/// Dates a function by the library, and records a header that declares it later.
fn entry(function: Function, history: &History) -> Result<Entry> {
    let name = &function.name;
    let since = history.since(Kind::Export, name);
    let since = since.with_context(|| format!("{name} is declared, and exported by no library"))?;
    ensure!(
        history.first(Kind::Export, name) == Some(since),
        "{name} was exported, then not, and is again: one release does not date it"
    );
    let signatures = history.values(Kind::Function, name);
    let declared = signatures.first().with_context(|| format!("no header declares {name}"))?.0;
    // A structure and its alias are one type.
    let bare: BTreeSet<_> = signatures.iter().map(|(_, types)| types.replace("_t", "")).collect();
    ensure!(bare.len() == 1 || name.starts_with(RENAMED), "{name} has changed its signature: {signatures:?}");
    ensure!(declared >= since, "{name} is declared in {declared:?}, before a library exports it");
    Ok(Entry { base: name.clone(), since, declared: (declared > since).then_some(declared), function })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the dates of a function with this history.
    fn dated(name: &str, history: &str) -> Result<([u32; 3], Option<[u32; 3]>), String> {
        let function = Function { name: name.into(), parameters: String::new(), result: String::new() };
        let history = History::parse(history).unwrap();
        entry(function, &history)
            .map(|entry| (entry.since, entry.declared))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_function_is_of_the_first_library_that_exports_it() {
        let both = "2.1.0\n2.2.0\n+ export ncclF\n+ function ncclF (c_int) -> c_int\n2.3.0";
        assert_eq!(dated("ncclF", both), Ok(([2, 2, 0], None)));
        let later = "2.1.0\n+ export ncclF\n2.2.0\n+ function ncclF (c_int) -> c_int";
        assert_eq!(dated("ncclF", later), Ok(([2, 1, 0], Some([2, 2, 0]))));
        // A structure and its alias are one type.
        let alias = "2.1.0\n+ export ncclF\n+ function ncclF (S)\n2.2.0\n+ function ncclF (S_t)";
        assert_eq!(dated("ncclF", alias), Ok(([2, 1, 0], None)));
    }

    #[test]
    fn what_one_release_cannot_date_is_an_error() {
        let declared = "+ function ncclF (c_int)";
        for (history, fault) in [
            (format!("2.1.0\n{declared}"), "exported by no library"),
            (format!("2.1.0\n{declared}\n2.2.0\n+ export ncclF"), "before a library exports it"),
            ("2.1.0\n+ export ncclF".to_owned(), "no header declares"),
            (
                format!("2.1.0\n+ export ncclF\n{declared}\n2.2.0\n- export ncclF\n2.3.0\n+ export ncclF"),
                "and is again",
            ),
            (
                format!("2.1.0\n+ export ncclF\n{declared}\n2.2.0\n+ function ncclF (c_long)"),
                "has changed its signature",
            ),
        ] {
            let error = dated("ncclF", &history).unwrap_err();
            assert!(error.contains(fault), "{fault}: {error}");
        }
    }

    #[test]
    fn a_macro_that_nobody_has_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let header = |name: &str, text: &str| {
            let file = folder.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        let text = "#define NCCL_KNOWN 1\n  #define NCCL_NEW 2\n#define NCCL_CALL(x) x\n#define NCCL_H_\n\
                    #define NCCL_COMM_NULL NULL\n#define NCCL_NEW_INITIALIZER {0}\n";
        header("include/nccl.h", text);
        header("include/nccl_device/host.h", "");
        header("include/nccl_device/core.h", "#define NCCL_CORE 3\n");
        let constants = vec![syn::parse_quote!(
            pub const NCCL_KNOWN: u32 = 1;
        )];
        let bindings = Bindings { constants, ..Bindings::default() };
        assert_eq!(unread(folder.path(), &bindings).unwrap(), ["NCCL_NEW", "NCCL_CORE"]);
    }
}
