//! Files of at most 2 MiB that describe gigabytes. Every command that reads one reports an exhausted budget, and stays
//! below 512 MiB.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output};

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::lockstep;

/// The largest size of such a file, in bytes.
const LARGEST: usize = 2 << 20;

/// Runs a command that has 512 MiB of address space.
fn confined(task: &[&str], file: &Path) -> Output {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -v 524288; exec \"$@\"", "sh"]).arg(lockstep()).args(task).arg(file);
    command.output().unwrap()
}

/// Runs a command on a bomb, and checks that it reports an exhausted budget.
fn spends_the_budget(task: &[&str], name: &str, bomb: &[u8]) {
    assert!(bomb.len() <= LARGEST, "{name}: {}", bomb.len());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("dump_0");
    fs::write(&file, bomb).unwrap();
    let path = if task[0] == "fr" { folder.path() } else { &file };
    let output = confined(task, path);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{name}: {said}");
    assert!(said.contains("the budget of 256 MiB") && said.contains("--read-memory"), "{name}: {said}");
}

fn packed(bytes: impl Iterator<Item = Vec<u8>>) -> Vec<u8> {
    let mut packer = GzEncoder::new(Vec::new(), Compression::best());
    bytes.for_each(|bytes| packer.write_all(&bytes).unwrap());
    packer.finish().unwrap()
}

/// A text in a pickle.
fn text(text: &str) -> Vec<u8> {
    let length = u32::try_from(text.len()).unwrap();
    [b"X", &length.to_le_bytes()[..], text.as_bytes()].concat()
}

/// The pickle of a dump with these calls, all of the group "0".
fn dump(entries: &[u8]) -> Vec<u8> {
    let group = [text("desc"), text("d"), text("ranks"), text("[0]")].concat();
    let groups = [b"}", &text("0")[..], b"}(", &group, b"us"].concat();
    let fields = [text("version"), text("2.1"), text("pg_config"), groups, text("entries"), entries.to_vec()];
    [b"\x80\x02}(", &fields.concat()[..], b"u."].concat()
}

/// The pickle of `{"segments": [], "device_traces": traces}`.
fn snapshot(traces: &[u8]) -> Vec<u8> {
    let fields = [text("segments"), b"]".to_vec(), text("device_traces"), traces.to_vec()];
    [b"\x80\x02}(", &fields.concat()[..], b"u."].concat()
}

/// One call of a dump as a pickle, with `name` as its name and `sizes` as its sizes.
fn call(name: &[u8], sizes: &[u8]) -> Vec<u8> {
    let group = [b"(".to_vec(), text("0"), text("0"), b"t".to_vec()].concat();
    let fields: [(&str, &[u8]); 10] = [
        ("record_id", b"K\x00"),
        ("process_group", &group),
        ("collective_seq_id", b"K\x01"),
        ("is_p2p", b"\x89"),
        ("profiling_name", name),
        ("input_sizes", sizes),
        ("input_dtypes", b"]"),
        ("output_sizes", b"]"),
        ("output_dtypes", b"]"),
        ("state", &text("completed")),
    ];
    let fields: Vec<u8> =
        fields.iter().flat_map(|(name, value)| [text(name), value.to_vec()].concat()).collect();
    [b"}(", &fields[..], b"u"].concat()
}

/// A list of `count` times one value.
fn many(value: &[u8], count: usize) -> Vec<u8> {
    [b"](", value, b"q\x63", &b"h\x63".repeat(count - 1)[..], b"e"].concat()
}

#[test]
fn a_dump_that_repeats_its_values_spends_the_budget() {
    let long = text(&"x".repeat(1 << 20));
    for (name, entries) in [
        ("one call, often", many(&call(&text("all_reduce"), b"]"), 900_000)),
        ("one long text, often", many(&call(&long, b"]"), 100_000)),
        ("empty lists, often", many(&call(&text("all_reduce"), &many(b"]", 1000)), 900_000)),
    ] {
        spends_the_budget(&["fr", "analyze"], name, &dump(&entries));
    }
}

/// Two megabytes of the shortest values are no dump, and fit into the budget.
#[test]
fn many_short_values_are_refused_for_what_they_are() {
    for value in [b'N', b']', b'('] {
        let folder = tempfile::tempdir().unwrap();
        let values = [vec![value; LARGEST / 2], b"N".to_vec(), vec![0x94; LARGEST / 2 - 10]].concat();
        fs::write(folder.path().join("dump_0"), [b"\x80\x04", &values[..], b"."].concat()).unwrap();
        let output = confined(&["fr", "analyze"], folder.path());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && said.contains("not of a flight recorder"), "{said}");
    }
}

#[test]
fn a_folder_of_dumps_has_one_budget() {
    let folder = tempfile::tempdir().unwrap();
    let bomb = dump(&many(&call(&text("all_reduce"), b"]"), 50_000));
    for rank in 0..16 {
        fs::write(folder.path().join(format!("dump_{rank}")), &bomb).unwrap();
    }
    let output = confined(&["fr", "analyze"], folder.path());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("the budget of 256 MiB"), "{said}");
}

#[test]
fn groups_of_one_long_list_of_ranks_spend_the_budget() {
    let ranks: Vec<_> = (0..130_000).collect();
    let config = [
        b"}(".to_vec(),
        text("desc"),
        text("d"),
        text("ranks"),
        text(&format!("{ranks:?}")),
        b"uq\x63".to_vec(),
    ]
    .concat();
    let mut groups = [text("0"), config].concat();
    for group in 1..100 {
        groups.extend([text(&group.to_string()), b"h\x63".to_vec()].concat());
    }
    let fields = [text("version"), text("2.1"), text("entries"), b"]".to_vec(), text("pg_config")].concat();
    let bomb = [b"\x80\x02}(", &fields[..], b"}(", &groups[..], b"uu."].concat();
    spends_the_budget(&["fr", "analyze"], "ranks", &bomb);
}

#[test]
fn a_snapshot_that_repeats_its_values_spends_the_budget() {
    let frame = [
        b"}(".to_vec(),
        text("filename"),
        text(&"f".repeat(1 << 20)),
        text("line"),
        b"K\x01".to_vec(),
        text("name"),
        text("n"),
        b"u".to_vec(),
    ]
    .concat();
    let event =
        |frames: &[u8]| [b"}(", &text("action")[..], &text("alloc"), &text("frames"), frames, b"u"].concat();
    // [e, e, ...] in [[...], [...], ...].
    let traces = |event: &[u8]| {
        let trace = [b"](", event, b"q\x63", &b"h\x63".repeat(100_000)[..], b"eq\x62"].concat();
        [b"](", &trace[..], &b"h\x62".repeat(100_000), b"e"].concat()
    };
    for (name, bomb) in [
        ("one event, often", snapshot(&traces(&event(b"]")))),
        ("one long call site, often", snapshot(&traces(&event(&[b"](", &frame[..], b"e"].concat())))),
    ] {
        spends_the_budget(&["replay"], name, &bomb);
    }
}

#[test]
fn what_unpacks_to_gigabytes_spends_the_budget() {
    let spaces = || (0..400).map(|_| vec![b' '; 1 << 20]);
    let lists = || (0..100).map(|_| b"[],".repeat(1 << 18));
    let json = |start: &str, rest: &mut dyn Iterator<Item = Vec<u8>>| {
        packed(std::iter::once(start.as_bytes().to_vec()).chain(rest))
    };
    let rows = (0..20u32).map(|part| {
        let rows = (0..100_000u32).map(|row| format!("{},0,1,1\n", part * 100_000 + row));
        rows.collect::<String>().into_bytes()
    });
    let events = (0..20u32).map(|_| b"a 1 1 0\nr 1 1 0\nf 1 1 0\n".repeat(50_000));
    for (name, bomb) in [
        ("spaces", packed(spaces())),
        ("JSON with spaces", json("{", &mut spaces())),
        ("JSON with lists", json("{\"segments\":[],\"device_traces\":[", &mut lists())),
        ("events", packed(events)),
        ("minimalloc's CSV", json("id,lower,upper,size\n", &mut rows.take(6))),
    ] {
        spends_the_budget(&["viz"], name, &bomb);
    }
}

#[test]
fn the_budget_is_the_option_s() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.gz");
    fs::write(&file, packed((0..20u32).map(|_| b"a 1 1 0\nr 1 1 0\nf 1 1 0\n".repeat(50_000)))).unwrap();
    let refused = confined(&["viz", "--read-memory", "1"], &file);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("the budget of 1 MiB"), "{refused:?}");
}

#[test]
fn escapes_in_dumps_are_not_printed_raw() {
    let folder = tempfile::tempdir().unwrap();
    let group = serde_json::json!({"desc": "a\u{1b}[2Jb\u{9b}3m\nnothing found", "ranks": "[0, 1]"});
    let dump = serde_json::json!({"version": "2.1", "pg_config": {"0\u{1b}]0;x\u{7}": group}, "entries": []});
    fs::write(folder.path().join("dump_0"), dump.to_string()).unwrap();
    let output = confined(&["fr", "analyze"], folder.path());
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains(r"a\u{1b}[2Jb\u{9b}3m\u{a}nothing found (0\u{1b}]0;x\u{7})"), "{said}");
    // In an error too.
    let broken =
        dump.to_string().replace("\"2.1\"", "\"\\u001b[2J\"").replace("\"entries\"", "\"\\u001bentries\"");
    fs::write(folder.path().join("dump_\u{1b}[2J0"), broken).unwrap();
    fs::remove_file(folder.path().join("dump_0")).unwrap();
    let output = confined(&["fr", "analyze"], folder.path());
    assert!(!output.stderr.contains(&0x1b) && output.status.code() == Some(1), "{output:?}");
}
