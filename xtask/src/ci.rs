//! `cargo xtask ci`: everything that a change has to pass, cheapest first.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use crate::child::Owned;
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
pub(crate) const RAW: [&str; 2] = ["cuda-driver-sys", "nccl-sys"];

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
    call_raw(&root)?;
    symmetric_examples(&root)?;
    store_example(&root)?;
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

/// What is asked of the store's example, and what it prints then; nothing where it is to fail.
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
    let package = shell::package("process-group");
    let build = ["build", "--quiet", "--package", &package, "--example", "tcp_store"];
    shell::run(&mut shell::cargo(root, &build))?;
    for secret in [None, Some("sixteen bytes or more")] {
        let program = || {
            let mut program = Command::new(shell::target(root).join("debug/examples/tcp_store"));
            secret.map(|secret| program.env("PROCESS_GROUP_STORE_SECRET", secret));
            program
        };
        let mut server = Owned(program().args(["serve", "127.0.0.1:0"]).stdout(Stdio::piped()).spawn()?);
        let mut port = String::new();
        BufReader::new(server.stdout.take().context("a server without output")?).read_line(&mut port)?;
        let address = format!("127.0.0.1:{}", port.trim());
        for (question, expected) in CONVERSATION {
            // What is to fail waits for what never comes.
            let timeout = if expected.is_some() { "30" } else { "0.1" };
            let arguments = ["--timeout", timeout, "client", &address];
            let output = program().args(arguments).args(question.split(' ')).output()?;
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
