//! The trouble of a run: one fault or one difference between ranks.

use std::time::Duration;

use super::random::Random;
use crate::agreement::{ACTION_FLOOR, VOTE_FLOOR};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Trouble {
    None,
    ExtraSegment,
    ExtraBlock,
    OtherSize,
    /// The culprit's device has less memory than the others.
    Exhausted,
    /// The culprit captures work during the commits of one phase. The capture is declared to the pool.
    Capturing,
    /// Like [`Capturing`](Self::Capturing), with a capture that is not declared.
    CapturingUndeclared,
    PrepareFails,
    /// In one phase, all ranks commit their groups one by one, and the culprit does so in the opposite order.
    Swapped,
    /// The culprit comes this many ms later to the commits of one phase.
    Late(u64),
    /// The culprit skips a commit and does not count it.
    Absent,
    /// The culprit skips a commit and counts it.
    Skips,
    /// The culprit's registration with this number fails.
    RegistrationFails(u32),
    /// The culprit's registration with this number takes that many ms.
    RegistrationSlow(u32, u64),
    /// No rank's library supports windows. All ranks learn this only from the registration.
    WithoutWindows,
    SomeWithoutWindows,
    /// No library has windows, and the culprit's plain registration with this number fails.
    PlainFails(u32),
    /// No library has windows, and the culprit's environment forbids plain registration.
    RegistersNothing,
    /// The culprit has another release of the library.
    OtherRelease,
    /// The culprit's environment forbids windows.
    OtherEnvironment,
    /// The symmetric address space of the culprit's communicators is nearly full. The culprit's device is the largest.
    AddressSpace,
    /// The culprit has enqueued one more collective than the others.
    HalfEnqueued,
    /// The culprit has sent a message for which its peer has not enqueued a receive.
    HalfSent,
    /// The culprit does not drop its graphs before a retirement.
    KeepsGraphs,
    /// The culprit does not free a block of a segment that it retires.
    KeepsBlocks,
    /// The culprit asks to retire other segments than its peers.
    RetiresOther,
    /// The work of the culprit's device fails.
    NeverAtRest,
    /// The work of the culprit's device does not end in time.
    RestsLate,
    DeregistrationFails,
    /// The culprit's record of a rendezvous differs from those of its peers. The number selects the difference.
    MeetsOtherwise(usize),
    /// The culprit's record of an exchange differs from those of its peers. The number selects the difference.
    ExchangesOtherwise(usize),
    CannotMap,
    /// The culprit dies when its step with this number, counted from 1, is due.
    Killed(u64),
    /// The culprit stops after this number of steps, for this many ms.
    Stopped(u64, u64),
    /// The culprit's meetings, except the last ones, have this deadline in µs, and its registrations are slow. The
    /// other ranks have a long deadline.
    ShortDeadline(u64),
    /// The culprit's domain lacks a rank if `lacks` is true. Else the domains of the others lack the culprit.
    OtherDomain {
        lacks: bool,
    },
    /// The culprit has created its domain once more than the others.
    ExtraDomain,
    /// The culprit commits two pools for a group in the opposite order.
    CrossesPools,
    /// The culprit uses another version of the protocol.
    OtherProtocol,
    /// The culprit cannot reach the store from its step with this number on, for this many ms.
    CutOff(u64, u64),
    /// The store fails when this many pieces of messages, counted from 1, have arrived.
    StoreDies(u64),
}

impl Trouble {
    pub(super) fn draw(random: &mut Random) -> Self {
        // The scales make early steps more likely than late ones, because most programs are short.
        let steps = |random: &mut Random| {
            let scale = *random.pick(&[20, 100, 400]);
            1 + random.below(scale)
        };
        // The scales give pauses shorter and longer than the lower bounds of the time limits.
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

    /// Returns true if the trouble can make ranks come late to meetings, or not at all.
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

    /// Returns true if the trouble can make a rank stop answering.
    pub(super) fn silences(self) -> bool {
        matches!(self, Self::Killed(_) | Self::Stopped(..) | Self::CutOff(..) | Self::StoreDies(_))
    }

    /// Returns true if the trouble may silence a rank for longer than members wait for each other's answers after a
    /// decision. For `Stopped`, this depends on its duration. The other troubles that silence a rank may do so for any
    /// time.
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
                // A registration also needs a few messages, for which 50 ms are added.
                Duration::from_millis(ms) + Duration::from_millis(50) >= ACTION_FLOOR
            }
            Self::Killed(_) => true,
            _ => false,
        }
    }

    /// Returns true if the trouble prevents plain registration on the culprit in a run without windows.
    pub(super) fn forbids_plain(self) -> bool {
        matches!(self, Self::PlainFails(_) | Self::RegistersNothing)
    }

    /// Returns true if the trouble can make the culprit's pool differ from those of the others.
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
