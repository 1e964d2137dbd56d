//! Results of NCCL calls on two devices. The embedded device must return the same as the machine's own library. With
//! the real library, each row runs in a process of its own, whose two threads are the ranks. Rows whose functions the
//! library lacks are skipped and reported.
//!
//! A real communicator connects its ranks in the first collective, inside the call, which waits there for the other
//! rank. A rank that must continue alone has therefore called [`connect`] before. A rank prints each step before it
//! takes it. A row that does not end in time is killed, and the unfinished steps are reported.

use std::ffi::c_int;
use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::thread;
use std::time::Duration;

use cuda_driver_sys as cu;
use gpu_sim::World;
use nccl_sys::{Api, NCCL_SUSPEND_MEM, ncclCommMemStat_t, ncclResult_t, ncclUniqueId};
use rusty_fork::{ChildWrapper, rusty_fork_id, rusty_fork_test};

use super::rig::{Alive, Comm, Rank, Rig, run};

/// A row for both ranks of a communicator, which it destroys: its name, the functions that it needs, the expected
/// results.
struct Row {
    name: &'static str,
    function: &'static str,
    ask: fn(&Rank, Comm) -> String,
    answers: [&'static str; 2],
}

const RANKS: usize = 2;

/// Time limit of a row with the real library, which loads its kernels first.
const PATIENCE: Duration = Duration::from_secs(30);

/// Prefixes of the lines that a row's process prints: a rank's next step, and its result.
const STEP: &str = "STEP";
const ANSWER: &str = "ANSWER";

/// Prints the next step of the rank.
fn step(rank: &Rank, what: &str) {
    say(STEP, rank.rank, what);
}

/// Prints a line of its own, even if the current line is not empty.
fn say(kind: &str, rank: usize, what: &str) {
    println!("\n{kind} {rank} {what}");
}

/// Runs a first collective of all ranks, which connects them.
fn connect(rank: &Rank, comm: Comm) {
    step(rank, "the first all-reduce, which connects");
    assert_eq!(rank.sum(comm, 1), RANKS as i32);
}

fn code(code: ncclResult_t) -> String {
    format!("{code:?}").trim_start_matches("nccl").to_owned()
}

/// Returns the communicator without the other rank, or the code.
fn shrink(rank: &Rank, comm: Comm, excluded: &mut [c_int], flags: c_int) -> Result<Comm, String> {
    let mut child = std::ptr::null_mut();
    let (list, count) = (excluded.as_mut_ptr(), excluded.len() as c_int);
    let answer =
        nccl!(rank.rig, ncclCommShrink(comm.0, list, count, &mut child, std::ptr::null_mut(), flags));
    if answer == ncclResult_t::ncclSuccess { Ok(Comm(child)) } else { Err(code(answer)) }
}

fn statistic(rank: &Rank, comm: Comm, which: ncclCommMemStat_t) -> u64 {
    let mut value = 0;
    ok!(rank.rig, ncclCommMemStats(comm.0, which, &mut value));
    value
}

const ROWS: [Row; 7] = [
    Row {
        name: "shrink: without anybody to leave out",
        function: "ncclCommShrink",
        ask: |rank, comm| {
            step(rank, "shrink");
            let answer = shrink(rank, comm, &mut [], 0).map_or_else(|code| code, |_| "made".into());
            step(rank, "destroy");
            rank.rig.destroy(comm);
            answer
        },
        answers: ["InvalidArgument", "InvalidArgument"],
    },
    Row {
        name: "shrink: the survivor beside the whole",
        function: "ncclCommShrink",
        ask: |rank, comm| {
            connect(rank, comm);
            let mut answer = String::new();
            if rank.rank == 0 {
                step(rank, "shrink");
                let rest = shrink(rank, comm, &mut [1], 0).unwrap();
                step(rank, "an all-reduce of the survivor");
                answer = format!("{:?} {} ", rank.rig.place(rest), rank.sum(rest, 5));
                step(rank, "destroy of the survivor's");
                rank.rig.destroy(rest);
            }
            step(rank, "an all-reduce of the whole");
            answer += &rank.sum(comm, 7).to_string();
            step(rank, "destroy");
            rank.rig.destroy(comm);
            answer
        },
        answers: ["(0, 1) 5 14", "14"],
    },
    Row {
        name: "shrink after a failure: work that waits for the other ends",
        function: "ncclCommShrink",
        ask: |rank, comm| {
            connect(rank, comm);
            if rank.rank == 1 {
                // The other rank's work never meets this rank's.
                step(rank, "abort");
                rank.rig.abort(comm);
                return String::new();
            }
            let buffer = rank.alloc(64);
            step(rank, "an all-reduce that nobody joins");
            let begun = rank.all_reduce(comm, buffer, 16);
            step(rank, "shrink");
            let rest = shrink(rank, comm, &mut [1], 1).unwrap();
            step(rank, "the end of the work");
            rank.synchronize();
            step(rank, "an all-reduce of the survivor");
            let sum = rank.sum(rest, 5);
            step(rank, "destroy of the survivor's");
            rank.rig.destroy(rest);
            step(rank, "abort");
            rank.rig.abort(comm);
            rank.free(buffer);
            format!("{} {sum}", code(begun))
        },
        answers: ["Success 5", ""],
    },
    Row {
        name: "revoke: no work, no finalize, not twice, but children",
        function: "ncclCommRevoke",
        ask: |rank, comm| {
            connect(rank, comm);
            let buffer = rank.alloc(64);
            if rank.rank == 0 {
                step(rank, "an all-reduce that nobody joins");
                assert_eq!(rank.all_reduce(comm, buffer, 16), ncclResult_t::ncclSuccess);
            }
            step(rank, "revoke");
            let mut answers = vec![nccl!(rank.rig, ncclCommRevoke(comm.0, 0))];
            step(rank, "the end of the work");
            rank.synchronize();
            step(rank, "calls that are refused");
            answers.push(rank.all_reduce(comm, buffer, 16));
            answers.push(nccl!(rank.rig, ncclCommFinalize(comm.0)));
            answers.push(nccl!(rank.rig, ncclCommRevoke(comm.0, 0)));
            step(rank, "split");
            let half = rank.rig.split(comm, 0, 0);
            step(rank, "an all-reduce of the child");
            let sum = rank.sum(half, 7);
            step(rank, "destroy");
            rank.rig.destroy(half);
            rank.rig.destroy(comm);
            rank.free(buffer);
            format!("{} {sum}", answers.into_iter().map(code).collect::<Vec<_>>().join(" "))
        },
        answers: ["Success InvalidUsage InvalidArgument InvalidArgument 14"; 2],
    },
    Row {
        name: "memory statistics: parts of the whole",
        function: "ncclCommMemStats",
        ask: |rank, comm| {
            connect(rank, comm);
            step(rank, "memory statistics");
            let of = |which| statistic(rank, comm, which);
            let parts =
                of(ncclCommMemStat_t::ncclStatGpuMemPersist) + of(ncclCommMemStat_t::ncclStatGpuMemSuspend);
            let total = of(ncclCommMemStat_t::ncclStatGpuMemTotal);
            let suspended = of(ncclCommMemStat_t::ncclStatGpuMemSuspended);
            let null = nccl!(
                rank.rig,
                ncclCommMemStats(comm.0, ncclCommMemStat_t::ncclStatGpuMemTotal, std::ptr::null_mut())
            );
            step(rank, "destroy");
            rank.rig.destroy(comm);
            format!("{} {suspended} {}", total == parts && total > 0, code(null))
        },
        answers: ["true 0 InvalidArgument"; 2],
    },
    Row {
        name: "suspend: until it is resumed, and neither twice",
        function: "ncclCommSuspend",
        ask: |rank, comm| {
            connect(rank, comm);
            let of = |which| statistic(rank, comm, which);
            let total = of(ncclCommMemStat_t::ncclStatGpuMemTotal);
            let is_suspended = || of(ncclCommMemStat_t::ncclStatGpuMemSuspended);
            let suspend = || code(nccl!(rank.rig, ncclCommSuspend(comm.0, NCCL_SUSPEND_MEM as c_int)));
            let resume = || code(nccl!(rank.rig, ncclCommResume(comm.0)));
            step(rank, "suspend");
            let mut answer = vec![suspend(), is_suspended().to_string()];
            step(rank, "suspend again");
            answer.push(suspend());
            step(rank, "resume");
            answer.extend([resume(), is_suspended().to_string()]);
            step(rank, "resume again");
            answer.push(resume());
            answer.push((of(ncclCommMemStat_t::ncclStatGpuMemTotal) == total).to_string());
            step(rank, "an all-reduce");
            answer.push(rank.sum(comm, 7).to_string());
            step(rank, "destroy");
            rank.rig.destroy(comm);
            answer.join(" ")
        },
        answers: ["Success 1 InvalidUsage Success 0 InvalidUsage true 14"; 2],
    },
    Row {
        name: "grow: by the other rank",
        function: "ncclCommGrow",
        ask: |rank, comm| {
            connect(rank, comm);
            step(rank, "split");
            let alone = rank.rig.split(comm, rank.rank as c_int, 0);
            let mut id = ncclUniqueId { internal: [0; 128] };
            if rank.rank == 0 {
                step(rank, "unique id");
                ok!(rank.rig, ncclCommGetUniqueId(alone.0, &mut id));
            }
            step(rank, "an all-reduce of the id");
            let buffer = rank.upload(&id.internal.map(i8::cast_unsigned));
            assert_eq!(rank.all_reduce(comm, buffer, 32), ncclResult_t::ncclSuccess);
            rank.synchronize();
            let bytes = rank.read(buffer, 128);
            id.internal = std::array::from_fn(|i| bytes[i].cast_signed());
            step(rank, "grow");
            let mut grown = std::ptr::null_mut();
            let (parent, place) = if rank.rank == 0 { (alone.0, -1) } else { (std::ptr::null_mut(), 1) };
            ok!(rank.rig, ncclCommGrow(parent, 2, &id, place, &mut grown, std::ptr::null_mut()));
            let grown = Comm(grown);
            step(rank, "an all-reduce");
            let answer = format!("{:?} {}", rank.rig.place(grown), rank.sum(grown, 7));
            step(rank, "destroy");
            [grown, alone, comm].into_iter().for_each(|comm| rank.rig.destroy(comm));
            rank.free(buffer);
            answer
        },
        answers: ["(0, 2) 14", "(1, 2) 14"],
    },
];

const ROW: &str = "GPU_SIM_NCCL_ROW";

rusty_fork_test! {
    #[test]
    fn the_embedded_device_answers_as_nccl() {
        for row in ROWS {
            let world = World::builder().devices(RANKS).capacity(1 << 30).nccl_release(22907).start().unwrap();
            let (id, ask) = (Rig::new(&world).unique_id(), row.ask);
            let found = run(&world, RANKS, move |rank| ask(rank, rank.init(id, RANKS)));
            assert_eq!(found, row.answers, "{}", row.name);
            world.finish().unwrap();
        }
    }
}

/// Loads both libraries of this machine; fails if it has fewer than two devices.
fn machine() -> Result<Rig, String> {
    let cuda = cu::Api::load().map_err(|error| error.to_string())?;
    let nccl = Api::load().map_err(|error| error.to_string())?;
    let rig = Rig { cuda: cuda.table().clone(), nccl: nccl.table().clone() };
    let mut devices = 0;
    // SAFETY: the driver is loaded; the count is written in place.
    let ready = unsafe {
        rig.cuda.cuInit.is_some_and(|init| init(0) == cu::CUresult::CUDA_SUCCESS)
            && rig
                .cuda
                .cuDeviceGetCount
                .is_some_and(|count| count(&mut devices) == cu::CUresult::CUDA_SUCCESS)
    };
    if !ready || devices < RANKS as c_int {
        return Err(format!("{devices} device(s), two are needed"));
    }
    Ok(rig)
}

/// Runs one row on the real library. It needs a process of its own: if a rank fails, the process ends, since the
/// other rank may wait for it for ever.
fn ask_the_real_library(row: &Row) {
    let rig = machine().unwrap();
    let (id, ask) = (rig.unique_id(), row.ask);
    let ranks: Vec<_> = (0..RANKS)
        .map(|rank| {
            let rig = rig.clone();
            thread::spawn(move || {
                let alive = Alive;
                let rank = rig.rank(rank);
                step(&rank, "init");
                let answer = ask(&rank, rank.init(id, RANKS));
                say(ANSWER, rank.rank, &answer);
                std::mem::forget(alive);
            })
        })
        .collect();
    // A rank that fails has ended the process already.
    ranks.into_iter().for_each(|rank| drop(rank.join()));
}

/// Returns the results of the ranks of a row's process, or the reason why there are none.
fn answers(process: &mut ChildWrapper, output: &mut File) -> Vec<String> {
    let ended = process.wait_timeout(PATIENCE).unwrap();
    if ended.is_none() {
        process.kill().unwrap();
        process.wait().unwrap();
    }
    let mut text = Vec::new();
    output.rewind().unwrap();
    output.read_to_end(&mut text).unwrap();
    let text = String::from_utf8_lossy(&text);
    let last = |kind: &str, rank: usize| {
        let begin = format!("{kind} {rank} ");
        text.lines().rev().find_map(|line| line.strip_prefix(&begin)).map(str::to_owned)
    };
    (0..RANKS)
        .map(|rank| {
            let at = || last(STEP, rank).unwrap_or_else(|| "nothing yet".into());
            let lost = || match ended {
                None => format!("not over after {} s, in: {}", PATIENCE.as_secs(), at()),
                Some(_) => format!("no answer; its last step: {}", at()),
            };
            last(ANSWER, rank).unwrap_or_else(lost)
        })
        .collect()
}

#[test]
fn the_real_library_answers_so() {
    // A row's process gets here too, before it knows that it is one.
    let nccl = match machine().and(Api::load().map_err(|error| error.to_string())) {
        Ok(nccl) => nccl,
        Err(why) => return println!("skipped: {why}"),
    };
    // The harness names tests without the crate.
    let (_, module) = module_path!().split_once("::").unwrap();
    let test = format!("{module}::the_real_library_answers_so");
    let mut wrong = Vec::new();
    for (number, row) in ROWS.iter().enumerate() {
        let since = nccl_sys::Table::function(row.function).unwrap().since;
        if nccl.version() < since {
            println!("skipped: {}: NCCL {} has no {}", row.name, nccl.version(), row.function);
            continue;
        }
        let found = rusty_fork::fork(
            &test,
            rusty_fork_id!(),
            |command| {
                command.env(ROW, number.to_string());
            },
            answers,
            || ask_the_real_library(&ROWS[std::env::var(ROW).unwrap().parse::<usize>().unwrap()]),
        );
        let found = found.unwrap();
        if found != row.answers {
            wrong.push(format!("{}:\n  found    {found:?}\n  expected {:?}", row.name, row.answers));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}
