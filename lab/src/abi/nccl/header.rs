//! One release's headers: programs compiled against them compare sizes, offsets, initial values and constants with
//! the crate's. The crate's own tables list the comparisons, so that none is left out.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nccl_sys::{
    CONSTANTS, FUNCTIONS, Field, NCCL_COMM_NULL, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_PTR, STRUCTURES,
    Structure, Version, ncclCollConfig_t, ncclCommProperties, ncclConfig_t, ncclDevCommRequirements,
    ncclEncryptionConfig_t, ncclSimInfo_t,
};

use crate::abi::program::{Language, Program};
use xtask::headers;

/// The outcome for one release's headers.
pub(super) struct Checked {
    /// Number of comparisons that the programs made.
    pub(super) count: usize,
    pub(super) faults: Vec<String>,
}

/// The newest headers' declaration of each function, from which the table is made.
pub(super) type Prototypes = BTreeMap<&'static str, String>;

/// The text of the headers that a host program includes.
struct Text {
    folder: PathBuf,
    /// `nccl.h`.
    plain: String,
    /// The device headers that declare functions of the library; empty before 2.28.
    device: String,
}

impl Text {
    fn read(include: &Path) -> Result<Self> {
        let plain = headers::find(include, "include/nccl.h")?;
        let folder = plain.parent().context("a header lies in a folder")?.to_path_buf();
        let mut device = String::new();
        for name in ["host.h", "core.h", "lsa_barrier.h", "mem_barrier.h", "gin_barrier.h", "ll_a2a.h"] {
            device += &fs::read_to_string(folder.join("nccl_device").join(name)).unwrap_or_default();
        }
        let code = |text: &str| without_comments(text).replace("\\\n", " ");
        Ok(Self { plain: code(&fs::read_to_string(&plain)?), device: code(&device), folder })
    }
}

/// Reads the declarations of the table's functions from the newest headers.
pub(super) fn prototypes(include: &Path) -> Result<Prototypes> {
    let text = Text::read(include)?;
    let statements: Vec<_> = text.plain.split(';').chain(text.device.split(';')).map(declaration).collect();
    let declares = |name: &str, statement: &str| {
        let before = statement.split('(').next().unwrap_or_default();
        // A device function of the same name takes the device's communicator, and is not in the table.
        before.split([' ', '*']).next_back() == Some(name) && !statement.contains("ncclDevComm const&")
    };
    let prototype = |name| {
        let found = statements.iter().find(|statement| declares(name, statement));
        Ok((name, found.with_context(|| format!("no declaration of {name}"))?.clone()))
    };
    FUNCTIONS.iter().map(|function| prototype(function.name)).collect()
}

/// Converts a statement to one line of C: without the preprocessor's lines before it, linkage, attribute and default
/// arguments.
fn declaration(statement: &str) -> String {
    let lines = statement.lines().filter(|line| !line.trim_start().starts_with('#'));
    let words = lines.flat_map(str::split_whitespace).filter(|word| *word != "NCCL_EXTERN_C");
    let text = words.collect::<Vec<_>>().join(" ").replace(" (", "(");
    let text = match text.strip_prefix("__attribute__((").and_then(|rest| rest.split_once(")))")) {
        Some((_, text)) => text.trim().to_owned(),
        None => text,
    };
    match (text.split_once(" = "), text.rsplit_once(')')) {
        (Some((head, _)), Some((_, tail))) => format!("{head}){tail}"),
        _ => text,
    }
}

/// Compares the crate with the headers in `include`, which are those of `release`.
pub(super) fn check(include: &Path, release: Version, prototypes: &Prototypes) -> Result<Checked> {
    let text = Text::read(include)?;
    let (plain, device) = (words(&text.plain), words(&text.device));
    let mut faults = Vec::new();
    // Names of `nccl.h` are compared as C and C++. Other names are compared only as C++, because the device headers
    // of some releases are not valid C.
    let mut programs = [Program::new(Language::C, "nccl.h"), Program::new(Language::Cpp, "nccl_host.h")];
    let each = |programs: &mut [Program; 2], name: &str, add: &dyn Fn(&mut Program)| {
        let [c, cpp] = programs;
        if plain.contains(name) {
            add(c);
        }
        add(cpp);
    };
    each(&mut programs, "NCCL_VERSION_CODE", &|program| {
        program.check("NCCL_VERSION_CODE", nccl_sys::version_code(release))
    });
    // These have no numeric value in the header's text, so they are not in the tables.
    for (name, value) in [
        ("NCCL_COMM_NULL", NCCL_COMM_NULL.addr() as i64),
        ("NCCL_CONFIG_UNDEF_INT", NCCL_CONFIG_UNDEF_INT.into()),
        ("NCCL_CONFIG_UNDEF_PTR", NCCL_CONFIG_UNDEF_PTR.addr() as i64),
    ] {
        if plain.contains(name) {
            each(&mut programs, name, &|program| program.check(name, value));
        }
    }
    for structure in
        STRUCTURES.iter().filter(|structure| text.plain.contains(&format!("struct {}", structure.name)))
    {
        // C++ accepts the name without `struct`; C needs this typedef.
        programs[0].define(&format!("typedef struct {0} {0}", structure.name));
    }
    for (structure, size) in STRUCTURES.iter().filter_map(|one| Some((one, one.size_in(release)?))) {
        // In `nccl.h` a window is a name without a body.
        let name = if structure.fields.is_empty() { "" } else { structure.name };
        each(&mut programs, name, &|program| layout(program, structure, size, release));
    }
    for constant in CONSTANTS.iter().filter(|constant| constant.since <= release) {
        each(&mut programs, constant.name, &|program| program.check(constant.name, constant.value));
    }
    let initials = initials(release);
    for initial in initials.iter().filter(|initial| initial.structure.size_in(release).is_some()) {
        // Before 2.29 the requirements had no macro of their own.
        if plain.contains(initial.name) || device.contains(initial.name) {
            each(&mut programs, initial.name, &|program| initial.compare(program, release));
        }
    }
    for name in plain.iter().chain(&device).filter(|name| name.ends_with("_INITIALIZER")) {
        if !initials.iter().any(|initial| initial.name == *name) {
            faults.push(format!("the header has {name}, which nothing here is compared with"));
        }
    }
    for function in FUNCTIONS {
        let declared = plain.contains(function.name) || device.contains(function.name);
        let from = function.declared.unwrap_or(function.since);
        if declared != (from <= release) {
            let verb = if declared { "declares" } else { "lacks" };
            faults.push(format!("the header {verb} {}, which the table dates {from}", function.name));
        }
        // Before 2.30.7 these took a pointer to a structure that has become opaque; the ABI is the same.
        if declared && !(function.name.starts_with("ncclParam") && release < Version::new(2, 30, 7)) {
            each(&mut programs, function.name, &|program| program.declare(&prototypes[function.name]));
        }
    }
    let arguments = arguments(&text.folder)?;
    for program in &programs {
        faults.extend(program.run(&arguments)?);
    }
    let faults: BTreeSet<_> = faults.into_iter().collect();
    Ok(Checked {
        count: programs.iter().map(|program| program.count).sum(),
        faults: faults.into_iter().collect(),
    })
}

/// Compares a structure's size, and the offset of each field that it has in this release.
fn layout(program: &mut Program, structure: &Structure, size: usize, release: Version) {
    let name = structure.name;
    program.check(&format!("sizeof({name})"), size);
    for Field { name: field, offset, size, .. } in
        structure.fields.iter().filter(|field| field.since <= release)
    {
        program.check(&format!("offsetof({name}, {field})"), offset);
        program.check(&format!("sizeof((({name}*)0)->{field})"), size);
    }
}

/// Initial value of a structure: the header's macro, and the crate's bytes.
struct Initial {
    /// The macro.
    name: &'static str,
    structure: &'static Structure,
    /// The crate's bytes.
    bytes: Vec<u8>,
    /// True if the size and version fields must be those of `release`, too.
    whole: bool,
}

impl Initial {
    fn compare(&self, program: &mut Program, release: Version) {
        let Self { name, structure, bytes, whole } = self;
        let variable = format!("{}_here", structure.name);
        program.define(&format!("static const {} {variable} = {name}", structure.name));
        for Field { name: field, offset, size, since, .. } in structure.fields {
            if *since <= release && (*whole || !["size", "version"].contains(field)) {
                let ours = bytes[*offset..offset + size]
                    .iter()
                    .fold(0_u64, |sum, byte| sum.wrapping_mul(257).wrapping_add(u64::from(*byte)));
                program.check(
                    &format!("bytes(&{variable}.{field}, sizeof {variable}.{field})"),
                    ours.cast_signed(),
                );
            }
        }
    }
}

/// Returns every structure that has an initializer macro in the headers.
fn initials(release: Version) -> Vec<Initial> {
    /// Each line: the macro, the structure, the crate's value if this release has it, and whether that value is made
    /// for the release.
    macro_rules! initials {
        ($($name:ident $structure:ident = $value:expr, $whole:expr;)*) => {
            [$(
                Structure::named(stringify!($structure)).map(|structure| {
                    let bytes = $value.map(|value: $structure| bytes(&value, structure)).unwrap_or_default();
                    Initial { name: stringify!($name), structure, bytes, whole: $whole }
                }),
            )*]
        };
    }
    let newest = nccl_sys::version_code(release) == nccl_sys::NCCL_VERSION_CODE as i32;
    let initials = initials! {
        NCCL_CONFIG_INITIALIZER ncclConfig_t = Some(ncclConfig_t::for_release(release)), newest;
        NCCL_COLLCONFIG_INITIALIZER ncclCollConfig_t = Some(ncclCollConfig_t::default()), newest;
        NCCL_SIM_INFO_INITIALIZER ncclSimInfo_t = Some(ncclSimInfo_t::default()), newest;
        NCCL_ENCRYPTION_CONFIG_INITIALIZER ncclEncryptionConfig_t = Some(ncclEncryptionConfig_t::default()), newest;
        NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER ncclDevCommRequirements
            = ncclDevCommRequirements::for_release(release), true;
        NCCL_COMM_PROPERTIES_INITIALIZER ncclCommProperties = ncclCommProperties::for_release(release), true;
    };
    initials.into_iter().flatten().collect()
}

/// The bytes of a structure's fields; zero in the padding.
fn bytes<T>(value: &T, structure: &Structure) -> Vec<u8> {
    let mut bytes = vec![0; size_of::<T>()];
    for Field { offset, size, .. } in structure.fields {
        // SAFETY: the field lies inside the structure, and each of its bytes is initialised.
        let field =
            unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast::<u8>().add(*offset), *size) };
        bytes[*offset..offset + size].copy_from_slice(field);
    }
    bytes
}

/// The compiler's arguments for the headers in `folder`.
fn arguments(folder: &Path) -> Result<Vec<OsString>> {
    // Older headers declare bfloat16 only if CUDA's headers define this macro.
    let mut arguments: Vec<OsString> =
        ["-D__CUDA_BF16_TYPES_EXIST__=1", "-DNCCL_OS_LINUX=1", "-I"].map(OsString::from).into();
    arguments.extend([headers::standin("cuda")?.into(), "-I".into(), folder.into()]);
    Ok(arguments)
}

fn words(text: &str) -> HashSet<&str> {
    text.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|word| !word.is_empty()).collect()
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
        assert_eq!(declaration("__attribute__ ((deprecated(\"no\")))\n void f()"), "void f()");
        assert_eq!(declaration("NCCL_EXTERN_C int f(int a, int b = 1)"), "int f(int a, int b)");
    }

    #[test]
    fn a_header_that_differs_is_told() {
        // The stand-ins for the headers that NCCL includes lie in the source tree.
        if let Err(error) = xtask::shell::workspace() {
            println!("skipped: {error:#}");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let header = "typedef struct { char internal[64]; } ncclUniqueId;\n#ifdef __cplusplus\nextern \"C\"\n#endif\n\
                      int ncclF(int);\n#define INITIAL {{1, 2}}\n";
        fs::write(folder.path().join("nccl.h"), header).unwrap();
        let arguments = arguments(folder.path()).unwrap();
        for language in [Language::C, Language::Cpp] {
            let mut program = Program::new(language, "nccl.h");
            program.check("sizeof(ncclUniqueId)", 128);
            program.check("sizeof(int)", 4);
            program.define("static const ncclUniqueId id = INITIAL");
            program.check("bytes(id.internal, 2)", 259);
            program.declare("int ncclF(int a)");
            assert_eq!(
                program.run(&arguments).unwrap(),
                ["sizeof(ncclUniqueId) is 64 in the header, 128 here"]
            );
            assert_eq!(program.count, 4);
            program.declare("long ncclF(int a)");
            let error = format!("{:#}", program.run(&arguments).unwrap_err());
            assert!(error.contains("conflicting") || error.contains("ambiguating"), "{error}");
        }
    }
}
