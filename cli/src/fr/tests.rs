//! Random programs of ranks with one divergence, and files that are no dumps.

use std::{collections::BTreeMap, fs, path::Path};

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{
    analyze::{Report, analyze},
    load::{self, Dump},
};
use crate::trace::budget::ReadLimit;

/// One collective of a program that all ranks have.
#[derive(Debug, Clone, PartialEq)]
struct Call {
    operation: &'static str,
    elements: u64,
    dtype: &'static str,
}

fn call() -> impl Strategy<Value = Call> {
    let operation = prop::sample::select(vec!["all_reduce", "broadcast", "reduce", "gather"]);
    let dtype = prop::sample::select(vec!["Float", "Half", "Int"]);
    (operation, 1..1000u64, dtype).prop_map(|(operation, elements, dtype)| Call {
        operation,
        elements,
        dtype,
    })
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Divergence {
    None,
    Stops,
    Operation,
    Sizes,
    Dtype,
}

fn entry(record: usize, call: &Call) -> Value {
    json!({
        "record_id": record, "process_group": ["0", "default_pg"], "collective_seq_id": record + 1,
        "p2p_seq_id": 0, "is_p2p": false, "profiling_name": format!("nccl:{}", call.operation),
        "input_sizes": [[call.elements]], "input_dtypes": [call.dtype],
        "output_sizes": [[call.elements]], "output_dtypes": [call.dtype],
        "state": "completed", "time_created_ns": 1,
    })
}

fn dump(size: usize, entries: &[Value]) -> Value {
    let ranks: Vec<_> = (0..size).collect();
    let group = json!({"name": "0", "desc": "default_pg", "ranks": format!("{ranks:?}")});
    json!({"version": "2.10", "pg_config": {"0": group}, "entries": entries})
}

/// The dumps' way through files: as JSON or as a pickle.
fn through_files(dumps: &[Value], pickle: bool) -> Report {
    let read = |(rank, dump): (usize, &Value)| {
        let file = format!("trace_{rank}");
        let bytes = match pickle {
            true => serde_pickle::to_vec(dump, serde_pickle::SerOptions::new()).unwrap(),
            false => dump.to_string().into_bytes(),
        };
        load::read(Path::new(&file), &bytes, &ReadLimit::default().budget(0)).unwrap()
    };
    analyze(&dumps.iter().enumerate().map(read).collect::<BTreeMap<usize, Dump>>(), Vec::new())
}

proptest! {
    #[test]
    fn one_divergence_is_named(
        program in prop::collection::vec(call(), 1..30),
        size in 3..6usize,
        at in any::<prop::sample::Index>(),
        odd in any::<prop::sample::Index>(),
        divergence in prop::sample::select(vec![
            Divergence::None, Divergence::Stops, Divergence::Operation, Divergence::Sizes, Divergence::Dtype,
        ]),
        forgotten in 0..10usize,
        pickle in any::<bool>(),
    ) {
        let (at, odd) = (at.index(program.len()), odd.index(size));
        let rank = |rank: usize| {
            let mut own = program.clone();
            match divergence {
                _ if rank != odd => {}
                Divergence::None => {}
                Divergence::Stops => own.truncate(at),
                Divergence::Operation => own[at].operation = "_all_gather_base",
                Divergence::Sizes => own[at].elements += 1,
                Divergence::Dtype => own[at].dtype = "Long",
            }
            // Rings that have forgotten what lies well before the divergence.
            let first = forgotten.min(at.saturating_sub(2));
            let entries: Vec<_> =
                own.iter().enumerate().skip(first).map(|(record, call)| entry(record, call)).collect();
            dump(size, &entries)
        };
        let report = through_files(&(0..size).map(rank).collect::<Vec<_>>(), pickle);
        let group = &report.groups[0];
        let number = at as u64 + 1;
        if let Some(missing) = &group.missing {
            prop_assert_eq!(missing.ranks.iter().map(|last| last.rank).collect::<Vec<_>>(), [odd]);
            prop_assert_eq!((divergence, missing.collective), (Divergence::Stops, number));
        }
        if let Some(found) = &group.mismatch {
            prop_assert_eq!(&found.ranks, &[odd]);
            let what = match divergence {
                Divergence::Operation => "operation",
                Divergence::Sizes => "sizes",
                Divergence::Dtype => "dtype",
                _ => "none of these",
            };
            prop_assert_eq!((found.what, found.collective), (what, number));
        }
        prop_assert_eq!(group.missing.is_some(), divergence == Divergence::Stops);
        let differs = [Divergence::Operation, Divergence::Sizes, Divergence::Dtype].contains(&divergence);
        prop_assert_eq!(group.mismatch.is_some(), differs);
        prop_assert!(group.unfinished.is_none() && group.messages.is_empty());
        prop_assert!(!report.to_string().is_empty());
    }

    #[test]
    fn what_is_no_dump_is_an_error_with_the_files_name(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        let error = load::read(Path::new("trace_0"), &bytes, &ReadLimit::default().budget(0)).unwrap_err();
        prop_assert!(error.to_string().contains("trace_0"));
    }
}

fn message(record: usize, name: &str, elements: u64) -> Value {
    let mut entry = entry(record, &Call { operation: name_of(name), elements, dtype: "Float" });
    entry["profiling_name"] = json!(format!("nccl:{name}"));
    entry["is_p2p"] = json!(true);
    entry["collective_seq_id"] = json!(0);
    entry
}

fn name_of(name: &str) -> &'static str {
    if name.starts_with("send") { "send" } else { "recv" }
}

#[test]
fn messages_without_another_half_are_named() {
    let sends = [message(0, "send 0->1", 4), message(1, "send 0->1", 5), message(2, "recv 0<-1", 1)];
    let report = through_files(&[dump(2, &sends), dump(2, &[message(0, "recv 1<-0", 4)])], false);
    let found: Vec<_> = report.groups[0].messages.iter().map(|m| (m.from, m.to, m.number)).collect();
    assert_eq!(found, [(0, 1, 2), (1, 0, 1)]);
    let report = through_files(&[dump(2, &sends[..1]), dump(2, &[message(0, "recv 1<-0", 3)])], false);
    assert!(report.groups[0].messages[0].problem.starts_with("4 elements sent, 3 received"), "{report}");
}

#[test]
fn a_rank_without_a_dump_may_be_the_one() {
    let mut open = entry(0, &Call { operation: "all_reduce", elements: 1, dtype: "Float" });
    open["state"] = json!("scheduled");
    let report = through_files(&[dump(3, &[open.clone()]), dump(3, &[open])], true);
    assert_eq!(report.without_dump, [2]);
    let found = report.groups[0].unfinished.as_ref().unwrap();
    assert_eq!((&found.ranks[..], &found.unknown[..]), (&[0, 1][..], &[2][..]));
    assert!(report.to_string().contains("is not done on ranks 0, 1; has rank 2 called it?"), "{report}");
}

#[test]
fn a_rank_without_a_dump_comes_before_the_survivors_that_stopped() {
    let call = |record| entry(record, &Call { operation: "all_reduce", elements: 1, dtype: "Float" });
    let report = through_files(&[dump(3, &[call(0), call(1)]), dump(3, &[call(0)])], false);
    let text = report.to_string();
    assert!(
        text.starts_with(
            "rank 2: no dump; it died, or ended before it could write one\ndumps of ranks 0, 1\n"
        ),
        "{text}"
    );
    assert!(
        text.contains("  missing: rank 2 without a dump, the likely cause\n  also missing: rank 1 in"),
        "{text}"
    );
    assert!(text.contains("    rank 1 called last: collective 1, all_reduce\n"), "{text}");
    let report = through_files(&[dump(3, &[call(0)]), dump(3, &[call(0)])], false);
    assert!(report.to_string().contains("nothing found, but rank 2 left no dump"), "{report}");
}

#[test]
fn the_last_call_has_its_number_if_it_is_a_collective() {
    let call = |record| entry(record, &Call { operation: "all_reduce", elements: 1, dtype: "Float" });
    let ahead = dump(2, &[call(0), call(1)]);
    let sent = dump(2, &[call(0), message(1, "send 1->0", 4)]);
    for (behind, line) in [
        (sent, "    rank 1 called last: send\n"),
        (dump(2, &[]), "    rank 1 called last: nothing in this group, or its dump was written before\n"),
    ] {
        let report = through_files(&[ahead.clone(), behind], false);
        let text = report.to_string();
        assert!(text.contains(line), "{text}");
        let ranks = &report.groups[0].missing.as_ref().unwrap().ranks;
        assert!(ranks.iter().all(|last| last.collective.is_none()), "{ranks:?}");
    }
}

#[test]
fn folders_are_read_whole_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    assert!(
        load::folder(folder.path(), ReadLimit::default()).unwrap_err().to_string().contains("holds no dump")
    );
    let text = dump(2, &[]).to_string();
    fs::write(folder.path().join("trace_0"), &text).unwrap();
    fs::write(folder.path().join(".1.half"), "x").unwrap();
    let report = analyze(&load::folder(folder.path(), ReadLimit::default()).unwrap().dumps, Vec::new());
    assert_eq!((report.ranks, report.without_dump), (vec![0], vec![1]));
    fs::write(folder.path().join("again_0"), &text).unwrap();
    let error = load::folder(folder.path(), ReadLimit::default()).unwrap_err().to_string();
    assert!(error.contains("both of rank 0"), "{error}");
    fs::write(folder.path().join("again_0"), "junk").unwrap();
    let error = load::folder(folder.path(), ReadLimit::default()).unwrap_err().to_string();
    assert!(error.contains("again_0 is no pickle or JSON of a flight recorder's dump"), "{error}");
    let error = load::folder(&folder.path().join("trace_0"), ReadLimit::default()).unwrap_err().to_string();
    assert!(error.contains("trace_0 is not a folder"), "{error}");
}

#[test]
fn only_the_newest_of_several_jobs_is_judged() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, group: &str, rank: usize, ns: Option<u64>| {
        let config = json!({"name": group, "desc": "world", "ranks": "[0, 1, 2]"});
        let dump = json!({
            "version": "2.10", "rank": rank, "time_created_ns": ns, "pg_config": {group: config}, "entries": [],
        });
        fs::write(folder.path().join(name), dump.to_string()).unwrap();
    };
    let load = || load::folder(folder.path(), ReadLimit::default());
    // Rank 2 has left no dump in the second job. A restart of a job has another epoch, in the same store.
    write("flight_world_2", "286dea27.1.0", 2, Some(10));
    write("flight_first_0", "286dea27.4.1", 0, Some(11));
    write("flight_world_0", "1cdfe1e8.1.0", 0, Some(30));
    write("flight_world_1", "1cdfe1e8.1.0", 1, Some(20));
    let load::Folder { dumps, other_jobs } = load().unwrap();
    let report = analyze(&dumps, other_jobs);
    assert_eq!((&report.ranks[..], &report.without_dump[..]), (&[0, 1][..], &[2][..]));
    let text = report.to_string();
    let expected = "the dumps are of 2 jobs; only the newest is judged. Empty the folder before each job\n  \
                    left out: ranks 0, 2 of the older job 286dea27\nrank 2: no dump;";
    assert!(text.starts_with(expected), "{text}");
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["other_jobs"], json!([{"job": "286dea27", "ranks": [0, 2]}]));

    write("flight_world_1", "1cdfe1e8.1.0", 1, None);
    let error = load().unwrap_err().to_string();
    assert!(error.contains("holds dumps of 2 jobs, some without a time"), "{error}");
    fs::remove_file(folder.path().join("flight_world_2")).unwrap();
    fs::remove_file(folder.path().join("flight_first_0")).unwrap();
    assert_eq!(load().unwrap().other_jobs, []);
}

#[test]
fn dumps_are_listed_by_their_times() {
    let at = |ns: u64| {
        let mut dump = dump(2, &[]);
        dump["time_created_ns"] = json!(ns);
        dump
    };
    // 2024 is a leap year.
    let report = through_files(&[at(1_709_210_096_789_000_000), at(1_709_210_096_000_000_000)], true);
    assert!(
        report.to_string().starts_with(
            "dumps of ranks 0, 1\n  rank 1: written at 2024-02-29 12:34:56.000 UTC, the first\n  rank 0: 0.789 s later\n"
        ),
        "{report}"
    );
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["dumps"][0], json!({"rank": 0, "written_ns": 1_709_210_096_789_000_000_u64}));

    let many: Vec<_> = (0..20).map(|rank| at(1_735_689_599_999_999_999 + rank * 1_000_000_000)).collect();
    let text = through_files(&many, false).to_string();
    assert!(text.contains("  rank 0: written at 2024-12-31 23:59:59.999 UTC, the first\n"), "{text}");
    assert!(
        text.contains("  rank 14: 14.000 s later\n  4 more in between\n  rank 19: 19.000 s later\n"),
        "{text}"
    );

    // PyTorch's dumps have no time.
    let report = through_files(&[dump(2, &[]), dump(2, &[])], false);
    assert!(report.to_string().starts_with("dumps of ranks 0, 1\n\ngroup "), "{report}");
    assert_eq!(serde_json::to_value(&report).unwrap()["dumps"][0], json!({"rank": 0, "written_ns": null}));
}

/// A dump of two or more ranks that was written at `written` ns, with calls that were made at the given times.
fn dump_at(size: usize, written: u64, calls: &[u64]) -> Value {
    let entries = calls.iter().enumerate().map(|(record, created)| {
        let mut entry = entry(record, &Call { operation: "all_reduce", elements: 1, dtype: "Float" });
        entry["time_created_ns"] = json!(created);
        entry
    });
    let mut dump = dump(size, &entries.collect::<Vec<_>>());
    dump["time_created_ns"] = json!(written);
    dump
}

#[test]
fn a_rank_is_not_missing_in_a_call_that_is_later_than_its_dump() {
    // As in a group that has shrunk and goes on: ranks 0 and 1 wrote their dumps before the first call.
    let earlier = [dump_at(3, 999, &[]), dump_at(3, 500, &[])];
    let report = through_files(&[&earlier[..], &[dump_at(3, 2000, &[1000])]].concat(), false);
    let text = report.to_string();
    let expected = "  not judged: ranks 0, 1 in collective 1 (all_reduce); their dumps were written before it was \
                    called, by the clocks of their hosts\n  nothing else found\n";
    assert!(text.ends_with(expected), "{text}");
    let group = &serde_json::to_value(&report).unwrap()["groups"][0];
    assert!(group["missing"].is_null(), "{group:#}");
    assert_eq!(
        group["not_judged"],
        json!({"collective": 1, "operation": "all_reduce", "ranks": [0, 1]}),
        "{group:#}"
    );
}

#[test]
fn a_rank_whose_dump_is_not_older_than_the_call_is_missing() {
    // The first of the calls counts: the one of rank 2.
    let calls = [dump_at(4, 999, &[]), dump_at(4, 3_001_000, &[]), dump_at(4, 9_000_000, &[1000])];
    let report = through_files(&[&calls[..], &[dump_at(4, 9_000_000, &[2000])]].concat(), true);
    let text = report.to_string();
    assert!(text.contains("  missing: rank 1 in collective 1 (all_reduce)\n"), "{text}");
    assert!(
        text.contains(
            "    rank 1 called last: nothing in this group; its dump was written 0.003 s after the first call of \
             collective 1\n"
        ),
        "{text}"
    );
    assert!(text.ends_with("  not judged: rank 0 in collective 1 (all_reduce); its dump was written before it was called, by the clock of its host\n"), "{text}");
    let group = &serde_json::to_value(&report).unwrap()["groups"][0];
    let last = json!({"rank": 1, "collective": null, "call": null, "dump_after_ns": 3_000_000});
    assert_eq!(group["missing"]["ranks"], json!([last]), "{group:#}");
    assert_eq!(group["not_judged"]["ranks"], json!([0]), "{group:#}");
}

#[test]
fn a_collective_without_an_early_dump_is_not_said_to_be_called_by_all() {
    let mut open = dump_at(2, 2000, &[1000]);
    open["entries"][0]["state"] = json!("scheduled");
    let report = through_files(&[open, dump_at(2, 999, &[])], false);
    let text = report.to_string();
    assert!(
        text.contains("  collective 1 (all_reduce) is not done on rank 0; has rank 1 called it?\n"),
        "{text}"
    );
}

#[test]
fn a_message_that_is_later_than_the_dump_of_its_other_end_is_marked() {
    let at = |written: u64, entries: &[Value]| {
        let mut dump = dump(2, entries);
        dump["time_created_ns"] = json!(written);
        dump
    };
    let sent = |created: u64| {
        let mut sent = message(0, "send 0->1", 4);
        sent["time_created_ns"] = json!(created);
        at(2000, &[sent])
    };
    let problem = |dumps: &[Value]| through_files(dumps, false).groups[0].messages[0].problem.clone();
    let hedge = "; the dump of rank 1 was written before, so it may have received later";
    let problems = [1000, 500].map(|created| problem(&[sent(created), at(999, &[])]));
    assert!(problems[0].ends_with(hedge), "{problems:?}");
    assert!(!problems[1].contains(';'), "{problems:?}");
}
