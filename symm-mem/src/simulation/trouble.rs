//! What goes wrong.

use std::time::Duration;

use super::random::Random;
use crate::agreement::{ACTION_FLOOR, VOTE_FLOOR};

/// What goes wrong, on one rank if nothing else is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Trouble {
    None,
    ExtraSegment,
    ExtraBlock,
    OtherSize,
    /// Its device has less memory.
    Exhausted,
    /// It captures while others commit, and has told the pool, or not.
    Capturing,
    CapturingUndeclared,
    PrepareFails,
    /// It commits its groups in the opposite order, one by one.
    Swapped,
    /// It comes this much later, in ms.
    Late(u64),
    /// It leaves a commit out.
    Absent,
    /// Its registration of this number fails.
    RegistrationFails(u32),
    /// Its registration of this number takes that many ms.
    RegistrationSlow(u32, u64),
    /// No rank's library has windows, as all learn when they register.
    WithoutWindows,
    SomeWithoutWindows,
    /// No library has windows, and its plain registration of this number fails.
    PlainFails(u32),
    /// No library has windows, and its environment forbids plain registration.
    RegistersNothing,
    /// It has another release of the library.
    OtherRelease,
    /// Its environment forbids windows.
    OtherEnvironment,
    /// Its communicators' symmetric address space is nearly full.
    AddressSpace,
    /// It has enqueued a collective more than others.
    HalfEnqueued,
    /// It has sent a message that its peer has not asked for.
    HalfSent,
    /// It keeps its graphs.
    KeepsGraphs,
    /// It keeps a block.
    KeepsBlocks,
    /// It wants other segments retired.
    RetiresOther,
    /// Its device's work fails to end.
    NeverAtRest,
    /// Its device's work does not end in time.
    RestsLate,
    DeregistrationFails,
    /// It comes to a rendezvous with something else.
    MeetsOtherwise(usize),
    /// It comes to an exchange with something else.
    ExchangesOtherwise(usize),
    CannotMap,
    /// It dies after so many steps.
    Killed(u64),
    /// It stops after so many steps, for so many ms.
    Stopped(u64, u64),
    /// It gives its meetings this much time, in µs, where the others give a lot, and registers slowly.
    ShortDeadline(u64),
    /// Its domain has not all ranks, or those of the others lack it.
    OtherDomain {
        lacks: bool,
    },
    /// It has made its domain once more than the others.
    ExtraDomain,
    /// It commits two pools for a group in the opposite order.
    CrossesPools,
    /// It speaks another version of the protocol.
    OtherProtocol,
    /// It cannot reach the store after so many steps, for so many ms.
    CutOff(u64, u64),
    /// The store is gone after so many steps of it.
    StoreDies(u64),
}

impl Trouble {
    pub(super) fn draw(random: &mut Random) -> Self {
        // Early and late ends are as likely: most programs are short.
        let steps = |random: &mut Random| {
            let scale = *random.pick(&[20, 100, 400]);
            1 + random.below(scale)
        };
        // Shorter than what actions may take at least, and longer.
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
            _ => Self::HalfSent,
        }
    }

    /// Its name without its numbers.
    pub(super) fn name(self) -> String {
        let name = format!("{self:?}");
        name.split(['(', ' ']).next().unwrap_or_default().to_owned()
    }

    /// Whether ranks come to meetings late, or not at all, because of it.
    pub(super) fn delays(self) -> bool {
        matches!(
            self,
            Self::Swapped
                | Self::Late(_)
                | Self::Absent
                | Self::RegistrationFails(_)
                | Self::RegistrationSlow(..)
                | Self::RestsLate
                | Self::MeetsOtherwise(_)
                | Self::ShortDeadline(_)
                | Self::ExtraDomain
                | Self::CrossesPools
        ) || self.silences()
    }

    /// Whether a rank stops answering because of it.
    pub(super) fn silences(self) -> bool {
        matches!(self, Self::Killed(_) | Self::Stopped(..) | Self::CutOff(..) | Self::StoreDies(_))
    }

    /// Whether a rank that has to answer can be silent for longer than members wait for each other once they have decided.
    pub(super) fn silences_past_budgets(self) -> bool {
        match self {
            Self::Stopped(_, ms) => Duration::from_millis(ms) >= VOTE_FLOOR,
            _ => self.silences(),
        }
    }

    /// Whether a registration can last longer than one may take.
    pub(super) fn blocks_past_budgets(self) -> bool {
        match self {
            Self::RegistrationSlow(_, ms) | Self::Stopped(_, ms) => {
                // A registration takes a few messages beside that.
                Duration::from_millis(ms) + Duration::from_millis(50) >= ACTION_FLOOR
            }
            Self::Killed(_) => true,
            _ => false,
        }
    }

    /// Whether what cannot be a window cannot be registered plainly on the culprit either.
    pub(super) fn forbids_plain(self) -> bool {
        matches!(self, Self::PlainFails(_) | Self::RegistersNothing)
    }

    /// Whether the culprit's pool becomes another one by it.
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
