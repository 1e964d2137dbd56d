//! The launcher as a user runs it: the ranks' variables, their output, and the processes that remain.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use crate::{cargo, lockstep, workspace};

fn launch(ranks: usize, options: &[&str], program: &[&str]) -> Command {
    let mut command = Command::new(lockstep());
    command.arg("launch").arg("-n").arg(ranks.to_string()).args(options).arg("--").args(program);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn script(ranks: usize, options: &[&str], script: &str) -> Command {
    launch(ranks, options, &["sh", "-c", script])
}

fn lines(bytes: &[u8]) -> Vec<String> {
    let mut lines: Vec<_> = String::from_utf8_lossy(bytes).lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

fn error(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Waits until no process has this number, or only one that has not been reaped.
fn is_gone(process: i32) {
    let pid = Pid::from_raw(process).unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    let is_there = || {
        let status = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        test_kill_process(pid).is_ok() && !status.contains(") Z ")
    };
    while is_there() {
        assert!(Instant::now() < until, "process {process} is left");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn ranks_are_told_where_they_stand() {
    let tell = "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR; test $MASTER_PORT -gt 1023; \
                echo careful >&2";
    let output = script(3, &[], &format!("set -e; {tell}")).output().unwrap();
    assert!(output.status.success(), "{}", error(&output));
    let expected: Vec<_> = (0..3).map(|rank| format!("[{rank}] {rank} 3 {rank} 3 127.0.0.1")).collect();
    assert_eq!(lines(&output.stdout), expected);
    assert_eq!(lines(&output.stderr), ["[0] careful", "[1] careful", "[2] careful"]);
}

#[test]
fn a_job_has_a_secret_unless_it_is_to_have_none() {
    let tell = "stat -c %a $PROCESS_GROUP_STORE_SECRET_FILE; wc -c < $PROCESS_GROUP_STORE_SECRET_FILE";
    let output = script(1, &[], tell).output().unwrap();
    assert_eq!(lines(&output.stdout), ["[0] 600", "[0] 64"], "{}", error(&output));
    let tell = "echo $PROCESS_GROUP_STORE_SECRET $PROCESS_GROUP_STORE_SECRET_FILE";
    let output = script(1, &["--no-secret"], tell).output().unwrap();
    assert_eq!(lines(&output.stdout), ["[0] none"], "{}", error(&output));
    let with = |secret| script(1, &[], tell).env("PROCESS_GROUP_STORE_SECRET", secret).output().unwrap();
    let output = with("sixteen bytes or more");
    assert_eq!(lines(&output.stdout), ["[0] sixteen bytes or more"], "{}", error(&output));
    let output = with("");
    assert!(!output.status.success());
    assert!(error(&output).contains("PROCESS_GROUP_STORE_SECRET is empty"), "{}", error(&output));
}

#[test]
fn the_first_failure_ends_the_rest_and_is_named() {
    // The others are running before rank 1 fails, and print a line when they are asked to end.
    let body = "
        trap 'echo asked; exit 0' TERM
        touch $DIR/$RANK
        while [ $(ls $DIR | wc -l) -lt 3 ]; do sleep 0.02; done
        if [ $RANK = 1 ]; then echo it broke >&2; exit 7; fi
        sleep 1000 & wait";
    let folder = tempfile::tempdir().unwrap();
    let output = script(3, &[], body).env("DIR", folder.path()).output().unwrap();
    let said = error(&output);
    assert_eq!(output.status.code(), Some(7), "{said}");
    assert_eq!(lines(&output.stdout), ["[0] asked", "[2] asked"]);
    assert!(said.contains("rank 1 failed first: exit status 7"), "{said}");
    assert!(said.contains("its last lines:\n    it broke\n"), "{said}");
    assert!(said.contains("sent SIGTERM after that: rank(s) 0, 2"), "{said}");
}

/// Returns the begin of a script: rank 1 ends with `exit`, and the others wait for the end of its process.
fn after_rank_1(exit: &str) -> String {
    format!(
        "if [ $RANK = 1 ]; then echo $$ > $DIR/early; {exit}; fi
        while ! grep -qs ') Z ' /proc/$(cat $DIR/early 2>/dev/null)/stat; do sleep 0.02; done"
    )
}

/// The others wait until the launcher has said that rank 1 has ended.
#[test]
fn a_rank_that_ends_while_the_others_go_on_is_noted() {
    let body = "
        if [ $RANK = 1 ]; then exit 0; fi
        while [ ! -e $DIR/noted ]; do sleep 0.02; done";
    let folder = tempfile::tempdir().unwrap();
    let mut launcher = script(3, &[], body).env("DIR", folder.path()).spawn().unwrap();
    let (sender, noted) = std::sync::mpsc::channel();
    let stderr = BufReader::new(launcher.stderr.take().unwrap());
    std::thread::spawn(move || {
        stderr.lines().map(Result::unwrap).for_each(|line| sender.send(line).unwrap());
    });
    let first = noted.recv_timeout(Duration::from_secs(60));
    std::fs::write(folder.path().join("noted"), "").unwrap();
    assert!(launcher.wait().unwrap().success());
    let expected = "note: rank(s) 1 ended with exit status 0, the first 5 s ago; still running: rank(s) 0, 2";
    assert_eq!(first.as_deref(), Ok(expected));
    assert_eq!(noted.iter().collect::<Vec<_>>(), [""; 0], "more was said");
}

#[test]
fn the_others_go_on_after_a_failure_if_asked_to() {
    // The others wait for longer than `--on-failure stop` would let them run.
    let body = format!(
        "trap 'echo asked; exit 0' TERM
        {}
        sleep 1
        if [ $RANK = 2 ]; then kill -KILL $$; fi
        echo went on",
        after_rank_1("echo it broke >&2; exit 7")
    );
    let folder = tempfile::tempdir().unwrap();
    let options = ["--on-failure", "continue"];
    let output = script(4, &options, &body).env("DIR", folder.path()).output().unwrap();
    let said = error(&output);
    assert_eq!(output.status.code(), Some(7), "{said}");
    assert_eq!(lines(&output.stdout), ["[0] went on", "[3] went on"], "{said}");
    assert!(said.contains("note: rank 1 failed: exit status 7; the others go on\n"), "{said}");
    assert!(said.contains("error: rank 1 failed first: exit status 7"), "{said}");
    assert!(said.contains("rank 2 failed too: ended by signal 9"), "{said}");
    assert!(said.contains("also ended, with exit status 0: rank(s) 0, 3\n"), "{said}");
    assert!(!said.contains("SIGTERM"), "{said}");
}

#[test]
fn a_signal_interrupts_the_ranks_that_go_on_after_a_failure() {
    // Rank 1 fails when rank 0 has set its trap and runs no other program that the signal could end with a message;
    // the launcher reports the failure before the test sends the signal.
    let body = "
        if [ $RANK = 1 ]; then
            while [ ! -e $DIR/ready ]; do sleep 0.02; done
            exit 7
        fi
        trap 'echo interrupted; exit 0' HUP
        : > $DIR/ready
        sleep 1000 & wait";
    let folder = tempfile::tempdir().unwrap();
    let options = ["--on-failure", "continue", "--grace", "3600"];
    let mut launcher = script(2, &options, body).env("DIR", folder.path()).spawn().unwrap();
    let mut said = BufReader::new(launcher.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(said.any(|line| line == "note: rank 1 failed: exit status 7; the others go on"));
    kill_process(Pid::from_child(&launcher), Signal::HUP).unwrap();
    let said: Vec<_> = said.collect();
    let output = launcher.wait_with_output().unwrap();
    assert_eq!(
        (output.status.code(), lines(&output.stdout)),
        (Some(128 + 1), vec!["[0] interrupted".to_owned()]),
        "{said:?}"
    );
    assert!(said[0].starts_with("error: the job was interrupted by SIGHUP "), "{said:?}");
    assert_eq!(said[1..], ["failed before that: rank(s) 1"]);
}

#[test]
fn no_rank_goes_on_after_the_last_one() {
    let output = script(1, &["--on-failure", "continue"], "exit 7").output().unwrap();
    let said = error(&output);
    assert_eq!(output.status.code(), Some(7), "{said}");
    assert!(said.starts_with("error: rank 0 failed first: exit status 7"), "{said}");
}

/// A rank that returns early leaves the others waiting, until they fail or the user interrupts the job.
#[test]
fn a_rank_that_ends_early_without_an_error_is_named() {
    let early = after_rank_1("exit 0");
    let run = |then: &str| {
        let folder = tempfile::tempdir().unwrap();
        let output = script(3, &[], &format!("{early}; {then}")).env("DIR", folder.path()).output().unwrap();
        (output.status.code(), error(&output))
    };
    let (code, said) = run("if [ $RANK = 2 ]; then exit 3; fi; sleep 1000");
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("error: rank 2 failed first: exit status 3"), "{said}");
    assert!(said.contains("also ended, with exit status 0: rank(s) 1\n"), "{said}");
    let (code, said) = run("if [ $RANK = 2 ]; then kill -INT $PPID; fi; sleep 1000");
    assert_eq!(code, Some(128 + 2), "{said}");
    assert!(said.contains("also ended, with exit status 0: rank(s) 1\n"), "{said}");
}

/// The others report the failure of a rank that is killed, and may end before it.
#[test]
fn a_rank_that_a_signal_ends_is_named_before_those_that_it_takes_along() {
    let body = "
        touch $DIR/$RANK
        while [ $(ls $DIR | wc -l) -lt 3 ]; do sleep 0.02; done
        if [ $RANK = 1 ]; then while [ ! -e $DIR/victim ]; do sleep 0.02; done; echo the cause; kill -KILL $$; fi
        if [ $RANK = 0 ]; then echo rank 1 has died; touch $DIR/victim; exit 3; fi
        sleep 1000 & wait";
    let folder = tempfile::tempdir().unwrap();
    let output = script(3, &[], body).env("DIR", folder.path()).output().unwrap();
    let said = error(&output);
    assert_eq!(output.status.code(), Some(128 + 9), "{said}");
    assert!(said.contains("rank 1 failed: ended by signal 9 (SIGKILL"), "{said}");
    assert!(said.contains("its last lines:\n    the cause\n"), "{said}");
    assert!(
        said.contains("rank 0 failed too: exit status 3; its last lines:\n    rank 1 has died\n"),
        "{said}"
    );
    assert!(said.contains("sent SIGTERM after that: rank(s) 2"), "{said}");
}

/// The ranks have not been asked to end when the signal arrives.
#[test]
fn a_signal_just_after_a_failure_asks_the_ranks_to_end() {
    let body = "
        trap 'echo asked; exit 0' TERM
        touch $DIR/$RANK
        while [ $(ls $DIR | wc -l) -lt 2 ]; do sleep 0.02; done
        if [ $RANK = 1 ]; then (sleep 0.1; kill -HUP $PPID) & exit 7; fi
        sleep 1000 & wait";
    let folder = tempfile::tempdir().unwrap();
    let output = script(2, &[], body).env("DIR", folder.path()).output().unwrap();
    let said = error(&output);
    assert_eq!(output.status.code(), Some(7), "{said}");
    assert_eq!(lines(&output.stdout), ["[0] asked"]);
    assert!(said.contains("sent SIGTERM after that: rank(s) 0") && !said.contains("SIGKILL"), "{said}");
}

/// A rank that ignores signals is killed, together with the processes that it started.
#[test]
fn who_does_not_end_is_killed_with_what_it_started() {
    let body = "
        trap '' TERM
        sleep 1000 & echo $!
        touch $DIR/$RANK
        while [ $(ls $DIR | wc -l) -lt 2 ]; do sleep 0.02; done
        if [ $RANK = 0 ]; then kill -SEGV $$; fi
        wait";
    let folder = tempfile::tempdir().unwrap();
    let output = script(2, &["--grace", "0.2"], body).env("DIR", folder.path()).output().unwrap();
    let said = error(&output);
    assert_eq!(output.status.code(), Some(128 + 11), "{said}");
    assert!(said.contains("rank 0 failed first: ended by signal 11 (SIGSEGV)"), "{said}");
    assert!(said.contains("sent SIGKILL, as they did not end: rank(s) 1"), "{said}");
    let started = lines(&output.stdout);
    assert_eq!(started.len(), 2, "{started:?}");
    for line in started {
        is_gone(line.split(' ').next_back().unwrap().parse().unwrap());
    }
}

#[test]
fn an_interrupt_reaches_every_rank() {
    let body = "trap 'echo interrupted; exit 5' INT; sleep 1000 & echo $$; while :; do wait; done";
    let mut launcher = script(2, &[], body).spawn().unwrap();
    let mut output = BufReader::new(launcher.stdout.take().unwrap()).lines().map(Result::unwrap);
    let started: Vec<_> = output.by_ref().take(2).collect();
    kill_process(Pid::from_child(&launcher), Signal::INT).unwrap();
    let mut rest: Vec<_> = output.collect();
    rest.sort();
    assert_eq!(rest, ["[0] interrupted", "[1] interrupted"]);
    let output = launcher.wait_with_output().unwrap();
    let said = error(&output);
    assert_eq!(output.status.code(), Some(128 + 2), "{said}");
    assert!(said.contains("error: the job was interrupted by SIGINT"), "{said}");
    assert!(said.contains("after that, exit status 5: rank(s) 0, 1"), "{said}");
    assert!(!said.contains("failed"), "{said}");
    for line in started {
        is_gone(line.split(' ').next_back().unwrap().parse().unwrap());
    }
}

/// The only rank is ended by the same signal as the launcher, perhaps before the launcher has read its own.
#[test]
fn a_signal_to_all_processes_is_no_failure_of_a_rank() {
    let output = launch(1, &[], &["sh", "-c", "kill -TERM $PPID $$"]).output().unwrap();
    let said = error(&output);
    assert_eq!(output.status.code(), Some(128 + 15), "{said}");
    assert!(said.contains("error: the job was interrupted by SIGTERM"), "{said}");
    assert!(!said.contains("rank"), "{said}");
}

#[test]
fn a_rank_that_a_signal_of_its_own_ends_has_failed() {
    let output = launch(1, &[], &["sh", "-c", "kill -TERM $$"]).output().unwrap();
    let said = error(&output);
    assert_eq!(output.status.code(), Some(128 + 15), "{said}");
    assert!(said.contains("rank 0 failed first: ended by signal 15 (SIGTERM)"), "{said}");
}

/// Ranks do not outlive a launcher that was killed.
#[test]
fn ranks_go_with_their_launcher() {
    let mut launcher = launch(2, &[], &["sh", "-c", "echo $$; exec sleep 1000"]).spawn().unwrap();
    let output = BufReader::new(launcher.stdout.take().unwrap()).lines().map(Result::unwrap);
    let started: Vec<_> = output.take(2).collect();
    launcher.kill().unwrap();
    launcher.wait().unwrap();
    for line in started {
        is_gone(line.split(' ').next_back().unwrap().parse().unwrap());
    }
}

/// The secret's file of a launcher that was killed is removed by the next job.
#[test]
fn a_killed_launcher_leaves_no_secret_for_long() {
    let folder = tempfile::tempdir().unwrap();
    let in_folder = |mut command: Command| {
        command.env("TMPDIR", folder.path()).env_remove("XDG_RUNTIME_DIR");
        command
    };
    let files = || std::fs::read_dir(folder.path()).unwrap().count();
    let start = || {
        let mut launcher =
            in_folder(launch(1, &[], &["sh", "-c", "echo $$; exec sleep 1000"])).spawn().unwrap();
        let output = BufReader::new(launcher.stdout.take().unwrap()).lines().map(Result::unwrap);
        let started: Vec<_> = output.take(1).collect();
        let rank = started[0].split(' ').next_back().unwrap().parse::<i32>().unwrap();
        (launcher, rank)
    };
    let end = |(mut launcher, rank): (Child, i32)| {
        launcher.kill().unwrap();
        launcher.wait().unwrap();
        is_gone(rank);
    };
    let (running, killed) = (start(), start());
    end(killed);
    assert_eq!(files(), 2);
    let output = in_folder(launch(1, &[], &["true"])).output().unwrap();
    assert!(output.status.success(), "{}", error(&output));
    assert_eq!(files(), 1, "expected the file of the launcher that runs");
    end(running);
}

/// The program begins with the first word that is no option, or after `--`. All words after its name are its own.
#[test]
fn options_of_the_launcher_end_at_the_program() {
    let program = ["sh", "-c", "echo its $*", "name", "-n", "3", "--port", "--", "--help"];
    for options in [&["-n2"][..], &["-n=2"], &["--n=2"], &["-n", "2"], &["-n2", "--"]] {
        let output = Command::new(lockstep()).arg("launch").args(options).args(program).output().unwrap();
        assert!(output.status.success(), "{options:?}: {}", error(&output));
        let expected = [0, 1].map(|rank| format!("[{rank}] its -n 3 --port -- --help"));
        assert_eq!(lines(&output.stdout), expected, "{options:?}");
    }
}

#[test]
fn a_program_whose_name_is_like_an_option_goes_after_two_hyphens() {
    let output = launch(1, &[], &["--no-such-program"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(error(&output).contains("cannot start rank 0: --no-such-program"), "{}", error(&output));
}

#[test]
fn a_program_that_is_not_there_is_named() {
    let output = launch(2, &[], &["/no/such/program"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(error(&output).contains("cannot start rank 0: /no/such/program"), "{}", error(&output));
}

/// The example of process-group, and the embedded machine as a shared library. They are built unless the environment
/// names them; `None` without cargo.
fn all_reduce() -> Option<(PathBuf, PathBuf)> {
    let Some(root) = workspace() else {
        println!("skipped: the example is built from the source tree, with cargo");
        return None;
    };
    let named = |variable| std::env::var_os(variable).map(PathBuf::from);
    // Beside this program, in any target folder: `deps` and `examples` have the same parent.
    let folder = std::env::current_exe().unwrap().parent().unwrap().with_file_name("examples");
    let build = |package, example, features| {
        let arguments =
            ["build", "--quiet", "--package", package, "--example", example, "--features", features];
        assert!(cargo(&root, &arguments).status().unwrap().success(), "cannot build {example} of {package}");
    };
    let machine = named("EMBEDDED_LIBRARY").unwrap_or_else(|| {
        build("lockstep-gpu-sim", "shared_library", "exports");
        folder.join("libshared_library.so")
    });
    let program = named("ALL_REDUCE_EXAMPLE").unwrap_or_else(|| {
        build("lockstep-process-group", "all_reduce", "");
        folder.join("all_reduce")
    });
    Some((program, machine))
}

#[test]
fn a_job_sums_over_the_embedded_machine() {
    let Some((program, machine)) = all_reduce() else { return };
    let output = launch(4, &[], &[program.to_str().unwrap()])
        .env("CUDA_DRIVER_SYS_LIBRARY", &machine)
        .env("NCCL_SYS_LIBRARY", &machine)
        .env("GPU_SIM_DEVICES", "4")
        .env("PROCESS_GROUP_STORE_SECRET", "0123456789abcdef")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", error(&output));
    let expected: Vec<_> = (0..4).map(|rank| format!("[{rank}] rank {rank} of 4: the sum is 6")).collect();
    assert_eq!(lines(&output.stdout), expected);
}
