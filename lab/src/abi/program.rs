//! A C or C++ program that compares a header with the crate's tables.

use std::ffi::OsString;
use std::fmt::{Display, Write};
use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

/// Language in which a program is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Language {
    C,
    Cpp,
}

/// Comparisons, to be compiled with the header.
pub(super) struct Program {
    language: Language,
    /// The header, as the program includes it.
    header: &'static str,
    /// Declarations of functions. The compiler rejects them unless they agree with the header's.
    prototypes: String,
    checks: String,
    /// Number of comparisons.
    pub(super) count: usize,
}

impl Program {
    /// Starts a program without comparisons that includes `header`, such as `nccl.h`.
    pub(super) fn new(language: Language, header: &'static str) -> Self {
        Self { language, header, prototypes: String::new(), checks: String::new(), count: 0 }
    }

    /// Adds the comparison of the C expression `expression` with `value`.
    pub(super) fn check(&mut self, expression: &str, value: impl Display) {
        let _ = writeln!(self.checks, "  check(\"{expression}\", (long long)({expression}), {value}LL);");
        self.count += 1;
    }

    /// Adds the check that the header declares a function with this prototype.
    pub(super) fn declare(&mut self, prototype: &str) {
        let linkage = if self.language == Language::Cpp { "extern \"C\" " } else { "" };
        let _ = writeln!(self.prototypes, "{linkage}{prototype};");
        self.count += 1;
    }

    /// Adds a definition that expressions use. Call it before the first of them.
    pub(super) fn define(&mut self, definition: &str) {
        let _ = writeln!(self.prototypes, "{definition};");
    }

    fn source(&self) -> String {
        format!(
            "#include <stddef.h>\n#include <stdio.h>\n#include <{}>\n\
             static void check(const char *what, long long found, long long wanted) {{\n\
             \x20 if (found != wanted) printf(\"%s is %lld in the header, %lld here\\n\", what, found, wanted);\n}}\n\
             /* Of any bytes a number, by which two differ. */\n\
             static unsigned long long bytes(const void *at, size_t count) {{\n\
             \x20 unsigned long long sum = 0;\n\
             \x20 for (size_t i = 0; i < count; ++i) sum = sum * 257 + ((const unsigned char *)at)[i];\n\
             \x20 return sum;\n}}\n\
             {}int main(void) {{\n{}  return 0;\n}}\n",
            self.header, self.prototypes, self.checks
        )
    }

    /// Compiles and runs the program. Returns the differences that it found.
    pub(super) fn run(&self, arguments: &[OsString]) -> Result<Vec<String>> {
        let folder = tempfile::tempdir()?;
        let name = match self.language {
            Language::C => "check.c",
            Language::Cpp => "check.cc",
        };
        let (source, binary) = (folder.path().join(name), folder.path().join("check"));
        fs::write(&source, self.source())?;
        let mut cc = compiler(self.language)?;
        cc.args(arguments).arg("-o").arg(&binary).arg(&source);
        let output = cc.output().context("cannot run the compiler")?;
        if !output.status.success() {
            bail!(
                "the header does not compile, or declares a function otherwise than the table:\n{}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
        let output = Command::new(&binary).output()?;
        ensure!(output.status.success(), "the program failed: {}", output.status);
        Ok(String::from_utf8(output.stdout)?.lines().map(str::to_owned).collect())
    }
}

/// The host's compiler of a language, or the one that `CC` or `CXX` names, without warnings.
pub(super) fn compiler(language: Language) -> Result<Command> {
    let host = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut build = cc::Build::new();
    build.host(&host).target(&host).opt_level(0).warnings(false).cargo_metadata(false);
    match language {
        Language::C => build.std("gnu11"),
        Language::Cpp => build.cpp(true).std("gnu++17"),
    };
    Ok(build.try_get_compiler().context("no compiler for C and C++ is installed")?.to_command())
}
