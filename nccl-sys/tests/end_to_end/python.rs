//! Tests of the search for copies that Python's package managers installed, which the crate finds only on request.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use dynload::Table as _;
use nccl_sys::{Api, LoadError, Origin, Table, candidates, python};
use rusty_fork::rusty_fork_test;

use crate::fake::{Recipe, Workshop};

/// Compiles a library at `file`, relative to the workshop's folder, and returns its path. The loader finds the
/// library by its path only, because its SONAME is none of NCCL's names.
fn make(workshop: &Workshop, file: &str) -> PathBuf {
    let recipe = Recipe::of(Table::LIBRARY, 22105);
    workshop.make(&Recipe { file: file.into(), soname: "of-python.so".into(), ..recipe })
}

/// Sets environment variables, and removes those whose value is `None`.
fn set(variables: &[(&str, Option<&Path>)]) {
    for (name, value) in variables {
        // SAFETY: this process runs only this one test, and no other thread uses the environment meanwhile.
        unsafe {
            match value {
                Some(value) => std::env::set_var(name, value),
                None => std::env::remove_var(name),
            }
        }
    }
}

rusty_fork_test! {
    #[test]
    fn environments_are_looked_into_when_asked() {
        let Some(workshop) = Workshop::open() else { return };
        let [venv, conda, empty] = ["venv", "conda", "empty"].map(|name| workshop.path().join(name));
        let in_venv = make(&workshop, "venv/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2");
        let in_conda = make(&workshop, "conda/lib/libnccl.so.2");
        // `PATH` leads to no interpreter, so only the folders of the two environments are searched.
        set(&[("VIRTUAL_ENV", Some(&venv)), ("CONDA_PREFIX", Some(&conda)), ("PATH", Some(&empty)), ("NCCL_SYS_LIBRARY", None)]);
        assert_eq!(python::package_folders(), [venv.join("lib/python3.12/site-packages")]);
        assert_eq!(python::libraries(), [in_venv.clone(), in_conda.clone()]);
        let packaged: Vec<_> =
            candidates().into_iter().filter(|found| matches!(found.origins[..], [Origin::Package(_)])).map(|found| found.path).collect();
        assert_eq!(packaged, [in_venv.clone(), in_conda.clone()]);
        match Api::load() {
            Ok(api) => {
                println!("skipped: this machine has {:?}", api.path());
                return;
            }
            Err(error) => assert!(matches!(error, LoadError::NotFound { .. }), "{error}"),
        }
        assert_eq!(Api::load_with_python().unwrap().path(), Some(&*in_venv));
        // Later calls take the copy that is loaded already.
        assert_eq!(Api::load().unwrap().path(), Some(&*in_venv));
        assert!(matches!(candidates()[0].origins[..], [Origin::Loaded, Origin::Package(_)]));
        // The variable takes precedence over the loaded copy. It names another copy, which is refused.
        set(&[("NCCL_SYS_LIBRARY", Some(&in_conda))]);
        assert!(matches!(Api::load_with_python(), Err(LoadError::OtherCopyLoaded { .. })));
    }

    #[test]
    fn what_the_interpreter_searches_is_found() {
        if Command::new("python3").arg("--version").output().is_err() {
            println!("skipped: no python3");
            return;
        }
        let Some(workshop) = Workshop::open() else { return };
        let wheel = make(&workshop, "nvidia/nccl/lib/libnccl.so.2");
        set(&[("PYTHONPATH", Some(workshop.path())), ("VIRTUAL_ENV", None), ("CONDA_PREFIX", None)]);
        assert_eq!(python::package_folders().first(), Some(&workshop.path().to_path_buf()));
        assert_eq!(python::libraries().first(), Some(&wheel));
    }

    #[test]
    fn nothing_found_names_every_file_that_was_tried() {
        let folder = tempfile::tempdir().unwrap();
        let broken = folder.path().join("lib/libnccl.so.2");
        fs::create_dir_all(broken.parent().unwrap()).unwrap();
        fs::write(&broken, "no library").unwrap();
        set(&[("CONDA_PREFIX", Some(folder.path())), ("VIRTUAL_ENV", None), ("PATH", Some(folder.path())), ("NCCL_SYS_LIBRARY", None)]);
        match Api::load_with_python() {
            Ok(api) => println!("skipped: this machine has {:?}", api.path()),
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains(&*broken.to_string_lossy()) && text.contains("libnccl.so.2: "), "{text}");
            }
        }
    }
}
