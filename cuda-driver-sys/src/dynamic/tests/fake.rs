//! Shared libraries that tests compile.

use std::ffi::CString;
use std::fmt::Write;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::binding;

/// A folder in which libraries are made, deleted on drop.
pub(crate) struct Workshop(tempfile::TempDir);

/// The properties of a library to compile.
pub(crate) struct Recipe {
    /// The file's name.
    pub(crate) file: String,
    /// The name by which the loader knows it.
    pub(crate) soname: String,
    /// The version and the status that the version function gives; `None`: the library has no such function.
    pub(crate) version: Option<(i32, u32)>,
    /// The further symbols.
    pub(crate) symbols: Vec<&'static str>,
}

impl Default for Recipe {
    /// A library that loads without an error.
    fn default() -> Self {
        Self {
            file: binding::NAMES[0].to_owned(),
            soname: binding::NAMES[0].to_owned(),
            version: Some((binding::SAMPLE, 0)),
            symbols: binding::REQUIRED[1..].to_vec(),
        }
    }
}

impl Workshop {
    /// Returns `None` and prints the reason if there is no C compiler.
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

    /// Compiles the library and returns its path, with links resolved.
    pub(crate) fn make(&self, recipe: &Recipe) -> PathBuf {
        let mut source = String::new();
        if let Some((code, status)) = recipe.version {
            let name = binding::REQUIRED[0];
            let _ = writeln!(source, "int {name}(int *code) {{ *code = {code}; return {status}; }}");
        }
        for symbol in &recipe.symbols {
            let _ = writeln!(source, "int {symbol}(void) {{ return 1; }}");
        }
        self.compile(&recipe.file, &recipe.soname, &source)
    }

    /// Compiles `source` to a library.
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

    /// Writes a file.
    pub(crate) fn write(&self, file: &str, content: &[u8]) -> PathBuf {
        let path = self.0.path().join(file);
        fs::write(&path, content).expect("the file is written");
        path.canonicalize().expect("the file is there")
    }
}

/// Makes a named pipe.
pub(crate) fn make_pipe(path: &Path) {
    let path = CString::new(path.as_os_str().as_bytes()).expect("a path without a NUL");
    // SAFETY: reads a C string.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0, "the pipe is made");
}

/// The version that [`other_release`] reports.
pub(crate) const OTHER_RELEASE: i32 = binding::SAMPLE + 10;

/// A version function.
pub(crate) unsafe extern "C" fn other_release(code: *mut i32) -> u32 {
    // SAFETY: the crate passes room for one integer.
    unsafe { *code = OTHER_RELEASE };
    0
}

/// A file that is mapped for reading, until this is dropped.
pub(crate) struct Mapping(*mut libc::c_void, usize);

pub(crate) fn map_to_read(path: &Path) -> Mapping {
    let file = fs::File::open(path).expect("the file opens");
    let bytes = file.metadata().expect("the file has a size").len() as usize;
    // SAFETY: a mapping of its own, at an address of the kernel's choice.
    let at = unsafe {
        libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ, libc::MAP_PRIVATE, file.as_raw_fd(), 0)
    };
    assert_ne!(at, libc::MAP_FAILED, "the file is mapped");
    Mapping(at, bytes)
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own.
        unsafe { libc::munmap(self.0, self.1) };
    }
}

fn compiler() -> Command {
    Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
}
