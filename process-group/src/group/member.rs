//! What each rank says of itself when it joins, and what follows from it for all.
//!
//! The records of all members are the same on every member, so everything that is decided from them is decided
//! alike: whether the group can be, and whether it can have windows.

use std::{collections::HashMap, fmt::Write as _};

use cuda_driver::{Context, Device, sys};
use nccl_sys::Version;

use super::registration::Stance;
use crate::{
    comm::{Nccl, WindowFacts},
    local::host,
};

/// A device's identity, the same in every process.
type Uuid = [u8; 16];

/// One rank of a group, as it described itself.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Member {
    /// Its rank in the job.
    pub rank: usize,
    /// The job's size, as it was told.
    pub world_size: usize,
    /// Its host: equal for two ranks that share a kernel and a network namespace, as sharing memory takes.
    pub host: u64,
    /// Its process on that host.
    pub process: u32,
    /// Its device.
    pub device: [u8; 16],
    /// NCCL's release there.
    pub nccl: Version,
    /// The driver's version there.
    pub driver: sys::Version,
    /// Whether it compares calls before it launches them.
    pub checked: bool,
    /// What tells it of the other members of its host.
    pub witnesses: Witnesses,
    /// Whether `NCCL_WIN_ENABLE` leaves windows on.
    pub window_enable: bool,
    /// Whether `NCCL_CUMEM_ENABLE` leaves NCCL's virtual memory on.
    pub cumem_enable: bool,
    /// Whether it wants its allocators' memory registered, and can.
    pub registration: Stance,
    /// The other devices that it sees, and whether its own can reach their memory.
    pub sees: Vec<([u8; 16], bool)>,
}

/// What tells the processes of one host of each other's end. Those of different hosts have the store alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Witnesses {
    /// Locks in shared memory, sockets and process descriptors: of a death within milliseconds.
    #[default]
    Kernel,
    /// Heartbeats in the store: within twice the heartbeat. For processes that share a kernel and no folder for sockets,
    /// as in containers.
    Store,
}

/// What keeps ranks from being a group.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Disagreement {
    /// A record that cannot be read.
    #[error(
        "the record of rank {rank} cannot be read ({problem}); does it run another version of this program?"
    )]
    Record {
        /// Whose record.
        rank: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// Two ranks were told different world sizes.
    #[error("rank {rank} was told that there are {size} ranks, but rank {other} that there are {other_size}")]
    WorldSize {
        /// One rank.
        rank: usize,
        /// What it was told.
        size: usize,
        /// The other.
        other: usize,
        /// What that one was told.
        other_size: usize,
    },
    /// Two ranks use different releases of NCCL, which do not talk to each other.
    #[error(
        "rank {rank} has NCCL {release}, but rank {other} has NCCL {other_release}; load the same file on all \
         (NCCL_SYS_LIBRARY)"
    )]
    Release {
        /// One rank.
        rank: usize,
        /// Its release.
        release: Version,
        /// The other.
        other: usize,
        /// That one's release.
        other_release: Version,
    },
    /// Two ranks were told differently whether calls are compared before they are launched.
    #[error(
        "rank {rank} was told that calls are checked before they are launched, but rank {other} that they are not; \
         tell all the same (PROCESS_GROUP_CHECKED)"
    )]
    Checked {
        /// A rank that checks.
        rank: usize,
        /// A rank that does not.
        other: usize,
    },
    /// Two ranks were told different witnesses.
    #[error(
        "rank {rank} was told to watch by {witnesses:?}, but rank {other} by {other_witnesses:?}; tell all the same"
    )]
    Witnesses {
        /// One rank.
        rank: usize,
        /// What it was told.
        witnesses: Witnesses,
        /// The other.
        other: usize,
        /// What that one was told.
        other_witnesses: Witnesses,
    },
    /// Two ranks were given different settings where all must have the same.
    #[error("rank {rank} was given {setting} {value}, but rank {other} {other_value}; give all the same")]
    Setting {
        /// Which setting.
        setting: String,
        /// One rank.
        rank: usize,
        /// What it was given.
        value: String,
        /// The other.
        other: usize,
        /// What that one was given.
        other_value: String,
    },
    /// Two ranks use one device, which NCCL refuses.
    #[error("ranks {rank} and {other} use the same device {}; give each its own (LOCAL_RANK)", hex(.device))]
    SameDevice {
        /// One rank.
        rank: usize,
        /// The other.
        other: usize,
        /// The device's UUID.
        device: [u8; 16],
    },
}

const FORMAT: &str = "member2";

impl Member {
    /// This rank, with its device and its libraries as they are.
    pub(super) fn here(
        rank: usize,
        world_size: usize,
        nccl: &Nccl,
        context: &Context,
    ) -> cuda_driver::Result<Self> {
        let device = context.device();
        let environment = WindowFacts::from_environment();
        let others = context.driver().devices()?;
        let sees = |other: &Device| Ok((other.uuid()?, device.can_access_peer(other)?));
        Ok(Self {
            rank,
            world_size,
            host: host(),
            process: std::process::id(),
            device: device.uuid()?,
            nccl: nccl.release(),
            driver: context.driver().version(),
            checked: false,
            witnesses: Witnesses::default(),
            window_enable: environment.window_enable.unwrap_or(true),
            cumem_enable: environment.cumem_enable.unwrap_or(true),
            registration: Stance::NotAsked,
            sees: others
                .iter()
                .filter(|other| other.ordinal() != device.ordinal())
                .map(sees)
                .collect::<cuda_driver::Result<_>>()?,
        })
    }

    /// As its builder was told.
    pub(super) fn told(self, checked: bool, witnesses: Witnesses, registration: Stance) -> Self {
        Self { checked, witnesses, registration, ..self }
    }

    /// Whether it is another process of the same host, and the kernel tells each of the other.
    pub(crate) fn is_beside(&self, other: &Self) -> bool {
        let by_kernel = |member: &Self| member.witnesses == Witnesses::Kernel;
        self.host == other.host && self.process != other.process && by_kernel(self) && by_kernel(other)
    }

    /// As text, for the store.
    pub(super) fn encode(&self) -> String {
        let mut text = format!(
            "{FORMAT} {} {} {:x} {} {} {} {} {} {} {} {} {}",
            self.rank,
            self.world_size,
            self.host,
            self.process,
            hex(&self.device),
            self.nccl.code(),
            self.driver.code(),
            u8::from(self.checked),
            u8::from(self.witnesses == Witnesses::Store),
            u8::from(self.window_enable),
            u8::from(self.cumem_enable),
            self.registration.word(),
        );
        for (device, reaches) in &self.sees {
            let _ = write!(text, " {}{}", hex(device), if *reaches { '+' } else { '-' });
        }
        text
    }

    /// From text that [`encode`](Self::encode) wrote for `rank`.
    fn decode(rank: usize, bytes: &[u8]) -> Result<Self, Disagreement> {
        let wrong = |problem: &str| Disagreement::Record { rank, problem: problem.into() };
        let text = std::str::from_utf8(bytes).map_err(|_| wrong("not text"))?;
        let mut fields = text.split(' ');
        if fields.next() != Some(FORMAT) {
            return Err(wrong(&format!("it does not begin with {FORMAT}")));
        }
        let mut next = |name: &str| fields.next().ok_or_else(|| wrong(&format!("{name} is missing")));
        fn parse<T: std::str::FromStr>(text: &str) -> Option<T> {
            text.parse().ok()
        }
        let flag = |text: &str| match text {
            "0" => Some(false),
            "1" => Some(true),
            _ => None,
        };
        macro_rules! field {
            ($name:literal, $read:expr) => {
                next($name)
                    .and_then(|text| $read(text).ok_or_else(|| wrong(&format!("{} is {text:?}", $name))))?
            };
        }
        let member = Self {
            rank: field!("the rank", parse),
            world_size: field!("the world size", parse),
            host: field!("the host", |text: &str| u64::from_str_radix(text, 16).ok()),
            process: field!("the process", parse),
            device: field!("the device", unhex),
            nccl: Version::from_code(field!("NCCL's release", parse)),
            driver: sys::Version::from_code(field!("the driver's version", parse)),
            checked: field!("whether calls are checked", flag),
            witnesses: match field!("what it is watched by", flag) {
                false => Witnesses::Kernel,
                true => Witnesses::Store,
            },
            window_enable: field!("NCCL_WIN_ENABLE", flag),
            cumem_enable: field!("NCCL_CUMEM_ENABLE", flag),
            registration: field!("what it says of registration", Stance::from_word),
            sees: fields
                .map(|text| {
                    let (device, reaches) = text.split_at_checked(text.len().wrapping_sub(1))?;
                    let reaches = match reaches {
                        "+" => true,
                        "-" => false,
                        _ => return None,
                    };
                    Some((unhex(device)?, reaches))
                })
                .collect::<Option<_>>()
                .ok_or_else(|| wrong("a device that it sees"))?,
        };
        if member.rank != rank {
            return Err(wrong(&format!("it is of rank {}", member.rank)));
        }
        Ok(member)
    }
}

/// Reads the records of all members and checks that they can be a group: the same answer on every member.
pub(super) fn agree(records: &[Vec<u8>]) -> Result<Vec<Member>, Disagreement> {
    let members: Vec<_> = records
        .iter()
        .enumerate()
        .map(|(rank, record)| Member::decode(rank, record))
        .collect::<Result<_, _>>()?;
    let Some(first) = members.first() else { return Ok(members) };
    let mut devices: HashMap<(u64, Uuid), usize> = HashMap::new();
    for member in &members {
        let (rank, other) = (member.rank, first.rank);
        if member.world_size != first.world_size {
            let (size, other_size) = (member.world_size, first.world_size);
            return Err(Disagreement::WorldSize { rank, size, other, other_size });
        }
        if member.nccl != first.nccl {
            let (release, other_release) = (member.nccl, first.nccl);
            return Err(Disagreement::Release { rank, release, other, other_release });
        }
        if member.checked != first.checked {
            let (rank, other) = if member.checked { (rank, other) } else { (other, rank) };
            return Err(Disagreement::Checked { rank, other });
        }
        if member.witnesses != first.witnesses {
            let (witnesses, other_witnesses) = (member.witnesses, first.witnesses);
            return Err(Disagreement::Witnesses { rank, witnesses, other, other_witnesses });
        }
        if let Some(other) = devices.insert((member.host, member.device), rank) {
            return Err(Disagreement::SameDevice { rank, other, device: member.device });
        }
    }
    Ok(members)
}

/// What decides on windows, for a group of these members.
pub(super) fn window_facts(members: &[&Member]) -> WindowFacts {
    let one_host = members.windows(2).all(|pair| pair[0].host == pair[1].host);
    // Unknown as soon as one pair is, unless another pair is known not to reach.
    let mut peer_access = Some(true);
    for member in members {
        let others = members.iter().filter(|other| other.rank != member.rank);
        for other in others.filter(|other| other.host == member.host) {
            let reaches =
                member.sees.iter().find(|(device, _)| *device == other.device).map(|(_, reaches)| *reaches);
            peer_access = match (peer_access, reaches) {
                (Some(false), _) | (_, Some(false)) => Some(false),
                (Some(true), Some(true)) => Some(true),
                _ => None,
            };
        }
    }
    WindowFacts {
        one_host: Some(one_host),
        peer_access: if one_host { peer_access } else { None },
        window_enable: Some(members.iter().all(|member| member.window_enable)),
        cumem_enable: Some(members.iter().all(|member| member.cumem_enable)),
    }
}

fn hex(bytes: &Uuid) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex(text: &str) -> Option<Uuid> {
    if text.len() != 32 || !text.is_ascii() {
        return None;
    }
    let mut bytes = Uuid::default();
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
impl Member {
    /// A member of a host.
    pub(crate) fn example(rank: usize, host: u64) -> Self {
        let (nccl, driver) = (Version::new(2, 28, 9), sys::Version::new(12, 4));
        let (process, device) = (100 + rank as u32, [rank as u8; 16]);
        Self {
            rank,
            world_size: 4,
            host,
            process,
            device,
            nccl,
            driver,
            checked: false,
            witnesses: Witnesses::Kernel,
            window_enable: true,
            cumem_enable: true,
            registration: Stance::NotAsked,
            sees: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn member(rank: usize) -> impl Strategy<Value = Member> {
        let sees = prop::collection::vec((any::<Uuid>(), any::<bool>()), 0..4);
        let stances = [Stance::Wanted, Stance::NotAsked, Stance::Release, Stance::CudaMemcpy];
        let stance = prop::sample::select(stances.to_vec());
        let parts = any::<(usize, u64, u32, Uuid, bool, bool, bool, bool)>();
        (parts, sees, stance).prop_map(move |(parts, sees, registration)| Member {
            rank,
            world_size: parts.0,
            host: parts.1,
            process: parts.2,
            device: parts.3,
            nccl: Version::new(2, 28, 9),
            driver: sys::Version::new(12, 4),
            window_enable: parts.4,
            cumem_enable: parts.5,
            checked: parts.6,
            witnesses: if parts.7 { Witnesses::Store } else { Witnesses::Kernel },
            registration,
            sees,
        })
    }

    proptest! {
        #[test]
        fn records_survive_the_store(member in member(3)) {
            prop_assert_eq!(Member::decode(3, member.encode().as_bytes()), Ok(member));
        }

        #[test]
        fn garbage_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let text = [b"member2 ".to_vec(), bytes.clone()].concat();
            prop_assert!(Member::decode(0, &bytes).is_err());
            if let Ok(member) = Member::decode(0, &text) {
                prop_assert_eq!(member.encode().into_bytes(), text);
            }
        }
    }

    fn four(change: impl Fn(&mut Member)) -> Vec<Vec<u8>> {
        let device = |rank: usize| [rank as u8; 16];
        let record = |rank: usize| {
            let sees = (0..4).filter(|other| *other != rank).map(|other| (device(other), true)).collect();
            let mut member = Member { sees, ..Member::example(rank, 7) };
            change(&mut member);
            member.encode().into_bytes()
        };
        (0..4).map(record).collect()
    }

    fn facts(records: &[Vec<u8>]) -> WindowFacts {
        let members = agree(records).unwrap();
        window_facts(&members.iter().collect::<Vec<_>>())
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let error = agree(&four(|m| {
            if m.rank == 2 {
                m.nccl = Version::new(2, 28, 3)
            }
        }))
        .unwrap_err();
        assert!(
            error.to_string().starts_with("rank 2 has NCCL 2.28.3, but rank 0 has NCCL 2.28.9"),
            "{error}"
        );
        let error = agree(&four(|m| {
            if m.rank == 3 {
                m.world_size = 8
            }
        }))
        .unwrap_err();
        assert!(error.to_string().contains("rank 3 was told that there are 8"), "{error}");
        let error = agree(&four(|m| m.checked = m.rank == 2)).unwrap_err();
        assert_eq!(error, Disagreement::Checked { rank: 2, other: 0 });
        let error = agree(&four(|m| {
            if m.rank == 1 {
                m.witnesses = Witnesses::Store
            }
        }))
        .unwrap_err();
        assert!(matches!(error, Disagreement::Witnesses { rank: 1, other: 0, .. }), "{error}");
        let error = agree(&four(|m| {
            if m.rank == 3 {
                m.device = [1; 16]
            }
        }))
        .unwrap_err();
        assert!(matches!(error, Disagreement::SameDevice { rank: 3, other: 1, .. }), "{error}");
    }

    #[test]
    fn facts_about_windows_are_those_of_the_worst_member() {
        let good = facts(&four(|_| {}));
        assert_eq!((good.one_host, good.peer_access), (Some(true), Some(true)));
        assert_eq!(facts(&four(|m| m.window_enable = m.rank != 1)).window_enable, Some(false));
        assert_eq!(
            facts(&four(|m| if m.rank == 1 {
                m.sees[0].1 = false
            }))
            .peer_access,
            Some(false)
        );
        assert_eq!(
            facts(&four(|m| if m.rank == 1 {
                m.sees.clear()
            }))
            .peer_access,
            None
        );
        let apart = facts(&four(|m| m.host = m.rank as u64 / 2));
        assert_eq!((apart.one_host, apart.peer_access), (Some(false), None));
    }
}
