//! The variables that NCCL and the driver read, and the effect of each on these crates.

use std::fs;
use std::path::{Path, PathBuf};

use super::facts::Variable;

/// Returns the variables of the environment, then those of NCCL's files. The environment has precedence over a file.
pub(super) fn gather() -> Vec<Variable> {
    let environment = std::env::vars_os().filter_map(|(name, value)| {
        let name = name.into_string().ok()?;
        ours(&name).then(|| known_as(&name, &value.to_string_lossy(), "environment"))
    });
    let mut found: Vec<_> = environment.collect();
    found.sort_by(|one, other| one.name.cmp(&other.name));
    for file in files() {
        let source = file.display().to_string();
        let text = fs::read_to_string(&file).unwrap_or_default();
        for (name, value) in settings(&text) {
            if !found.iter().any(|earlier| earlier.name == name) {
                found.push(known_as(name, value, &source));
            }
        }
    }
    // The binding knows the configuration fields that these variables override.
    for beaten in nccl_sys::overrides(nccl_sys::version_from_code(nccl_sys::NCCL_VERSION_CODE as i32)) {
        if let Some(variable) = found.iter_mut().find(|variable| variable.name == beaten.variable) {
            let beats = format!("it beats `{}` of a communicator's configuration", beaten.field);
            variable.effect = Some(match variable.effect.take() {
                Some(effect) => format!("{beats}; {effect}"),
                None => beats,
            });
        }
    }
    found
}

/// Returns NCCL's existing files, in order of precedence.
fn files() -> Vec<PathBuf> {
    let named = std::env::var_os("NCCL_CONF_FILE").filter(|path| !path.is_empty()).map(PathBuf::from);
    let home = || Some(Path::new(&std::env::var_os("HOME")?).join(".nccl.conf"));
    let files = named.or_else(home).into_iter().chain([PathBuf::from("/etc/nccl.conf")]);
    files.filter(|file| file.exists()).collect()
}

/// Parses `NAME=value` lines. Spaces are kept, as NCCL does.
fn settings(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines().filter_map(|line| line.split_once('=')).filter(|(name, _)| ours(name))
}

/// Other variables are irrelevant, and may be secret.
fn ours(name: &str) -> bool {
    name.starts_with("NCCL_") || name.starts_with("CUDA_")
}

/// Returns the variable with its known effect.
pub(super) fn known_as(name: &str, value: &str, source: &str) -> Variable {
    let known = KNOWN.iter().find(|known| known.name == name);
    let crates = known.filter(|known| (known.bites)(value.trim())).map_or(&[][..], |known| known.limits);
    Variable {
        name: name.to_owned(),
        value: value.to_owned(),
        source: source.to_owned(),
        effect: known.map(|known| known.effect.to_owned()),
        limits: crates.iter().map(|&name| name.to_owned()).collect(),
    }
}

/// A variable with a known effect.
struct Known {
    name: &'static str,
    effect: &'static str,
    /// True if this value disables something.
    bites: fn(&str) -> bool,
    /// The crates that lose a feature.
    limits: &'static [&'static str],
}

const fn note(name: &'static str, effect: &'static str) -> Known {
    Known { name, effect, bites: |_| false, limits: &[] }
}

const fn limit(
    name: &'static str,
    bites: fn(&str) -> bool,
    limits: &'static [&'static str],
    effect: &'static str,
) -> Known {
    Known { name, effect, bites, limits }
}

fn off(value: &str) -> bool {
    value == "0"
}

fn on(value: &str) -> bool {
    value != "0"
}

const WINDOWS: &[&str] = &["symm-mem"];
const GROUPS: &[&str] = &["process-group", "symm-mem"];
const DRIVER: &[&str] = &["cuda-driver"];

static KNOWN: &[Known] = &[
    note("CUDA_DRIVER_SYS_LIBRARY", "the CUDA driver library that is asked for"),
    note("NCCL_SYS_LIBRARY", "the NCCL library that is asked for"),
    // Features that these crates use in NCCL, and the values that disable them.
    limit("NCCL_WIN_ENABLE", off, WINDOWS, "0 forbids windows: symmetric pools fall back to copies"),
    limit("NCCL_CUMEM_ENABLE", off, WINDOWS, "0 turns NCCL's use of virtual memory off, and windows with it"),
    limit("NCCL_LOCAL_REGISTER", off, GROUPS, "0 makes registration succeed without doing anything"),
    limit("NCCL_P2P_USE_CUDA_MEMCPY", on, GROUPS, "1 makes registration succeed without doing anything"),
    limit(
        "NCCL_COMM_BLOCKING",
        off,
        GROUPS,
        "0 makes communicators non-blocking, which `Communicator` refuses",
    ),
    limit("NCCL_P2P_DISABLE", on, GROUPS, "1 forbids transfers from GPU to GPU: no windows, and slow"),
    limit(
        "NCCL_P2P_LEVEL",
        |value| value == "LOC" || value == "0",
        GROUPS,
        "how far apart GPUs may be for direct transfers",
    ),
    limit(
        "NCCL_SHM_DISABLE",
        on,
        &["process-group"],
        "1 forbids shared memory: pairs without direct access take sockets",
    ),
    note("NCCL_IPC_USE_ABSTRACT_SOCKET", "0 passes file descriptors over sockets in the file system"),
    note(
        "NCCL_LSA_TEAM_SIZE",
        "splits a host into teams that reach each other directly; windows need one team",
    ),
    note("NCCL_WIN_STRIDE", "address space per rank of a communicator with windows"),
    note("NCCL_CUMEM_HOST_ENABLE", "whether NCCL takes host memory from the driver instead of /dev/shm"),
    note("NCCL_GRAPH_REGISTER", "0 keeps captured collectives from registering their buffers by themselves"),
    note("NCCL_LEGACY_CUDA_REGISTER", "registration of memory from cuMemAlloc, off by default since 2.24"),
    note("NCCL_SINGLE_PROC_MEM_REG_ENABLE", "1 lets a process of several GPUs use registered memory"),
    note("NCCL_MULTI_RANK_GPU_ENABLE", "several ranks on one GPU"),
    note("NCCL_ELASTIC_BUFFER_REGISTER", "registration of host memory (2.30)"),
    note(
        "NCCL_CHECK_MODE",
        "DEBUG_GLOBAL compares registrations between ranks (2.29.7): slow, for debugging",
    ),
    note("NCCL_ENABLE_VERSION_CHECK", "0 lets a newer caller's structures pass unchecked"),
    // Numbers and paths.
    note(
        "NCCL_LAUNCH_ORDER_IMPLICIT",
        "orders launches of several communicators on one GPU by the host's order",
    ),
    note("NCCL_NVLS_ENABLE", "0 turns NVLink multicast off: no NVLS algorithms"),
    note("NCCL_ALGO", "forces algorithms: measurements are of these"),
    note("NCCL_PROTO", "forces protocols: measurements are of these"),
    note("NCCL_BUFFSIZE", "size of NCCL's buffers, per channel and peer"),
    note("NCCL_RUNTIME_CONNECT", "0 connects all algorithms at once: slower start, more memory"),
    note("NCCL_SYM_KERNEL", "forces one of the kernels for windows"),
    note("NCCL_SYM_CTAS", "blocks of the kernels for windows"),
    note("NCCL_SYM_NOWIN_ENABLE", "kernels for windows also without windows"),
    note("NCCL_SYM_CE_THRESHOLD", "from which size on copy engines take over"),
    note(
        "NCCL_SOCKET_IFNAME",
        "the interface that ranks meet on: one that the others cannot reach hangs them",
    ),
    note("NCCL_SOCKET_FAMILY", "IPv4 or IPv6 between ranks"),
    note("NCCL_COMM_ID", "where ranks meet, instead of the unique id's address"),
    note("NCCL_HOSTID", "another name for this host: ranks of one host must agree on it"),
    note("NCCL_IB_DISABLE", "1 forbids InfiniBand: hosts speak over sockets"),
    note("NCCL_RAS_ENABLE", "0 turns NCCL's own diagnosis service off"),
    note("NCCL_DEBUG", "how much NCCL prints"),
    note("NCCL_DEBUG_SUBSYS", "what NCCL prints of"),
    note("NCCL_DEBUG_FILE", "where NCCL prints to"),
    note("NCCL_CONF_FILE", "a file of further variables, instead of ~/.nccl.conf"),
    note("NCCL_TOPO_FILE", "a topology in place of the real one"),
    note("NCCL_NET_PLUGIN", "a network plugin, which runs in the process"),
    note("NCCL_TUNER_PLUGIN", "a tuner plugin, which chooses algorithms"),
    note("NCCL_PROFILER_PLUGIN", "a profiler plugin, which runs in the process"),
    // Variables of the driver.
    note("CUDA_VISIBLE_DEVICES", "which GPUs the process sees, and in which order"),
    note("CUDA_DEVICE_ORDER", "how GPUs are numbered; ranks of one host must agree on it"),
    limit(
        "CUDA_LAUNCH_BLOCKING",
        on,
        DRIVER,
        "1 makes every launch wait for its end: slow, and kernels that wait for one another hang",
    ),
    note("CUDA_MODULE_LOADING", "LAZY loads a kernel at its first launch, EAGER all at once"),
    limit(
        "CUDA_DEVICE_MAX_CONNECTIONS",
        |value| value == "1",
        GROUPS,
        "hardware queues per GPU; with 1, streams wait for each other and one-sided transfers are serialised",
    ),
    note("CUDA_CACHE_DISABLE", "1 compiles PTX anew in every process"),
    note("CUDA_CACHE_PATH", "where compiled PTX is kept"),
    note("CUDA_FORCE_PTX_JIT", "1 compiles all kernels from PTX: a slow start"),
    note("CUDA_MPS_PIPE_DIRECTORY", "the MPS daemon that kernels go through"),
    note("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "a part of the GPU's processors"),
    note("CUDA_ENABLE_COREDUMP_ON_EXCEPTION", "1 writes a core dump of the GPU where a kernel faults"),
    note("CUDA_HOME", "where toolkits lie; these crates need none"),
    note("CUDA_VERSION", "a container image's label; nothing reads it"),
    note("NCCL_VERSION", "a container image's label; nothing reads it"),
    note("CUDA_PATH", "where toolkits lie; these crates need none"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_of_the_two_families() {
        let mut names: Vec<_> = KNOWN.iter().map(|known| known.name).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
        assert!(names.iter().all(|name| name.starts_with("NCCL_") || name.starts_with("CUDA_")), "{names:?}");
    }

    #[test]
    fn a_value_that_changes_nothing_limits_nobody() {
        assert_eq!(known_as("NCCL_WIN_ENABLE", "1", "environment").limits, [""; 0]);
        assert_eq!(known_as("NCCL_WIN_ENABLE", " 0 ", "environment").limits, ["symm-mem"]);
        let unknown = known_as("NCCL_OF_TOMORROW", "x", "environment");
        assert_eq!((unknown.effect, unknown.limits.len()), (None, 0));
    }

    #[test]
    fn of_files_only_these_families_are_told() {
        let text = "# a comment\nNCCL_DEBUG=WARN\n#NCCL_DEBUG=INFO\nNCCL_SOCKET_IFNAME= eth0\nTOKEN=secret\nnonsense\n=x\n";
        let found: Vec<_> = settings(text).collect();
        assert_eq!(found, [("NCCL_DEBUG", "WARN"), ("NCCL_SOCKET_IFNAME", " eth0")]);
    }
}
