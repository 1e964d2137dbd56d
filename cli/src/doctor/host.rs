//! Facts from the operating system: shared memory, limits, sockets, device files.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use rustix::process::Resource;

use super::facts::{Host, Limit, Space, WORKS};

/// Gathers the facts.
pub(super) fn gather() -> Host {
    let read = |path: &str| fs::read_to_string(path).ok();
    let module = read("/proc/driver/nvidia/version");
    Host {
        kernel_module: module.and_then(|text| text.lines().next().map(release_of)),
        container: container(),
        shared_memory: space(Path::new("/dev/shm")).into(),
        limits: limits(),
        abstract_sockets: abstract_sockets().map(|()| WORKS).into(),
        loopback: loopback().map(|()| WORKS).into(),
        embedded_device: embedded_device().map(|()| WORKS).into(),
        imex_channels: names(Path::new("/dev/nvidia-caps-imex-channels")),
    }
}

/// Returns the line that names the kernel module's release, without its heading and extra spaces.
fn release_of(line: &str) -> String {
    let words: Vec<_> = line.trim_start_matches("NVRM version:").split_whitespace().collect();
    words.join(" ")
}

fn space(path: &Path) -> Result<Space> {
    let found =
        rustix::fs::statvfs(path).with_context(|| format!("asking for the size of {}", path.display()))?;
    Ok(Space { total: found.f_blocks * found.f_frsize, free: found.f_bavail * found.f_frsize })
}

fn limits() -> BTreeMap<String, Limit> {
    let limit = |name: &str, resource| {
        let limit = rustix::process::getrlimit(resource);
        (name.to_owned(), Limit { soft: limit.current, hard: limit.maximum })
    };
    BTreeMap::from([
        limit("memlock", Resource::Memlock),
        limit("nofile", Resource::Nofile),
        limit("nproc", Resource::Nproc),
        limit("as", Resource::As),
    ])
}

/// Connects two sockets by an abstract name and sends a byte.
fn abstract_sockets() -> Result<()> {
    let name = format!("doctor-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(name)?;
    let listener = UnixListener::bind_addr(&address).context("binding an abstract Unix socket")?;
    let mut one = UnixStream::connect_addr(&address).context("connecting to an abstract Unix socket")?;
    let (mut other, _) = listener.accept()?;
    pass(&mut one, &mut other)
}

fn loopback() -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("listening on 127.0.0.1")?;
    let mut one = TcpStream::connect(listener.local_addr()?).context("connecting to 127.0.0.1")?;
    let (mut other, _) = listener.accept()?;
    pass(&mut one, &mut other)
}

fn pass(one: &mut impl Write, other: &mut impl Read) -> Result<()> {
    one.write_all(b"!")?;
    let mut byte = [0];
    other.read_exact(&mut byte)?;
    ensure!(&byte == b"!", "another byte arrived than was sent");
    Ok(())
}

/// Starts and ends a world, with memory on its device.
fn embedded_device() -> Result<()> {
    let world = gpu_sim::World::builder().start()?;
    // SAFETY: the embedded device's functions keep the contracts of the C API, and the world outlives their use.
    let driver = cuda_driver::Driver::new(unsafe { cuda_driver_sys::Api::from_parts(world.cuda()) }?)?;
    let context = driver.device(0)?.retain_primary()?;
    let memory = cuda_driver::memory::DeviceMemory::new(&context, 1 << 20)?;
    memory.free()?;
    drop(context);
    world.finish()?;
    Ok(())
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn container() -> Option<String> {
    let files = ["/.dockerenv", "/run/.containerenv"];
    let file = files.into_iter().find(|file| Path::new(file).exists()).map(str::to_owned);
    let variable =
        || std::env::var_os("KUBERNETES_SERVICE_HOST").map(|_| "KUBERNETES_SERVICE_HOST".to_owned());
    file.or_else(variable)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_kernel_modules_line_is_told_without_gaps() {
        let line =
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (who@where)";
        let told = "NVIDIA UNIX Open Kernel Module for x86_64 580.159.04 Release Build (who@where)";
        assert_eq!(super::release_of(line), told);
    }

    #[test]
    fn every_trial_is_made() {
        let _turn = crate::world_lock();
        let found = super::gather();
        assert_eq!(found.embedded_device.error(), None);
        assert_eq!(found.loopback.error(), None);
        assert_eq!(found.limits.len(), 4);
    }
}
