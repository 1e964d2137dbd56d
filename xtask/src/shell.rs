//! Where the workspace is, how its tasks run `cargo`, how they say what went wrong.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// The crates of the workspace, lowest first, by the names of their folders.
pub(crate) const CRATES: [&str; 8] = [
    "cuda-driver-sys",
    "nccl-sys",
    "gpu-sim",
    "cuda-driver",
    "caching-alloc",
    "process-group",
    "symm-mem",
    "xtask",
];

/// The package of a crate. Short names are taken in the registry, one of them by another project, so what is
/// published carries one prefix.
pub(crate) fn package(name: &str) -> String {
    if name == "xtask" || !CRATES.contains(&name) { name.to_owned() } else { format!("lockstep-{name}") }
}

/// Optional parts that the tests, the documentation and the bundle are made with, of one crate or of all.
pub(crate) fn adapters(name: Option<&str>) -> String {
    const ADAPTERS: [(&str, &str); 5] = [
        ("caching-alloc", "cudarc"),
        ("process-group", "nvtx"),
        ("process-group", "tracing"),
        ("symm-mem", "twins"),
        ("symm-mem", "simulation"),
    ];
    let wanted = ADAPTERS.iter().filter(|(of, _)| name.is_none_or(|name| name == *of));
    wanted.map(|(of, feature)| format!("{}/{feature}", package(of))).collect::<Vec<_>>().join(",")
}

/// Builds the embedded machine as a shared library, for programs that load it as they would NVIDIA's.
pub(crate) fn embedded_library(root: &Path) -> Result<PathBuf> {
    let machine = package("gpu-sim");
    let build =
        ["build", "--quiet", "--package", &machine, "--features", "exports", "--example", "shared_library"];
    run(&mut cargo(root, &build))?;
    Ok(target(root).join("debug/examples/libshared_library.so"))
}

/// Where cargo puts what it builds.
pub(crate) fn target(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |folder| root.join(folder))
}

/// The folder that holds the workspace's `Cargo.toml`: cargo names it, wherever the task is started.
pub(crate) fn workspace() -> Result<PathBuf> {
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

fn cargo_path() -> PathBuf {
    std::env::var_os("CARGO").map_or_else(|| "cargo".into(), PathBuf::from)
}

/// An error and its causes in one text, each said once: many errors repeat their cause in their own words.
pub(crate) fn explain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !text.contains(&cause) {
            text = if text.is_empty() { cause } else { format!("{text}: {cause}") };
        }
    }
    text
}

/// A `cargo` command in the workspace's root.
pub(crate) fn cargo(root: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(cargo_path());
    command.current_dir(root).args(arguments);
    command
}

/// Prints the command, runs it, and makes a failure an error that repeats it.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let line = line(command);
    eprintln!("$ {line}");
    let status = command.status().with_context(|| format!("cannot start `{line}`"))?;
    if !status.success() {
        bail!("`{line}` failed: {status}");
    }
    Ok(())
}

/// The command as one would type it.
pub(crate) fn line(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    std::iter::once(program)
        .chain(command.get_args())
        .map(|word| word.to_string_lossy().into_owned())
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_said_once() {
        let error =
            anyhow::anyhow!("no such file").context("cannot read x: no such file").context("the demo");
        assert_eq!(explain(&error), "the demo: cannot read x: no such file");
    }
}
