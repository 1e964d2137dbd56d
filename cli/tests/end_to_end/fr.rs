//! Dumps of real jobs, ours and PyTorch's, through `fr analyze`.

use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use cuda_driver::{Driver, Stream, StreamFlags, memory::DeviceMemory};
use gpu_sim::World;
use process_group::ProcessGroup;
use process_group::comm::{DataType::F32, Nccl, ReduceOp};
use process_group::group::Buffer;
use process_group::store::{Deadline, Store, TcpStore};
use rusty_fork::rusty_fork_test;

use serde_json::Value;

use crate::lockstep;

const RANKS: usize = 3;

fn far() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

/// Runs `fr analyze --json` and returns its output.
fn report(folder: &Path) -> Value {
    let output = Command::new(lockstep()).args(["fr", "analyze", "--json"]).arg(folder).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Returns the first group's collective in which ranks are missing, and those ranks.
fn missing(report: &Value) -> (u64, Vec<u64>) {
    let missing = &report["groups"][0]["missing"];
    let ranks = missing["ranks"].as_array().unwrap_or_else(|| panic!("{report:#}"));
    let ranks = ranks.iter().map(|rank| rank["rank"].as_u64().unwrap()).collect();
    (missing["collective"].as_u64().unwrap(), ranks)
}

/// Runs three ranks that call an all-reduce, then a second one; `odd` is the number of elements with which rank 2
/// joins it. Then each rank marks so many graph launches. All ranks stay until `look` has returned.
fn job(folder: &Path, odd: Option<usize>, launches: [usize; RANKS], look: impl Fn(&str) + Sync) {
    let world =
        World::builder().devices(RANKS).capacity(1 << 30).nccl_release(22809).faithful().start().unwrap();
    // SAFETY: the embedded device keeps the contracts of the C API, and outlives what is made of it here.
    let (driver, nccl) =
        unsafe { (cuda_driver_sys::Api::from_parts(world.cuda()), nccl_sys::Api::from_parts(world.nccl())) };
    let (driver, nccl) = (Driver::new(driver.unwrap()).unwrap(), Nccl::new(nccl.unwrap()));
    let store = TcpStore::host(0).unwrap();
    let address = store.address();
    let store: Arc<dyn Store> = Arc::new(store);
    let called = Barrier::new(RANKS);
    let rank = |rank: usize| {
        let context = driver.device(rank as u32).unwrap().retain_primary().unwrap();
        let builder = ProcessGroup::builder().store(store.clone()).rank(rank).world_size(RANKS);
        let world = builder.context(&context).nccl(&nccl).dump_folder(folder).build().unwrap();
        let stream = Stream::new(&context, StreamFlags::NON_BLOCKING).unwrap();
        let memory = DeviceMemory::new(&context, 64).unwrap();
        let all = |elements| {
            let buffer = Buffer::new(memory.ptr(), elements, F32);
            // SAFETY: the memory is long enough, and freed after the group's end.
            unsafe { world.raw().all_reduce(buffer, buffer, ReduceOp::Sum, &stream) }.unwrap()
        };
        all(8).wait_until(far()).unwrap();
        if let Some(elements) = if rank == 2 { odd } else { Some(8) } {
            all(elements);
        }
        (0..launches[rank]).for_each(|_| drop(world.track_graph_launch(&stream).unwrap()));
        called.wait();
        // The other ranks wait for its end, also if a check fails.
        let looked = (rank == 0).then(|| panic::catch_unwind(AssertUnwindSafe(|| look(&address))));
        called.wait();
        world.abort(far()).unwrap();
        if let Some(Err(failed)) = looked {
            panic::resume_unwind(failed);
        }
    };
    let rank = &rank;
    std::thread::scope(|scope| {
        (0..RANKS).for_each(|number| {
            scope.spawn(move || rank(number));
        });
    });
}

/// Returns the Python that has PyTorch, or prints that there is none.
fn python_with_torch() -> Option<PathBuf> {
    let python = std::env::var_os("PYTHON").map(PathBuf::from);
    let imports = |python: &PathBuf| {
        let mut tried = Command::new(python);
        tried.args(["-c", "import torch.distributed"]).stdout(Stdio::null()).stderr(Stdio::null());
        tried.status().is_ok_and(|status| status.success())
    };
    let python = python.filter(imports);
    if python.is_none() {
        println!("skipped: no Python that can import torch.distributed; `cargo xtask torch-env` makes one");
    }
    python
}

/// A rank of a job over gloo that calls an all-reduce, then a second one, which the last rank does not join.
const TORCH: &str = r#"
import os, sys, time
os.environ["TORCH_FR_BUFFER_SIZE"] = "100"
import torch, torch.distributed as dist
from torch._C import _distributed_c10d as c10d
rank, ranks, port, folder = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
store = dist.TCPStore("127.0.0.1", port, is_master=False)
dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
dist.all_reduce(torch.ones(4))
if rank < ranks - 1:
    work = dist.all_reduce(torch.ones(4), async_op=True)
for name, dump in [("pickle", c10d._dump_fr_trace), ("json", c10d._dump_fr_trace_json)]:
    data = dump()
    with open(f"{folder}/{name}/trace_{rank}", "wb") as file:
        file.write(data if isinstance(data, bytes) else data.encode())
store.add("dumped", 1)
while store.add("dumped", 0) < ranks:
    time.sleep(0.01)
os._exit(0)
"#;

rusty_fork_test! {
    #[test]
    fn a_missing_rank_is_named_in_dumps_and_live() {
        let folder = tempfile::tempdir().unwrap();
        job(folder.path(), None, [0; RANKS], |address| {
            let output = Command::new(lockstep()).args(["fr", "live", address]).output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            assert!(text.contains("  rank 2 has not joined collective 2 of world\n"), "{text}");
            let output = Command::new(lockstep()).args(["fr", "live", address, "--json"]).output().unwrap();
            let world: Value = serde_json::from_slice(&output.stdout).unwrap();
            let mut distrusted = Command::new(lockstep());
            distrusted.args(["fr", "live", address]).env("PROCESS_GROUP_STORE_SECRET", "0123456789abcdef");
            let error = String::from_utf8(distrusted.output().unwrap().stderr).unwrap();
            assert!(error.starts_with("error: the job's store has no secret: unset"), "{error}");
            let none = ["fr", "live", address, "--json", "--group", "none", "--wait", "0.5"];
            let output = Command::new(lockstep()).args(none).output().unwrap();
            let said = String::from_utf8(output.stderr).unwrap();
            assert!(said.ends_with(" or the program has no process group\n"), "{said}");
            let none: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(none, serde_json::json!({"error": said.trim_end().trim_start_matches("error: ")}));
            assert!(said.contains("no group none of epoch 0 answers"), "{said}");
            assert_eq!(output.status.code(), Some(1));
            let members = world["members"].as_array().unwrap();
            let collectives: Vec<_> = members.iter().map(|member| member["collectives"].as_u64()).collect();
            assert_eq!((&world["group"], collectives.iter().min()), (&"world".into(), Some(&Some(1))), "{world}");
            assert_eq!(world["not_joined"], serde_json::json!([2]), "{world}");
            assert_eq!((&members[2]["answered"], &members[2]["operation"]), (&true.into(), &"all_reduce".into()));
        });
        let report = report(folder.path());
        assert_eq!(missing(&report), (2, vec![2]));
        assert!(report["groups"][0]["mismatch"].is_null(), "{report:#}");
        assert_eq!(report["without_dump"], serde_json::json!([]), "{report:#}");
        let dumps = report["dumps"].as_array().unwrap_or_else(|| panic!("{report:#}"));
        assert_eq!(dumps.len(), RANKS, "{report:#}");
        assert!(dumps.iter().all(|dump| dump["written_ns"].as_u64().is_some()), "{report:#}");
        let output = Command::new(lockstep()).args(["fr", "analyze"]).arg(folder.path()).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("missing: rank 2 in collective 2 (all_reduce)"), "{text}");
        assert!(text.contains(" UTC, the first\n") && text.contains(" s later\n"), "{text}");
    }

    #[test]
    fn a_rank_that_skips_a_graph_launch_is_named_live() {
        let folder = tempfile::tempdir().unwrap();
        job(folder.path(), Some(8), [2, 2, 1], |address| {
            let output = Command::new(lockstep()).args(["fr", "live", address]).output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            assert!(text.contains("  rank 2 has not joined graph launch 2 of world\n"), "{text}");
            let output = Command::new(lockstep()).args(["fr", "live", address, "--json"]).output().unwrap();
            let world: Value = serde_json::from_slice(&output.stdout).unwrap();
            let members = world["members"].as_array().unwrap();
            let launches: Vec<_> = members.iter().map(|member| member["graph_launches"].as_u64()).collect();
            assert_eq!(launches, [Some(2), Some(2), Some(1)], "{world}");
            assert_eq!(world["not_joined"], serde_json::json!([2]), "{world}");
        });
    }

    #[test]
    fn the_first_mismatch_is_named() {
        let folder = tempfile::tempdir().unwrap();
        job(folder.path(), Some(4), [0; RANKS], |_| {});
        let report = report(folder.path());
        let found = &report["groups"][0]["mismatch"];
        assert_eq!((&found["collective"], &found["what"]), (&2.into(), &"sizes".into()), "{report:#}");
        assert_eq!(found["ranks"], serde_json::json!([2]), "{report:#}");
        assert!(report["groups"][0]["missing"].is_null(), "{report:#}");
    }

    #[test]
    fn torchs_own_dumps_are_read() {
        if let Some(python) = python_with_torch() {
            let folder = tempfile::tempdir().unwrap();
            for form in ["pickle", "json"] {
                std::fs::create_dir(folder.path().join(form)).unwrap();
            }
            let store = TcpStore::host(0).unwrap();
            let port = store.address().rsplit(':').next().unwrap().to_owned();
            let start = |rank: usize| {
                let arguments = [&rank.to_string(), &RANKS.to_string(), &port];
                Command::new(&python).args(["-c", TORCH]).args(arguments).arg(folder.path()).spawn().unwrap()
            };
            let ranks: Vec<_> = (0..RANKS).map(start).collect();
            for mut rank in ranks {
                assert!(rank.wait().unwrap().success());
            }
            for form in ["pickle", "json"] {
                let report = report(&folder.path().join(form));
                let groups = report["groups"].as_array().unwrap();
                assert_eq!((&groups[0]["name"], groups.len()), (&"default_pg".into(), 1), "{report:#}");
                assert_eq!(missing(&report), (2, vec![2]));
            }
        }
    }
}
