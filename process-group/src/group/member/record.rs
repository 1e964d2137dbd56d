//! A member's text format in the store.

use std::fmt::Write as _;

use cuda_driver::sys;

use super::{Disagreement, Member, Uuid, Witnesses};
use crate::group::registration::Stance;

const FORMAT: &str = "member2";

impl Member {
    /// Encodes it as text for the store.
    pub(in crate::group) fn encode(&self) -> String {
        let mut text = format!(
            "{FORMAT} {} {} {:x} {} {} {} {} {} {} {} {} {}",
            self.rank,
            self.world_size,
            self.host,
            self.process,
            hex(&self.device),
            nccl_sys::version_code(self.nccl),
            sys::version_code(self.driver),
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

    /// Decodes text that [`encode`](Self::encode) wrote for `rank`.
    pub(super) fn decode(rank: usize, bytes: &[u8]) -> Result<Self, Disagreement> {
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
            nccl: nccl_sys::version_from_code(field!("NCCL's release", parse)),
            driver: sys::version_from_code(field!("the driver's version", parse)),
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

pub(super) fn hex(bytes: &Uuid) -> String {
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
            nccl: sys::Version::new(2, 28, 9),
            driver: sys::Version::new(12, 4, 0),
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
}
