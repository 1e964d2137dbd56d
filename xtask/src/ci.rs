//! `cargo xtask ci`: the checks of a change, cheapest first, and with `--full` those that take longer or download more.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::changed::Passed;
use crate::process::KillOnDrop;
use crate::shell::{self, CRATES};
use crate::{forward, interleave, mutants, run_tests};

pub(crate) struct Options {
    /// Run the checks too that take longer or download more than crates.
    pub(crate) full: bool,
    /// Run the tests of crates too that have not changed since they passed.
    pub(crate) rerun: bool,
    /// Leave out the steps before this one.
    pub(crate) from: Option<String>,
}

/// Final arguments of every clippy run.
const DENY_WARNINGS: [&str; 3] = ["--", "-D", "warnings"];

/// The steps so far.
#[derive(Default)]
struct Steps {
    /// Those that have run, with the time that each took.
    run: Vec<(&'static str, Duration)>,
    left_out: Vec<&'static str>,
    /// The first step to run, until it comes.
    from: Option<String>,
}

impl Steps {
    fn run(&mut self, name: &'static str, step: impl FnOnce() -> Result<()>) -> Result<()> {
        if self.from.as_ref().is_some_and(|from| from != name) {
            self.left_out.push(name);
            return Ok(());
        }
        self.from = None;
        let begun = Instant::now();
        step().with_context(|| format!("the step `{name}` failed; `--from \"{name}\"` goes on with it"))?;
        self.run.push((name, begun.elapsed()));
        Ok(())
    }

    fn finish(&self) -> Result<()> {
        if let Some(from) = &self.from {
            bail!("there is no step {from:?}; the steps are: {}", self.left_out.join(", "));
        }
        for (name, time) in &self.run {
            println!("{:>7.1} s  {name}", time.as_secs_f64());
        }
        println!("{:>7.1} s  in all", self.run.iter().map(|(_, time)| time.as_secs_f64()).sum::<f64>());
        if !self.left_out.is_empty() {
            println!("left out: {}", self.left_out.join(", "));
        }
        Ok(())
    }
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let root = shell::workspace()?;
    let mut steps = Steps { from: options.from.clone(), ..Steps::default() };
    check_change(&root, options.rerun || options.full, &mut steps)?;
    if options.full {
        check_rest(&root, &mut steps)?;
    }
    steps.finish()
}

/// The checks of every change. All of them use one build of the workspace, with the features of the tests. Unless `rerun`,
/// tests and models of a crate are left out if nothing has changed that they depend on since they passed.
fn check_change(root: &Path, rerun: bool, steps: &mut Steps) -> Result<()> {
    let passed = Passed::of(root)?;
    let features = shell::test_features(None);
    let with = ["--workspace", "--features", &features];
    steps.run("format", || shell::run(&mut shell::cargo(root, &["fmt", "--all", "--check"])))?;
    steps.run("lint", || {
        let lint = [&["clippy", "--quiet", "--all-targets"], &with[..], &DENY_WARNINGS].concat();
        shell::run(&mut shell::cargo(root, &lint))
    })?;
    steps.run("tests", || {
        let without = unchanged(&passed, rerun, "tests", &CRATES);
        test(without.clone())?;
        note(&passed, "tests", &CRATES, &without)
    })?;
    steps.run("examples and thread interleavings", || {
        // The tests have built the examples and programs already, with the same features.
        let build = [&["build", "--quiet", "--bins", "--examples"], &with[..]].concat();
        shell::run(&mut shell::cargo(root, &build))?;
        // The examples mostly wait.
        std::thread::scope(|scope| {
            let examples = scope.spawn(|| {
                call_raw(root)?;
                symmetric_examples(root)?;
                store_example(root)?;
                shell::run(&mut Command::new(program(root, "examples/adopt")))?;
                shell::run(&mut Command::new(program(root, "examples/agreement")))
            });
            let models = models(&passed, rerun);
            examples.join().expect("running a command does not panic").and(models)
        })
    })
}

fn models(passed: &Passed, rerun: bool) -> Result<()> {
    let without = unchanged(passed, rerun, "models", &interleave::CRATES);
    interleave::run(&interleave::Options { quick: true, without: without.clone() })?;
    note(passed, "models", &interleave::CRATES, &without)
}

/// Returns those of the crates to leave out of a check, and prints them.
fn unchanged(passed: &Passed, rerun: bool, check: &str, crates: &[&'static str]) -> Vec<&'static str> {
    let unchanged: Vec<_> = crates.iter().copied().filter(|name| !rerun && passed.has(check, name)).collect();
    if !unchanged.is_empty() {
        println!("unchanged since their {check} passed (--rerun runs them): {}", unchanged.join(", "));
    }
    unchanged
}

/// Notes that a check of these crates has passed, except those that were left out.
fn note(passed: &Passed, check: &str, crates: &[&str], without: &[&str]) -> Result<()> {
    crates.iter().filter(|name| !without.contains(name)).try_for_each(|name| passed.note(check, name))
}

/// The checks that take longer, or download more than crates.
fn check_rest(root: &Path, steps: &mut Steps) -> Result<()> {
    let cargo = |arguments: &[&str]| shell::run(&mut shell::cargo(root, arguments));
    steps.run("documentation", || {
        let features = shell::test_features(None);
        let document = [
            "doc",
            "--quiet",
            "--workspace",
            "--no-deps",
            "--document-private-items",
            "--features",
            &features,
        ];
        shell::run(shell::cargo(root, &document).env("RUSTDOCFLAGS", "-D warnings"))
    })?;
    // One package at a time: together, the features of one crate would hide a feature that another forgot to enable.
    steps.run("lint each crate alone", || {
        for name in CRATES {
            let package = shell::package(name);
            let lint = ["clippy", "--quiet", "--all-targets", "--package", &package];
            cargo(&[&lint[..], &DENY_WARNINGS].concat())?;
        }
        let group = shell::package("process-group");
        let minimal = ["clippy", "--quiet", "--package", &group, "--no-default-features"];
        cargo(&[&minimal[..], &DENY_WARNINGS].concat())?;
        for name in ["caching-alloc", "process-group"] {
            let package = shell::package(name);
            let lint = ["clippy", "--quiet", "--all-targets", "--all-features", "--package", &package];
            cargo(&[&lint[..], &DENY_WARNINGS].concat())?;
        }
        Ok(())
    })?;
    // The generator of the raw tables needs a feature, which the checks above do not set.
    steps.run("code generator", || {
        let generator = ["--quiet", "--package", "xtask", "--features", "codegen"];
        cargo(&[&["clippy", "--all-targets"], &generator[..], &DENY_WARNINGS].concat())?;
        cargo(&[&["test"], &generator[..], &["codegen::"]].concat())?;
        cargo(&["xtask", "codegen", "--check"])
    })?;
    steps.run("real libraries and headers", || cargo(&["xtask", "abi"]))?;
    steps.run("PyTorch's viewer", || cargo(&["xtask", "torch-viewer"]))?;
    steps.run("tests beside PyTorch", || {
        cargo(&["xtask", "torch-env"])?;
        // Not for every change: building it takes as long as the tests.
        install(root, "cargo-nextest")?;
        shell::run(shell::cargo(root, &["xtask", "test", "--check-skips"]).env("TEST_EFFORT", "24"))
    })?;
    steps.run("packages", || {
        remove_packages()?;
        cargo(&["publish", "--quiet", "--workspace", "--dry-run", "--allow-dirty"])
    })?;
    steps.run("dependencies", || {
        install(root, "cargo-deny")?;
        // The graph has crates for other systems too, which no build has downloaded.
        cargo(&["fetch", "--quiet", "--locked"])?;
        cargo(&["deny", "--offline", "check", "bans", "licenses", "sources"])
    })?;
    steps.run("combinations of features", || {
        install(root, "cargo-hack")?;
        cargo(&[
            "hack",
            "check",
            "--quiet",
            "--workspace",
            "--feature-powerset",
            "--exclude-features",
            "codegen",
        ])
    })?;
    steps.run("seeded programs", || {
        shell::run(forward::cargo("sim", true)?.args(["sim", "explore", "--seeds", "0..10000"]))
    })?;
    steps.run("more thread interleavings", || {
        interleave::run(&interleave::Options { quick: false, without: Vec::new() })
    })?;
    steps.run("mutants", || mutants::run(&mutants::Options { only: Vec::new(), package: None }))
}

/// Removes the packages that an earlier `cargo publish --dry-run` has unpacked in cargo's folder. Cargo would compile
/// them in place of new ones of the same version.
fn remove_packages() -> Result<()> {
    let Ok(registries) = std::fs::read_dir(shell::cargo_home().join("registry/src")) else { return Ok(()) };
    for registry in registries {
        let registry = registry?;
        // The folder of a registry begins with its host. The one of a dry run has none.
        if registry.file_name().as_encoded_bytes().starts_with(b"-") {
            std::fs::remove_dir_all(registry.path())?;
        }
    }
    Ok(())
}

/// Installs a tool of cargo's from the registry, unless it is installed.
fn install(root: &Path, tool: &str) -> Result<()> {
    let name = tool.strip_prefix("cargo-").unwrap_or(tool);
    let installed = shell::cargo(root, &[name, "--version"]).output().context("cannot run cargo")?;
    if installed.status.success() {
        return Ok(());
    }
    shell::run(&mut shell::cargo(root, &["install", "--quiet", "--locked", tool]))
}

fn test(without: Vec<&'static str>) -> Result<()> {
    run_tests::run(&run_tests::Options { check_skips: true, without, ..run_tests::Options::default() })
}

/// The path of a program of the workspace that a step has built.
fn program(root: &Path, name: &str) -> PathBuf {
    shell::target(root).join("debug").join(name)
}

/// Runs the raw crates' example with the embedded device as a shared library in place of NVIDIA's.
fn call_raw(root: &Path) -> Result<()> {
    let library = shell::embedded_library(root)?;
    let mut call = Command::new(program(root, "examples/raw_all_reduce"));
    shell::run(call.env("CUDA_DRIVER_SYS_LIBRARY", &library).env("NCCL_SYS_LIBRARY", &library))
}

/// symm-mem's examples, their ranks as processes with an embedded device each.
fn symmetric_examples(root: &Path) -> Result<()> {
    let example = |name: &str| program(root, "examples").join(name);
    for (name, ranks) in [
        ("symmetric_memory", "2"),
        ("user_kernel", "2"),
        ("user_kernel", "3"),
        ("collectives", "3"),
        ("kv_cache", "3"),
    ] {
        let mut launch = Command::new(program(root, "lockstep"));
        shell::run(launch.args(["launch", "-n", ranks, "--"]).arg(example(name)).arg("--embedded"))?;
    }
    // This example starts its own ranks, of which some hang on purpose until they are killed.
    let misordered =
        |ranks: &str| shell::run(Command::new(example("misordered_windows")).args(["--embedded", ranks]));
    std::thread::scope(|scope| {
        let two = scope.spawn(|| misordered("2"));
        let four = misordered("4");
        two.join().expect("running a command does not panic").and(four)
    })
}

/// Commands of the store's example, and their expected output; `None` for a command that must fail.
const CONVERSATION: [(&str, Option<&str>); 21] = [
    ("set key value", Some("")),
    ("get key", Some("value\n")),
    ("add count 5", Some("5\n")),
    ("add count -7", Some("-2\n")),
    ("check key count", Some("true\n")),
    ("check key other", Some("false\n")),
    ("wait key count", Some("")),
    ("wait other", None),
    ("compare_set key value new", Some("new\n")),
    ("append key er", Some("")),
    ("multi_set a 1 b 2", Some("")),
    ("multi_get b key a", Some("2\nnewer\n1\n")),
    ("delete b", Some("true\n")),
    ("list_keys", Some("a\ncount\nkey\n")),
    ("queue_push queue first", Some("")),
    ("queue_push queue second", Some("")),
    ("queue_len queue", Some("2\n")),
    ("queue_pop queue", Some("first\n")),
    ("queue_try_pop queue", Some("second\n")),
    ("queue_try_pop queue", Some("")),
    ("barrier alone 0 2", None),
];

/// The store's example: a server, and its clients, with a secret and without.
fn store_example(root: &Path) -> Result<()> {
    for secret in [None, Some("sixteen bytes or more")] {
        let example = || {
            let mut example = Command::new(program(root, "examples/tcp_store"));
            secret.map(|secret| example.env("PROCESS_GROUP_STORE_SECRET", secret));
            example
        };
        let mut server = KillOnDrop(example().args(["serve", "127.0.0.1:0"]).stdout(Stdio::piped()).spawn()?);
        let mut port = String::new();
        BufReader::new(server.stdout.take().context("a server without output")?).read_line(&mut port)?;
        let address = format!("127.0.0.1:{}", port.trim());
        for (question, expected) in CONVERSATION {
            // A command that must fail waits for a key that is never set.
            let timeout = if expected.is_some() { "30" } else { "0.1" };
            let arguments = ["--timeout", timeout, "client", &address];
            let output = example().args(arguments).args(question.split(' ')).output()?;
            let answer = String::from_utf8_lossy(&output.stdout);
            let answer = output.status.success().then_some(&*answer);
            ensure!(
                answer == expected,
                "tcp_store {question}: {answer:?}, expected {expected:?}: {output:?}"
            );
        }
    }
    Ok(())
}
