//! A C program that compares a header with what is said of it.

use std::ffi::OsString;
use std::fmt::{Display, Write};
use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

/// Comparisons, to be compiled with the header.
pub(super) struct Program {
    /// The header, as the program includes it.
    header: &'static str,
    /// Declarations of functions, which C refuses unless they agree with the header's.
    prototypes: String,
    checks: String,
    /// How many comparisons there are.
    pub(super) count: usize,
}

impl Program {
    /// None yet, with `header`: `nccl.h`.
    pub(super) fn new(header: &'static str) -> Self {
        Self { header, prototypes: String::new(), checks: String::new(), count: 0 }
    }

    /// `expression`, in C, must be `value`.
    pub(super) fn check(&mut self, expression: &str, value: impl Display) {
        let _ = writeln!(self.checks, "  check(\"{expression}\", (long long)({expression}), {value}LL);");
        self.count += 1;
    }

    /// The header must declare a function so.
    pub(super) fn declare(&mut self, prototype: &str) {
        let _ = writeln!(self.prototypes, "{prototype};");
        self.count += 1;
    }

    fn source(&self) -> String {
        format!(
            "#include <stddef.h>\n#include <stdio.h>\n#include <{}>\n\
             static void check(const char *what, long long found, long long wanted) {{\n\
             \x20 if (found != wanted) printf(\"%s is %lld in the header, %lld here\\n\", what, found, wanted);\n}}\n\
             {}int main(void) {{\n{}  return 0;\n}}\n",
            self.header, self.prototypes, self.checks
        )
    }

    /// Compiles and runs the program; what it found different.
    pub(super) fn run(&self, arguments: &[OsString]) -> Result<Vec<String>> {
        let folder = tempfile::tempdir()?;
        let (source, binary) = (folder.path().join("check.c"), folder.path().join("check"));
        fs::write(&source, self.source())?;
        let mut cc = compiler();
        cc.args(["-std=gnu11", "-w"]).args(arguments).arg("-o").arg(&binary).arg(&source);
        let output = cc.output().context("running the C compiler; is `cc` installed?")?;
        if !output.status.success() {
            bail!(
                "the header does not compile, or declares a function otherwise than the table:\n{}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
        let output = Command::new(&binary).output()?;
        ensure!(output.status.success(), "the C program failed: {}", output.status);
        Ok(String::from_utf8(output.stdout)?.lines().map(str::to_owned).collect())
    }
}

/// The C compiler.
pub(super) fn compiler() -> Command {
    Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
}
