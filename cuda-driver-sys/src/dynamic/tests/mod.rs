//! Loading, in processes of its own: a library stays loaded, and the environment is one per process.

pub(crate) mod fake;
mod properties;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Barrier;

use fake::{Recipe, Workshop};
use libloading::os::unix::Library;
use rusty_fork::rusty_fork_test;

use crate::{
    Api, Candidate, FileFault, Item, LoadError, Origin, Table, Version, VersionFault, Why, binding,
    candidates,
};

/// Names the library for [`Api::load`], or names none.
fn set_variable(path: Option<&Path>) {
    // SAFETY: this process runs this one test, and nothing of it reads the environment meanwhile.
    unsafe {
        match path {
            Some(path) => std::env::set_var(binding::VARIABLE, path),
            None => std::env::remove_var(binding::VARIABLE),
        }
    }
}

fn load_from(path: &Path) -> Result<Api, LoadError> {
    // SAFETY: libraries of these tests keep the contracts of what is called, which is the version function alone.
    unsafe { Api::load_from(path) }
}

/// Loads the library with the variable naming `path`.
fn load_named(path: &Path) -> Result<Api, LoadError> {
    set_variable(Some(path));
    Api::load()
}

/// Maps a library for good, as another part of a program would.
fn preload(path: &Path) {
    // SAFETY: libraries of these tests have no initialisers.
    let library = unsafe { Library::new(path) }.expect("the library loads");
    std::mem::forget(library);
}

fn sample() -> Version {
    Version::from_code(binding::SAMPLE)
}

/// An error's text with that of its sources, none of which repeats another; it must name all of `words`.
fn text_with(error: &LoadError, words: &[&dyn AsRef<OsStr>]) -> String {
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

rusty_fork_test! {
    #[test]
    fn the_variable_names_the_file() {
        let Some(workshop) = Workshop::open() else { return };
        let path = workshop.make(&Recipe { file: "of-my-own.so".into(), ..Recipe::default() });
        let api = load_named(&path).unwrap();
        assert_eq!(api.path(), Some(&*path));
        assert_eq!(api.version(), sample());
        assert!(api.table().address(binding::REQUIRED[1]).is_some());
        // Loading again, by whatever way, is the same copy.
        assert_eq!(load_from(&path).unwrap().path(), Some(&*path));
        set_variable(None);
        assert_eq!(Api::load().unwrap().path(), Some(&*path));
    }

    #[test]
    fn a_wrong_path_is_an_error_and_no_reason_to_look_further() {
        let Some(workshop) = Workshop::open() else { return };
        preload(&workshop.make(&Recipe::default()));
        let path = PathBuf::from("/nowhere/at/all.so");
        let error = load_named(&path).unwrap_err();
        assert!(matches!(error, LoadError::NoFile { .. }), "{error:?}");
        text_with(&error, &[&path, &binding::VARIABLE, &"No such file"]);
    }

    #[test]
    fn an_empty_variable_names_nothing() {
        let Some(workshop) = Workshop::open() else { return };
        let path = workshop.make(&Recipe::default());
        preload(&path);
        assert_eq!(load_named(Path::new("")).unwrap().path(), Some(&*path));
    }

    #[test]
    fn a_file_that_is_no_library_is_not_loaded() {
        let Some(workshop) = Workshop::open() else { return };
        let library = std::fs::read(workshop.make(&Recipe::default())).unwrap();
        let changed = |at: usize, to: u8| {
            let mut library = library.clone();
            library[at] = to;
            library
        };
        let pipe = workshop.path().join("pipe.so");
        fake::make_pipe(&pipe);
        let cases = [
            (workshop.path().to_path_buf(), "not a regular file"),
            (pipe, "not a regular file"),
            (workshop.write("text.so", b"not a library, whatever its name says"), "not an ELF file"),
            (workshop.write("empty.so", b""), "not an ELF file: it starts with []"),
            (workshop.write("class.so", &changed(4, 1)), "built for another machine: ELF class 1"),
            (workshop.write("machine.so", &changed(18, 8)), "expected"),
            (workshop.write("object.so", &changed(16, 1)), "ELF type 1; expected 3"),
            (workshop.write("program.so", &changed(16, 2)), "ELF type 2; expected 3"),
        ];
        for (path, words) in cases {
            let error = load_named(&path).unwrap_err();
            assert!(matches!(error, LoadError::InvalidFile { .. }), "{error:?}");
            text_with(&error, &[&path, &binding::VARIABLE, &words]);
            let error = load_from(&path).unwrap_err();
            assert!(matches!(error, LoadError::InvalidFile { variable: None, .. }), "{error:?}");
        }
    }

    #[test]
    fn a_library_that_is_cut_off_is_not_loaded() {
        let Some(workshop) = Workshop::open() else { return };
        // Large enough for segments beyond the first page, on which the loader faults if they are not there.
        let array = "static char data[1 << 20] = {1}; char *get(void) { return data; }";
        let library = std::fs::read(workshop.compile("whole.so", "whole.so", array)).unwrap();
        for parts in 1..32 {
            let length = library.len() * parts / 32;
            let path = workshop.write("cut.so", &library[..length]);
            match load_from(&path) {
                Err(LoadError::InvalidFile { fault: FileFault::Truncated { expected, found }, .. }) => {
                    assert_eq!(found, length as u64);
                    assert!(expected > found && expected <= library.len() as u64, "{expected}");
                }
                // Only what the loader does not read is cut off.
                Err(LoadError::MissingSymbol { .. }) if parts > 16 => {}
                other => panic!("{length} of {} bytes: {other:?}", library.len()),
            }
        }
    }

    #[test]
    fn a_header_that_is_cut_off_is_no_library() {
        let Some(workshop) = Workshop::open() else { return };
        let library = std::fs::read(workshop.make(&Recipe::default())).unwrap();
        for length in 4..64 {
            let error = load_from(&workshop.write("cut.so", &library[..length])).unwrap_err();
            let expected = FileFault::Truncated { expected: 64, found: length as u64 };
            assert!(matches!(&error, LoadError::InvalidFile { fault, .. } if *fault == expected), "{error:?}");
        }
    }

    #[test]
    fn a_library_without_the_symbols() {
        let Some(workshop) = Workshop::open() else { return };
        let (missing, rest) = binding::REQUIRED[1..].split_last().unwrap();
        let path = workshop.make(&Recipe { symbols: rest.to_vec(), ..Recipe::default() });
        let error = load_named(&path).unwrap_err();
        assert!(matches!(&error, LoadError::MissingSymbol { symbol, .. } if symbol == missing), "{error:?}");
        text_with(&error, &[&path, &missing, &binding::VARIABLE]);
        // It was closed: another one can be loaded.
        let Some(good) = Workshop::open() else { return };
        assert!(load_named(&good.make(&Recipe::default())).is_ok());
    }

    #[test]
    fn a_copy_that_is_loaded_is_taken() {
        let Some(workshop) = Workshop::open() else { return };
        set_variable(None);
        for name in binding::NAMES.iter().rev() {
            let path = workshop.make(&Recipe {
                file: format!("{name}.d/{name}"),
                soname: (*name).to_owned(),
                ..Recipe::default()
            });
            preload(&path);
            // The later in the list was loaded first, and is left for the earlier.
            assert_eq!(Api::load().unwrap().path(), Some(&*path));
        }
        assert_eq!(Api::load().unwrap().copies().len(), binding::NAMES.len());
    }

    #[test]
    fn a_copy_under_another_name_is_taken() {
        let Some(workshop) = Workshop::open() else { return };
        set_variable(None);
        let path = workshop.make(&Recipe { soname: "libother.so".into(), ..Recipe::default() });
        preload(&path);
        assert_eq!(Api::load().unwrap().path(), Some(&*path));
    }

    #[test]
    fn a_second_copy_is_refused() {
        let (Some(one), Some(two)) = (Workshop::open(), Workshop::open()) else { return };
        let (loaded, wanted) = (one.make(&Recipe::default()), two.make(&Recipe::default()));
        preload(&loaded);
        let error = load_named(&wanted).unwrap_err();
        assert!(matches!(error, LoadError::OtherCopyLoaded { .. }), "{error:?}");
        text_with(&error, &[&loaded, &wanted, &binding::VARIABLE]);
        let error = load_from(&wanted).unwrap_err();
        assert!(matches!(error, LoadError::OtherCopyLoaded { variable: None, .. }), "{error:?}");
        // The same file by another name is the same copy.
        let link = two.path().join("link.so");
        std::os::unix::fs::symlink(&loaded, &link).unwrap();
        let api = load_named(&link).unwrap();
        assert_eq!(api.path(), Some(&*loaded));
        assert_eq!(api.copies(), [loaded]);
    }

    #[test]
    fn a_file_that_is_only_read_is_no_copy() {
        let (Some(one), Some(two)) = (Workshop::open(), Workshop::open()) else { return };
        let (read, wanted) = (one.make(&Recipe::default()), two.make(&Recipe::default()));
        let mapping = fake::map_to_read(&read);
        assert_eq!(load_from(&wanted).unwrap().copies(), [wanted]);
        drop(mapping);
    }

    #[test]
    fn a_copy_that_was_replaced_on_disk_is_another() {
        let Some(workshop) = Workshop::open() else { return };
        let recipe = Recipe::default();
        let path = workshop.make(&recipe);
        preload(&path);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(workshop.make(&recipe), path);
        let error = load_from(&path).unwrap_err();
        assert!(matches!(&error, LoadError::OtherCopyLoaded { loaded, .. } if *loaded == path), "{error:?}");
    }

    #[test]
    fn a_copy_out_of_reach_is_not_doubled() {
        let Some(workshop) = Workshop::open() else { return };
        set_variable(None);
        let path = workshop.make(&Recipe { soname: "libother.so".into(), ..Recipe::default() });
        let link = workshop.path().join("link.so");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        // The loader knows it by the link's name, and the file is gone.
        preload(&link);
        std::fs::remove_file(&path).unwrap();
        let error = Api::load().unwrap_err();
        assert!(matches!(error, LoadError::OutOfReach { .. }), "{error:?}");
        text_with(&error, &[&path]);
    }

    #[test]
    fn the_copies_on_this_host_are_listed_with_every_way_to_them() {
        let Some(workshop) = Workshop::open() else { return };
        let name = binding::NAMES[0];
        let make = |folder: &str| {
            let soname = format!("{folder}.so");
            workshop.make(&Recipe { file: format!("{folder}/{name}"), soname, ..Recipe::default() })
        };
        let (named, loaded, found) = (make("named"), make("loaded"), make("found"));
        let mut foreign = std::fs::read(make("foreign")).unwrap();
        // Another processor, e_machine of an ELF header.
        foreign[18] ^= 0xff;
        std::fs::write(workshop.path().join("foreign").join(name), foreign).unwrap();
        preload(&loaded);
        set_variable(Some(&named));
        let folders = ["foreign", "found", "loaded", "missing"].map(|folder| workshop.path().join(folder));
        // SAFETY: as of `set_variable`.
        unsafe { std::env::set_var("LD_LIBRARY_PATH", std::env::join_paths(folders).unwrap()) };
        let mut candidates = candidates();
        candidates.retain(|candidate| candidate.path.starts_with(workshop.path().canonicalize().unwrap()));
        let candidate = |path, origins: &[Origin]| Candidate { path, origins: origins.to_vec() };
        assert_eq!(candidates, [
            candidate(named, &[Origin::Variable]),
            candidate(loaded, &[Origin::Loaded, Origin::LibraryPath]),
            candidate(found, &[Origin::LibraryPath]),
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
        let text = text_with(&error, &[&binding::VARIABLE, &"cannot open shared object file"]);
        assert!(binding::NAMES.iter().all(|name| text.contains(&format!("\n  {name}: "))), "{text}");
    }

    #[test]
    fn a_library_that_does_not_say_its_release() {
        let Some(workshop) = Workshop::open() else { return };
        let cases = [((binding::SAMPLE, 3), "answered 3"), ((0, 0), "said 0"), ((-7, 0), "said -7")];
        for (index, (version, words)) in cases.into_iter().enumerate() {
            let path = workshop.make(&Recipe {
                file: format!("{index}.so"),
                soname: format!("{index}.so"),
                version: Some(version),
                ..Recipe::default()
            });
            let error = load_named(&path).unwrap_err();
            assert!(matches!(error, LoadError::Version { .. }), "{error:?}");
            text_with(&error, &[&path, &words, &binding::REQUIRED[0], &binding::VARIABLE]);
        }
    }

    #[test]
    fn a_library_that_writes_no_release() {
        let Some(workshop) = Workshop::open() else { return };
        let symbols = binding::REQUIRED.iter().map(|name| format!("int {name}(void) {{ return 0; }}\n"));
        let path = workshop.compile(binding::NAMES[0], binding::NAMES[0], &symbols.collect::<String>());
        let error = load_named(&path).unwrap_err();
        let nonsense = VersionFault::Nonsense { function: binding::REQUIRED[0], code: 0 };
        assert!(matches!(error, LoadError::Version { fault, .. } if fault == nonsense), "{error:?}");
    }

    #[test]
    fn a_library_that_lies_about_its_release() {
        let Some(workshop) = Workshop::open() else { return };
        let path = workshop.make(&Recipe { version: Some((99_000, 0)), ..Recipe::default() });
        let api = load_named(&path).unwrap();
        // A feature that is but a value rests on the release alone.
        for requirement in crate::feature::REQUIREMENTS.iter().filter(|needs| !needs.functions.is_empty()) {
            let missing = api.require(requirement.feature).unwrap_err();
            assert!(matches!(missing.why, Why::NoSymbol(_)), "{missing:?}");
            assert!(missing.to_string().contains(&path.display().to_string()), "{missing}");
        }
    }

    #[test]
    fn threads_that_load_at_once_get_one_copy() {
        let (Some(one), Some(two)) = (Workshop::open(), Workshop::open()) else { return };
        let paths = [one.make(&Recipe::default()), two.make(&Recipe::default())];
        set_variable(None);
        // Each wants its own of two copies: the first to come gets it, and all who want that one.
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
        let path = workshop.make(&Recipe::default());
        let loaded = load_named(&path).unwrap();
        // Another user's functions, of another release, from no file.
        // SAFETY: all that is called has its own signature.
        let other = unsafe {
            let table = Table::resolve(|function| match function.name == binding::REQUIRED[0] {
                true => fake::other_release as *const std::ffi::c_void,
                false => std::ptr::null(),
            });
            Api::from_parts(table).unwrap()
        };
        assert_eq!((loaded.version(), loaded.path()), (sample(), Some(&*path)));
        assert_eq!((other.version(), other.path()), (Version::from_code(fake::OTHER_RELEASE), None));
        assert!(loaded.table().address(binding::REQUIRED[1]).is_some());
        assert!(other.table().address(binding::REQUIRED[1]).is_none());
        // The one's end does not touch the other.
        drop(loaded);
        assert_eq!(Api::load().unwrap().path(), Some(&*path));
        assert_eq!(other.version(), Version::from_code(fake::OTHER_RELEASE));
    }

    #[test]
    fn a_loader_of_ones_own() {
        let Some(workshop) = Workshop::open() else { return };
        let path = workshop.make(&Recipe { file: "own.so".into(), ..Recipe::default() });
        // SAFETY: libraries of these tests have no initialisers.
        let library = unsafe { Library::new(&path) }.unwrap();
        let symbol = |name: &std::ffi::CStr| {
            // SAFETY: only the address is taken.
            unsafe { library.get::<*const std::ffi::c_void>(name.to_bytes_with_nul()) }
                .map_or(std::ptr::null(), |symbol| symbol.into_raw().cast_const())
        };
        // SAFETY: the library stays open for this test; only its version function is called.
        let api = unsafe { Api::from_loader(symbol) }.unwrap();
        assert_eq!((api.path(), api.version()), (Some(&*path), sample()));
        // SAFETY: nothing is answered, so nothing is called.
        let error = unsafe { Api::from_loader(|_| std::ptr::null()) }.unwrap_err();
        assert!(matches!(error, LoadError::MissingSymbol { path: None, .. }), "{error:?}");
    }
}

#[test]
fn an_empty_table_does_not_say_its_release() {
    // SAFETY: an empty table holds nothing that could be called.
    let error = unsafe { Api::from_parts(Table::default()) }.unwrap_err();
    let absent = VersionFault::Absent(binding::REQUIRED[0]);
    assert!(matches!(&error, LoadError::Version { path: None, fault, .. } if *fault == absent), "{error:?}");
}

#[test]
fn every_required_function_is_known() {
    for name in binding::REQUIRED {
        assert!(crate::Function::named(name).is_some(), "{name}");
    }
    for requirement in crate::feature::REQUIREMENTS {
        for name in requirement.functions {
            assert!(crate::Function::named(name).is_some(), "{:?} needs {name}", requirement.feature);
        }
    }
    let all = crate::feature::REQUIREMENTS.iter().map(|requirement| requirement.feature);
    assert_eq!(all.fold(crate::Feature::empty(), |all, one| all | one), crate::Feature::all());
}

#[test]
fn a_features_words_name_its_release() {
    for feature in crate::Feature::all().iter() {
        let (summary, since) = (feature.summary().unwrap(), feature.since());
        assert!(summary.contains(&format!("({since}")), "{summary:?} came with {since}");
    }
}

#[test]
fn an_item_says_its_name() {
    assert_eq!(Item::Function("f").to_string(), "`f`");
    assert_eq!(Item::Field { structure: "s", field: "f" }.to_string(), "`s.f`");
}
