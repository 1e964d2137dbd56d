//! `cargo xtask mutants`: checks that the tests detect bugs.
//!
//! Every patch under `xtask/mutants/` puts one bug into one crate. Each is applied by itself to a copy of the workspace
//! and has to be found there: in bootstrap, the caching allocator and process-group by the crate's tests, in symm-mem
//! and its own lower crates by `cargo xtask sim explore`, or by their tests if the patch names one. A patch that no
//! longer applies, or does not compile, is an error: it tests nothing. What a patch breaks is written before its first
//! difference.
//!
//! A line `Found by: TEST` names a test that detects the bug. It runs first, because the whole suite takes minutes; if it
//! passes, the others run too. `Found by: models TEST` has to be found by the crate's models under loom; there too, TEST
//! may be left out.

use std::collections::BTreeSet;
use std::fs;
use std::io::IsTerminal as _;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::process;
use crate::shell;

pub(crate) struct Options {
    /// Only these patches: the names of their files without `.patch`.
    pub(crate) only: Vec<String>,
    /// Only the patches of this crate.
    pub(crate) package: Option<String>,
}

/// The checks that must detect the bugs of a crate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Finder {
    /// The crate's tests.
    Tests,
    /// The crate's models under loom, as `cargo xtask interleave` runs them.
    Models,
    /// `cargo xtask sim explore`.
    Seeds,
}

/// The crates that patches break, symm-mem with the crates that were made for it, and the checks that must detect the
/// bugs unless the patch says otherwise.
const CRATES: [(&str, &[&str], Finder); 4] = [
    ("bootstrap", &["bootstrap"], Finder::Tests),
    ("caching-alloc", &["caching-alloc"], Finder::Tests),
    ("process-group", &["process-group"], Finder::Tests),
    ("symm-mem", &["memory-sharing", "peer-kernels", "symm-agreement", "symm-mem"], Finder::Seeds),
];
/// Begins the line of a patch that says what detects its bug.
const FOUND_BY: &str = "Found by: ";
/// Seeds within which the bug must be found. Most are found within the first part.
const SEEDS: [&str; 2] = ["0..300", "0..10000"];
/// The folder of the patches.
const PATCHES: &str = "xtask/mutants";
/// The folder, in the target folder, of the copy and of its build. Its path does not change, because cargo rebuilds a crate
/// whose path has changed.
const PLACE: &str = "mutants";
/// Tests that take longer hang.
const LIMIT: Duration = Duration::from_secs(600);

struct Mutant {
    name: String,
    breaks: String,
    /// The crate, and the check that must find the bug.
    crate_name: &'static str,
    finder: Finder,
    /// The folders of the crates that the patch changes.
    folders: Vec<String>,
    /// The test that runs first.
    first: Option<String>,
    patch: PathBuf,
}

/// The outcome of a run of tests or seeds.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    /// This test failed first, or this seed.
    Failed(String),
    /// The process died by itself.
    Died(String),
    Hung,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let root = shell::workspace()?;
    let mut mutants = list(&root.join(PATCHES))?;
    for only in &options.only {
        let known = mutants.iter().any(|mutant| mutant.name == *only);
        ensure!(known, "there is no patch {PATCHES}/{only}.patch");
    }
    mutants.retain(|mutant| options.only.is_empty() || options.only.contains(&mutant.name));
    if let Some(package) = &options.package {
        mutants.retain(|mutant| mutant.crate_name == *package || mutant.folders.contains(package));
        ensure!(!mutants.is_empty(), "no patch breaks {package}");
    }
    let progress = Progress { total: mutants.len(), is_shown: std::io::stderr().is_terminal() };
    progress.show(0, "without a patch");
    let tree = Tree::copy(&root)?;
    let finders: BTreeSet<_> = mutants.iter().map(|mutant| (mutant.crate_name, mutant.finder)).collect();
    for (name, finder) in finders {
        let whole = tree.find(name, finder, None)?;
        ensure!(whole == Outcome::Passed, "{name} fails already without any patch: {whole:?}");
    }
    progress.clear();
    println!("| patch | crate | effect | detected by | s |\n|---|---|---|---|---|");
    let (mut missed, mut broken) = (Vec::new(), Vec::new());
    for (index, mutant) in mutants.iter().enumerate() {
        progress.show(index + 1, &mutant.name);
        let begin = Instant::now();
        let find = || tree.find(mutant.crate_name, mutant.finder, mutant.first.as_deref());
        let seen = match tree.with(&mutant.patch, find) {
            Ok(Outcome::Failed(by)) => by,
            Ok(Outcome::Died(how)) => format!("the process dies: {how}"),
            Ok(outcome) => {
                missed.push(mutant.name.as_str());
                if outcome == Outcome::Hung { "NOBODY: it hangs".into() } else { "NOBODY".into() }
            }
            // The other patches are still tried.
            Err(error) => {
                eprintln!("{}: {error:#}", mutant.name);
                broken.push(mutant.name.as_str());
                "BROKEN".into()
            }
        };
        let Mutant { name, crate_name, breaks, .. } = mutant;
        progress.clear();
        println!("| {name} | {crate_name} | {breaks} | {seen} | {:.0} |", begin.elapsed().as_secs_f64());
    }
    let seen = mutants.len() - missed.len() - broken.len();
    println!("{seen} of {} bugs are seen", mutants.len());
    ensure!(broken.is_empty(), "what these patches make tests nothing: {}", broken.join(", "));
    ensure!(missed.is_empty(), "nobody sees {}", missed.join(", "));
    Ok(())
}

/// A progress line that is overwritten on a terminal; elsewhere nothing is printed.
struct Progress {
    total: usize,
    is_shown: bool,
}

impl Progress {
    fn show(&self, done: usize, name: &str) {
        if self.is_shown {
            eprint!("\r\x1b[K{done} of {}: {name}", self.total);
        }
    }

    fn clear(&self) {
        if self.is_shown {
            eprint!("\r\x1b[K");
        }
    }
}

/// The patches, by name.
fn list(folder: &Path) -> Result<Vec<Mutant>> {
    let mut mutants = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let patch = entry?.path();
        let Some(name) = patch.file_name().and_then(|name| name.to_str()?.strip_suffix(".patch")) else {
            continue;
        };
        let name = name.to_owned();
        let text = fs::read_to_string(&patch).with_context(|| format!("cannot read {}", patch.display()))?;
        let words = text.split("\n--- ").next().filter(|words| !words.starts_with("--- "));
        let words = words.with_context(|| format!("{name}.patch does not say what it breaks"))?;
        let found_by = words.lines().find_map(|line| line.strip_prefix(FOUND_BY));
        let by_models = found_by.and_then(|found_by| found_by.strip_prefix("models"));
        let first = by_models.or(found_by).map(str::trim).filter(|test| !test.is_empty()).map(str::to_owned);
        let breaks = words.lines().filter(|line| !line.starts_with(FOUND_BY)).flat_map(str::split_whitespace);
        let breaks = breaks.collect::<Vec<_>>().join(" ");
        let touched: Vec<&str> =
            text.lines().filter_map(|line| line.strip_prefix("--- a/")?.split('/').next()).collect();
        let known =
            CRATES.into_iter().find(|(_, folders, _)| touched.iter().all(|folder| folders.contains(folder)));
        let (crate_name, _, finder) =
            known.with_context(|| format!("{name}.patch breaks {touched:?}: nobody looks there"))?;
        let finder = match by_models {
            Some(_) => Finder::Models,
            // Seeds have no names of tests.
            None if first.is_some() => Finder::Tests,
            None => finder,
        };
        let folders = touched.iter().map(|folder| (*folder).to_owned()).collect();
        mutants.push(Mutant { name, breaks, crate_name, finder, folders, first, patch });
    }
    mutants.sort_by(|left, right| left.name.cmp(&right.name));
    Ok(mutants)
}

/// A copy of the workspace, deleted on drop. Its build stays for the next run.
struct Tree {
    root: PathBuf,
    built: PathBuf,
}

impl Tree {
    /// Copies the workspace's files that git tracks or would track, with their uncommitted changes.
    fn copy(from: &Path) -> Result<Self> {
        let place = from.join("target").join(PLACE);
        let tree = Self { root: place.join("tree"), built: place.join("built") };
        if tree.root.exists() {
            fs::remove_dir_all(&tree.root)?;
        }
        let output = Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(from)
            .output()
            .context("cannot run git")?;
        ensure!(
            output.status.success(),
            "not a checkout of git: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
        for name in output.stdout.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            let name = Path::new(std::str::from_utf8(name)?);
            let (from, to) = (from.join(name), tree.root.join(name));
            // Git may list a file that was deleted.
            let Ok(metadata) = from.symlink_metadata() else { continue };
            fs::create_dir_all(to.parent().context("a file has a folder")?)?;
            if metadata.is_symlink() {
                std::os::unix::fs::symlink(fs::read_link(&from)?, &to)
                    .with_context(|| format!("cannot link {}", to.display()))?;
            } else if metadata.is_file() {
                fs::copy(&from, &to).with_context(|| format!("cannot copy {}", from.display()))?;
                // Only the crates that patches change are rebuilt.
                if !CRATES.iter().any(|(_, folders, _)| folders.iter().any(|of| name.starts_with(of))) {
                    fs::File::options().append(true).open(&to)?.set_modified(metadata.modified()?)?;
                }
            }
        }
        Ok(tree)
    }

    /// Applies a patch while `then` runs.
    fn with<T>(&self, patch: &Path, then: impl FnOnce() -> Result<T>) -> Result<T> {
        self.patch(patch, &[]).context("the patch no longer applies; make it anew")?;
        let outcome = then();
        self.patch(patch, &["--reverse"])?;
        outcome
    }

    fn patch(&self, patch: &Path, how: &[&str]) -> Result<()> {
        let mut apply = Command::new("git");
        // The copy lies inside the checkout, but is not a checkout itself.
        apply.env("GIT_CEILING_DIRECTORIES", self.root.parent().unwrap_or(&self.root));
        let output = apply.arg("apply").args(how).arg(patch).current_dir(&self.root).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "git apply: {}", said.trim());
        Ok(())
    }

    /// Builds and runs the check of the crate, beginning with the test `first`.
    fn find(&self, crate_name: &str, finder: Finder, first: Option<&str>) -> Result<Outcome> {
        match finder {
            Finder::Tests | Finder::Models => {
                let (targets, flags, filter): (&[&[&str]], _, _) = match finder {
                    Finder::Models => (&[&["--lib"]], "--cfg loom", Some("interleavings::")),
                    _ => (&[&["--lib"], &["--test", "end_to_end"]], "", None),
                };
                let folders =
                    CRATES.into_iter().find(|(of, ..)| *of == crate_name).map_or(&[][..], |it| it.1);
                let programs: Vec<(&str, &[&str])> = folders
                    .iter()
                    .flat_map(|folder| targets.iter().map(move |target| (*folder, *target)))
                    .filter(|(folder, target)| {
                        target.len() == 1 || self.root.join(folder).join("tests/end_to_end").exists()
                    })
                    .collect();
                // Not `--exact`: patches may leave out the modules of a test.
                let first = first.map(|first| vec![first]);
                let filters = first.into_iter().chain([Vec::from_iter(filter)]);
                // A target is built when its turn comes: most bugs are found before that of the other one.
                not_passed(filters.flat_map(|filter| {
                    programs.iter().map(move |(folder, target)| self.test(folder, target, flags, &filter))
                }))
            }
            Finder::Seeds => {
                let programs = self.build(&["build", "--package", "lab"], "")?;
                let program = programs.first().context("cargo names no program")?;
                not_passed(SEEDS.iter().map(|seeds| {
                    let mut explore = Command::new(program);
                    explore.args(["sim", "explore", "--seeds", seeds, "--json"]).current_dir(&self.root);
                    first_failure(&mut explore, failed_seed)
                }))
            }
        }
    }

    /// Builds a test program of the crate with the features of its tests and these compiler flags, and runs its tests that
    /// `filter` selects.
    fn test(&self, crate_name: &str, target: &[&str], flags: &str, filter: &[&str]) -> Result<Outcome> {
        let package = shell::package(crate_name);
        let features = shell::test_features(Some(crate_name));
        let mut build = [&["test", "--package", &package, "--no-run"], target].concat();
        if !features.is_empty() {
            build.extend(["--features", &features]);
        }
        let programs = self.build(&build, flags)?;
        let mut tests = Command::new(programs.first().context("cargo names no program")?);
        first_failure(tests.current_dir(self.root.join(crate_name)).args(filter), failed_test)
    }

    /// Builds with these compiler flags, and returns the paths of the executables.
    fn build(&self, build: &[&str], flags: &str) -> Result<Vec<PathBuf>> {
        let mut build = shell::cargo(&self.root, build);
        build.arg("--quiet").arg("--message-format=json-render-diagnostics");
        // The flags apply to every dependency, so a separate folder keeps the builds without them.
        match flags {
            "" => build.env("CARGO_TARGET_DIR", &self.built),
            flags => build.env("RUSTFLAGS", flags).env("CARGO_TARGET_DIR", self.built.join("loom")),
        };
        let output = build.output().context("cannot run cargo")?;
        ensure!(
            output.status.success(),
            "it does not compile, which is no failing test:\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let messages = output.stdout.split(|byte| *byte == b'\n');
        let executables = messages
            .filter_map(|line| serde_json::from_slice::<serde_json::Value>(line).ok())
            .filter_map(|message| message["executable"].as_str().map(PathBuf::from));
        Ok(executables.collect())
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        // The next run removes the rest.
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// Returns the first outcome that is not a pass. The runs after it are not made.
fn not_passed(runs: impl IntoIterator<Item = Result<Outcome>>) -> Result<Outcome> {
    for outcome in runs {
        let outcome = outcome?;
        if outcome != Outcome::Passed {
            return Ok(outcome);
        }
    }
    Ok(Outcome::Passed)
}

/// Runs a program until one of its lines reports a failure.
fn first_failure(tests: &mut Command, failed: fn(&str) -> Option<String>) -> Result<Outcome> {
    tests.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
    let mut child = tests.spawn().context("cannot start what was built")?;
    let lines = process::lines(child.stdout.take());
    let deadline = Instant::now() + LIMIT;
    let outcome = loop {
        match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                if let Some(what) = failed(&line) {
                    break Some(Outcome::Failed(what));
                }
            }
            Err(RecvTimeoutError::Timeout) => break Some(Outcome::Hung),
            Err(RecvTimeoutError::Disconnected) => break None,
        }
    };
    if outcome.is_some() {
        process::kill_group(&mut child);
    }
    let status = child.wait()?;
    match outcome {
        Some(outcome) => Ok(outcome),
        None if status.success() => Ok(Outcome::Passed),
        None if status.code().is_none() => Ok(Outcome::Died(status.to_string())),
        None => bail!("it ends with {status}, and says of nothing that it has failed"),
    }
}

/// Returns the failed test of a line of the harness.
fn failed_test(line: &str) -> Option<String> {
    line.strip_prefix("test ")?.strip_suffix(" ... FAILED").map(str::to_owned)
}

/// Returns the first failed seed of the output of `sim explore --json`.
fn failed_seed(line: &str) -> Option<String> {
    let report: serde_json::Value = serde_json::from_str(line).ok()?;
    let (seed, seeds) = (report["failing"][0].as_u64()?, report["violations"].as_u64()?);
    Some(format!("seed {seed}, and {seeds} in all"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell_outcome(script: &str) -> Outcome {
        first_failure(Command::new("sh").args(["-c", script]), failed_test).unwrap()
    }

    #[test]
    fn the_first_test_that_fails_is_enough() {
        let failing = "echo test a ... ok; echo test b::c ... FAILED; sleep 1000";
        assert_eq!(shell_outcome(failing), Outcome::Failed("b::c".into()));
        assert_eq!(shell_outcome("echo test a ... ok"), Outcome::Passed);
        assert!(matches!(shell_outcome("kill -ABRT $$"), Outcome::Died(_)));
        assert!(first_failure(Command::new("false").arg("1"), failed_test).is_err());
    }

    #[test]
    fn the_first_seed_that_fails_is_named() {
        let report = |failing: &str| format!(r#"{{"seeds":9,"violations":2,"failing":[{failing}]}}"#);
        assert_eq!(failed_seed(&report("3,7")), Some("seed 3, and 2 in all".into()));
        assert!([report(""), "9 seeds".into()].iter().all(|line| failed_seed(line).is_none()));
    }

    #[test]
    fn every_patch_says_what_it_breaks_and_applies() {
        let root = match shell::workspace() {
            Ok(root) => root,
            Err(error) => {
                println!("skipped: {error:#}");
                return;
            }
        };
        let mutants = list(&root.join(PATCHES)).unwrap();
        for (name, ..) in CRATES {
            let count = mutants.iter().filter(|mutant| mutant.crate_name == name).count();
            assert!(count >= 10, "{count} patches break {name}");
        }
        for mutant in mutants {
            assert!(!mutant.breaks.is_empty(), "{}", mutant.name);
            let mut apply = Command::new("git");
            let apply = apply.args(["apply", "--check"]).arg(&mutant.patch).current_dir(&root);
            let output = apply.output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{} no longer applies: {said}", mutant.name);
        }
    }
}
