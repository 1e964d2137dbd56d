//! Tests of loading. Each test that loads a library runs in a process of its own, because a library is never
//! unloaded, and because the threads of a process share the environment.

use std::ffi::{OsStr, c_int, c_void};
use std::fs;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::Barrier;

use dynload::{Features as _, Item, LoadError, Loaded, Origin, VersionFault, Why};
use libloading::os::unix::Library;
use rusty_fork::rusty_fork_test;

use crate::fake::{Recipe, Workshop};
use crate::sample::{Api, Feature, LIBRARY, NAMES, SampleResult, Table, VARIABLE, candidates, from_code};

/// The number by which the libraries of these tests report their release, 1.2.3.
const RELEASE: c_int = 1_023;

/// Sets the environment variable that [`Api::load`] reads to `path`, or removes it.
pub(crate) fn set_variable(path: Option<&Path>) {
    // SAFETY: this process runs only this one test, and no other thread uses the environment meanwhile.
    unsafe {
        match path {
            Some(path) => std::env::set_var(VARIABLE, path),
            None => std::env::remove_var(VARIABLE),
        }
    }
}

pub(crate) fn load_from(path: &Path) -> Result<Api, LoadError> {
    // SAFETY: only the version function is called, and the libraries of these tests keep its contract.
    unsafe { Api::load_from(path) }
}

/// Sets the environment variable to `path`, and loads the library that it names.
pub(crate) fn load_named(path: &Path) -> Result<Api, LoadError> {
    set_variable(Some(path));
    Api::load()
}

/// Loads a library without `dynload` and never unloads it, as another part of a program would.
fn preload(path: &Path) {
    // SAFETY: libraries of these tests have no initialisers.
    let library = unsafe { Library::new(path) }.expect("the library loads");
    std::mem::forget(library);
}

pub(crate) fn recipe() -> Recipe {
    Recipe::of(&LIBRARY, RELEASE)
}

/// Returns the error's message, followed by the messages of its sources. Panics if the message of a source is already
/// in the text before it, or if one of `words` is not in the text.
pub(crate) fn text_with(error: &LoadError, words: &[&dyn AsRef<OsStr>]) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        let further = error.to_string();
        assert!(!text.contains(&further), "{further:?} is in {text:?} already");
        text = format!("{text}: {further}");
        source = error.source();
    }
    for word in words {
        let word = word.as_ref().to_string_lossy();
        assert!(text.contains(&*word), "{word:?} is not in {text:?}");
    }
    text
}

const OTHER_RELEASE: c_int = RELEASE + 10;

/// A version function that reports `OTHER_RELEASE`.
unsafe extern "C" fn other_release(code: *mut c_int) -> SampleResult {
    // SAFETY: the caller passes room for one integer.
    unsafe { *code = OTHER_RELEASE };
    SampleResult::SAMPLE_SUCCESS
}

/// A read-only mapping of a file, unmapped on drop.
struct Mapping(*mut c_void, usize);

fn map_to_read(path: &Path) -> Mapping {
    let file = fs::File::open(path).expect("the file opens");
    let bytes = file.metadata().expect("the file has a size").len() as usize;
    // SAFETY: creates a new mapping, at an address that the kernel chooses.
    let at = unsafe {
        libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ, libc::MAP_PRIVATE, file.as_raw_fd(), 0)
    };
    assert_ne!(at, libc::MAP_FAILED, "the file is mapped");
    Mapping(at, bytes)
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and nothing uses it any more.
        unsafe { libc::munmap(self.0, self.1) };
    }
}

rusty_fork_test! {
    #[test]
    fn the_variable_names_the_file() {
        let Some(workshop) = Workshop::open() else { return };
        let path = workshop.make(&Recipe { file: "of-my-own.so".into(), ..recipe() });
        let api = load_named(&path).unwrap();
        assert_eq!(api.path(), Some(&*path));
        assert_eq!(api.version(), from_code(RELEASE));
        assert!(api.table().address(LIBRARY.required[1]).is_some());
        // Loading again returns the same copy, both by its path and without a path.
        assert_eq!(load_from(&path).unwrap().path(), Some(&*path));
        set_variable(None);
        assert_eq!(Api::load().unwrap().path(), Some(&*path));
    }

    #[test]
    fn a_wrong_path_is_an_error_and_no_reason_to_look_further() {
        let Some(workshop) = Workshop::open() else { return };
        preload(&workshop.make(&recipe()));
        let path = PathBuf::from("/nowhere/at/all.so");
        let error = load_named(&path).unwrap_err();
        assert!(matches!(error, LoadError::NoFile { .. }), "{error:?}");
        text_with(&error, &[&path, &VARIABLE, &"No such file"]);
    }

    #[test]
    fn an_empty_variable_names_nothing() {
        let Some(workshop) = Workshop::open() else { return };
        let path = workshop.make(&recipe());
        preload(&path);
        assert_eq!(load_named(Path::new("")).unwrap().path(), Some(&*path));
    }

    #[test]
    fn a_library_without_the_symbols() {
        let Some(workshop) = Workshop::open() else { return };
        let (missing, rest) = LIBRARY.required[1..].split_last().unwrap();
        let path = workshop.make(&Recipe { symbols: rest.to_vec(), ..recipe() });
        let error = load_named(&path).unwrap_err();
        assert!(matches!(&error, LoadError::MissingSymbol { symbol, .. } if symbol == missing), "{error:?}");
        text_with(&error, &[&path, &missing, &VARIABLE]);
        // The library without the symbol was closed, so another copy can be loaded.
        let Some(good) = Workshop::open() else { return };
        assert!(load_named(&good.make(&recipe())).is_ok());
    }

    #[test]
    fn a_loaded_copy_without_a_symbol_is_named() {
        let Some(workshop) = Workshop::open() else { return };
        set_variable(None);
        let (missing, rest) = LIBRARY.required[1..].split_last().unwrap();
        let path = workshop.make(&Recipe { symbols: rest.to_vec(), ..recipe() });
        preload(&path);
        text_with(&Api::load().unwrap_err(), &[&path, &missing]);
    }

    #[test]
    fn a_copy_that_is_loaded_is_taken() {
        let Some(workshop) = Workshop::open() else { return };
        set_variable(None);
        for name in NAMES.iter().rev() {
            let path = workshop.make(&Recipe {
                file: format!("{name}.d/{name}"),
                soname: (*name).to_owned(),
                ..recipe()
            });
            preload(&path);
            // `load` prefers the earlier names of the list, and the loop loads the copies from the last name to the
            // first.
            assert_eq!(Api::load().unwrap().path(), Some(&*path));
        }
        assert_eq!(Api::load().unwrap().copies().len(), NAMES.len());
    }

    #[test]
    fn a_copy_under_another_name_is_taken() {
        let Some(workshop) = Workshop::open() else { return };
        set_variable(None);
        let path = workshop.make(&Recipe { soname: "libother.so".into(), ..recipe() });
        preload(&path);
        assert_eq!(Api::load().unwrap().path(), Some(&*path));
    }

    #[test]
    fn a_second_copy_is_refused() {
        let (Some(one), Some(two)) = (Workshop::open(), Workshop::open()) else { return };
        let (loaded, wanted) = (one.make(&recipe()), two.make(&recipe()));
        preload(&loaded);
        let error = load_named(&wanted).unwrap_err();
        assert!(matches!(error, LoadError::OtherCopyLoaded { .. }), "{error:?}");
        text_with(&error, &[&loaded, &wanted, &VARIABLE]);
        let error = load_from(&wanted).unwrap_err();
        assert!(matches!(error, LoadError::OtherCopyLoaded { variable: None, .. }), "{error:?}");
        // A path that is a link to the loaded file names the same copy.
        let link = two.path().join("link.so");
        std::os::unix::fs::symlink(&loaded, &link).unwrap();
        let api = load_named(&link).unwrap();
        assert_eq!(api.path(), Some(&*loaded));
        assert_eq!(api.copies(), [loaded]);
    }

    #[test]
    fn a_file_that_is_only_read_is_no_copy() {
        let (Some(one), Some(two)) = (Workshop::open(), Workshop::open()) else { return };
        let (read, wanted) = (one.make(&recipe()), two.make(&recipe()));
        let mapping = map_to_read(&read);
        assert_eq!(load_from(&wanted).unwrap().copies(), [wanted]);
        drop(mapping);
    }

    #[test]
    fn a_copy_that_was_replaced_on_disk_is_another() {
        let Some(workshop) = Workshop::open() else { return };
        let recipe = recipe();
        let path = workshop.make(&recipe);
        preload(&path);
        fs::remove_file(&path).unwrap();
        assert_eq!(workshop.make(&recipe), path);
        let error = load_from(&path).unwrap_err();
        assert!(matches!(&error, LoadError::OtherCopyLoaded { loaded, .. } if *loaded == path), "{error:?}");
    }

    #[test]
    fn a_copy_out_of_reach_is_not_doubled() {
        let Some(workshop) = Workshop::open() else { return };
        set_variable(None);
        let path = workshop.make(&Recipe { soname: "libother.so".into(), ..recipe() });
        let link = workshop.path().join("link.so");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        // The loader knows the copy by the path of the link. `/proc/self/maps` has only the path of the file, which
        // is deleted next. So `dlopen` does not find the copy by that path.
        preload(&link);
        fs::remove_file(&path).unwrap();
        let error = Api::load().unwrap_err();
        assert!(matches!(error, LoadError::OutOfReach { .. }), "{error:?}");
        text_with(&error, &[&path]);
    }

    #[test]
    fn the_copies_on_this_host_are_listed_with_every_way_to_them() {
        let Some(workshop) = Workshop::open() else { return };
        let name = NAMES[0];
        let make = |folder: &str| {
            let soname = format!("{folder}.so");
            workshop.make(&Recipe { file: format!("{folder}/{name}"), soname, ..recipe() })
        };
        let (named, loaded, found) = (make("named"), make("loaded"), make("found"));
        let mut foreign = fs::read(make("foreign")).unwrap();
        // Byte 18 belongs to `e_machine`, the processor in the ELF header. The file now is for another processor.
        foreign[18] ^= 0xff;
        fs::write(workshop.path().join("foreign").join(name), foreign).unwrap();
        preload(&loaded);
        set_variable(Some(&named));
        let folders = ["foreign", "found", "loaded", "missing"].map(|folder| workshop.path().join(folder));
        // SAFETY: as in `set_variable`.
        unsafe { std::env::set_var("LD_LIBRARY_PATH", std::env::join_paths(folders).unwrap()) };
        let mut candidates = candidates();
        candidates.retain(|candidate| candidate.path.starts_with(workshop.path().canonicalize().unwrap()));
        let candidates: Vec<_> = candidates.into_iter().map(|found| (found.path, found.origins)).collect();
        assert_eq!(candidates, [
            (named, vec![Origin::Variable(VARIABLE)]),
            (loaded, vec![Origin::Loaded, Origin::LibraryPath]),
            (found, vec![Origin::LibraryPath]),
        ]);
    }

    #[test]
    fn nothing_found_lists_what_was_tried() {
        set_variable(None);
        let error = match Api::load() {
            Ok(api) => {
                let path = api.path().map_or_else(Default::default, |path| path.display().to_string());
                println!("skipped: a library is found on this machine: {path}");
                return;
            }
            Err(error) => error,
        };
        assert!(matches!(error, LoadError::NotFound { .. }), "{error:?}");
        let text = text_with(&error, &[&VARIABLE, &"cannot open shared object file"]);
        assert!(NAMES.iter().all(|name| text.contains(&format!("\n  {name}: "))), "{text}");
    }

    #[test]
    fn a_library_that_does_not_say_its_release() {
        let Some(workshop) = Workshop::open() else { return };
        let cases = [((RELEASE, 3), "answered 3"), ((0, 0), "said 0"), ((-7, 0), "said -7")];
        for (index, (version, words)) in cases.into_iter().enumerate() {
            let path = workshop.make(&Recipe {
                file: format!("{index}.so"),
                soname: format!("{index}.so"),
                version: (LIBRARY.required[0], version.0, version.1),
                ..recipe()
            });
            let error = load_named(&path).unwrap_err();
            assert!(matches!(error, LoadError::Version { .. }), "{error:?}");
            text_with(&error, &[&path, &words, &LIBRARY.required[0], &VARIABLE]);
        }
    }

    #[test]
    fn a_library_that_writes_no_release() {
        let Some(workshop) = Workshop::open() else { return };
        let symbols = LIBRARY.required.iter().map(|name| format!("int {name}(void) {{ return 0; }}\n"));
        let path = workshop.compile(NAMES[0], NAMES[0], &symbols.collect::<String>());
        let error = load_named(&path).unwrap_err();
        let nonsense = VersionFault::Nonsense { function: LIBRARY.required[0], code: 0 };
        assert!(matches!(error, LoadError::Version { fault, .. } if fault == nonsense), "{error:?}");
    }

    #[test]
    fn a_library_that_lies_about_its_release() {
        let Some(workshop) = Workshop::open() else { return };
        let path = workshop.make(&Recipe { version: (LIBRARY.required[0], 99_000, 0), ..recipe() });
        let api = load_named(&path).unwrap();
        // Features without functions are left out: they depend on the release alone, so the library has them.
        for requirement in Feature::REQUIREMENTS.iter().filter(|needs| !needs.functions.is_empty()) {
            let missing = api.require(Feature::from_bits_retain(requirement.bit)).unwrap_err();
            assert!(matches!(missing.why, Why::NoSymbol(_)), "{missing:?}");
            assert!(missing.to_string().contains(&path.display().to_string()), "{missing}");
        }
    }

    #[test]
    fn threads_that_load_at_once_get_one_copy() {
        let (Some(one), Some(two)) = (Workshop::open(), Workshop::open()) else { return };
        let paths = [one.make(&recipe()), two.make(&recipe())];
        set_variable(None);
        // Half of the threads load one copy, and half the other. The first thread succeeds, and so does every thread
        // that loads the same copy. The others get an error.
        let barrier = Barrier::new(16);
        let (barrier, wanted) = (&barrier, &paths);
        let loaded: Vec<_> = std::thread::scope(|scope| {
            let load = |thread: usize| {
                barrier.wait();
                (thread, load_from(&wanted[thread % 2]))
            };
            let threads: Vec<_> = (0..16).map(|thread| scope.spawn(move || load(thread))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let copies = Api::load().unwrap().copies();
        assert_eq!(copies.len(), 1);
        for (thread, api) in loaded {
            match api {
                Ok(api) => assert_eq!((api.path(), &paths[thread % 2]), (Some(&*copies[0]), &copies[0])),
                Err(LoadError::OtherCopyLoaded { wanted, loaded, .. }) => {
                    assert_eq!((&wanted, &loaded), (&paths[thread % 2], &copies[0]));
                    assert_ne!(wanted, loaded);
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    #[test]
    fn two_users_in_one_process_do_not_meet() {
        let Some(workshop) = Workshop::open() else { return };
        let path = workshop.make(&recipe());
        let loaded = load_named(&path).unwrap();
        // The second user's functions report another release, and come from no file.
        // SAFETY: only the version function is called, and it keeps its declaration.
        let other = unsafe {
            let table = Table::from_addresses(|function| match function.name == LIBRARY.required[0] {
                true => other_release as *const c_void,
                false => std::ptr::null(),
            });
            Api::from_parts(table).unwrap()
        };
        assert_eq!((loaded.version(), loaded.path()), (from_code(RELEASE), Some(&*path)));
        assert_eq!((other.version(), other.path()), (from_code(OTHER_RELEASE), None));
        assert!(loaded.table().address(LIBRARY.required[1]).is_some());
        assert!(other.table().address(LIBRARY.required[1]).is_none());
        // Dropping the first user's handle affects neither the loaded library nor the second user.
        drop(loaded);
        assert_eq!(Api::load().unwrap().path(), Some(&*path));
        assert_eq!(other.version(), from_code(OTHER_RELEASE));
    }

    #[test]
    fn a_packaged_file_that_is_cut_off_is_passed_over() {
        let Some(workshop) = Workshop::open() else { return };
        set_variable(None);
        let path = workshop.make(&Recipe { file: "whole.so".into(), ..recipe() });
        let (whole, cut) = (fs::read(&path).unwrap(), workshop.path().join("cut.so"));
        fs::write(&cut, &whole[..whole.len() / 2]).unwrap();
        // SAFETY: libraries of these tests keep the declarations of the table.
        let load = |files| unsafe { Loaded::<Table>::load_with(|| files) };
        let error = load(vec![cut.clone()]).unwrap_err();
        text_with(&error, &[&cut, &"cut off"]);
        assert_eq!(load(vec![cut, path.clone()]).unwrap().path(), Some(&*path));
    }

    #[test]
    fn a_loader_of_ones_own() {
        let Some(workshop) = Workshop::open() else { return };
        let path = workshop.make(&Recipe { file: "own.so".into(), ..recipe() });
        // SAFETY: libraries of these tests have no initialisers.
        let library = unsafe { Library::new(&path) }.unwrap();
        let symbol = |name: &std::ffi::CStr| {
            // SAFETY: only the address is taken.
            unsafe { library.get::<*const c_void>(name.to_bytes_with_nul()) }
                .map_or(std::ptr::null(), |symbol| symbol.into_raw().cast_const())
        };
        // SAFETY: the library stays open for this test; only its version function is called.
        let api = unsafe { Api::from_loader(symbol) }.unwrap();
        assert_eq!((api.path(), api.version()), (Some(&*path), from_code(RELEASE)));
        // SAFETY: every address is null, so nothing is called.
        let error = unsafe { Api::from_loader(|_| std::ptr::null()) }.unwrap_err();
        assert!(matches!(error, LoadError::MissingSymbol { path: None, .. }), "{error:?}");
    }
}

#[test]
fn an_empty_table_does_not_say_its_release() {
    // SAFETY: an empty table holds nothing that could be called.
    let error = unsafe { Api::from_parts(Table::default()) }.unwrap_err();
    let absent = VersionFault::Absent(LIBRARY.required[0]);
    assert!(matches!(&error, LoadError::Version { path: None, fault, .. } if *fault == absent), "{error:?}");
}

#[test]
fn an_item_says_its_name() {
    assert_eq!(Item::Function("f").to_string(), "`f`");
    assert_eq!(Item::Field { structure: "s", field: "f" }.to_string(), "`s.f`");
}
