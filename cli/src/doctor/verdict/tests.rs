//! Verdicts on constructed hosts.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use proptest::prelude::*;

use super::{CRATES, Finding, Outcome, Verdict, Weight, judge};
use crate::doctor::facts::{
    Devices, Facts, Gpu, Granularity, Host, Libraries, Library, Limit, Pair, Space, Taken, Tried, WORKS,
};
use crate::doctor::variables;
use crate::probe::{Probe, Refused};

const GIB: u64 = 1 << 30;

fn failed<T>(error: &str) -> Tried<T> {
    Tried::Failed { error: error.into() }
}

fn probe(version: &str, path: &str, features: &[&str], refused: &[(&str, bool, &str)]) -> Probe {
    let refused = refused.iter().map(|&(feature, known_bad, reason)| Refused {
        feature: feature.into(),
        summary: String::new(),
        known_bad,
        reason: reason.into(),
    });
    Probe {
        version: version.into(),
        path: path.into(),
        bytes: 1,
        functions: BTreeSet::new(),
        absent: Vec::new(),
        features: features.iter().map(|&name| name.into()).collect(),
        refused: refused.collect(),
    }
}

fn old_nccl() -> Probe {
    let why = "collectives from windows corrupt small messages";
    probe("2.28.3", "/usr/lib/libnccl.so.2", &["SPLIT"], &[("WINDOWS", true, why)])
}

fn new_nccl() -> Probe {
    probe("2.28.9", "/venv/nvidia/nccl/lib/libnccl.so.2", &["SPLIT", "WINDOWS", "REVOKE"], &[])
}

/// These libraries; the first is the selected one.
fn libraries(probes: Vec<Probe>) -> Libraries {
    let taken = probes.first().map(|probe| Taken {
        path: probe.path.clone(),
        version: probe.version.clone(),
        why: "the loader's choice".into(),
    });
    let found = probes.into_iter().enumerate().map(|(index, probe)| Library {
        path: probe.path.clone(),
        sources: vec!["the loader's default folders".into()],
        taken: index == 0,
        probe: Tried::Done(probe),
    });
    Libraries { found: found.collect(), taken: taken.map_or_else(|| failed("no library found"), Tried::Done) }
}

fn gpu(ordinal: u32) -> Gpu {
    Gpu {
        ordinal,
        name: Tried::Done("H200".into()),
        uuid: None,
        pci: None,
        compute_capability: Tried::Done("9.0".into()),
        memory_total: Tried::Done(140 * GIB),
        memory_free: Some(139 * GIB),
        compute_mode: Tried::Done("default".into()),
        mig: Some(false),
        nvlinks: Some(18),
        context: Tried::Done(WORKS),
        virtual_memory: Tried::Done(true),
        granularity: Some(Granularity { minimum: 2 << 20, recommended: 2 << 20 }),
        file_descriptor_export: Tried::Done(WORKS),
        fabric_export: Tried::Done(WORKS),
        multicast: Tried::Done(true),
    }
}

fn devices(count: u32) -> Devices {
    let ordered = (0..count).flat_map(|from| (0..count).map(move |to| (from, to)));
    let pairs = ordered.filter(|(from, to)| from != to).map(|(from, to)| Pair {
        from,
        to,
        access: Tried::Done(true),
        native_atomics: Some(true),
        performance_rank: Some(0),
    });
    Devices {
        module_loading: Some("eager".into()),
        gpus: (0..count).map(gpu).collect(),
        pairs: pairs.collect(),
        nvml: Tried::Done(WORKS),
    }
}

/// A host without findings.
fn good() -> Facts {
    let unlimited = Limit { soft: None, hard: None };
    Facts {
        cuda: libraries(vec![probe("13.0", "/usr/lib/libcuda.so.1", &["VIRTUAL_MEMORY"], &[])]),
        nccl: libraries(vec![new_nccl()]),
        devices: Tried::Done(devices(2)),
        host: Host {
            kernel_module: Some("NVRM version: 580".into()),
            container: None,
            shared_memory: Tried::Done(Space { total: 64 * GIB, free: 64 * GIB }),
            limits: ["memlock", "nofile", "nproc", "as"].map(|name| (name.into(), unlimited)).into(),
            abstract_sockets: Tried::Done(WORKS),
            loopback: Tried::Done(WORKS),
            embedded_device: Tried::Done(WORKS),
            imex_channels: Vec::new(),
        },
        variables: Vec::new(),
    }
}

fn good_devices(facts: &mut Facts) -> &mut Devices {
    match &mut facts.devices {
        Tried::Done(devices) => devices,
        Tried::Failed { error } => panic!("{error}"),
    }
}

fn outcome(verdicts: &[Verdict], name: &str) -> Outcome {
    verdicts.iter().find(|verdict| verdict.name == name).unwrap().outcome
}

fn about<'a>(findings: &'a [Finding], subject: &str) -> &'a Finding {
    let found = findings.iter().find(|finding| finding.subject.contains(subject));
    found.unwrap_or_else(|| panic!("nothing is said of {subject}: {findings:#?}"))
}

#[test]
fn of_a_good_host_nothing_is_said() {
    let (findings, verdicts) = judge(&good());
    assert_eq!(findings, []);
    assert!(verdicts.iter().all(|verdict| verdict.outcome == Outcome::Works), "{verdicts:?}");
}

#[test]
fn without_a_driver_the_embedded_device_works() {
    let mut facts = good();
    facts.cuda = libraries(Vec::new());
    facts.cuda.taken = failed("no CUDA driver found; install it. Tried:\n  x.so: /lib/x.so: file too short");
    facts.devices = failed("no driver");
    facts.host.kernel_module = None;
    let (findings, verdicts) = judge(&facts);
    let last = findings.last().unwrap();
    assert_eq!((last.weight, last.subject.as_str()), (Weight::Fault, "no CUDA driver"));
    assert_eq!(last.cause, "the loader finds none; x.so: /lib/x.so: file too short");
    assert!(last.remedy.as_ref().unwrap().contains("install NVIDIA's driver"), "{last:?}");
    for name in ["cuda-driver-sys", "cuda-driver", "caching-alloc", "process-group", "symm-mem"] {
        assert_eq!(outcome(&verdicts, name), Outcome::EmbeddedOnly, "{name}");
    }
    for name in ["nccl-sys", "gpu-sim", "cli"] {
        assert_eq!(outcome(&verdicts, name), Outcome::Works, "{name}");
    }
}

#[test]
fn without_nccl_what_needs_no_nccl_works() {
    let mut facts = good();
    facts.nccl = libraries(Vec::new());
    let (findings, verdicts) = judge(&facts);
    assert!(about(&findings, "no NCCL").remedy.as_ref().unwrap().contains("pip install"));
    for name in ["nccl-sys", "process-group", "symm-mem"] {
        assert_eq!(outcome(&verdicts, name), Outcome::EmbeddedOnly, "{name}");
    }
    for name in ["cuda-driver-sys", "cuda-driver", "caching-alloc"] {
        assert_eq!(outcome(&verdicts, name), Outcome::Works, "{name}");
    }
}

#[test]
fn the_embedded_device_does_not_replace_what_the_host_lacks() {
    let outcomes = |changes: &[Change]| {
        let verdicts = judge(&changed(changes)).1;
        ["nccl-sys", "process-group", "gpu-sim"].map(|name| outcome(&verdicts, name))
    };
    let (works, embedded, lost) = (Outcome::Works, Outcome::EmbeddedOnly, Outcome::Unavailable);
    assert_eq!(outcomes(&[Change::NoNccl]), [embedded, embedded, works]);
    assert_eq!(outcomes(&[Change::NoNccl, Change::NoLoopback]), [embedded, lost, works]);
    assert_eq!(outcomes(&[Change::NoNccl, Change::NoEmbedded]), [lost, lost, lost]);
}

#[test]
fn a_library_that_the_loader_does_not_find_is_the_remedy() {
    let mut facts = good();
    facts.nccl.taken = failed("no NCCL found");
    facts.nccl.found[0].taken = false;
    let (findings, _) = judge(&facts);
    let remedy = about(&findings, "no NCCL").remedy.clone().unwrap();
    assert_eq!(remedy, "set NCCL_SYS_LIBRARY=/venv/nvidia/nccl/lib/libnccl.so.2");
}

#[test]
fn of_two_releases_the_one_that_does_windows_right_is_the_remedy() {
    let mut facts = good();
    facts.nccl = libraries(vec![old_nccl(), new_nccl()]);
    let (findings, verdicts) = judge(&facts);
    assert!(about(&findings, "2 releases of NCCL").cause.contains("2.28.3, 2.28.9"));
    let refused = about(&findings, "no WINDOWS");
    assert!(refused.cause.contains("corrupt small messages"), "{refused:?}");
    assert!(refused.remedy.as_ref().unwrap().contains("/venv/nvidia/nccl/lib/libnccl.so.2"), "{refused:?}");
    assert_eq!(outcome(&verdicts, "symm-mem"), Outcome::Limited);
    assert_eq!(outcome(&verdicts, "process-group"), Outcome::Works);

    facts.nccl = libraries(vec![new_nccl(), old_nccl()]);
    let (_, verdicts) = judge(&facts);
    assert_eq!(outcome(&verdicts, "symm-mem"), Outcome::Works);
}

#[test]
fn dockers_shared_memory_is_too_small() {
    let mut facts = good();
    facts.host.shared_memory = Tried::Done(Space { total: 64 << 20, free: 64 << 20 });
    let (findings, verdicts) = judge(&facts);
    assert!(about(&findings, "/dev/shm").remedy.as_ref().unwrap().contains("--shm-size"));
    assert_eq!(outcome(&verdicts, "process-group"), Outcome::Limited);
    assert_eq!(outcome(&verdicts, "cuda-driver"), Outcome::Works);
}

#[test]
fn a_pair_that_does_not_reach_each_other_is_named() {
    let mut facts = good();
    facts.devices = Tried::Done(devices(3));
    for pair in &mut good_devices(&mut facts).pairs {
        pair.access = Tried::Done(pair.from + pair.to != 3);
    }
    let (findings, verdicts) = judge(&facts);
    let finding = about(&findings, "do not reach each other");
    assert!(finding.cause.contains("1→2, 2→1"), "{finding:?}");
    assert_eq!(outcome(&verdicts, "symm-mem"), Outcome::Limited);
}

#[test]
fn refused_fabric_handles_are_a_note_with_the_cause() {
    let mut facts = good();
    for gpu in &mut good_devices(&mut facts).gpus {
        gpu.fabric_export = failed("creating: CUDA_ERROR_NOT_PERMITTED");
    }
    let (findings, verdicts) = judge(&facts);
    let finding = about(&findings, "GPUs 0, 1: no fabric export");
    assert!(
        finding.cause.contains("NOT_PERMITTED") && finding.cause.contains("no IMEX channel"),
        "{finding:?}"
    );
    assert!(verdicts.iter().all(|verdict| verdict.outcome == Outcome::Works), "{verdicts:?}");
}

#[test]
fn what_the_driver_does_not_tell_is_a_finding() {
    let (findings, verdicts) = judge(&changed(&[Change::Untold]));
    let name = about(&findings, "GPUs 0, 1: name");
    assert!(name.cause.contains("no answer") && name.remedy.is_some(), "{name:?}");
    assert!(about(&findings, "reach each other").cause.contains("0→1, 1→0"), "{findings:?}");
    assert_eq!(outcome(&verdicts, "cuda-driver"), Outcome::Works);
    assert_eq!(outcome(&verdicts, "process-group"), Outcome::Limited);
}

/// One change to a host.
#[derive(Clone, Copy, Debug)]
pub(in crate::doctor) enum Change {
    NoDriver,
    NoDevices,
    Devices(u32),
    NoNccl,
    TwoNccls,
    BrokenNccl,
    SharedMemory(u64),
    Apart(u32),
    NoContext,
    Mig,
    NoVirtualMemory,
    NoExport,
    Untold,
    OpenFiles(u64),
    Processes(u64),
    NoSockets,
    NoLoopback,
    NoEmbedded,
    Container,
    Variable(&'static str, &'static str),
}

pub(in crate::doctor) fn change() -> impl Strategy<Value = Change> {
    use Change::*;
    prop_oneof![
        Just(NoDriver),
        Just(NoDevices),
        (0_u32..5).prop_map(Devices),
        Just(NoNccl),
        Just(TwoNccls),
        Just(BrokenNccl),
        (0_u64..2 * GIB).prop_map(SharedMemory),
        (0_u32..4).prop_map(Apart),
        Just(NoContext),
        Just(Mig),
        Just(NoVirtualMemory),
        Just(NoExport),
        Just(Untold),
        (0_u64..10_000).prop_map(OpenFiles),
        (0_u64..10_000).prop_map(Processes),
        Just(NoSockets),
        Just(NoLoopback),
        Just(NoEmbedded),
        Just(Container),
        Just(Variable("NCCL_WIN_ENABLE", "0")),
        Just(Variable("CUDA_LAUNCH_BLOCKING", "1")),
    ]
}

/// A good host with these changes.
pub(in crate::doctor) fn changed(changes: &[Change]) -> Facts {
    let mut facts = good();
    changes.iter().for_each(|&change| apply(&mut facts, change));
    facts
}

fn apply(facts: &mut Facts, change: Change) {
    let limit = |soft| Limit { soft: Some(soft), hard: None };
    let mut gpus = |change: &dyn Fn(&mut Gpu)| {
        if let Tried::Done(devices) = &mut facts.devices {
            devices.gpus.iter_mut().for_each(change);
        }
    };
    match change {
        Change::NoDriver => {
            facts.cuda = libraries(Vec::new());
            facts.devices = failed("no driver");
        }
        Change::NoDevices => facts.devices = failed("cuInit failed with CUDA_ERROR_NO_DEVICE"),
        Change::Devices(count) => facts.devices = Tried::Done(devices(count)),
        Change::NoNccl => facts.nccl = libraries(Vec::new()),
        Change::TwoNccls => facts.nccl = libraries(vec![old_nccl(), new_nccl()]),
        Change::BrokenNccl => facts.nccl.found.push(Library {
            path: PathBuf::from("/tmp/libnccl.so.2"),
            sources: vec!["LD_LIBRARY_PATH".into()],
            taken: false,
            probe: failed("file too short"),
        }),
        Change::SharedMemory(free) => {
            facts.host.shared_memory = Tried::Done(Space { total: 2 * GIB, free });
        }
        Change::Apart(ordinal) => {
            if let Tried::Done(devices) = &mut facts.devices {
                let cut = devices.pairs.iter_mut().filter(|pair| pair.from == ordinal);
                cut.for_each(|pair| pair.access = Tried::Done(false));
            }
        }
        Change::NoContext => gpus(&|gpu| gpu.context = failed("CUDA_ERROR_OUT_OF_MEMORY")),
        Change::Mig => gpus(&|gpu| gpu.mig = Some(true)),
        Change::NoVirtualMemory => gpus(&|gpu| gpu.virtual_memory = Tried::Done(false)),
        Change::NoExport => gpus(&|gpu| gpu.file_descriptor_export = failed("importing: not permitted")),
        Change::Untold => {
            if let Tried::Done(devices) = &mut facts.devices {
                for gpu in &mut devices.gpus {
                    (gpu.name, gpu.memory_total) = (failed("no answer"), failed("no answer"));
                    (gpu.virtual_memory, gpu.compute_mode) = (failed("no answer"), failed("no answer"));
                }
                devices.pairs.iter_mut().for_each(|pair| pair.access = failed("no answer"));
            }
        }
        Change::OpenFiles(soft) => drop(facts.host.limits.insert("nofile".into(), limit(soft))),
        Change::Processes(soft) => drop(facts.host.limits.insert("nproc".into(), limit(soft))),
        Change::NoSockets => facts.host.abstract_sockets = failed("not permitted"),
        Change::NoLoopback => facts.host.loopback = failed("no such device"),
        Change::NoEmbedded => facts.host.embedded_device = failed("out of memory"),
        Change::Container => facts.host.container = Some("/.dockerenv".into()),
        Change::Variable(name, value) => {
            facts.variables.push(variables::known_as(name, value, "environment"));
        }
    }
}

proptest! {
    #[test]
    fn verdicts_are_the_worst_of_their_findings(changes in prop::collection::vec(change(), 0..8)) {
        let facts = changed(&changes);
        let (findings, verdicts) = judge(&facts);
        prop_assert!(findings.is_sorted_by_key(|finding| finding.weight), "{findings:?}");
        for finding in &findings {
            prop_assert!(!finding.subject.is_empty() && !finding.cause.is_empty(), "{finding:?}");
            prop_assert!(finding.weight == Weight::Note || !finding.crates.is_empty(), "{finding:?}");
        }
        let names: Vec<_> = verdicts.iter().map(|verdict| verdict.name).collect();
        prop_assert_eq!(names, CRATES);
        let worst: BTreeMap<_, _> =
            findings.iter().flat_map(|finding| finding.crates.iter().map(|&name| (name, finding.weight))).collect();
        let has_embedded_device = facts.host.embedded_device.done().is_some();
        let of_host = ["abstract Unix sockets", "loopback interface", "embedded device"];
        for verdict in &verdicts {
            let is_replaced = has_embedded_device
                && findings.iter().all(|finding| {
                    !of_host.contains(&&*finding.subject) || !finding.crates.contains(&verdict.name)
                });
            let expected = match worst.get(verdict.name) {
                None | Some(Weight::Note) => Outcome::Works,
                Some(Weight::Limit) => Outcome::Limited,
                Some(Weight::Fault) if is_replaced => Outcome::EmbeddedOnly,
                Some(Weight::Fault) => Outcome::Unavailable,
            };
            prop_assert_eq!(verdict.outcome, expected, "{:?}", verdict);
            prop_assert_eq!(verdict.why.is_empty(), expected == Outcome::Works);
        }
    }

    #[test]
    fn a_change_for_the_worse_mends_nothing(changes in prop::collection::vec(change(), 0..6), at in 0_usize..6) {
        let judged = |changes: &[Change]| judge(&changed(changes)).1;
        // Changes that a missing driver or other devices hide are excluded: they do not make the verdict worse.
        let independent = |change: &Change| !matches!(change, Change::NoDriver | Change::NoDevices
            | Change::Devices(_) | Change::NoNccl | Change::TwoNccls | Change::BrokenNccl
            | Change::SharedMemory(_) | Change::OpenFiles(_) | Change::Processes(_) | Change::NoContext);
        let all: Vec<_> = changes.into_iter().filter(independent).collect();
        let mut fewer = all.clone();
        if at < fewer.len() {
            fewer.remove(at);
        }
        for (with, without) in judged(&all).iter().zip(judged(&fewer)) {
            prop_assert!(with.outcome >= without.outcome, "{with:?} {without:?}");
        }
    }
}
