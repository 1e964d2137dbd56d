//! Findings about the GPUs and the links between them.

use super::{Findings, ON_GPUS, ON_GROUPS, Weight};
use crate::doctor::facts::{Devices, Gpu, Host};
use crate::exit::brief;

impl Findings {
    pub(super) fn devices(&mut self, devices: &Devices, host: &Host) {
        match devices.gpus.len() {
            0 => self.add(
                Weight::Fault,
                "no GPU",
                &ON_GPUS,
                "the driver shows no device to this process",
                Some("see CUDA_VISIBLE_DEVICES, and whether the container has the GPUs mapped in".into()),
            ),
            1 => self.add(
                Weight::Limit,
                "one GPU",
                &ON_GROUPS,
                "groups on this host have one rank: nothing to communicate with",
                Some("the demo needs two; `lockstep demo --backend sim` uses four embedded devices".into()),
            ),
            _ => {}
        }
        for gpu in &devices.gpus {
            self.gpu(gpu);
        }
        self.untold(devices);
        self.exports(devices, host);
        self.pairs(devices);
        if let Some(error) = devices.nvml.error() {
            let cause = format!("NVLinks and MIG are not known: {}", brief(error));
            let remedy =
                "the driver's package brings libnvidia-ml.so.1; in a container, the capability `utility`";
            self.add(Weight::Note, "NVML", &[], cause, Some(remedy.into()));
        }
        if devices.module_loading.as_deref() == Some("lazy") {
            self.add(
                Weight::Note,
                "lazy module loading",
                &[],
                "a kernel is loaded at its first launch, which may wait for kernels that run: one that waits for a \
                 kernel not loaded yet hangs",
                Some("launch each kernel once before it is waited for, or set CUDA_MODULE_LOADING=EAGER".into()),
            );
        }
    }

    fn gpu(&mut self, gpu: &Gpu) {
        let name = format!("GPU {}", gpu.ordinal);
        if let Some(error) = gpu.context.error() {
            let remedy = match special_mode(gpu) {
                None => "see who fills it (`nvidia-smi`)".into(),
                Some(mode) => {
                    format!("its compute mode is {mode:?}: `nvidia-smi -c 0`, or end the process that has it")
                }
            };
            self.add(Weight::Fault, format!("{name}: no context"), &ON_GPUS, brief(error), Some(remedy));
            return;
        }
        if let Some(mode) = special_mode(gpu) {
            self.add(
                Weight::Limit,
                format!("{name}: compute mode"),
                &ON_GPUS,
                format!("{mode:?}: no two processes can share it"),
                Some("`nvidia-smi -c 0`".into()),
            );
        }
        if gpu.mig == Some(true) {
            self.add(
                Weight::Limit,
                format!("{name}: MIG"),
                &ON_GROUPS,
                "it is cut into instances, which do not reach other GPUs' memory",
                Some("whole GPUs are needed for windows".into()),
            );
        }
        if gpu.virtual_memory.done() == Some(&false) {
            self.add(
                Weight::Limit,
                format!("{name}: no virtual memory"),
                &["caching-alloc", "symm-mem"],
                "the device does not support it: segments cannot be remapped, symmetric pools not made",
                None,
            );
        }
    }

    /// Findings for queries that the driver refused.
    fn untold(&mut self, devices: &Devices) {
        const REMEDY: &str =
            "`nvidia-smi` and the kernel's log (`dmesg`, lines with NVRM or Xid) say what ails the GPU";
        type Asked = (&'static str, Weight, &'static [&'static str], fn(&Gpu) -> Option<&str>);
        let asked: [Asked; 6] = [
            ("name", Weight::Note, &[], |gpu| gpu.name.error()),
            ("compute capability", Weight::Note, &[], |gpu| gpu.compute_capability.error()),
            ("size of memory", Weight::Note, &[], |gpu| gpu.memory_total.error()),
            ("compute mode", Weight::Note, &[], |gpu| gpu.compute_mode.error()),
            ("multicast", Weight::Note, &[], |gpu| gpu.multicast.error()),
            ("virtual memory", Weight::Limit, &["caching-alloc", "symm-mem"], |gpu| {
                gpu.virtual_memory.error()
            }),
        ];
        for (what, weight, crates, error) in asked {
            for (which, error) in grouped(devices.gpus.iter().map(|gpu| (gpu.ordinal, error(gpu)))) {
                let subject = format!("{}: {what}", gpus(&which));
                let cause = format!("the driver does not tell: {}", brief(error));
                self.add(weight, subject, crates, cause, Some(REMEDY.into()));
            }
        }
        let pairs = devices.pairs.iter().map(|pair| ((pair.from, pair.to), pair.access.error()));
        for (which, error) in grouped(pairs) {
            let cause = format!("the driver does not tell {}: {}", arrows(&which), brief(error));
            self.add(Weight::Limit, "whether GPUs reach each other", &ON_GROUPS, cause, Some(REMEDY.into()));
        }
    }

    /// Findings about exports to other processes, one for all GPUs with the same fault.
    fn exports(&mut self, devices: &Devices, host: &Host) {
        let usable = || {
            devices
                .gpus
                .iter()
                .filter(|gpu| gpu.virtual_memory.done() != Some(&false) && gpu.context.done().is_some())
        };
        for (which, error) in grouped(usable().map(|gpu| (gpu.ordinal, gpu.file_descriptor_export.error()))) {
            self.add(
                Weight::Limit,
                format!("{}: no file-descriptor export", gpus(&which)),
                &["symm-mem"],
                format!("memory cannot be shared with other processes: {}", brief(error)),
                Some(
                    "containers must be allowed the calls; MIG instances and some virtual GPUs cannot".into(),
                ),
            );
        }
        for (which, error) in grouped(usable().map(|gpu| (gpu.ordinal, gpu.fabric_export.error()))) {
            let channels = if host.imex_channels.is_empty() {
                "there is no IMEX channel (/dev/nvidia-caps-imex-channels)".to_owned()
            } else {
                format!("IMEX channels are there ({})", host.imex_channels.join(", "))
            };
            self.add(
                Weight::Note,
                format!("{}: no fabric export", gpus(&which)),
                &[],
                format!("{}; {channels}", brief(error)),
                Some(
                    "none on a single host; between hosts of one NVLink domain, run nvidia-imex and map in a channel"
                        .into(),
                ),
            );
        }
    }

    fn pairs(&mut self, devices: &Devices) {
        let access = |wanted| devices.pairs.iter().filter(move |pair| pair.access.done() == Some(&wanted));
        let apart: Vec<_> = access(false).map(|pair| (pair.from, pair.to)).collect();
        if !apart.is_empty() {
            self.add(
                Weight::Limit,
                "GPUs that do not reach each other",
                &ON_GROUPS,
                format!(
                    "no direct access {}: NCCL goes through host memory, and groups with such a pair have no windows",
                    arrows(&apart)
                ),
                Some("`nvidia-smi topo -p2p r` says why; IOMMU and PCIe access control forbid it on many hosts".into()),
            );
        }
        let plain = access(true).filter(|pair| pair.native_atomics == Some(false));
        let plain: Vec<_> = plain.map(|pair| (pair.from, pair.to)).collect();
        if !plain.is_empty() {
            let cause = format!("no native atomics {}: the link is PCIe, not NVLink", arrows(&plain));
            self.add(Weight::Note, "GPUs without NVLink", &[], cause, None);
        }
    }
}

/// Returns a compute mode that excludes other processes.
fn special_mode(gpu: &Gpu) -> Option<&str> {
    gpu.compute_mode.done().map(String::as_str).filter(|mode| *mode != "default")
}

/// Groups the items that have the same error.
fn grouped<'a, T>(errors: impl Iterator<Item = (T, Option<&'a str>)>) -> Vec<(Vec<T>, &'a str)> {
    let mut groups: Vec<(Vec<T>, &str)> = Vec::new();
    for (one, error) in errors.filter_map(|(one, error)| Some((one, error?))) {
        match groups.iter_mut().find(|(_, known)| *known == error) {
            Some((members, _)) => members.push(one),
            None => groups.push((vec![one], error)),
        }
    }
    groups
}

fn gpus(ordinals: &[u32]) -> String {
    let list: Vec<_> = ordinals.iter().map(u32::to_string).collect();
    format!("{} {}", if list.len() == 1 { "GPU" } else { "GPUs" }, list.join(", "))
}

fn arrows(pairs: &[(u32, u32)]) -> String {
    pairs.iter().map(|(from, to)| format!("{from}→{to}")).collect::<Vec<_>>().join(", ")
}
