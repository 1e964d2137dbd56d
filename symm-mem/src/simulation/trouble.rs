//! The trouble of a run: one fault, or one difference between ranks.
//!
//! The *culprit* is the rank that the trouble concerns. A few troubles, such as [`Trouble::StoreDies`], do not concern
//! one rank. A *phase* is a part of the ranks' programs that contains requests to the pools, commits of the groups, and
//! sometimes other actions. A program has several phases. A trouble that concerns one phase occurs in a phase that the
//! seed selects. A *step* of a rank is an event that the rank handles. For example, the rank executes an action of its
//! program, or one of its calls to the store ends. The steps of a rank are counted from 1.

use std::time::Duration;

use super::random::Random;
use crate::agreement::{ACTION_FLOOR, VOTE_FLOOR};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Trouble {
    None,
    ExtraSegment,
    ExtraBlock,
    OtherSize,
    /// The culprit's device has less memory than the devices of the other ranks.
    Exhausted,
    /// The culprit captures work during the commits of one phase. It declares the capture to the pool.
    Capturing,
    /// Like [`Capturing`](Self::Capturing), but the culprit does not declare the capture to the pool.
    CapturingUndeclared,
    PrepareFails,
    /// In one phase, all ranks commit their groups one by one, and the culprit does so in the opposite order.
    Swapped,
    /// In one phase, the culprit pauses for this many ms before its commits.
    Late(u64),
    /// The culprit skips a commit of one group, and does not add it to its own count of commits for this group. So the
    /// number of each later commit of the culprit is one less than on the other members.
    Absent,
    /// The culprit skips a commit of one group, but adds it to its own count of commits for this group. So its later
    /// commits have the same numbers as on the other members.
    Skips,
    /// The culprit's window registration with this number, counted from 1 over all its commits, fails.
    RegistrationFails(u32),
    /// The culprit's window registration whose number is the first field begins late, by the second field in ms.
    /// Registrations are counted as for [`RegistrationFails`](Self::RegistrationFails).
    RegistrationSlow(u32, u64),
    /// No rank's library supports windows, although it appears to do so. The ranks learn this only when they register.
    WithoutWindows,
    SomeWithoutWindows,
    /// No library has windows, and the culprit's plain registration with this number, counted from 1, fails.
    PlainFails(u32),
    /// No library has windows, and the culprit's environment forbids plain registration.
    RegistersNothing,
    /// The culprit has another release of the library.
    OtherRelease,
    /// The culprit's environment forbids windows.
    OtherEnvironment,
    /// The symmetric address space of the culprit's communicators is nearly full. Each member computes the bytes
    /// left from the memory size of its own device: the culprit 3 MiB, its peers 2 MiB. The greatest value comes from
    /// the device with the most memory, and it applies to all members. So a refusal names the culprit.
    AddressSpace,
    /// In one group, the culprit has enqueued one more collective than the other members.
    HalfEnqueued,
    /// The culprit has sent a message for which its peer has not enqueued a receive.
    HalfSent,
    /// The culprit does not drop its graphs before a retirement.
    KeepsGraphs,
    /// The culprit keeps one block in the segments that it asks to retire.
    KeepsBlocks,
    /// In one phase, the culprit asks to retire other segments than its peers.
    RetiresOther,
    /// In a retirement, the culprit's wait for its device to become idle fails.
    NeverAtRest,
    /// In a retirement, the culprit's device does not become idle within the time limit.
    RestsLate,
    DeregistrationFails,
    /// The culprit's record of its first rendezvous differs from the records of its peers. The number selects the
    /// difference.
    MeetsOtherwise(usize),
    /// The culprit's record of its first exchange differs from the records of its peers. The number selects the
    /// difference.
    ExchangesOtherwise(usize),
    CannotMap,
    /// The culprit dies in place of its step with this number.
    Killed(u64),
    /// After its step with the first number, the culprit does nothing for the second number of ms.
    Stopped(u64, u64),
    /// The culprit's meetings have this deadline in µs, and the meetings of the other ranks have
    /// [`LONG_DEADLINE`](super::scenario::LONG_DEADLINE). The commits at the end of the program, and all commits of the
    /// second pool, keep their own deadlines. Each window registration of the culprit begins up to 30 s late.
    ShortDeadline(u64),
    /// If `lacks` is true, the member list of the culprit's domain lacks another rank. Otherwise, the member lists of
    /// the other ranks' domains lack the culprit.
    OtherDomain {
        lacks: bool,
    },
    /// The culprit has created its domain twice, the other ranks once. So the culprit's domain has another generation.
    ExtraDomain,
    /// In one phase, the culprit commits the two pools for a group in the opposite order to the other members.
    CrossesPools,
    /// The culprit uses another version of the protocol.
    OtherProtocol,
    /// From its step with the first number on, the culprit cannot reach the store for the second number of ms.
    CutOff(u64, u64),
    /// Messages travel to the store in pieces. The store fails when piece number `n` arrives, where `n` is this number.
    /// The pieces of all connections are counted together, from 1.
    StoreDies(u64),
}

impl Trouble {
    pub(super) fn draw(random: &mut Random) -> Self {
        // The scales make early steps more likely than late ones, because most programs are short.
        let steps = |random: &mut Random| {
            let scale = *random.pick(&[20, 100, 400]);
            1 + random.below(scale)
        };
        // The scales give pauses that are shorter than `VOTE_FLOOR` (5 s) and pauses that are longer than
        // `ACTION_FLOOR` (10 s).
        let pause = |random: &mut Random| {
            let scale = *random.pick(&[300, 3000, 30_000]);
            random.below(scale)
        };
        match random.below(49) {
            0 => Self::None,
            1 => Self::ExtraSegment,
            2 | 3 => Self::ExtraBlock,
            4 => Self::OtherSize,
            5 => Self::Exhausted,
            6 => Self::Capturing,
            7 => Self::PrepareFails,
            8 => Self::Swapped,
            9 => Self::Late(random.below(900)),
            10 => Self::Absent,
            11 => Self::RegistrationFails(1 + random.below(3) as u32),
            12 => Self::RegistrationSlow(1 + random.below(3) as u32, pause(random)),
            13 => Self::WithoutWindows,
            14 => Self::SomeWithoutWindows,
            15 => Self::OtherRelease,
            16 => Self::OtherEnvironment,
            17 => Self::AddressSpace,
            18 => Self::HalfEnqueued,
            19 => Self::KeepsGraphs,
            20 => Self::KeepsBlocks,
            21 => Self::RetiresOther,
            22 => Self::NeverAtRest,
            23 => Self::RestsLate,
            24 => Self::DeregistrationFails,
            25 => Self::MeetsOtherwise(random.below(16) as usize),
            26 => Self::CannotMap,
            27..=29 => Self::Killed(steps(random)),
            30 => Self::Stopped(steps(random), pause(random)),
            31 | 46 => Self::CutOff(steps(random), pause(random)),
            32 => Self::StoreDies(steps(random) * 3),
            33 | 34 => Self::PlainFails(1 + random.below(3) as u32),
            35 => Self::RegistersNothing,
            36 => Self::ExchangesOtherwise(random.below(8) as usize),
            37 | 38 => Self::OtherDomain { lacks: random.one_in(2) },
            39 => Self::ExtraDomain,
            40 | 41 => Self::CrossesPools,
            42 => Self::OtherProtocol,
            43 | 44 => Self::ShortDeadline(*random.pick(&[0, 200, 20_000])),
            45 => Self::CapturingUndeclared,
            47 => Self::Skips,
            _ => Self::HalfSent,
        }
    }

    /// Returns the trouble's name without its parameters.
    pub(super) fn name(self) -> String {
        let name = format!("{self:?}");
        name.split(['(', ' ']).next().unwrap_or_default().to_owned()
    }

    /// Returns true if the trouble can make ranks come late to meetings or miss them.
    pub(super) fn delays(self) -> bool {
        matches!(
            self,
            Self::Swapped
                | Self::Late(_)
                | Self::Absent
                | Self::Skips
                | Self::RegistrationFails(_)
                | Self::RegistrationSlow(..)
                | Self::RestsLate
                | Self::MeetsOtherwise(_)
                | Self::ShortDeadline(_)
                | Self::ExtraDomain
                | Self::CrossesPools
        ) || self.silences()
    }

    /// Returns true if the trouble can silence a rank: the rank dies, stops, or cannot reach the store.
    pub(super) fn silences(self) -> bool {
        matches!(self, Self::Killed(_) | Self::Stopped(..) | Self::CutOff(..) | Self::StoreDies(_))
    }

    /// Returns true if the trouble can [silence](Self::silences) a rank for at least `VOTE_FLOOR`. After a decision,
    /// the other members wait at least this long for the rank's outcome. `Stopped` silences its rank for the time in ms
    /// that it contains. For the other silencing troubles, the function always returns true. For `CutOff`, the time
    /// does not matter: the oracle does not compare results with `CutOff` and `StoreDies`, so it never uses this value.
    pub(super) fn silences_past_budgets(self) -> bool {
        match self {
            Self::Stopped(_, ms) => Duration::from_millis(ms) >= VOTE_FLOOR,
            _ => self.silences(),
        }
    }

    /// Returns true if the trouble can make a registration take longer than its time limit.
    pub(super) fn blocks_past_budgets(self) -> bool {
        match self {
            Self::RegistrationSlow(_, ms) | Self::Stopped(_, ms) => {
                // The 50 ms are more than the few messages of a registration take. Each message takes up to 2 ms
                // (`Scenario::slowest`).
                Duration::from_millis(ms) + Duration::from_millis(50) >= ACTION_FLOOR
            }
            Self::Killed(_) => true,
            _ => false,
        }
    }

    /// Returns true if the trouble makes plain registrations of the culprit fail. The library of such a run has no
    /// windows.
    pub(super) fn forbids_plain(self) -> bool {
        matches!(self, Self::PlainFails(_) | Self::RegistersNothing)
    }

    /// Returns true if the trouble can make the culprit's pool differ from the pools of the other ranks.
    pub(super) fn parts_pools(self) -> bool {
        matches!(
            self,
            Self::ExtraSegment
                | Self::ExtraBlock
                | Self::OtherSize
                | Self::Exhausted
                | Self::KeepsGraphs
                | Self::KeepsBlocks
                | Self::RetiresOther
                | Self::OtherDomain { .. }
                | Self::ExtraDomain
        )
    }
}
