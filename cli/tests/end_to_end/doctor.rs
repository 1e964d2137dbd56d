//! The doctor as a user runs it: on this host, and on hosts with faults.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use lockstep_cli::child;

use crate::{lockstep, workspace};

/// The crates, lowest first, by the names of their folders.
const CRATES: [&str; 10] = [
    "dynload",
    "cuda-driver-sys",
    "nccl-sys",
    "gpu-sim",
    "bootstrap",
    "cuda-driver",
    "caching-alloc",
    "process-group",
    "symm-mem",
    "cli",
];

/// Runs it and parses its object; it must succeed on any host.
fn examine(deadline: &str, variables: &[(&str, &Path)]) -> Value {
    let mut command = Command::new(lockstep());
    command.args(["doctor", "--json", "--deadline", deadline]);
    for name in ["NCCL_SYS_LIBRARY", "CUDA_DRIVER_SYS_LIBRARY", "LD_LIBRARY_PATH", "VIRTUAL_ENV"] {
        command.env_remove(name);
    }
    command.envs(variables.iter().copied());
    let output = child::output_within(&mut command, Duration::from_secs(500)).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The entry of the library with this path.
fn library<'a>(kind: &'a Value, path: &Path) -> &'a Value {
    let found = kind["found"].as_array().unwrap();
    let path = path.canonicalize().unwrap();
    found
        .iter()
        .find(|library| Path::new(library["path"].as_str().unwrap()) == path)
        .unwrap_or_else(|| panic!("{} is not among {kind:#}", path.display()))
}

fn absent(library: &Value) -> Vec<&str> {
    let releases = library["probe"]["absent"].as_array().unwrap();
    releases
        .iter()
        .flat_map(|one| one["functions"].as_array().unwrap())
        .map(|one| one.as_str().unwrap())
        .collect()
}

/// Builds a library that runs the code `what` when it is loaded; `None` without a C compiler.
fn fake(file: &Path, what: &str) -> Option<()> {
    let source = file.with_extension("c");
    fs::write(&source, format!("__attribute__((constructor)) static void f(void) {{ {what} }}\n")).unwrap();
    let mut cc = Command::new("cc");
    let status = cc.args(["-shared", "-fPIC", "-o"]).arg(file).arg(&source).status();
    fs::remove_file(source).unwrap();
    status.ok().filter(|status| status.success()).map(drop)
}

#[test]
fn any_host_is_examined() {
    let found = examine("120", &[]);
    for key in ["cuda", "nccl", "devices", "host", "variables", "findings", "crates"] {
        assert!(!found[key].is_null(), "no {key} in {found:#}");
    }
    let names: Vec<_> = found["crates"].as_array().unwrap().iter().map(|one| one["crate"].as_str()).collect();
    assert_eq!(names, CRATES.map(Some));
    assert_eq!(found["host"]["embedded_device"]["works"], true);
    // Users of the command cannot call a function.
    assert!(!found.to_string().contains("Api::"), "{found:#}");
    let driver = found["cuda"]["taken"]["error"].is_null();
    let outcome =
        found["crates"].as_array().unwrap().iter().find(|one| one["crate"] == "cuda-driver-sys").unwrap();
    assert_eq!(outcome["outcome"] == "works on the embedded device only", !driver, "{found:#}");
}

#[test]
fn text_and_json_say_the_same_of_each_crate() {
    let found = examine("120", &[]);
    let text = Command::new(lockstep()).arg("doctor").output().unwrap().stdout;
    let text = String::from_utf8_lossy(&text);
    for verdict in found["crates"].as_array().unwrap() {
        let [name, outcome] = ["crate", "outcome"].map(|key| verdict[key].as_str().unwrap());
        assert!(text.contains(&format!("  {name:<16} {outcome}")), "{verdict} is not in:\n{text}");
    }
}

#[test]
fn broken_libraries_are_findings() {
    let folder = tempfile::tempdir().unwrap();
    let (garbage, dying) = (folder.path().join("libnccl.so.2"), folder.path().join("libcuda.so.1"));
    let hanging = folder.path().join("libnccl.so");
    // A truncated library, as after an interrupted download.
    fs::write(&garbage, &fs::read("/proc/self/exe").unwrap()[..1000]).unwrap();
    let built = fake(&dying, "__builtin_trap();")
        .and_then(|()| fake(&hanging, "extern int pause(void); for (;;) pause();"));
    if built.is_none() {
        println!("skipped: no C compiler");
        return;
    }
    let found = examine("10", &[("LD_LIBRARY_PATH", folder.path())]);
    let error =
        |kind: &str, path: &Path| library(&found[kind], path)["probe"]["error"].as_str().unwrap().to_owned();
    // Loading it could kill the loader, so the doctor does not try.
    assert!(error("nccl", &garbage).contains("cut off: 1000 bytes"), "{found:#}");
    assert!(error("nccl", &hanging).contains("no answer within 10 s"), "{found:#}");
    assert!(error("cuda", &dying).contains("died of signal"), "{found:#}");
    assert_eq!(found["findings"].as_array().unwrap().last().unwrap()["weight"], "fault");
}

#[test]
fn a_variable_that_names_no_library_is_told() {
    let found = examine("60", &[("NCCL_SYS_LIBRARY", Path::new("/nonexistent/libnccl.so.2"))]);
    let error = found["nccl"]["taken"]["error"].as_str().unwrap();
    assert!(error.contains("NCCL_SYS_LIBRARY") && error.contains("/nonexistent/libnccl.so.2"), "{error}");
}

/// Each variable names a file that exists and is no library.
#[test]
fn a_wrong_library_is_one_finding() {
    let folder = tempfile::tempdir().unwrap();
    let [cuda, nccl] = ["libcuda.so.1", "libnccl.so.2"].map(|name| folder.path().join(name));
    for library in [&cuda, &nccl] {
        fs::write(library, &fs::read("/proc/self/exe").unwrap()[..1000]).unwrap();
    }
    let found = examine("60", &[("CUDA_DRIVER_SYS_LIBRARY", &cuda), ("NCCL_SYS_LIBRARY", &nccl)]);
    let findings = found["findings"].as_array().unwrap();
    for (library, subject) in [(cuda, "no CUDA driver"), (nccl, "no NCCL")] {
        let about: Vec<_> =
            findings.iter().filter(|one| one.to_string().contains(library.to_str().unwrap())).collect();
        assert_eq!(about.len(), 1, "{about:#?}");
        assert_eq!(about[0]["subject"], subject, "{about:#?}");
    }
    assert_eq!(found["devices"]["error"], "no CUDA driver");
}

/// The library of a real release, if `cargo xtask abi` has fetched it.
fn fetched(release: &str) -> Option<PathBuf> {
    let wheel = format!("target/xtask/wheels/nvidia-nccl-cu12-{release}-library");
    let library = workspace()?.join(wheel).join("nvidia/nccl/lib/libnccl.so.2");
    library.exists().then_some(library)
}

#[test]
fn two_real_releases_are_told_apart() {
    let (Some(old), Some(new)) = (fetched("2.28.3"), fetched("2.28.9")) else {
        println!(
            "skipped: `cargo xtask abi --releases 2.28.3,2.28.9` fetches the libraries that this compares"
        );
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let system = folder.path().join("system");
    let packages = folder.path().join("venv/lib/python3.12/site-packages/nvidia/nccl/lib");
    fs::create_dir_all(&system).unwrap();
    fs::create_dir_all(&packages).unwrap();
    symlink(&old, system.join("libnccl.so.2")).unwrap();
    symlink(&new, packages.join("libnccl.so.2")).unwrap();
    let venv = folder.path().join("venv");
    let found = examine("300", &[("LD_LIBRARY_PATH", &system), ("VIRTUAL_ENV", &venv)]);

    let (old, new) = (library(&found["nccl"], &old), library(&found["nccl"], &new));
    assert_eq!((&old["probe"]["version"], &new["probe"]["version"]), (&"2.28.3".into(), &"2.28.9".into()));
    assert_eq!((&old["taken"], &new["taken"]), (&true.into(), &false.into()));
    assert!(absent(old).contains(&"ncclCommRevoke") && !absent(new).contains(&"ncclCommRevoke"));
    let refused =
        old["probe"]["refused"].as_array().unwrap().iter().find(|one| one["feature"] == "WINDOWS").unwrap();
    assert_eq!(refused["known_bad"], true);
    assert!(refused["reason"].as_str().unwrap().contains("corrupt"), "{refused}");
    assert!(new["probe"]["features"].as_array().unwrap().contains(&"WINDOWS".into()));
    let finding = found["findings"]
        .as_array()
        .unwrap()
        .iter()
        .find(|one| one["subject"].as_str().unwrap().contains("WINDOWS"));
    assert!(finding.unwrap()["remedy"].as_str().unwrap().contains("2.28.9"), "{finding:?}");
}
