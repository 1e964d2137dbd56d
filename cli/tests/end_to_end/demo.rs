//! The demo as a user runs it: its process, its exit code, its last line, and the resources that it leaves.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group, test_kill_process_group};
use serde_json::Value;

use crate::lockstep;

/// A demo uses all cores; two at once would only be slower.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn demo(arguments: &[&str]) -> Command {
    let mut command = Command::new(lockstep());
    command
        .arg("demo")
        .args(arguments)
        .env_remove("NCCL_SYS_LIBRARY")
        .env_remove("CUDA_DRIVER_SYS_LIBRARY")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    command
}

/// Names of abstract sockets and shared-memory files that could be the demo's.
fn left_behind() -> BTreeSet<String> {
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let sockets = sockets
        .lines()
        .filter_map(|line| line.split_whitespace().nth(7))
        .filter(|name| name.contains("gpu-sim"));
    let files = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    let files = files.map(|file| file.file_name().to_string_lossy().into_owned());
    sockets.map(str::to_owned).chain(files).collect()
}

/// Runs it to its end while `meanwhile` runs, and checks that no resources are left.
pub(crate) fn finish(mut command: Command, meanwhile: impl FnOnce(u32)) -> Output {
    let _turn = turn();
    let before = left_behind();
    let child = command.spawn().unwrap();
    let group = Pid::from_raw(child.id() as i32).unwrap();
    let (done, ended) = std::sync::mpsc::channel::<()>();
    let guard = std::thread::spawn(move || {
        if ended.recv_timeout(Duration::from_secs(300)).is_err() {
            let _ = kill_process_group(group, Signal::KILL);
        }
    });
    meanwhile(child.id());
    let output = child.wait_with_output().unwrap();
    done.send(()).expect("the demo did not end by itself");
    guard.join().unwrap();
    assert!(test_kill_process_group(group).is_err(), "processes are left");
    // Other programs on this machine may have such resources for a while.
    let left = || left_behind().difference(&before).cloned().collect::<Vec<_>>();
    let gone = (0..1200).any(|_| {
        left().is_empty() || {
            std::thread::sleep(Duration::from_millis(50));
            false
        }
    });
    assert!(gone, "left behind: {:?}", left());
    output
}

fn last_line(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().last().unwrap_or_default();
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line:?}\n{output:#?}"))
}

/// Runs a command that must fail, and returns its one error.
fn failure(command: Command) -> String {
    failure_while(command, |_| {})
}

fn failure_while(command: Command, meanwhile: impl FnOnce(u32)) -> String {
    let output = finish(command, meanwhile);
    assert!(!output.status.success(), "{output:?}");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let count = errors.lines().filter(|line| line.starts_with("error: ")).count();
    assert_eq!(count, 1, "expected one error:\n{errors}");
    errors[errors.find("error: ").unwrap()..].to_owned()
}

#[track_caller]
fn contains(error: &str, parts: &[&str]) {
    for part in parts {
        assert!(error.contains(part), "expected {part:?} in: {error}");
    }
}

fn passes(ranks: u64, groups: usize) {
    let output = finish(demo(&["--json", "--backend", "sim", "--ranks", &ranks.to_string()]), |_| {});
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let figures = last_line(&output);
    assert_eq!(figures["ok"], true);
    assert_eq!(figures["backend"], "sim");
    assert_eq!(figures["ranks"], ranks);
    assert_eq!(figures["trace"]["allocations"], 17_285);
    assert_eq!(figures["trace"]["peak_active"], 13_064_811_520_u64);
    assert_eq!(figures["groups"].as_array().unwrap().len(), groups);
    for group in figures["groups"].as_array().unwrap() {
        let members = group["ranks"].as_array().unwrap().len();
        assert_eq!(group["windows"].as_u64().unwrap() > 0, members > 1, "{group}");
        assert!(group["verified_bytes"].as_u64().unwrap() > 0, "{group}");
    }
    assert_eq!(figures["divergence"]["detected_on"].as_array().unwrap().len() as u64, ranks);
    let diverging = if ranks > 2 { "rank 2" } else { "rank 1" };
    contains(figures["divergence"]["error"].as_str().unwrap(), &[diverging]);
    for part in ["trace", "divergence"] {
        let milliseconds = figures[part]["milliseconds"].as_f64().unwrap();
        assert!(milliseconds > 0.0 && milliseconds == (milliseconds * 1e3).round() / 1e3, "{milliseconds}");
    }
}

#[test]
fn two_ranks_pass() {
    passes(2, 4);
}

#[test]
fn four_ranks_pass() {
    passes(4, 5);
}

#[test]
fn eight_ranks_pass() {
    passes(8, 7);
}

#[test]
fn rank_counts_that_the_groups_do_not_allow_are_refused() {
    for ranks in ["0", "1", "3", "66", "-2", "four"] {
        let error = failure(demo(&[&format!("--ranks={ranks}")]));
        contains(&error, &["expected an even number of ranks from 2 to 64"]);
    }
    contains(&failure(demo(&["--absent", "4", "--backend", "sim"])), &["--absent 4", "0 to 3"]);
}

#[test]
fn a_rank_that_is_not_there_cannot_be_absent_and_nothing_else_is_said() {
    let output = finish(demo(&["--absent", "9"]), |_| {});
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.starts_with("error: --absent 9: expected one of the ranks 0 to "), "{said}");
    assert!(output.stdout.is_empty());
}

#[test]
fn the_reason_for_the_embedded_device_fits_a_terminal() {
    let mut demo = demo(&["--ranks", "2"]);
    demo.env("CUDA_VISIBLE_DEVICES", "");
    let output = finish(demo, |_| {});
    let said = String::from_utf8_lossy(&output.stderr);
    let reason = said.lines().find(|line| line.starts_with("Using the embedded device: "));
    assert!(reason.is_some_and(|line| line.chars().count() <= 100), "{said}");
}

#[test]
fn a_broken_trace_file_is_named_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let with = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let error = failure(demo(&["--backend", "sim", "--trace", path.to_str().unwrap()]));
        contains(&error, &[path.to_str().unwrap()]);
        error
    };
    let whole: &[u8] = include_bytes!("../../data/gpt2_train.trace.gz");
    contains(&with("cut.gz", &whole[..whole.len() / 2]), &["cut short"]);
    contains(&with("garbage", &[0xa5; 1000]), &["line 1", "expected four fields"]);
    contains(&with("cut.txt", b"a 7f00 512 0\nr 7f00 51"), &["line 2", "four fields"]);
    contains(&with("empty", b""), &["no allocation"]);
    contains(&failure(demo(&["--trace", "/nonexistent/trace"])), &["/nonexistent/trace", "cannot be read"]);
}

#[test]
fn a_port_in_use_is_named() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    contains(&failure(demo(&["--backend", "sim", "--port", &port])), &[&port, "in use"]);
}

#[test]
fn a_rank_that_never_arrives_is_named_by_all_others() {
    let error = failure(demo(&["--backend", "sim", "--deadline", "10", "--absent", "1"]));
    // Ranks that waited equally long, to a tenth of a second, share a line.
    let mut said: Vec<u32> = Vec::new();
    for line in error.lines().filter(|line| !line.is_empty()) {
        let (ranks, what) = line.trim_start_matches("error: ").trim().split_once(": ").expect(line);
        contains(what, &["rank 1 of 4 never arrived at \"the start of the demo\""]);
        let ranks = ranks.trim_start_matches("ranks").trim_start_matches("rank");
        said.extend(ranks.split(',').map(|rank| rank.trim().parse::<u32>().expect(line)));
    }
    said.sort_unstable();
    assert_eq!(said, [0, 2, 3], "{error}");
}

#[test]
fn a_rank_that_is_killed_ends_the_job() {
    let error = failure_while(demo(&["--backend", "sim", "--deadline", "5"]), |launcher| {
        let victim = (0..600).find_map(|_| {
            std::thread::sleep(Duration::from_millis(50));
            let children =
                std::fs::read_to_string(format!("/proc/{launcher}/task/{launcher}/children")).ok()?;
            let children: Vec<i32> = children.split_whitespace().filter_map(|pid| pid.parse().ok()).collect();
            (children.len() == 4).then(|| children[3])
        });
        kill_process(Pid::from_raw(victim.expect("four ranks")).unwrap(), Signal::KILL).unwrap();
    });
    contains(&error, &["rank 3", "signal: 9"]);
}

/// The rank is stopped while nobody waits in a call of a group.
#[test]
fn a_rank_that_stops_while_graphs_run_is_named() {
    let _turn = turn();
    let mut launcher =
        demo(&["--backend", "sim"]).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let id = launcher.id();
    let mut lines = BufReader::new(launcher.stderr.take().unwrap()).lines();
    while !lines.next().expect("the stage of graphs").unwrap().contains("captured graphs") {}
    let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
    let ranks: Vec<i32> = children.split_whitespace().filter_map(|pid| pid.parse().ok()).collect();
    kill_process(Pid::from_raw(ranks[3]).unwrap(), Signal::STOP).unwrap();
    let error = lines.map(Result::unwrap).collect::<Vec<_>>().join("\n");
    assert!(!launcher.wait().unwrap().success(), "{error}");
    // Between the two is the call that failed.
    let names_it = |line: &str| {
        line.split_once("world: ").is_some_and(|(_, rest)| rest.contains("rank 3 has not run for"))
    };
    assert!(error.lines().any(names_it), "{error}");
}

#[test]
fn a_wrong_library_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("libtext.so");
    std::fs::write(&text, "no library").unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let foreign =
        maps.split_whitespace().find(|word| word.contains("/libc.so") || word.contains("/libc-")).unwrap();
    for variable in ["NCCL_SYS_LIBRARY", "CUDA_DRIVER_SYS_LIBRARY"] {
        for library in ["/nonexistent/lib.so", text.to_str().unwrap(), foreign] {
            for backend in ["auto", "cuda", "sim"] {
                let mut command = demo(&["--backend", backend]);
                command.env(variable, library);
                contains(&failure(command), &[variable, library]);
            }
        }
    }
}
