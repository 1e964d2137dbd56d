//! Tests of the packages: cargo alone builds the raw crates, and every published package is complete and described.

use std::{fs, path::PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::shell::{self, CRATES, PRIVATE};

/// Crates that can be built without the rest of the workspace, with cargo alone.
const RAW: [&str; 4] = ["dynload", "cuda-driver-sys", "nccl-sys", "bootstrap"];

/// The published crates, with files that their packages must contain.
const PUBLISHED: [(&str, &[&str]); 13] = [
    ("dynload", &[]),
    ("cuda-driver-sys", &["src/generated/functions.rs", "src/generated/types.rs"]),
    ("nccl-sys", &["src/generated/functions.rs", "src/generated/layouts.rs"]),
    ("gpu-sim", &[]),
    ("bootstrap", &[]),
    ("cuda-driver", &[]),
    ("caching-alloc", &[]),
    ("process-group", &[]),
    ("memory-sharing", &[]),
    ("peer-kernels", &["kernels/kernels.ptx.zst", "kernels/reduce.cu"]),
    ("symm-agreement", &[]),
    ("symm-mem", &[]),
    ("cli", &["data/gpt2_train.trace.gz", "data/uplot/LICENSE", "peers/alloc_bench.cpp"]),
];

/// The largest file of a package, in bytes.
const LARGEST: u64 = 256 << 10;

/// The workspace, and cargo's metadata of its packages.
struct Packages {
    root: PathBuf,
    metadata: Value,
}

impl Packages {
    fn of(root: PathBuf) -> Result<Self> {
        let output = shell::cargo(&root, &["metadata", "--format-version=1", "--no-deps"]).output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(Self { metadata: serde_json::from_slice(&output.stdout)?, root })
    }

    /// Returns cargo's metadata of a crate.
    fn of_crate(&self, name: &str) -> Result<&Value> {
        let packages = self.metadata["packages"].as_array().map_or(&[][..], Vec::as_slice);
        let package = packages.iter().find(|package| package["name"] == shell::package(name).as_str());
        package.with_context(|| format!("cargo does not know the package of {name}"))
    }
}

/// Fails if building the crate would run a script or link a library.
fn by_itself(packages: &Packages, name: &str) -> Result<()> {
    let package = packages.of_crate(name)?;
    ensure!(package["links"].is_null(), "{name} has a `links` key: {}", package["links"]);
    let targets = package["targets"].as_array().map_or(&[][..], Vec::as_slice);
    let script = |target: &Value| {
        target["kind"].as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind == "custom-build"))
    };
    ensure!(!targets.iter().any(script), "{name} has a build script");
    Ok(())
}

/// Fails if the crate's package lacks the metadata that a registry shows, lacks a file, or contains a large one.
fn presentable(packages: &Packages, name: &str, files: &[&str]) -> Result<()> {
    let (package, root) = (packages.of_crate(name)?, &packages.root);
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
        // Some files are made while packing.
        let bytes = fs::metadata(root.join(name).join(file)).map_or(0, |metadata| metadata.len());
        ensure!(bytes <= LARGEST, "the package of {name} holds {file}, {bytes} bytes: at most {LARGEST}");
    }
    Ok(())
}

/// Returns the packages of the workspace in which this was built, or prints why there are none.
fn packages() -> Option<Packages> {
    match shell::workspace() {
        Ok(root) => Some(Packages::of(root).unwrap()),
        Err(error) => {
            println!("skipped: {error:#}");
            None
        }
    }
}

#[test]
fn the_raw_crates_need_nothing_to_be_built() {
    let Some(packages) = packages() else { return };
    for name in RAW {
        by_itself(&packages, name).unwrap();
    }
    assert!(by_itself(&packages, "no-such-crate").is_err());
}

#[test]
fn what_is_published_says_what_it_is_and_is_whole() {
    let Some(packages) = packages() else { return };
    let published: Vec<&str> = PUBLISHED.iter().map(|(name, _)| *name).collect();
    assert_eq!(published, CRATES.into_iter().filter(|name| !PRIVATE.contains(name)).collect::<Vec<_>>());
    for (name, files) in PUBLISHED {
        presentable(&packages, name, files).unwrap();
    }
    let lacks = presentable(&packages, "nccl-sys", &["src/no-such-file.rs"]).unwrap_err().to_string();
    assert!(lacks.contains("lacks src/no-such-file.rs"), "{lacks}");
}
