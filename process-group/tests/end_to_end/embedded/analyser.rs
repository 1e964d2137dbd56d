//! Jobs of four processes that fail, and the output of PyTorch's analyser on their dumps.

use std::{env, path::Path, time::Duration};

use process_group::{
    ProcessGroup,
    comm::{DataType::F32, ReduceOp},
    group::{Batch, Buffer, GroupError, GroupErrorKind, Request},
    store::TcpStore,
};

use super::{
    super::python::{python, torch_is_there},
    common::{faithful, far, soon},
    processes::{all_succeed, spawn},
};

const RANKS: usize = 4;
/// The rank that behaves differently, and its collective.
const ODD: (usize, u64) = (2, 6);

/// Runs a job in which rank [`ODD`] behaves as `case` says. Returns the folder with its dumps.
fn job(case: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let store = TcpStore::host(0).unwrap();
    let test = concat!(module_path!(), "::one_rank");
    let case = format!("{case} {}", folder.path().display());
    let start = |rank| spawn(test, ("PROCESS_GROUP_TEST_ANALYSER", &case), rank, RANKS, &store.address());
    all_succeed((0..RANKS).map(start).collect());
    folder
}

/// Returns the output of PyTorch's analyser on the dumps in `folder`.
fn torch_says(folder: &Path) -> String {
    let module = "torch.distributed.flight_recorder.fr_trace";
    let output = python().args(["-m", module]).arg(folder).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(output.status.success(), "{text}");
    text
}

/// The body of a rank, when it is started by one of the tests below.
#[test]
#[ignore = "the body of a process that a test starts"]
fn one_rank() {
    let case = env::var("PROCESS_GROUP_TEST_ANALYSER").expect("a test below starts this process");
    let (case, folder) = case.split_once(' ').unwrap();
    let machine = faithful(RANKS, 22809);
    let rank = machine.this_rank();
    let builder = ProcessGroup::builder().context(&rank.context).nccl(&machine.nccl).dump_folder(folder);
    let world = builder.timeout(Duration::from_secs(60)).build().unwrap();
    let me = world.rank();
    let (stream, memory) = (rank.stream(), rank.memory(&[1.0; 64]));
    let part = |at: usize, elements| Buffer::new(memory.ptr() + 4 * at, elements, F32);
    let all = |elements| unsafe {
        world.raw().all_reduce(part(0, elements), part(0, elements), ReduceOp::Sum, &stream)
    };
    let pair = world.split("tp", &Request::Color { color: Some(me as u32 / 2), key: 0 }).unwrap().unwrap();

    // Five collectives, with each kind of record, and some of another group in between. No messages: the
    // analyser reports a batch in which ranks send before they receive as a mismatch.
    all(8).unwrap();
    unsafe { pair.raw().all_gather(part(0, 4), part(8, 8), &stream) }.unwrap();
    let unequal: Vec<_> = (0..RANKS).map(|root| part(8 + 4 * root, root + 1)).collect();
    unsafe { world.raw().all_gather_list(part(0, me + 1), &unequal, &stream) }.unwrap();
    let send: Vec<_> = (0..RANKS).map(|_| part(0, me + 1)).collect();
    unsafe { world.raw().all_to_all_list(&send, &unequal, &stream) }.unwrap();
    let gathered = if me == 1 { &unequal[..] } else { &[] };
    unsafe { world.raw().gather_list(part(0, me + 1), gathered, 1, &stream) }.unwrap();
    let two = |batch: &Batch<'_>| unsafe {
        batch.all_reduce(part(0, 4), part(0, 4), ReduceOp::Sum)?;
        batch.all_reduce(part(8, 2), part(8, 2), ReduceOp::Max)
    };
    world.batch(&stream, two).unwrap();
    world.quiesce(far()).unwrap();
    pair.quiesce(far()).unwrap();

    let work = match (case, me == ODD.0) {
        ("all", _) => None,
        ("absent", true) => None,
        ("length", true) => Some(all(4).unwrap()),
        ("operation", true) => Some(unsafe { world.raw().broadcast(part(0, 8), 0, &stream) }.unwrap()),
        _ => Some(all(8).unwrap()),
    };
    let differs = ["operation", "length"].contains(&case);
    let is_told =
        |error: &GroupError| differs && matches!(error.kind(), GroupErrorKind::CollectiveDiverged { .. });
    let waited = work.map(|work| world.wait(&work, soon(), Duration::from_secs(60)).unwrap_err());
    match waited.filter(|error| !is_told(error)).map(GroupError::into_kind) {
        None => {}
        Some(GroupErrorKind::WorkTimeout { progress: Some(progress), .. }) => {
            let missing: Vec<_> = progress.not_joined().map(|member| member.rank).collect();
            let text = progress.to_string();
            if case == "absent" {
                assert_eq!(missing, [ODD.0], "{text}");
                assert!(
                    text.contains("rank 2 has not joined collective 6 of world: its last call was batch"),
                    "{text}"
                );
            } else {
                assert!(
                    missing.is_empty() && text.contains("all members of world have called collective 6"),
                    "{text}"
                );
            }
        }
        Some(error) => panic!("{error}"),
    }
    // No rank leaves before all have asked, or have been told that their calls differ.
    let met = world.barrier(far());
    assert!(met.as_ref().map_or_else(is_told, |()| true), "{met:?}");
    pair.abort(far()).unwrap();
    world.abort(far()).unwrap();
}

#[test]
fn torch_names_the_rank_that_is_missing() {
    if !torch_is_there() {
        return;
    }
    let text = torch_says(job("absent").path());
    assert!(
        text.contains(&format!("Not all ranks joining collective, sequence number: {}", ODD.1)),
        "{text}"
    );
    assert!(text.contains(&format!("missing ranks: {{{}}}", ODD.0)), "{text}");
    assert!(!text.contains("has errors") && !text.contains("mismatch"), "{text}");
}

#[test]
fn torch_names_the_rank_that_called_another_length() {
    if !torch_is_there() {
        return;
    }
    let text = torch_says(job("length").path());
    assert!(text.contains(&format!("Collective sequence number: {} has errors", ODD.1)), "{text}");
    assert!(
        text.contains(&format!("Culprit rank {}", ODD.0)) && text.contains("input sizes: '[[8]]'"),
        "{text}"
    );
}

#[test]
fn torch_names_the_rank_that_called_another_operation() {
    if !torch_is_there() {
        return;
    }
    let text = torch_says(job("operation").path());
    assert!(text.contains(&format!("Collective sequence number: {} has errors", ODD.1)), "{text}");
    let culprit = format!("Culprit rank {}", ODD.0);
    assert!(text.contains(&culprit) && text.contains("found collective type: 'broadcast'"), "{text}");
}

#[test]
fn torch_finds_nothing_where_nothing_is_wrong() {
    if !torch_is_there() {
        return;
    }
    let text = torch_says(job("all").path());
    for word in ["Not all ranks", "has errors", "mismatch", "cannot decide"] {
        assert!(!text.contains(word), "{text}");
    }
}
