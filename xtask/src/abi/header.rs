//! One real header: a C program, compiled against it, compares sizes, offsets and constants with the crate's.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsString;
use std::fs;
use std::mem::offset_of;
use std::path::Path;

use anyhow::{Context, Result};
use nccl_sys::{
    CONFIG_FIELDS, FUNCTIONS, Version, ncclCollConfig_t, ncclConfig_t, ncclSimInfo_t, ncclUniqueId,
    ncclWaitSignalDesc_t,
};

use super::program::Program;
use crate::headers;

/// The outcome for one header.
pub(super) struct Checked {
    /// How many comparisons the program made.
    pub(super) count: usize,
    pub(super) faults: Vec<String>,
}

/// The newest header's declaration of each function, from which the table is made.
pub(super) type Prototypes = BTreeMap<&'static str, String>;

/// Reads the declarations of the table's functions from the newest header.
pub(super) fn prototypes(header: &Path) -> Result<Prototypes> {
    let text = without_comments(&fs::read_to_string(header)?).replace("\\\n", " ");
    let statements: Vec<_> = text.split(';').map(declaration).collect();
    FUNCTIONS
        .iter()
        .map(|function| {
            let declares = |statement: &&String| {
                let before = statement.split('(').next().unwrap_or_default();
                before.split([' ', '*']).next_back() == Some(function.name)
            };
            let found = statements.iter().find(declares);
            Ok((
                function.name,
                found.with_context(|| format!("no declaration of {}", function.name))?.clone(),
            ))
        })
        .collect()
}

/// A statement on one line, without the preprocessor's lines before it.
fn declaration(statement: &str) -> String {
    let lines = statement.lines().filter(|line| !line.trim_start().starts_with('#'));
    lines.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ").replace(" (", "(")
}

/// Compares the crate with `header`, which is that of `release`.
pub(super) fn check(header: &Path, release: Version, prototypes: &Prototypes) -> Result<Checked> {
    let text = without_comments(&fs::read_to_string(header)?);
    let words: HashSet<_> = text.split(|c: char| !(c.is_alphanumeric() || c == '_')).collect();
    let mut program = Program::new("nccl.h");
    let mut faults = Vec::new();

    program.check("NCCL_VERSION_CODE", release.code());
    program.check("sizeof(ncclUniqueId)", size_of::<ncclUniqueId>());
    configuration(&mut program, &mut faults, &text, release);
    structures(&mut program, release);
    constants(&mut program, &words);
    for function in FUNCTIONS {
        let declared = words.contains(function.name);
        if declared != (function.since <= release) && !late_in_header(function.name, release) {
            let verb = if declared { "declares" } else { "lacks" };
            faults.push(format!(
                "the header {verb} {}, which the table dates {}",
                function.name, function.since
            ));
        }
        // Before 2.30.7 these took a pointer to a structure that has become opaque; the machine sees no odds.
        if declared && !(function.name.starts_with("ncclParam") && release < Version::new(2, 30, 7)) {
            program.declare(&prototypes[function.name]);
        }
    }
    faults.extend(program.run(&arguments(header)?)?);
    Ok(Checked { count: program.count, faults })
}

/// The library of 2.30.3 exports these; the header names them from 2.30.4 on.
fn late_in_header(function: &str, release: Version) -> bool {
    function.starts_with("ncclParam") && release == Version::new(2, 30, 3)
}

/// The communicator's configuration: every field of this release, and none of later ones.
fn configuration(program: &mut Program, faults: &mut Vec<String>, text: &str, release: Version) {
    let Some(size) = ncclConfig_t::size_in(release) else { return };
    program.check("sizeof(ncclConfig_t)", size);
    let initial = "((ncclConfig_t)NCCL_CONFIG_INITIALIZER)";
    let ours = ncclConfig_t::for_release(release);
    program.check(&format!("{initial}.size"), size);
    program.check(&format!("{initial}.magic"), ours.magic);
    program.check(&format!("{initial}.blocking"), ours.blocking);
    let body = text.split_once("typedef struct ncclConfig_v").map_or("", |(_, tail)| tail);
    let body = body.split_once('}').map_or("", |(body, _)| body);
    let words: HashSet<_> = body.split(|c: char| !(c.is_alphanumeric() || c == '_')).collect();
    for field in CONFIG_FIELDS {
        let name = field.name;
        if field.since <= release {
            program.check(&format!("offsetof(ncclConfig_t, {name})"), field.offset);
            program.check(&format!("sizeof({initial}.{name})"), field.size);
        } else if words.contains(name) {
            faults.push(format!("the header has ncclConfig_t.{name}, which the crate dates {}", field.since));
        }
    }
}

/// The other structures that a user fills.
fn structures(program: &mut Program, release: Version) {
    macro_rules! structure {
        ($name:ident: $($field:ident)*) => {
            $(program.check(
                concat!("offsetof(", stringify!($name), ", ", stringify!($field), ")"),
                offset_of!($name, $field),
            );)*
        };
    }
    if release >= Version::new(2, 22, 3) {
        program.check("sizeof(ncclSimInfo_t)", size_of::<ncclSimInfo_t>());
        program.check("((ncclSimInfo_t)NCCL_SIM_INFO_INITIALIZER).magic", nccl_sys::NCCL_SIM_INFO_MAGIC);
        structure!(ncclSimInfo_t: size magic version estimatedTime);
    }
    if release >= Version::new(2, 29, 2) {
        program.check("sizeof(ncclWaitSignalDesc_t)", size_of::<ncclWaitSignalDesc_t>());
        structure!(ncclWaitSignalDesc_t: opCnt peer sigIdx ctx);
    }
    if release >= Version::new(2, 31, 2) {
        structure!(ncclCollConfig_t: size magic version ext minCTAs maxCTAs nvlsCTAs cgaClusterSize);
        structure!(ncclCollConfig_t: algSelection forceAlgSelection CTAPolicy userProfilerTag);
    }
    if release >= Version::new(2, 32, 3) {
        program.check("sizeof(ncclCollConfig_t)", size_of::<ncclCollConfig_t>());
        structure!(ncclCollConfig_t: launchCompletionEvent);
    }
}

/// The constants that the header names; those that count others grow from release to release.
fn constants(program: &mut Program, words: &HashSet<&str>) {
    macro_rules! enumerations {
        ($($name:ident)*) => {
            $(for (constant, value) in nccl_sys::$name::CONSTANTS {
                if words.contains(constant) && !["ncclNumResults", "ncclNumTypes", "ncclNumOps"].contains(constant) {
                    program.check(constant, value.0);
                }
            })*
        };
    }
    macro_rules! macros {
        ($($name:ident)*) => {
            $(if words.contains(stringify!($name)) {
                program.check(stringify!($name), nccl_sys::$name);
            })*
        };
    }
    enumerations!(ncclResult_t ncclDataType_t ncclRedOp_t ncclScalarResidence_t ncclCommMemStat_t);
    enumerations!(ncclHostCftMode_t ncclNvlsHostMode_t ncclEncryptionMode_t);
    macros!(NCCL_UNIQUE_ID_BYTES NCCL_CONFIG_UNDEF_INT NCCL_SPLIT_NOCOLOR);
    macros!(NCCL_WIN_DEFAULT NCCL_WIN_COLL_SYMMETRIC NCCL_WIN_STRICT_ORDERING NCCL_WIN_GIN_ONLY);
    macros!(NCCL_WIN_CFT_COUNTED NCCL_WIN_REQUIRED_ALIGNMENT);
    macros!(NCCL_CTA_POLICY_DEFAULT NCCL_CTA_POLICY_EFFICIENCY NCCL_CTA_POLICY_ZERO);
    macros!(NCCL_SHRINK_DEFAULT NCCL_SHRINK_ABORT NCCL_REVOKE_DEFAULT NCCL_SUSPEND_MEM NCCL_API_MAGIC);
}

fn without_comments(text: &str) -> String {
    let mut code = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("/*").into_iter().chain(rest.find("//")).min() {
        code.push_str(&rest[..at]);
        let (end, instead) = if rest[at..].starts_with("/*") { ("*/", ' ') } else { ("\n", '\n') };
        rest = rest[at..].split_once(end).map_or("", |(_, tail)| tail);
        code.push(instead);
    }
    code + rest
}

/// What the C compiler is told of `header`.
fn arguments(header: &Path) -> Result<Vec<OsString>> {
    let folder = header.parent().context("a header lies in a folder")?;
    // Older headers name bfloat16 only where CUDA's headers have it.
    Ok(vec![
        "-D__CUDA_BF16_TYPES_EXIST__=1".into(),
        "-I".into(),
        headers::standin("cuda")?.into(),
        "-I".into(),
        folder.into(),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_go_and_code_stays() {
        let text = "int a; // one; two\n/* int b;\n */int c; /* */ int d;";
        assert_eq!(without_comments(text), "int a; \n int c;   int d;");
        assert_eq!(without_comments("int a; /* to the end"), "int a;  ");
    }

    #[test]
    fn a_declaration_is_one_line_without_the_preprocessors() {
        let statement = "\n#ifdef X\n  #define Y 1\n#endif\nncclResult_t  ncclF (int a,\n    int b)";
        assert_eq!(declaration(statement), "ncclResult_t ncclF(int a, int b)");
    }

    #[test]
    fn a_header_that_differs_is_told() {
        // The stand-ins for the headers that NCCL's includes lie in the source tree.
        if let Err(error) = crate::shell::workspace() {
            println!("skipped: {error:#}");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let header = folder.path().join("nccl.h");
        fs::write(&header, "typedef struct { char internal[64]; } ncclUniqueId;\nint ncclF(int);\n").unwrap();
        let mut program = Program::new("nccl.h");
        program.check("sizeof(ncclUniqueId)", 128);
        program.check("sizeof(int)", 4);
        program.declare("int ncclF(int a)");
        assert_eq!(
            program.run(&arguments(&header).unwrap()).unwrap(),
            ["sizeof(ncclUniqueId) is 64 in the header, 128 here"]
        );
        assert_eq!(program.count, 3);
        program.declare("int ncclF(long a)");
        assert!(
            format!("{:#}", program.run(&arguments(&header).unwrap()).unwrap_err())
                .contains("conflicting types")
        );
    }
}
