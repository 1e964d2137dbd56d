//! Findings about the system's limits and the variables that are set.

use super::{CRATES, Findings, Weight};
use crate::doctor::facts::{Facts, Host, Tried};
use crate::exit::brief;

const MIB: u64 = 1 << 20;
/// NCCL takes about 10 MB for a pair without direct access, and fails without a message if there is none.
const SHARED_MEMORY: u64 = 512 * MIB;
/// A job of several GPUs holds descriptors for every peer, segment, event and socket.
const OPEN_FILES: u64 = 4096;
/// A rank starts tens of threads, and so does every library below it.
const PROCESSES: u64 = 4096;
/// The embedded device reserves its devices' addresses.
const ADDRESS_SPACE: u64 = 1 << 40;

impl Findings {
    pub(super) fn host(&mut self, host: &Host) {
        match &host.shared_memory {
            Tried::Failed { error } => self.add(
                Weight::Limit,
                "/dev/shm",
                &["process-group"],
                format!("NCCL keeps buffers of ranks without direct access there: {}", brief(error)),
                Some("mount a tmpfs on /dev/shm".into()),
            ),
            Tried::Done(space) if space.free < SHARED_MEMORY => self.add(
                Weight::Limit,
                "/dev/shm",
                &["process-group"],
                format!(
                    "{} MiB free of {}: NCCL keeps buffers there and fails when it is full",
                    space.free / MIB,
                    space.total / MIB
                ),
                Some("start the container with `--shm-size=1g` or more, or clear old files out of it".into()),
            ),
            Tried::Done(_) => {}
        }
        self.limits(host);
        let tried = [
            (
                "abstract Unix sockets",
                &host.abstract_sockets,
                &["process-group", "symm-mem", "gpu-sim"][..],
                "NCCL passes memory between ranks over them, and the embedded device's ranks meet there",
                "run all ranks of the host in one network namespace, in which they are allowed",
            ),
            (
                "loopback interface",
                &host.loopback,
                &["process-group", "symm-mem", "cli"][..],
                "stores of ranks on one host listen there",
                "`ip link set lo up`",
            ),
            (
                "embedded device",
                &host.embedded_device,
                &["gpu-sim", "cli"][..],
                "tests and the demo without GPUs run on it",
                "it needs memfd_create and room for addresses (`ulimit -v unlimited`)",
            ),
        ];
        for (subject, outcome, crates, what, remedy) in tried {
            if let Some(error) = outcome.error() {
                let cause = format!("{}; {what}", brief(error));
                self.add(Weight::Fault, subject, crates, cause, Some(remedy.into()));
            }
        }
        if let Some(sign) = &host.container {
            self.add(
                Weight::Note,
                "container",
                &[],
                format!("this is one ({sign}): ranks of other containers share memory only in one network namespace"),
                Some("one container for all ranks of a host, or `--network=host`".into()),
            );
        }
    }

    fn limits(&mut self, host: &Host) {
        let below = |name: &str, wanted: u64| {
            host.limits.get(name).and_then(|limit| limit.soft).filter(|&soft| soft < wanted)
        };
        if let Some(soft) = below("nofile", OPEN_FILES) {
            self.add(
                if soft < 1024 { Weight::Limit } else { Weight::Note },
                "open files",
                &["process-group", "symm-mem"],
                format!("{soft} at most: large jobs hold one for every peer, segment and socket"),
                Some(format!("`ulimit -n {OPEN_FILES}` or more")),
            );
        }
        if let Some(soft) = below("nproc", PROCESSES) {
            self.add(
                if soft < 512 { Weight::Limit } else { Weight::Note },
                "processes and threads",
                &["process-group", "gpu-sim"],
                format!("{soft} at most for this user: every rank starts tens of threads"),
                Some(format!("`ulimit -u {PROCESSES}` or more")),
            );
        }
        if let Some(soft) = below("memlock", u64::MAX) {
            self.add(
                Weight::Note,
                "locked memory",
                &[],
                format!("{} KiB at most: the limit for host memory that network adapters register; a job on one host registers none", soft / 1024),
                Some("`ulimit -l unlimited` for jobs of several hosts".into()),
            );
        }
        if let Some(soft) = below("as", ADDRESS_SPACE) {
            self.add(
                Weight::Limit,
                "address space",
                &["cuda-driver", "caching-alloc", "process-group", "symm-mem", "gpu-sim"],
                format!(
                    "{} MiB at most: the driver and the embedded device reserve far more than they use",
                    soft / MIB
                ),
                Some("`ulimit -v unlimited`".into()),
            );
        }
    }

    pub(super) fn variables(&mut self, facts: &Facts) {
        for variable in facts.variables.iter().filter(|variable| !variable.limits.is_empty()) {
            let crates: Vec<_> = CRATES
                .into_iter()
                .filter(|name| variable.limits.iter().any(|limited| limited == name))
                .collect();
            let effect = variable.effect.as_deref().unwrap_or_default();
            self.add(
                Weight::Limit,
                format!("{}={}", variable.name, variable.value),
                &crates,
                format!("{effect} ({})", variable.source),
                Some("unset it, on every rank".into()),
            );
        }
    }
}
