//! What follows from the GPUs and how they reach each other.

use super::{Findings, ON_GPUS, ON_GROUPS, Weight};
use crate::doctor::facts::{Devices, Gpu, Host};
use crate::doctor::report::brief;

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
                Some("the demo needs two; `cargo xtask demo --backend sim` has four embedded ones".into()),
            ),
            _ => {}
        }
        for gpu in &devices.gpus {
            self.gpu(gpu);
        }
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
            let remedy = match gpu.compute_mode.as_str() {
                "default" => "see who fills it (`nvidia-smi`)".into(),
                mode => {
                    format!("its compute mode is {mode:?}: `nvidia-smi -c 0`, or end the process that has it")
                }
            };
            self.add(Weight::Fault, format!("{name}: no context"), &ON_GPUS, brief(error), Some(remedy));
            return;
        }
        if gpu.compute_mode != "default" {
            self.add(
                Weight::Limit,
                format!("{name}: compute mode"),
                &ON_GPUS,
                format!("{:?}: no two processes can share it", gpu.compute_mode),
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
        if !gpu.virtual_memory {
            self.add(
                Weight::Limit,
                format!("{name}: no virtual memory"),
                &["caching-alloc", "symm-mem"],
                "the device does not support it: segments cannot be remapped, symmetric pools not made",
                None,
            );
        }
    }

    /// What can be handed to other processes: told once for all GPUs with the same fault.
    fn exports(&mut self, devices: &Devices, host: &Host) {
        let usable = || devices.gpus.iter().filter(|gpu| gpu.virtual_memory && gpu.context.done().is_some());
        for (which, error) in grouped(usable().map(|gpu| (gpu.ordinal, gpu.file_descriptor_export.error()))) {
            self.add(
                Weight::Limit,
                format!("{which}: no file-descriptor export"),
                &["symm-mem"],
                format!("memory cannot be shared with other processes: {}", brief(&error)),
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
                format!("{which}: no fabric export"),
                &[],
                format!("{}; {channels}", brief(&error)),
                Some(
                    "only several hosts of one NVLink domain need it: nvidia-imex, and a channel mapped in"
                        .into(),
                ),
            );
        }
    }

    fn pairs(&mut self, devices: &Devices) {
        let list = |pairs: Vec<(u32, u32)>| {
            pairs.iter().map(|(from, to)| format!("{from}→{to}")).collect::<Vec<_>>().join(", ")
        };
        let apart: Vec<_> =
            devices.pairs.iter().filter(|pair| !pair.access).map(|pair| (pair.from, pair.to)).collect();
        if !apart.is_empty() {
            self.add(
                Weight::Limit,
                "GPUs that do not reach each other",
                &ON_GROUPS,
                format!(
                    "no direct access {}: NCCL goes through host memory, and groups with such a pair have no windows",
                    list(apart)
                ),
                Some("`nvidia-smi topo -p2p r` says why; IOMMU and PCIe access control forbid it on many hosts".into()),
            );
        }
        let plain = devices.pairs.iter().filter(|pair| pair.access && pair.native_atomics == Some(false));
        let plain: Vec<_> = plain.map(|pair| (pair.from, pair.to)).collect();
        if !plain.is_empty() {
            let cause = format!("no native atomics {}: the link is PCIe, not NVLink", list(plain));
            self.add(Weight::Note, "GPUs without NVLink", &[], cause, None);
        }
    }
}

/// GPUs with the same error, named together.
fn grouped<'a>(errors: impl Iterator<Item = (u32, Option<&'a str>)>) -> Vec<(String, String)> {
    let mut groups: Vec<(Vec<u32>, &str)> = Vec::new();
    for (ordinal, error) in errors.filter_map(|(ordinal, error)| Some((ordinal, error?))) {
        match groups.iter_mut().find(|(_, known)| *known == error) {
            Some((ordinals, _)) => ordinals.push(ordinal),
            None => groups.push((vec![ordinal], error)),
        }
    }
    let name = |ordinals: Vec<u32>| {
        let list: Vec<_> = ordinals.iter().map(u32::to_string).collect();
        format!("{} {}", if list.len() == 1 { "GPU" } else { "GPUs" }, list.join(", "))
    };
    groups.into_iter().map(|(ordinals, error)| (name(ordinals), error.to_owned())).collect()
}
