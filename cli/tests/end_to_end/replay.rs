//! Replays of several traces, of which some fail.

use std::fs::{self, File};
use std::process::{Command, Output, Stdio};

use crate::lockstep;

fn replay(arguments: &[&str]) -> Output {
    Command::new(lockstep()).arg("replay").args(arguments).output().unwrap()
}

/// A trace with one block of 64 MiB, and one with a block of 512 bytes.
fn traces(folder: &tempfile::TempDir) -> [String; 2] {
    [("large", 64 << 20), ("small", 512)].map(|(name, bytes)| {
        let path = folder.path().join(name);
        fs::write(&path, format!("a 7f00 {bytes} 0\nr 7f00 {bytes} 0\nf 7f00 {bytes} 0\n")).unwrap();
        path.to_str().unwrap().to_owned()
    })
}

#[test]
fn a_trace_that_fails_does_not_keep_the_others_from_being_replayed() {
    let folder = tempfile::tempdir().unwrap();
    let [large, small] = &traces(&folder);
    let output = replay(&["--json", "--capacity", "32MiB", large, small, large]);
    let (said, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert_eq!((said.lines().count(), said.contains(small.as_str())), (2, true), "{said}");
    assert_eq!(error.matches("out of memory in operation 1").count(), 2, "{error}");
    assert!(error.contains(&format!("error: 2 of 3 replays failed: {large}, {large}")), "{error}");
}

#[test]
fn a_file_that_is_no_trace_does_not_keep_the_others_from_being_replayed() {
    let folder = tempfile::tempdir().unwrap();
    let [large, small] = &traces(&folder);
    let broken = folder.path().join("broken");
    fs::write(&broken, "not a trace\n").unwrap();
    let broken = broken.to_str().unwrap();
    let output = replay(&["--json", large, broken, small]);
    let (said, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert_eq!(said.lines().count(), 3, "{said}");
    assert!(said.contains(large.as_str()) && said.contains(small.as_str()), "{said}");
    assert!(error.contains(&format!("error: trace file {broken}, line 1: ")), "{error}");
    assert!(error.contains(&format!("error: 1 of 3 replays failed: {broken}")), "{error}");
}

/// Both commands read standard input, by its path or as `-`.
#[test]
fn a_trace_may_come_from_a_pipe() {
    let folder = tempfile::tempdir().unwrap();
    let [_, small] = &traces(&folder);
    let page = folder.path().join("page.html");
    let piped = |arguments: &[&str]| {
        let mut cat = Command::new("cat").arg(small).stdout(Stdio::piped()).spawn().unwrap();
        let mut command = Command::new(lockstep());
        let output = command.args(arguments).stdin(cat.stdout.take().unwrap()).output().unwrap();
        cat.wait().unwrap();
        output
    };
    for input in ["-", "/dev/stdin"] {
        let output = piped(&["replay", "--json", input]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{input}: {error}");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("\"trace\":\"/dev/stdin\"") && said.contains("\"peak_active\":512"), "{said}");

        let output = piped(&["viz", input]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{input}: {error}");
        let expected = "error: no page can be written next to /dev/stdin; give -o PAGE.html\n\n\
                        For more information, try '--help'.\n";
        assert_eq!(error, expected);

        let output = piped(&["viz", input, "-o", page.to_str().unwrap()]);
        assert!(output.status.success(), "{input}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(fs::read_to_string(&page).unwrap().contains("stdin, replayed over"));

        let output = piped(&["viz", input, "-o", "-"]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{input}: {error}");
        assert!(output.stdout == fs::read(&page).unwrap(), "expected the page and nothing else");
        assert!(error.starts_with("wrote the page to standard output ("), "{error}");
        fs::remove_file(&page).unwrap();
    }
    // A file as standard input.
    let output =
        Command::new(lockstep()).args(["replay", "-"]).stdin(File::open(small).unwrap()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_replay_without_enough_memory_says_the_figures_and_the_option() {
    let folder = tempfile::tempdir().unwrap();
    let [large, _] = &traces(&folder);
    let output = replay(&["--capacity", "32MiB", large]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    let expected = "out of memory in operation 1, which asks for 67108864 bytes: the trace's peak active is \
                    67108864 bytes, and --capacity allows 33554432; raise --capacity, or use --policy remap, \
                    which may need less; without --capacity, `lockstep replay` prints the least capacity for the \
                    policy given\n";
    assert!(error.ends_with(expected), "{error}");
    assert!(!error.contains("Free blocks"), "{error}");
}

#[test]
fn an_input_is_not_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let [large, small] = &traces(&folder);
    let (large, small) = (large.as_str(), small.as_str());
    let content = fs::read(small).unwrap();
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(small, &link).unwrap();
    let link = link.to_str().unwrap();
    for (arguments, option) in [
        (&["replay", "--curves", small, large, small][..], "--curves"),
        (&["replay", "--curves", link, small], "--curves"),
        (&["viz", small, "-o", small], "-o"),
        (&["viz", link, "-o", small], "-o"),
    ] {
        let output = Command::new(lockstep()).args(arguments).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(error.starts_with(&format!("error: {option} ")), "{arguments:?}: {error}");
        let end = " is the input; give another file\n\nFor more information, try '--help'.\n";
        assert!(error.ends_with(end), "{arguments:?}: {error}");
        assert_eq!(fs::read(small).unwrap(), content, "{arguments:?}");
    }
}

#[test]
fn curves_that_cannot_be_written_are_an_error_before_the_first_replay() {
    let folder = tempfile::tempdir().unwrap();
    let [_, small] = &traces(&folder);
    let curves = folder.path().join("none").join("curves.json");
    let output = replay(&["--curves", curves.to_str().unwrap(), small]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.starts_with("error: cannot write the curves to "), "{error}");
    assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
}
