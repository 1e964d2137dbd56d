//! Tests of the checks that `dynload` makes of a file before it loads the file.

use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use dynload::{FileFault, LoadError};
use rusty_fork::rusty_fork_test;

use crate::fake::Workshop;
use crate::loading::{load_from, load_named, recipe, text_with};
use crate::sample::VARIABLE;

fn write(workshop: &Workshop, file: &str, content: &[u8]) -> PathBuf {
    let path = workshop.path().join(file);
    fs::write(&path, content).expect("the file is written");
    path.canonicalize().expect("the file is there")
}

/// Makes a named pipe.
fn make_pipe(path: &Path) {
    let path = CString::new(path.as_os_str().as_bytes()).expect("a path without a NUL");
    // SAFETY: `mkfifo` only reads the C string.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0, "the pipe is made");
}

rusty_fork_test! {
    #[test]
    fn a_file_that_is_no_library_is_not_loaded() {
        let Some(workshop) = Workshop::open() else { return };
        let library = fs::read(workshop.make(&recipe())).unwrap();
        let changed = |at: usize, to: u8| {
            let mut library = library.clone();
            library[at] = to;
            library
        };
        let pipe = workshop.path().join("pipe.so");
        make_pipe(&pipe);
        let cases = [
            (workshop.path().to_path_buf(), "not a regular file"),
            (pipe, "not a regular file"),
            (write(&workshop, "text.so", b"not a library, whatever its name says"), "not an ELF file"),
            (write(&workshop, "empty.so", b""), "not an ELF file: it starts with []"),
            (write(&workshop, "class.so", &changed(4, 1)), "built for another machine: ELF class 1"),
            (write(&workshop, "machine.so", &changed(18, 8)), "expected"),
            (write(&workshop, "object.so", &changed(16, 1)), "ELF type 1; expected 3"),
            (write(&workshop, "program.so", &changed(16, 2)), "ELF type 2; expected 3"),
        ];
        for (path, words) in cases {
            let error = load_named(&path).unwrap_err();
            assert!(matches!(error, LoadError::InvalidFile { .. }), "{error:?}");
            text_with(&error, &[&path, &VARIABLE, &words]);
            let error = load_from(&path).unwrap_err();
            assert!(matches!(error, LoadError::InvalidFile { variable: None, .. }), "{error:?}");
        }
    }

    #[test]
    fn a_library_that_is_cut_off_is_not_loaded() {
        let Some(workshop) = Workshop::open() else { return };
        // Large enough that segments lie beyond the first page. The loader would fault on a segment that is cut off.
        let array = "static char data[1 << 20] = {1}; char *get(void) { return data; }";
        let library = fs::read(workshop.compile("whole.so", "whole.so", array)).unwrap();
        for parts in 1..32 {
            let length = library.len() * parts / 32;
            let path = write(&workshop, "cut.so", &library[..length]);
            match load_from(&path) {
                Err(LoadError::InvalidFile { fault: FileFault::Truncated { expected, found }, .. }) => {
                    assert_eq!(found, length as u64);
                    assert!(expected > found && expected <= library.len() as u64, "{expected}");
                }
                // The part that is cut off is not read by the loader, so the library loads. It then lacks the
                // symbols.
                Err(LoadError::MissingSymbol { .. }) if parts > 16 => {}
                other => panic!("{length} of {} bytes: {other:?}", library.len()),
            }
        }
    }

    #[test]
    fn a_header_that_is_cut_off_is_no_library() {
        let Some(workshop) = Workshop::open() else { return };
        let library = fs::read(workshop.make(&recipe())).unwrap();
        for length in 4..64 {
            let error = load_from(&write(&workshop, "cut.so", &library[..length])).unwrap_err();
            let expected = FileFault::Truncated { expected: 64, found: length as u64 };
            assert!(matches!(&error, LoadError::InvalidFile { fault, .. } if *fault == expected), "{error:?}");
        }
    }
}
