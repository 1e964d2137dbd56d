//! `cargo xtask ci`: everything that a change has to pass, cheapest first.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::interleave;
use crate::run_tests;
use crate::shell::{self, CRATES};
use crate::viz;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Leave out what needs the network beyond crates
    #[arg(long)]
    offline: bool,
}

/// The crates that others take alone: they are built with cargo and nothing else.
const RAW: [&str; 2] = ["cuda-driver-sys", "nccl-sys"];

/// What is published, with generated files that it is nothing without.
const PUBLISHED: [(&str, &[&str]); 7] = [
    ("cuda-driver-sys", &["src/generated/functions.rs", "src/generated/types.rs"]),
    ("nccl-sys", &["src/generated/functions.rs", "src/generated/layouts.rs"]),
    ("gpu-sim", &[]),
    ("cuda-driver", &[]),
    ("caching-alloc", &[]),
    ("process-group", &[]),
    ("symm-mem", &["kernels/ptx/compute_70/reduce_f32.ptx", "kernels/ptx/compute_90/reduce_f32.ptx"]),
];

/// The largest file of a package, in bytes.
const LARGEST: u64 = 256 << 10;

pub(crate) fn run(options: &Options) -> Result<()> {
    let root = shell::workspace()?;
    shell::run(&mut shell::cargo(&root, &["fmt", "--all", "--check"]))?;
    // A package at a time: together, one crate's features would hide what another forgot to ask for.
    for name in CRATES {
        let lint = [
            "clippy",
            "--quiet",
            "--package",
            &shell::package(name),
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ];
        shell::run(&mut shell::cargo(&root, &lint))?;
    }
    let minimal = [
        "clippy",
        "--quiet",
        "--package",
        &shell::package("process-group"),
        "--no-default-features",
        "--",
        "-D",
        "warnings",
    ];
    shell::run(&mut shell::cargo(&root, &minimal))?;
    for name in ["caching-alloc", "process-group"] {
        let adapters = ["clippy", "--quiet", "--package", &shell::package(name), "--all-features"];
        let adapters = [&adapters[..], &["--all-targets", "--", "-D", "warnings"]].concat();
        shell::run(&mut shell::cargo(&root, &adapters))?;
    }
    let document = ["doc", "--quiet", "--workspace", "--no-deps", "--document-private-items"];
    let adapters = shell::adapters(None);
    let document = [&document[..], &["--features", &adapters]].concat();
    shell::run(shell::cargo(&root, &document).env("RUSTDOCFLAGS", "-D warnings"))?;
    run_tests::run(&run_tests::Options::default())?;
    interleave::run(&interleave::Options { quick: true })?;
    shell::run(&mut shell::cargo(&root, &["xtask", "sim", "explore", "--seeds", "0..2000"]))?;
    // What writes the raw tables is built, linted and tested by itself: the rest does without its feature.
    let generator = ["--quiet", "--package", "xtask", "--features", "codegen"];
    let lint = [&["clippy"], &generator[..], &["--all-targets", "--", "-D", "warnings"]].concat();
    shell::run(&mut shell::cargo(&root, &lint))?;
    shell::run(&mut shell::cargo(&root, &[&["test"], &generator[..], &["codegen::"]].concat()))?;
    for name in RAW {
        by_itself(&root, name)?;
    }
    for (name, files) in PUBLISHED {
        presentable(&root, name, files)?;
    }
    call_raw(&root)?;
    symmetric_examples(&root)?;
    if options.offline {
        println!(
            "left out, --offline: the pinned headers, the real NCCL libraries, PyTorch's viewer, packaging"
        );
        return Ok(());
    }
    shell::run(&mut shell::cargo(&root, &["xtask", "codegen", "--check"]))?;
    shell::run(&mut shell::cargo(&root, &["xtask", "abi"]))?;
    viz::check_torch()?;
    let [driver, nccl] = RAW.map(shell::package);
    let publish =
        ["publish", "--quiet", "--dry-run", "--allow-dirty", "--package", &driver, "--package", &nccl];
    shell::run(&mut shell::cargo(&root, &publish))?;
    Ok(())
}

/// What cargo knows of a crate's package.
fn described(root: &Path, name: &str) -> Result<serde_json::Value> {
    let manifest = root.join(name).join("Cargo.toml");
    let arguments = ["metadata", "--format-version=1", "--no-deps", "--manifest-path"];
    let output = shell::cargo(root, &arguments).arg(&manifest).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().map_or(&[][..], Vec::as_slice);
    let package = packages.iter().find(|package| package["name"] == shell::package(name).as_str());
    package.cloned().with_context(|| format!("cargo does not know the package of {name}"))
}

/// Fails if building the crate would run a script or link a library.
fn by_itself(root: &Path, name: &str) -> Result<()> {
    let package = described(root, name)?;
    ensure!(package["links"].is_null(), "{name} has a `links` key: {}", package["links"]);
    let targets = package["targets"].as_array().map_or(&[][..], Vec::as_slice);
    let script = |target: &serde_json::Value| {
        target["kind"].as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind == "custom-build"))
    };
    ensure!(!targets.iter().any(script), "{name} has a build script");
    Ok(())
}

/// Fails if the crate's package does not say what a registry shows, lacks a file, or holds a large one.
fn presentable(root: &Path, name: &str, files: &[&str]) -> Result<()> {
    let package = described(root, name)?;
    for key in ["description", "license", "readme", "rust_version"] {
        ensure!(package[key].as_str().is_some_and(|said| !said.is_empty()), "{name} has no {key}");
    }
    for key in ["keywords", "categories"] {
        let count = package[key].as_array().map_or(0, Vec::len);
        ensure!((1..=5).contains(&count), "{name} has {count} {key}: a registry takes 1 to 5");
    }
    let (package, list) =
        (shell::package(name), ["package", "--quiet", "--list", "--allow-dirty", "--package"]);
    let output = shell::cargo(root, &list).arg(&package).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let packed = String::from_utf8(output.stdout)?;
    let packed: Vec<&str> = packed.lines().collect();
    for file in ["README.md", "LICENSE-APACHE", "LICENSE-MIT"].iter().chain(files) {
        ensure!(packed.contains(file), "the package of {name} lacks {file}");
    }
    for file in packed {
        // Some are made while packing.
        let bytes = fs::metadata(root.join(name).join(file)).map_or(0, |metadata| metadata.len());
        ensure!(bytes <= LARGEST, "the package of {name} holds {file}, {bytes} bytes: at most {LARGEST}");
    }
    Ok(())
}

/// The raw crates' example, over the embedded machine as a shared library: loaded as NVIDIA's are.
fn call_raw(root: &Path) -> Result<()> {
    let library = shell::embedded_library(root)?;
    let stranger = shell::package("nccl-sys");
    let call = ["run", "--quiet", "--package", &stranger, "--example", "all_reduce"];
    let mut call = shell::cargo(root, &call);
    shell::run(call.env("CUDA_DRIVER_SYS_LIBRARY", &library).env("NCCL_SYS_LIBRARY", &library))
}

/// symm-mem's examples, their ranks as processes with an embedded device each.
fn symmetric_examples(root: &Path) -> Result<()> {
    let (package, twins) = (shell::package("symm-mem"), shell::adapters(Some("symm-mem")));
    let build = ["build", "--quiet", "--package", &package, "--features", &twins, "--examples"];
    shell::run(&mut shell::cargo(root, &build))?;
    let program = |name: &str| shell::target(root).join("debug/examples").join(name);
    for (name, ranks) in
        [("symmetric_memory", "2"), ("user_kernel", "2"), ("user_kernel", "3"), ("collectives", "3")]
    {
        let launch = ["xtask", "launch", "-n", ranks, "--"];
        shell::run(shell::cargo(root, &launch).arg(program(name)).arg("--embedded"))?;
    }
    // Starts its ranks itself: some of them hang, as they are to.
    for ranks in ["2", "4"] {
        shell::run(Command::new(program("misordered_windows")).args(["--embedded", ranks]))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_raw_crates_need_nothing_to_be_built() {
        let root = match shell::workspace() {
            Ok(root) => root,
            Err(error) => {
                println!("skipped: {error:#}");
                return;
            }
        };
        for name in RAW {
            by_itself(&root, name).unwrap();
        }
        assert!(by_itself(&root, "no-such-crate").is_err());
    }

    #[test]
    fn what_is_published_says_what_it_is_and_is_whole() {
        let root = match shell::workspace() {
            Ok(root) => root,
            Err(error) => {
                println!("skipped: {error:#}");
                return;
            }
        };
        let published: Vec<&str> = PUBLISHED.iter().map(|(name, _)| *name).collect();
        assert_eq!(published, CRATES.into_iter().filter(|name| *name != "xtask").collect::<Vec<_>>());
        for (name, files) in PUBLISHED {
            presentable(&root, name, files).unwrap();
        }
        let lacks = presentable(&root, "nccl-sys", &["src/no-such-file.rs"]).unwrap_err().to_string();
        assert!(lacks.contains("lacks src/no-such-file.rs"), "{lacks}");
    }
}
