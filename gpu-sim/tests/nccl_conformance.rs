//! What NCCL answers on two devices: the embedded one the same as the machine's own library, each row there in a process
//! of its own. Rows whose functions the library lacks are passed over, and said so.

use std::ffi::c_int;
use std::process::Command;
use std::thread;

use cuda_driver_sys as cu;
use gpu_sim::World;
use nccl_sys::{Api, ncclCommMemStat_t, ncclResult_t};
use rusty_fork::rusty_fork_test;

use super::rig::{Comm, Rank, Rig, run};

/// A question to both ranks of a communicator, which it ends; its name, the functions that it takes, the answers.
struct Row {
    name: &'static str,
    function: &'static str,
    ask: fn(&Rank, Comm) -> String,
    answers: [&'static str; 2],
}

const RANKS: usize = 2;

fn code(code: ncclResult_t) -> String {
    format!("{code:?}").trim_start_matches("nccl").to_owned()
}

/// The communicator without the other rank, or the code.
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

const ROWS: [Row; 5] = [
    Row {
        name: "shrink: without anybody to leave out",
        function: "ncclCommShrink",
        ask: |rank, comm| {
            let answer = shrink(rank, comm, &mut [], 0).map_or_else(|code| code, |_| "made".into());
            rank.rig.destroy(comm);
            answer
        },
        answers: ["InvalidArgument", "InvalidArgument"],
    },
    Row {
        name: "shrink: the survivor beside the whole",
        function: "ncclCommShrink",
        ask: |rank, comm| {
            let mut answer = String::new();
            if rank.rank == 0 {
                let rest = shrink(rank, comm, &mut [1], 0).unwrap();
                answer = format!("{:?} {} ", rank.rig.place(rest), rank.sum(rest, 5));
                rank.rig.destroy(rest);
            }
            answer += &rank.sum(comm, 7).to_string();
            rank.rig.destroy(comm);
            answer
        },
        answers: ["(0, 1) 5 14", "14"],
    },
    Row {
        name: "shrink after a failure: work that waits for the other ends",
        function: "ncclCommShrink",
        ask: |rank, comm| {
            if rank.rank == 1 {
                // The other's work never meets this rank's.
                thread::sleep(std::time::Duration::from_secs(1));
                rank.rig.abort(comm);
                return String::new();
            }
            let buffer = rank.alloc(64);
            let begun = rank.all_reduce(comm, buffer, 16);
            let rest = shrink(rank, comm, &mut [1], 1).unwrap();
            let sum = rank.sum(rest, 5);
            rank.rig.destroy(rest);
            rank.rig.abort(comm);
            rank.free(buffer);
            format!("{} {sum}", code(begun))
        },
        answers: ["Success 5", ""],
    },
    Row {
        name: "revoke: no work, no finalize, but children",
        function: "ncclCommRevoke",
        ask: |rank, comm| {
            let buffer = rank.alloc(64);
            if rank.rank == 0 {
                assert_eq!(rank.all_reduce(comm, buffer, 16), ncclResult_t::ncclSuccess);
            }
            let mut answers = vec![nccl!(rank.rig, ncclCommRevoke(comm.0, 0))];
            rank.synchronize();
            answers.push(rank.all_reduce(comm, buffer, 16));
            answers.push(nccl!(rank.rig, ncclCommFinalize(comm.0)));
            let half = rank.rig.split(comm, 0, 0);
            let sum = rank.sum(half, 7);
            rank.rig.destroy(half);
            rank.rig.destroy(comm);
            rank.free(buffer);
            format!("{} {sum}", answers.into_iter().map(code).collect::<Vec<_>>().join(" "))
        },
        answers: ["Success InvalidUsage InvalidUsage 14"; 2],
    },
    Row {
        name: "memory statistics: parts of the whole",
        function: "ncclCommMemStats",
        ask: |rank, comm| {
            let of = |which| statistic(rank, comm, which);
            let parts =
                of(ncclCommMemStat_t::ncclStatGpuMemPersist) + of(ncclCommMemStat_t::ncclStatGpuMemSuspend);
            let total = of(ncclCommMemStat_t::ncclStatGpuMemTotal);
            let suspended = of(ncclCommMemStat_t::ncclStatGpuMemSuspended);
            let null = nccl!(
                rank.rig,
                ncclCommMemStats(comm.0, ncclCommMemStat_t::ncclStatGpuMemTotal, std::ptr::null_mut())
            );
            rank.rig.destroy(comm);
            format!("{} {suspended} {}", total == parts && total > 0, code(null))
        },
        answers: ["true 0 InvalidArgument"; 2],
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

/// Both libraries of this machine, if it has two devices.
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

/// Not a test of its own: asks the machine's own library one row.
#[test]
fn one_row_of_the_real_library() {
    let Ok(row) = std::env::var(ROW) else { return };
    let rig = machine().unwrap();
    let (id, ask) = (rig.unique_id(), ROWS[row.parse::<usize>().unwrap()].ask);
    let ranks: Vec<_> = (0..RANKS)
        .map(|rank| {
            let rig = rig.clone();
            thread::spawn(move || {
                let rank = rig.rank(rank);
                ask(&rank, rank.init(id, RANKS))
            })
        })
        .collect();
    for (rank, answer) in ranks.into_iter().enumerate() {
        println!("\nANSWER {rank} {}", answer.join().unwrap());
    }
}

#[test]
fn the_real_library_answers_so() {
    let nccl = match machine().and(Api::load().map_err(|error| error.to_string())) {
        Ok(nccl) => nccl,
        Err(why) => return println!("skipped: {why}"),
    };
    // The harness names tests without the crate.
    let (_, module) = module_path!().split_once("::").unwrap();
    let test = format!("{module}::one_row_of_the_real_library");
    let mut wrong = Vec::new();
    for (number, row) in ROWS.iter().enumerate() {
        let since = nccl_sys::Function::named(row.function).unwrap().since;
        if nccl.version() < since {
            println!("skipped: {}: NCCL {} has no {}", row.name, nccl.version(), row.function);
            continue;
        }
        let mut child = Command::new(std::env::current_exe().unwrap());
        let output =
            child.args(["--exact", &test, "--nocapture"]).env(ROW, number.to_string()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let found: Vec<_> = (0..RANKS)
            .map(|rank| {
                let answer = text.lines().find_map(|line| line.strip_prefix(&format!("ANSWER {rank} ")));
                answer.unwrap_or("no answer").to_owned()
            })
            .collect();
        if found != row.answers {
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            wrong
                .push(format!("{}:\n  found    {found:?}\n  expected {:?}\n{errors}", row.name, row.answers));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}
