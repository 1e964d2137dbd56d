//! Several hosts on one machine: each is a network namespace with a TAP device. Threads of this process are the
//! Ethernet switch between them, which delays, loses and blocks frames. The usual tool for this, `tc netem`, needs a
//! kernel module that build machines often lack.

use std::{
    collections::BTreeMap,
    ffi::CString,
    fs::File,
    io::{self, Read, Write},
    os::fd::{AsFd, OwnedFd},
    process::{Command, id},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use bootstrap::hash::fnv64;
use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::{Mode, OFlags},
    ioctl::{Updater, ioctl, opcode},
};

/// The conditions of the network.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Conditions {
    /// The minimum time from the sending of a frame to its delivery.
    pub(crate) delay: Duration,
    /// The maximum of a random time that is added to the delay of each frame.
    pub(crate) jitter: Duration,
    /// The percentage of frames that are lost, at random.
    pub(crate) loss: u64,
}

/// The number of networks that this process has begun to make. It makes the names of devices unique.
static MADE: AtomicUsize = AtomicUsize::new(0);

/// Hosts that a switch connects. Dropping this removes them.
pub(crate) struct Network {
    /// The name of each host's namespace.
    namespaces: Vec<String>,
    switch: Arc<Switch>,
    threads: Vec<thread::JoinHandle<()>>,
}

struct Switch {
    conditions: Conditions,
    /// The connection to each host.
    ports: Vec<Port>,
    /// Frames in transit. The key is the time of arrival, and a number that makes it unique.
    flying: Mutex<BTreeMap<(Instant, u64), Frame>>,
    /// True if the switch's threads must end.
    is_over: AtomicBool,
}

struct Frame {
    /// The receiving host.
    to: usize,
    bytes: Vec<u8>,
}

struct Port {
    /// The descriptor of the host's TAP device.
    device: File,
    /// True if frames from and to the host are dropped.
    is_cut: AtomicBool,
}

/// `struct ifreq` of `linux/if.h` with the flags of a network device.
#[repr(C)]
struct Request {
    name: [u8; 16],
    flags: u16,
    rest: [u8; 22],
}

/// `IFF_TAP | IFF_NO_PI`: Ethernet frames without a header in front of them.
const TAP_WITHOUT_HEADER: u16 = 0x0002 | 0x1000;
/// `TUNSETIFF`.
const SET_INTERFACE: u32 = opcode::write::<i32>(b'T', 202);

impl Network {
    /// Makes `count` hosts, numbered from 0, and starts the switch.
    ///
    /// # Errors
    /// The reason why this process cannot make them, such as missing privileges or no program `ip`.
    pub(crate) fn new(count: usize, conditions: Conditions) -> Result<Self, String> {
        let mut network = Self {
            namespaces: Vec::new(),
            switch: Arc::new(Switch {
                conditions,
                ports: Vec::new(),
                flying: Mutex::default(),
                is_over: AtomicBool::new(false),
            }),
            threads: Vec::new(),
        };
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let mut ports = Vec::new();
        for host in 0..count {
            let device = format!("ls{}.{number}h{host}", id());
            let tap = open(&device).map_err(|error| format!("no network device: {error}"))?;
            ports.push(Port { device: tap.into(), is_cut: AtomicBool::new(false) });
            let namespace = format!("lockstep-{device}");
            ip(&["netns", "add", &namespace])?;
            network.namespaces.push(namespace.clone());
            ip(&["link", "set", &device, "netns", &namespace])?;
            let address = format!("{}/24", network.address(host));
            ip(&["-n", &namespace, "addr", "add", &address, "dev", &device])?;
            ip(&["-n", &namespace, "link", "set", &device, "up"])?;
            ip(&["-n", &namespace, "link", "set", "lo", "up"])?;
        }
        Arc::get_mut(&mut network.switch).expect("no thread has it yet").ports = ports;
        for host in 0..count {
            let switch = network.switch.clone();
            network.threads.push(thread::spawn(move || switch.receive(host)));
        }
        let switch = network.switch.clone();
        network.threads.push(thread::spawn(move || switch.deliver()));
        Ok(network)
    }

    /// Returns the IPv4 address of a host in the network.
    pub(crate) fn address(&self, host: usize) -> String {
        format!("10.77.0.{}", host + 1)
    }

    /// Returns a command that runs the program of `command` on a host, with its arguments and the environment variables
    /// that it sets.
    pub(crate) fn on(&self, host: usize, command: &Command) -> Command {
        let mut on = Command::new("ip");
        on.args(["netns", "exec", &self.namespaces[host]])
            .arg(command.get_program())
            .args(command.get_args());
        on.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        on
    }

    /// Cuts a host off from now on: drops the frames that it sends and the frames for it. Frames that it has sent
    /// before, and that are in transit, still arrive.
    pub(crate) fn cut(&self, host: usize) {
        self.switch.ports[host].is_cut.store(true, Ordering::Release);
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.switch.is_over.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        for namespace in &self.namespaces {
            let _ = ip(&["netns", "del", namespace]);
        }
    }
}

impl Switch {
    /// Receives the frames of host `from` until the switch ends. Puts a copy of each in transit to every other host,
    /// because hosts ignore frames for other addresses. Decides which copies are lost, and when the others arrive.
    /// Drops the frames of a host that is cut off.
    fn receive(&self, from: usize) {
        let mut frame = [0; 1 << 16];
        let mut number = from as u64;
        while !self.is_over.load(Ordering::Acquire) {
            let device = &self.ports[from].device;
            let mut ready = [PollFd::new(device, PollFlags::IN)];
            let wait = rustix::event::Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
            if poll(&mut ready, Some(&wait)).unwrap_or(0) == 0 {
                continue;
            }
            let Ok(length) = (&*device).read(&mut frame) else { continue };
            if self.ports[from].is_cut.load(Ordering::Acquire) {
                continue;
            }
            for to in (0..self.ports.len()).filter(|to| *to != from) {
                number += self.ports.len() as u64;
                let random = fnv64(&number.to_le_bytes());
                let Conditions { delay, jitter, loss } = self.conditions;
                if random % 100 >= loss {
                    let due =
                        Instant::now() + delay + jitter.mul_f64((random >> 40) as f64 / f64::from(1 << 24));
                    self.flying
                        .lock()
                        .unwrap()
                        .insert((due, number), Frame { to, bytes: frame[..length].to_vec() });
                }
            }
        }
    }

    /// Delivers frames when they are due, until the switch ends. Drops frames for a host that is cut off.
    fn deliver(&self) {
        while !self.is_over.load(Ordering::Acquire) {
            let due = {
                let mut flying = self.flying.lock().unwrap();
                let later = flying.split_off(&(Instant::now(), 0));
                std::mem::replace(&mut *flying, later)
            };
            for Frame { to, bytes } in due.into_values() {
                if !self.ports[to].is_cut.load(Ordering::Acquire) {
                    // A device that is down rejects the frame, which counts as lost.
                    let _ = (&self.ports[to].device).write(&bytes);
                }
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Makes a TAP device, and returns the descriptor for its frames. The device is removed when the descriptor is
/// closed.
fn open(name: &str) -> io::Result<OwnedFd> {
    let tap =
        rustix::fs::open("/dev/net/tun", OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())?;
    let text = CString::new(name)?;
    let mut request = Request { name: [0; 16], flags: TAP_WITHOUT_HEADER, rest: [0; 22] };
    request.name[..text.as_bytes().len()].copy_from_slice(text.as_bytes());
    // SAFETY: TUNSETIFF reads and writes a `struct ifreq` of 40 bytes, which `Request` is, and keeps no pointer to it.
    unsafe { ioctl(tap.as_fd(), Updater::<SET_INTERFACE, Request>::new(&mut request))? };
    Ok(tap)
}

/// Runs the program `ip`.
///
/// # Errors
/// The error output of `ip` if it fails, or the reason why it cannot be started.
fn ip(arguments: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(arguments).output().map_err(|error| format!("no `ip`: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("ip {}: {}", arguments.join(" "), said.trim())) }
}
