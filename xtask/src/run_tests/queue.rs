//! Runs tests in processes of their own, several at a time.
//!
//! A process can have only one embedded device at a time, and many tests wait for deadlines. In one process they would
//! take turns and leave the cores idle, and one test that ends its process would end the others.

use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::skips::Skip;
use crate::artifacts::Artifact;

/// Processes at a time, for each core: most of them wait.
const PROCESSES_PER_CORE: usize = 3;

/// One test of a test binary.
struct Test<'a> {
    binary: &'a Artifact,
    name: String,
}

/// What became of all tests.
#[derive(Default)]
pub(super) struct Report {
    pub(super) passed: u64,
    /// The names of the binaries and their tests.
    pub(super) failed: Vec<String>,
    pub(super) skipped: Vec<Skip>,
    pub(super) times: Vec<(Duration, String)>,
}

/// Runs the tests whose names contain `filter`. `prepare` sets the environment of each process.
pub(super) fn run(
    binaries: &[Artifact],
    filter: Option<&str>,
    prepare: &(dyn Fn(&mut Command) + Sync),
) -> Result<Report> {
    let start = |binary: &Artifact| {
        let mut command = Command::new(&binary.path);
        prepare(
            command.current_dir(&binary.manifest_folder).env("CARGO_MANIFEST_DIR", &binary.manifest_folder),
        );
        command
    };
    let mut tests = Vec::new();
    for binary in binaries {
        let names = list(start(binary).args(filter).args(["--list", "--format", "terse"]))?;
        let ignored = list(start(binary).args(filter).args(["--list", "--format", "terse", "--ignored"]))?;
        let wanted = names.into_iter().filter(|name| !ignored.contains(name));
        tests.extend(wanted.map(|name| Test { binary, name }));
    }
    println!("running {} tests", tests.len());
    let (next, report) = (AtomicUsize::new(0), Mutex::new(Report::default()));
    let work = || {
        while let Some(Test { binary, name }) = tests.get(next.fetch_add(1, Ordering::Relaxed)) {
            let begun = Instant::now();
            let mut command = start(binary);
            command.args(["--exact", "--show-output", name]).stdin(Stdio::null());
            let output = command.output().with_context(|| format!("cannot run {}", binary.path.display()))?;
            let mut report = report.lock().expect("no thread panics while it holds the lock");
            let text = String::from_utf8_lossy(&output.stdout);
            let time = begun.elapsed();
            let result = report.add(&binary.test_name(), name, output.status.success(), &text, time);
            println!("{} {name} ... {result} ({:.1} s)", binary.test_name(), time.as_secs_f64());
            if !output.status.success() {
                println!("{}\n{text}{}", output.status, String::from_utf8_lossy(&output.stderr));
            }
        }
        anyhow::Ok(())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..processes().min(tests.len())).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a worker does not panic"))
    })?;
    Ok(report.into_inner().expect("no thread has panicked"))
}

/// Returns the number of tests to run at a time.
pub(super) fn processes() -> usize {
    PROCESSES_PER_CORE * thread::available_parallelism().map_or(1, usize::from)
}

/// Returns the names of the tests that a binary lists.
fn list(command: &mut Command) -> Result<Vec<String>> {
    let binary = command.get_program().to_string_lossy().into_owned();
    let output = command.stderr(Stdio::inherit()).output().with_context(|| format!("cannot run {binary}"))?;
    if !output.status.success() {
        bail!("{binary} does not list its tests: {}", output.status);
    }
    let listed = String::from_utf8(output.stdout).context("a test's name is not UTF-8")?;
    Ok(listed.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
}

impl Report {
    /// Adds the result of a test that wrote `output`, and returns it as a word.
    pub(super) fn add(
        &mut self,
        binary: &str,
        name: &str,
        has_passed: bool,
        output: &str,
        time: Duration,
    ) -> &'static str {
        let full_name = format!("{binary} {name}");
        self.times.push((time, full_name.clone()));
        let why = output.lines().find_map(|line| line.strip_prefix("skipped: "));
        match (has_passed, why) {
            (false, _) => {
                self.failed.push(full_name);
                "FAILED"
            }
            (true, Some(why)) => {
                self.skipped.push(Skip { test: name.to_owned(), why: why.to_owned() });
                "skipped"
            }
            (true, None) => {
                self.passed += 1;
                "ok"
            }
        }
    }

    /// Returns the tests that took longest, the longest first.
    pub(super) fn slowest(&mut self, count: usize) -> &[(Duration, String)] {
        self.times.sort_unstable_by(|one, other| other.cmp(one));
        &self.times[..count.min(self.times.len())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_has_passed_failed_or_been_skipped() {
        let mut report = Report::default();
        let results = [
            ("a", true, "test a ... ok\n"),
            ("b", true, "successes:\n\n---- b stdout ----\nskipped: no GPU here\n"),
            ("c", false, "skipped: but then its process died\n"),
        ]
        .map(|(name, has_passed, output)| report.add("crate", name, has_passed, output, Duration::ZERO));
        assert_eq!(results, ["ok", "skipped", "FAILED"]);
        assert_eq!((report.passed, &report.failed[..]), (1, &["crate c".to_owned()][..]));
        assert_eq!(report.skipped, [Skip { test: "b".to_owned(), why: "no GPU here".to_owned() }]);
        assert_eq!(report.slowest(2).len(), 2);
    }
}
