//! One header: the names in its text, and the C program that compares it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsString;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use cuda_driver_sys::{FUNCTIONS, Function, SUPERSEDED, Table, Version};

use super::facts::{CONSTANTS, TYPES};
use super::{Constant, Field, Kind};
use crate::abi::program::{self, Language, Program};

/// Result of comparing one header.
#[derive(Default)]
pub(super) struct Found {
    /// Functions of the table that the header declares.
    pub(super) functions: usize,
    pub(super) types: usize,
    pub(super) fields: usize,
    pub(super) constants: usize,
    /// Comparisons that the C program made.
    pub(super) checks: usize,
    pub(super) faults: Vec<String>,
}

/// A header's text after the preprocessor.
pub(super) struct Header {
    /// The declarations of functions by name, each on one line.
    prototypes: BTreeMap<String, String>,
    tokens: Vec<String>,
    /// All names: types, constants, macros.
    words: HashSet<String>,
    /// Structures, unions and enumerations that have a tag, with the keyword before it.
    tags: HashMap<String, String>,
}

impl Header {
    pub(super) fn read(header: &Path) -> Result<Self> {
        let text = preprocess(header, "-P")?;
        let mut prototypes = BTreeMap::new();
        for statement in text.split(';') {
            let line = statement.split_whitespace().collect::<Vec<_>>().join(" ").replace(" (", "(");
            if let Some(rest) = line.strip_prefix("CUresult ")
                && let Some((name, _)) = rest.split_once('(')
            {
                prototypes.insert(name.to_owned(), line.clone());
            }
        }
        let tokens = tokens(&text);
        let mut words: HashSet<_> = tokens.iter().cloned().collect();
        let macros = preprocess(header, "-dM")?;
        words.extend(macros.lines().filter_map(|line| Some(line.split(' ').nth(1)?.to_owned())));
        let pairs = tokens.windows(2).filter(|pair| ["struct", "union", "enum"].contains(&pair[0].as_str()));
        let tags = pairs.map(|pair| (pair[1].clone(), pair[0].clone())).collect();
        Ok(Self { prototypes, tokens, words, tags })
    }

    /// Returns a type's name in C, with the keyword before a tag.
    fn spelled(&self, name: &str) -> String {
        self.tags.get(name).map_or_else(|| name.to_owned(), |keyword| format!("{keyword} {name}"))
    }

    /// Returns the words between the braces of the structure or union.
    fn body(&self, name: &str) -> HashSet<&str> {
        let is = |at: usize, text: &str| self.tokens.get(at).is_some_and(|token| token == text);
        let places = (1..self.tokens.len()).filter(|at| is(*at, name));
        for at in places {
            let mut depth = 0;
            let mut closed = |token: &str, open: &str, close: &str| {
                depth += i32::from(token == open) - i32::from(token == close);
                depth == 0
            };
            let body = if is(at + 1, "{") {
                let length = self.tokens[at + 1..].iter().position(|token| closed(token, "{", "}"));
                &self.tokens[at + 1..][..length.unwrap_or(0)]
            } else if is(at - 1, "}") {
                let length = self.tokens[..at].iter().rev().position(|token| closed(token, "}", "{"));
                &self.tokens[at - 1 - length.unwrap_or(0)..at]
            } else {
                continue;
            };
            return body.iter().map(String::as_str).collect();
        }
        HashSet::new()
    }

    /// Translates a declaration of the newest header to the names of this one: before a type had revisions, its first
    /// had the bare name.
    fn in_its_words(&self, prototype: &str) -> String {
        let mut text = String::new();
        for token in tokens(prototype) {
            let bare = token.strip_suffix("_v1").filter(|_| !self.words.contains(&token));
            text += bare.unwrap_or(&token);
            text.push(' ');
        }
        text
    }
}

/// Splits a text into words and signs.
fn tokens(text: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut word = String::new();
    for character in text.chars() {
        if character.is_alphanumeric() || character == '_' {
            word.push(character);
            continue;
        }
        if !word.is_empty() {
            tokens.push(std::mem::take(&mut word));
        }
        if !character.is_whitespace() {
            tokens.push(character.to_string());
        }
    }
    tokens.extend((!word.is_empty()).then_some(word));
    tokens
}

/// Arguments of the C compiler for `header`. They also enable its revisions for older drivers.
fn arguments(header: &Path) -> Result<Vec<OsString>> {
    let folder = header.parent().context("a header lies in a folder")?;
    Ok(vec!["-D__CUDA_API_VERSION_INTERNAL".into(), "-I".into(), folder.into()])
}

fn preprocess(header: &Path, how: &str) -> Result<String> {
    let mut cc = program::compiler(Language::C)?;
    let output = cc.args(["-E", how]).args(arguments(header)?).arg(header).output();
    let output = output.context("cannot run the compiler")?;
    ensure!(output.status.success(), "{}: {}", header.display(), String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// Compares the header of `release` with the list and the table.
pub(super) fn check(path: &Path, release: Version, newest: &Header) -> Result<Found> {
    let header = Header::read(path)?;
    let mut program = Program::new(Language::C, "cuda.h");
    let mut found = Found::default();
    types(&header, release, &mut program, &mut found);
    constants(&header, release, &mut program, &mut found);
    functions(&header, release, newest, &mut program, &mut found)?;
    found.checks = program.count;
    found.faults.extend(program.run(&arguments(path)?)?);
    Ok(found)
}

/// Returns the last of the changes by release that applies in `release`.
fn at<T: Copy>(changes: &[T], release: Version, since: impl Fn(T) -> (u32, u32)) -> Option<T> {
    changes.iter().copied().take_while(|change| since(*change) <= (release.major, release.minor)).last()
}

fn types(header: &Header, release: Version, program: &mut Program, found: &mut Found) {
    for Kind(name, sizes, fields) in TYPES {
        let due = at(sizes, release, |(major, minor, _)| (major, minor));
        let there = header.words.contains(*name);
        let Some((.., size)) = due.filter(|_| there) else {
            found.faults.extend(misdated(name, there, due.is_some()));
            continue;
        };
        let spelled = header.spelled(name);
        program.check(&format!("sizeof({spelled})"), size);
        found.types += 1;
        if fields.is_empty() {
            continue;
        }
        let body = header.body(name);
        for Field(path, places) in *fields {
            let due = at(places, release, |(major, minor, ..)| (major, minor));
            let there = body.contains(path.rsplit('.').next().unwrap_or(path));
            if let (Some((.., offset, size)), true) = (due, there) {
                program.check(&format!("offsetof({spelled}, {path})"), offset);
                program.check(&format!("sizeof((({spelled} *)0)->{path})"), size);
                found.fields += 1;
            } else if there == due.is_some() || !repeated(fields, path) {
                found.faults.extend(misdated(&format!("{name}.{path}"), there, due.is_some()));
            }
        }
    }
}

/// True if another field in the same structure has the same last name.
fn repeated(fields: &[Field], path: &str) -> bool {
    let last = |path: &str| path.rsplit('.').next().map(str::to_owned);
    fields.iter().filter(|Field(other, _)| last(other) == last(path)).count() > 1
}

fn constants(header: &Header, release: Version, program: &mut Program, found: &mut Found) {
    for Constant(name, values) in CONSTANTS {
        let due = at(values, release, |(major, minor, _)| (major, minor));
        let there = header.words.contains(*name);
        if let (Some((.., value)), true) = (due, there) {
            program.check(name, value);
            found.constants += 1;
        } else {
            found.faults.extend(misdated(name, there, due.is_some()));
        }
    }
}

fn functions(
    header: &Header,
    release: Version,
    newest: &Header,
    program: &mut Program,
    found: &mut Found,
) -> Result<()> {
    for Function { name, since, declared, .. } in FUNCTIONS {
        let there = header.prototypes.contains_key(*name);
        let due = declared.unwrap_or(*since) <= release;
        found.faults.extend(misdated(name, there, due));
        if there {
            let newest = newest.prototypes.get(*name).with_context(|| format!("no declaration of {name}"))?;
            program.declare(&header.in_its_words(newest));
            found.functions += 1;
        }
    }
    for name in header.prototypes.keys() {
        let plain = name.trim_end_matches("_ptds").trim_end_matches("_ptsz");
        let superseded = SUPERSEDED.iter().any(|(old, _)| *old == plain);
        if Table::function(plain).is_none() && !superseded {
            found.faults.push(format!("it declares {name}, which the table neither has nor leaves out"));
        }
    }
    Ok(())
}

/// Describes a name that is there before its release, or missing after it.
fn misdated(name: &str, there: bool, due: bool) -> Option<String> {
    match (there, due) {
        (true, false) => Some(format!("it has {name}, which is dated later")),
        (false, true) => Some(format!("it lacks {name}, which is dated earlier")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a header with this text into a folder of its own.
    fn written(text: &str) -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let header = folder.path().join("cuda.h");
        std::fs::write(&header, text).unwrap();
        (folder, header)
    }

    const START: &str = "
        typedef struct CUuuid_st { char bytes[16]; } CUuuid;
        typedef enum cudaError_enum { CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_VALUE = 1 } CUresult;
        typedef int CUdevice;
        #define CUDA_VERSION 11070
        CUresult cuInit(unsigned int Flags);
        CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev);
        ";

    fn faults(text: &str, newest: &str) -> Vec<String> {
        compare(text, newest).unwrap().faults
    }

    fn compare(text: &str, newest: &str) -> Result<Found> {
        let ((_one, header), (_two, newest)) = (written(text), written(newest));
        check(&header, Version::new(11, 7, 0), &Header::read(&newest)?)
    }

    #[test]
    fn what_a_header_says_otherwise_is_told() {
        let plain = faults(START, START);
        // The small header's missing names, and nothing else.
        assert!(plain.iter().all(|fault| fault.starts_with("it lacks ")), "{plain:?}");
        assert!(plain.contains(&"it lacks cuMemAlloc_v2, which is dated earlier".to_owned()), "{plain:?}");
        let later = "int CUdevice; CUresult cuCtxCreate_v4(int)";
        let unknown = "int CUdevice; CUresult cuNew(int)";
        for (old, new, fault) in [
            ("bytes[16]", "bytes[8]", "sizeof(struct CUuuid_st) is 8 in the header, 16 here"),
            ("bytes[16]", "byte[16]", "it lacks CUuuid_st.bytes, which is dated earlier"),
            ("VALUE = 1", "VALUE = 2", "CUDA_ERROR_INVALID_VALUE is 2 in the header, 1 here"),
            ("11070", "11080", "CUDA_VERSION is 11080 in the header, 11070 here"),
            ("int CUdevice", later, "it has cuCtxCreate_v4, which is dated later"),
            ("int CUdevice", unknown, "it declares cuNew, which the table neither has nor leaves out"),
        ] {
            let text = START.replace(old, new);
            assert_ne!(text, START);
            let found = faults(&text, &text);
            assert!(found.contains(&fault.to_owned()), "{fault}: {found:?}");
        }
    }

    #[test]
    fn another_signature_does_not_compile() {
        let text = START.replace("unsigned int Flags", "unsigned long Flags");
        let error = compare(&text, START).map(|_| ()).unwrap_err();
        assert!(format!("{error:#}").contains("conflicting types"), "{error:#}");
    }

    #[test]
    fn bodies_are_found_by_tag_and_by_name() {
        let (_folder, path) = written(
            "struct A { int a; union { int b; } c; }; typedef struct { int d; struct { int e; } f; } B; int g;
             int f(struct A_v1 *a, struct C_v1 *c); struct C_v1 { int h; };",
        );
        let header = Header::read(&path).unwrap();
        let names = |name: &str| {
            let mut names: Vec<_> = header.body(name).into_iter().collect();
            names.retain(|word| ["a", "b", "c", "d", "e", "f", "g", "h"].contains(word));
            names.sort_unstable();
            names.concat()
        };
        assert_eq!((names("A"), names("B"), names("C")), ("abc".to_owned(), "def".to_owned(), String::new()));
        assert_eq!((header.spelled("A"), header.spelled("B")), ("struct A".to_owned(), "B".to_owned()));
        assert_eq!(header.in_its_words("f(A_v9_v1, C_v1)"), "f ( A_v9 , C_v1 ) ");
    }
}
