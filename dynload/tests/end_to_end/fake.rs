//! Shared libraries that tests compile.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use dynload::Library;

/// A temporary folder in which libraries are compiled, deleted on drop.
pub(crate) struct Workshop(tempfile::TempDir);

/// The properties of a library to compile.
pub(crate) struct Recipe {
    /// The path of the file, relative to the folder of the [`Workshop`].
    pub(crate) file: String,
    /// The SONAME, by which the loader finds a library that is loaded already.
    pub(crate) soname: String,
    /// The name of the version function, the number that it writes for the release, and the status that it returns.
    pub(crate) version: (&'static str, i32, u32),
    /// The names of the other functions that the library exports.
    pub(crate) symbols: Vec<&'static str>,
}

impl Recipe {
    /// Describes a copy of `library` that loads without an error. `version` is the number that it writes for its
    /// release.
    pub(crate) fn of(library: &Library, version: i32) -> Self {
        Self {
            file: library.names[0].to_owned(),
            soname: library.names[0].to_owned(),
            version: (library.required[0], version, 0),
            symbols: library.required[1..].to_vec(),
        }
    }
}

impl Workshop {
    /// Creates the folder. Returns `None` and prints the reason if there is no C compiler.
    pub(crate) fn open() -> Option<Self> {
        if let Err(error) = compiler().arg("--version").output() {
            println!("skipped: no C compiler ({error})");
            return None;
        }
        Some(Self(tempfile::tempdir().expect("a temporary folder")))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Compiles the library and returns its path, with symbolic links resolved.
    pub(crate) fn make(&self, recipe: &Recipe) -> PathBuf {
        let (name, code, status) = recipe.version;
        let mut source = format!("int {name}(int *code) {{ *code = {code}; return {status}; }}\n");
        for symbol in &recipe.symbols {
            let _ = writeln!(source, "int {symbol}(void) {{ return 1; }}");
        }
        self.compile(&recipe.file, &recipe.soname, &source)
    }

    /// Compiles the C code `source` to a library, and returns its path as [`make`](Self::make) does. `file` is
    /// relative to the folder.
    pub(crate) fn compile(&self, file: &str, soname: &str, source: &str) -> PathBuf {
        let target = self.0.path().join(file);
        let text = target.with_extension("c");
        fs::create_dir_all(text.parent().expect("a file lies in a folder")).expect("a folder is made");
        fs::write(&text, source).expect("the source is written");
        let mut cc = compiler();
        cc.args(["-shared", "-fPIC", &format!("-Wl,-soname,{soname}"), "-o"]).arg(&target).arg(&text);
        assert!(cc.status().expect("a C compiler runs").success(), "{cc:?}");
        target.canonicalize().expect("the library is there")
    }
}

fn compiler() -> Command {
    Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
}
