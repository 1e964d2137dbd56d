//! The workspace's folders and crates, and cargo commands.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// The crates of the workspace, lowest first, by the names of their folders.
pub const CRATES: [&str; 16] = [
    "dynload",
    "cuda-driver-sys",
    "nccl-sys",
    "gpu-sim",
    "bootstrap",
    "cuda-driver",
    "caching-alloc",
    "process-group",
    "memory-sharing",
    "peer-kernels",
    "symm-agreement",
    "symm-mem",
    "simulation",
    "cli",
    "lab",
    "xtask",
];

/// The crates that are not published.
pub const PRIVATE: [&str; 3] = ["simulation", "lab", "xtask"];

/// Returns the folder where cargo keeps what it has downloaded.
pub(crate) fn cargo_home() -> PathBuf {
    let of_user = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cargo");
    std::env::var_os("CARGO_HOME").map_or_else(of_user, PathBuf::from)
}

/// Returns the name of a crate's package. Published packages have a prefix, because the registry has other packages with
/// the short names.
pub fn package(name: &str) -> String {
    if PRIVATE.contains(&name) || !CRATES.contains(&name) {
        name.to_owned()
    } else {
        format!("lockstep-{name}")
    }
}

/// Returns the optional features that tests, documentation and the bundle are built with, of one crate or of all.
pub fn test_features(name: Option<&str>) -> String {
    const FEATURES: [(&str, &str); 11] = [
        ("bootstrap", "simulation"),
        ("caching-alloc", "cudarc"),
        ("caching-alloc", "json"),
        ("caching-alloc", "pickle"),
        ("cuda-driver", "half"),
        ("process-group", "json"),
        ("process-group", "nvtx"),
        ("process-group", "pickle"),
        ("process-group", "tracing"),
        ("peer-kernels", "twins"),
        ("symm-mem", "twins"),
    ];
    let wanted = FEATURES.iter().filter(|(of, _)| name.is_none_or(|name| name == *of));
    wanted.map(|(of, feature)| format!("{}/{feature}", package(of))).collect::<Vec<_>>().join(",")
}

/// Builds the embedded machine as a shared library, for programs that load it as they would NVIDIA's.
pub fn embedded_library(root: &Path) -> Result<PathBuf> {
    let machine = package("gpu-sim");
    let build =
        ["build", "--quiet", "--package", &machine, "--features", "exports", "--example", "shared_library"];
    run(&mut cargo(root, &build))?;
    Ok(target(root).join("debug/examples/libshared_library.so"))
}

/// Returns cargo's target folder.
pub fn target(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |folder| root.join(folder))
}

/// Returns the folder of the workspace's `Cargo.toml`, as cargo reports it for any current folder.
pub fn workspace() -> Result<PathBuf> {
    let output = Command::new(cargo_path())
        .args(["locate-project", "--workspace", "--message-format=plain"])
        .output()
        .context("cannot run cargo: this task works on the source tree and needs Rust")?;
    if !output.status.success() {
        bail!(
            "not inside the workspace: {} (run the task from a checkout)",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    let manifest = PathBuf::from(String::from_utf8(output.stdout)?.trim());
    manifest.parent().map(Path::to_owned).context("the workspace manifest has no folder")
}

pub(crate) fn cargo_path() -> PathBuf {
    std::env::var_os("CARGO").map_or_else(|| "cargo".into(), PathBuf::from)
}

/// A `cargo` command in the workspace's root.
pub fn cargo(root: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(cargo_path());
    command.current_dir(root).args(arguments);
    command
}

/// Prints the command, runs it, and makes a failure an error that repeats it.
pub fn run(command: &mut Command) -> Result<()> {
    let line = line(command);
    eprintln!("$ {line}");
    let status = command.status().with_context(|| format!("cannot start `{line}`"))?;
    if !status.success() {
        bail!("`{line}` failed: {status}");
    }
    Ok(())
}

/// Formats the command as typed in a shell.
pub fn line(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    std::iter::once(program)
        .chain(command.get_args())
        .map(|word| word.to_string_lossy().into_owned())
        .collect::<Vec<_>>()
        .join(" ")
}
