//! Errors of arguments and of the environment: what was expected, and the exit code.

use std::process::{Command, Output};

use crate::lockstep;

fn run(arguments: &[&str]) -> (Output, String) {
    let output = Command::new(lockstep()).args(arguments).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, error)
}

#[test]
fn wrong_arguments_are_an_error_that_says_what_is_expected() {
    for (arguments, expected) in [
        (&["replay", "--capacity", "1GB", "x"][..], "such as 80GiB"),
        (&["replay", "--capacity", "1GB", "x"], "invalid value '1GB'"),
        (&["replay", "--capacity", "80GB", "x"], "write 80GiB, or 80000000000 if a unit is 1000^3 bytes"),
        (&["replay", "--check", "x"], "--backend cuda"),
        (&["launch", "-n", "x", "true"], "expected a number of ranks from 1 to 4096"),
        (&["launch", "-n", "0", "true"], "expected a number of ranks from 1 to 4096"),
        (&["launch", "-n", "-1", "true"], "expected a number of ranks from 1 to 4096"),
        (&["launch", "-n2x", "true"], "expected a number of ranks from 1 to 4096"),
        (&["launch", "--ranks", "2", "true"], "a similar argument exists: '-n <N>'"),
        (&["launch", "--nproc-per-node", "2", "true"], "a similar argument exists: '-n <N>'"),
        (&["launch", "--nproc_per_node=2", "true"], "a similar argument exists: '-n <N>'"),
        (&["launch", "--numa", "true"], "use '-- --numa'"),
        (&["launch", "-x", "true"], "use '-- -x'"),
        (&["launch", "--port", "65536", "true"], "expected a port from 0 to 65535"),
        (&["doctor", "--deadline", "0"], "expected a number of seconds from 0.1 to 3600"),
        (&["demo", "--deadline", "-1"], "expected a number of seconds from 0.1 to 3600"),
        (&["demo", "--backend", "sim", "--ranks", "4", "--absent", "4"], "expected one of the ranks 0 to 3"),
        (&["demo", "--trace", "-"], "invalid value '-' for '--trace <FILE>': expected a file"),
        (&["demo", "--trace", "/dev/stdin"], "expected a file"),
        (&["demo", "--trace", "/dev/null"], "expected a file"),
        (&["kill-test", "--ranks", "1"], "expected a number of ranks from 2 to 64"),
        (&["kill-test", "--demo", "--backend", "sim", "--ranks", "3"], "expected an even number"),
        (&["kill-test", "--backend", "sim", "--pinned", "65536"], "of memory that this host has available"),
        (&["kill-test", "--demo", "--within", "0"], "expected a number of ms"),
        (&["replay", "--read-memory", "0", "x"], "expected a number of MiB"),
        (&["fr", "live", "127.0.0.1"], "is no address of a store (host:port)"),
        (&["bench", "call", "--ranks", "-1"], "expected a number of ranks from 2 to 64"),
        (&["bench", "pool", "--ranks", "3"], "expected an even number of ranks from 2 to 64"),
        (&["bench", "p2p", "--ring", "8"], "such as 8x4"),
        (&["bench", "store", "--attack", "--only", "nope"], "none, append, toggle"),
        (&["bench", "store", "--attack", "--rounds", "1"], "cannot be used with"),
        (&["bench", "store", "--attack", "--clients", "1"], "cannot be used with"),
        (&["bench", "store", "--attack", "--server", "/none"], "expected an executable file"),
    ] {
        let (output, error) = run(arguments);
        assert!(error.contains(expected), "{arguments:?}: {error}");
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
    }
}

/// Also for errors that the parser of the command line cannot see, which a command finds.
#[test]
fn an_error_of_the_arguments_ends_with_the_way_to_the_help() {
    for arguments in [
        &["demo", "--backend", "sim", "--ranks", "4", "--absent", "9"][..],
        &["demo", "--absent", "64"],
        &["kill-test", "--demo", "--backend", "sim", "--ranks", "3"],
        &["kill-test", "--ranks", "1"],
        &["kill-test", "--json", "--demo", "--backend", "sim", "--ranks", "3"],
        &["fr", "live", "nowhere"],
    ] {
        let (output, error) = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(error.ends_with("\n\nFor more information, try '--help'.\n"), "{arguments:?}: {error}");
    }
    let (output, error) = run(&["fr", "analyze", "/nonexistent/folder"]);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(!error.contains("--help"), "{error}");
}

#[test]
fn hidden_commands_and_options_are_not_suggested() {
    for (arguments, hidden, suggested) in [
        (&["bench", "symm", "--chek"][..], "", "a similar argument exists: '--check'"),
        (&["bench", "alloc", "--chek"], "--check", ""),
        (&["bench", "store", "--serv"], "'--serve'", "a similar argument exists: '--server'"),
        (&["bench", "store", "--attack", "--adress", "x"], "--address", ""),
        (&["bench", "progra"], "program", ""),
        (&["doctor", "--device"], "--devices", ""),
        (&["launch", "--nprocs", "2", "true"], "'--nproc'", "use '-- --nprocs'"),
        (&["prob"], "probe", ""),
        (&["help-pag"], "help-page", ""),
        (&["--devics", "doctor"], "--devices", ""),
        (&["--jsn", "doctor"], "", "'doctor --json' exists"),
        (&["doctr"], "", "a similar subcommand exists: 'doctor'"),
    ] {
        let (output, error) = run(arguments);
        assert!(hidden.is_empty() || !error.contains(hidden), "{arguments:?}: {error}");
        assert!(error.contains(suggested), "{arguments:?}: {error}");
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
    }
}

#[test]
fn a_kill_test_checks_its_arguments_first() {
    for arguments in [&["--demo", "--ranks", "63"][..], &["--ranks", "64", "--pinned", "65536"]] {
        let (output, error) = run(&[&["kill-test"], arguments].concat());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(error.starts_with("error: --"), "{arguments:?}: {error}");
    }
}

#[test]
fn a_kill_test_checks_the_folder_for_dumps_first() {
    let file = tempfile::NamedTempFile::new().unwrap();
    for demo in [None, Some("--demo")] {
        let mut command = Command::new(lockstep());
        command.args(["kill-test", "--rounds", "1", "--backend", "sim"]).args(demo);
        let output = command.env("PROCESS_GROUP_DUMP_FOLDER", file.path()).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.starts_with("error: PROCESS_GROUP_DUMP_FOLDER: no dump can be written to"), "{error}");
    }
}

#[test]
fn a_rank_that_ends_early_is_named_with_its_round() {
    let mut command = Command::new(lockstep());
    command.args(["kill-test", "--rounds", "1", "--backend", "sim", "--ranks", "2"]);
    let output = command.env("PROCESS_GROUP_STORE_SECRET", "short").output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(
        error.contains("the store's secret: PROCESS_GROUP_STORE_SECRET holds a secret of 5 bytes"),
        "{error}"
    );
    assert!(error.contains("round 1: rank 0 ended before it was ready, see its error above"), "{error}");
}

/// Whatever a command has printed before, its last line of output has the error that standard error has.
#[test]
fn an_error_is_the_last_object_of_json() {
    let folder = tempfile::tempdir().unwrap();
    let [trace, broken] = [("trace", "a 7f00 512 0\nr 7f00 512 0\nf 7f00 512 0\n"), ("broken", "no trace\n")]
        .map(|(name, text)| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        });
    for (arguments, objects) in [
        (&["demo", "--json", "--trace", "/nonexistent/trace"][..], 1),
        (&["fr", "analyze", "--json", "/nonexistent/folder"], 1),
        (&["fr", "live", "--json", "127.0.0.1:1", "--wait", "0.1"], 1),
        (&["replay", "--json", &trace, &broken], 2),
        (&["bench", "kernels", "--json", "--check"], 1),
        (&["kill-test", "--json", "--demo", "--backend", "sim", "--ranks", "3"], 1),
    ] {
        let (output, said) = run(arguments);
        assert!(!output.status.success(), "{arguments:?}: {said}");
        let printed = String::from_utf8(output.stdout).unwrap();
        let lines: Vec<serde_json::Value> =
            printed.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
        assert_eq!(lines.len(), objects, "{arguments:?}: {printed}{said}");
        let error =
            lines[objects - 1]["error"].as_str().unwrap_or_else(|| panic!("{arguments:?}: {printed}"));
        let help =
            if output.status.code() == Some(2) { "\nFor more information, try '--help'.\n" } else { "" };
        assert!(said.ends_with(&format!("error: {error}\n{help}")), "{arguments:?}: {error} {said}");
    }
    let (output, said) = run(&["fr", "analyze", "/nonexistent/folder"]);
    assert!(output.stdout.is_empty() && said.starts_with("error: "), "{said}");
}
