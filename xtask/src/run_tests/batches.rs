//! Runs one test binary as several processes at a time.
//!
//! `cargo xtask test` makes this task the `runner` of cargo's test binaries. A process can have only one embedded device
//! at a time, so most end-to-end tests take turns within a process, and many wait for deadlines: a single process
//! leaves the cores idle. Every process gets a batch of tests, and takes the next batch when it has ended.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};

use super::count;

/// Processes at a time, for each core: most of them wait.
const PROCESSES_PER_CORE: usize = 2;

/// Batches for each process: more of them balance better, and each starts a process.
const BATCHES_PER_PROCESS: usize = 8;

/// The name of the hidden task, which cargo starts with a test binary and its arguments.
pub(crate) const TASK: &str = "test-batches";

/// The results of all batches.
#[derive(Default)]
struct Results {
    passed: u64,
    failed: u64,
    ignored: u64,
}

/// Runs the test binary that is the first of `words` with the arguments that follow it.
pub(crate) fn run(words: &[OsString]) -> Result<()> {
    let (binary, arguments) = words.split_first().context("no test binary given")?;
    let names = list(binary, arguments)?;
    let processes = PROCESSES_PER_CORE * thread::available_parallelism().map_or(1, usize::from);
    let batches: Vec<_> = split(&names, processes * BATCHES_PER_PROCESS);
    println!("running {} tests", names.len());
    let begun = Instant::now();
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Results::default()));
    let work = || {
        while let Some(batch) = batches.get(next.fetch_add(1, Ordering::Relaxed)) {
            let mut command = Command::new(binary);
            command.args(["--show-output", "--test-threads=1", "--exact"]).args(batch);
            let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
            let output = output.with_context(|| format!("cannot run {}", binary.display()))?;
            let mut results = results.lock().expect("no thread panics while it holds the lock");
            results.add(batch, &output)?;
        }
        anyhow::Ok(())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..processes.min(batches.len())).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a batch's thread does not panic"))
    })?;
    let Results { passed, failed, ignored } = results.into_inner().expect("no thread has panicked");
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {verdict}. {passed} passed; {failed} failed; {ignored} ignored; 0 measured; 0 filtered out; \
         finished in {:.2}s\n",
        begun.elapsed().as_secs_f64()
    );
    if failed > 0 {
        bail!("{failed} tests of {} failed", binary.display());
    }
    Ok(())
}

/// Returns the names of the binary's tests that its arguments choose.
fn list(binary: &OsString, arguments: &[OsString]) -> Result<Vec<String>> {
    let mut command = Command::new(binary);
    let output =
        command.args(arguments).args(["--list", "--format", "terse"]).stderr(Stdio::inherit()).output();
    let output = output.with_context(|| format!("cannot run {}", binary.display()))?;
    if !output.status.success() {
        bail!("{} does not list its tests: {}", binary.display(), output.status);
    }
    let listed = String::from_utf8(output.stdout).context("a test's name is not UTF-8")?;
    Ok(listed.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
}

/// Splits the names into at most `count` batches of about the same size. Neighbours, which often take equally long, go
/// into different batches.
fn split(names: &[String], count: usize) -> Vec<Vec<&str>> {
    let count = count.min(names.len());
    (0..count).map(|first| names.iter().skip(first).step_by(count).map(String::as_str).collect()).collect()
}

impl Results {
    /// Adds the output of a batch, and prints all of it but its own summary.
    fn add(&mut self, batch: &[&str], output: &Output) -> Result<()> {
        let text = String::from_utf8_lossy(&output.stdout);
        let mut lines: Vec<&str> = text.lines().collect();
        // The last one: a test may have run others in a process of its own.
        let summary = lines.iter().rposition(|line| line.starts_with("test result: "));
        let result = summary.map_or("", |at| lines.remove(at));
        let (passed, failed) = (count(result, " passed"), count(result, " failed"));
        let ignored = count(result, " ignored");
        self.passed += passed;
        self.failed += failed;
        self.ignored += ignored;
        let mut stdout = io::stdout().lock();
        for line in lines.iter().filter(|line| !line.starts_with("running ")) {
            writeln!(stdout, "{line}").context("cannot print")?;
        }
        let missing = (batch.len() as u64).saturating_sub(passed + failed + ignored);
        if missing > 0 || (failed == 0 && !output.status.success()) {
            self.failed += missing.max(1);
            writeln!(
                stdout,
                "a test process ended early: {}; its tests: {}",
                output.status,
                batch.join(", ")
            )
            .context("cannot print")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::ExitStatus;

    use super::*;

    #[test]
    fn every_test_is_in_one_batch() {
        for (names, count) in [(0, 3), (2, 3), (3, 3), (10, 3)] {
            let names: Vec<String> = (0..names).map(|name| name.to_string()).collect();
            let batches = split(&names, count);
            let mut all = batches.concat();
            all.sort_by_key(|name| name.parse::<usize>().ok());
            assert_eq!(all, names);
            let sizes: Vec<_> = batches.iter().map(Vec::len).collect();
            assert!(batches.len() <= count && sizes.iter().all(|size| size + 1 >= sizes[0]), "{sizes:?}");
        }
    }

    #[test]
    fn tests_of_a_process_that_dies_have_failed() {
        let output = |stdout: &str, status| Output {
            status: ExitStatus::from_raw(status),
            stdout: stdout.into(),
            stderr: Vec::new(),
        };
        let mut results = Results::default();
        let said = "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 9 filtered out";
        results.add(&["a"], &output(said, 0)).unwrap();
        assert_eq!((results.passed, results.failed), (1, 0));
        results.add(&["b", "c"], &output("test b ... ok", 6)).unwrap();
        assert_eq!((results.passed, results.failed), (1, 2));
        // It failed after its summary.
        results.add(&["d"], &output(said, 11)).unwrap();
        assert_eq!((results.passed, results.failed), (2, 3));
    }
}
