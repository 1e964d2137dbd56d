//! The trouble of a run: a fault, or a difference between ranks. Most troubles concern one rank, the *culprit*. A
//! *phase* is a part of the ranks' programs. A trouble that concerns one phase occurs in a phase that the seed selects.
//! Further terms, such as *domain*, *meeting* and *rendezvous*, are defined in [`super`].

use std::time::Duration;
use symm_agreement::{ACTION_FLOOR, OUTCOME_FLOOR};

use crate::random::Random;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Trouble {
    None,
    /// In one phase, the culprit makes one more allocation than the other ranks, of 64 MiB. It is so large that the
    /// pool needs a new segment (device memory) for it.
    ExtraSegment,
    /// In one phase, the culprit makes one more allocation than the other ranks, of 7 bytes.
    ExtraBlock,
    /// In one phase, one allocation of the culprit is 16 MiB larger than on the other ranks, or the culprit makes an
    /// additional allocation of 16 MiB.
    OtherSize,
    /// The culprit's pools can use at most 22 MiB of memory, which is usually less than the pools of the other ranks
    /// can use.
    Exhausted,
    /// The culprit has a graph capture open during the commits of one phase. It has declared the capture to the pool by
    /// `begin_capture`.
    Capturing,
    /// Like [`Capturing`](Self::Capturing), but the culprit has not declared the capture to the pool.
    CapturingUndeclared,
    /// Before the agreement on a commit, each member checks its own state. In the culprit's second commit of its [first
    /// pool](crate::rank::Rank::pool) for each of its groups, this check finds an error. So the commit is refused.
    PrepareFails,
    /// In one phase, all ranks commit their groups one by one in the same order, except the culprit, which has the
    /// opposite order.
    Swapped,
    /// In one phase, the culprit pauses for this many ms before its commits.
    Late(u64),
    /// In one phase, the culprit skips the commit of one group, and does not add it to its own count of commits for
    /// this group. So the number of each later commit of the culprit is one less than on the other members.
    Absent,
    /// In one phase, the culprit skips the commit of one group, but adds it to its own count of commits for this group.
    /// So its later commits have the same numbers as on the other members.
    Skips,
    /// The culprit's window registration with this number, counted from 1 over all its commits, fails.
    RegistrationFails(u32),
    /// One window registration of the culprit begins late. The first field is its number, counted as for
    /// [`RegistrationFails`](Self::RegistrationFails). The second field is the delay in ms.
    RegistrationSlow(u32, u64),
    /// Every registration of windows reports that the library (NCCL) has none, although its release has them. So the
    /// ranks learn only from their registrations that there are no windows.
    WithoutWindows,
    /// Like [`WithoutWindows`](Self::WithoutWindows), but only on the culprit.
    SomeWithoutWindows,
    /// The library has no windows, and the culprit's plain registration (`ncclCommRegister`) with this number, counted
    /// from 1 over all its commits, fails.
    PlainFails(u32),
    /// The library has no windows, and the culprit's environment forbids plain registration.
    RegistersNothing,
    /// The culprit has another release of the library.
    OtherRelease,
    /// The culprit's environment forbids windows (`NCCL_WIN_ENABLE` is 0).
    OtherEnvironment,
    /// The symmetric address spaces of the culprit's groups are nearly full: the culprit reports 3 MiB left, the other
    /// members of its groups report 2 MiB. A member knows only its own device, but NCCL reserves on every member as
    /// much address space as the largest device has memory. So the greatest report, that of the culprit, is true for
    /// all members, and a refusal names the culprit.
    AddressSpace,
    /// Before a commit of one group, the culprit has enqueued one more collective on the group than the other members.
    HalfEnqueued,
    /// Before a commit of one group, the culprit has enqueued a send for which its peer has not enqueued a receive.
    HalfSent,
    /// In one phase, the culprit does not drop its graphs before a retirement. They may use the segments to retire.
    KeepsGraphs,
    /// In each retirement, the culprit keeps one of its blocks in the segments that it asks to retire.
    KeepsBlocks,
    /// In one phase, the culprit asks to retire (free on all ranks) other segments than the other ranks.
    RetiresOther,
    /// In each retirement, the culprit's wait for its device to become idle fails in the driver.
    NeverAtRest,
    /// In each retirement, the culprit's device has work that lasts longer than the time limit of the wait for an idle
    /// device.
    RestsLate,
    /// In each retirement, the culprit cannot deregister the segments.
    DeregistrationFails,
    /// In its first rendezvous, the culprit posts a [record](super) that differs from the records of its peers. The
    /// number selects the difference.
    MeetsOtherwise(usize),
    /// In its first exchange, the culprit posts a record that does not match the records of its peers. The number
    /// selects the difference.
    ExchangesOtherwise(usize),
    /// Each time the culprit maps memory of a peer, its driver fails.
    CannotMap,
    /// The culprit dies when it is due to make the [step](super) with this number.
    Killed(u64),
    /// The first field is the number of a [step](super) of the culprit. After this step, the culprit does nothing for
    /// the time in the second field, in ms.
    Stopped(u64, u64),
    /// The culprit has this deadline in µs, and the other ranks have
    /// [`LONG_DEADLINE`](crate::scenario::LONG_DEADLINE), in all meetings except the commits at the end of the program
    /// and all commits of the [second pool](crate::rank::Rank::second). In addition, each window registration of the
    /// culprit begins up to 30 s late.
    ShortDeadline(u64),
    /// If `lacks` is true, the culprit's list of the domain's members lacks one other rank. Otherwise, the lists of all
    /// other ranks lack the culprit.
    OtherDomain {
        lacks: bool,
    },
    /// The culprit has created its domain twice, the other ranks once. So the culprit's domain has another generation
    /// (the count of these creations).
    ExtraDomain,
    /// In one phase, the members of one group commit their first and [second](crate::rank::Rank::second) pools for this
    /// group. All use the same order, except the culprit, which uses the opposite order.
    CrossesPools,
    /// The culprit uses another version of the protocol: it posts messages with another version number, and accepts
    /// only those.
    OtherProtocol,
    /// For some time, the culprit cannot reach the store, and goes on with its program. The first field says when this
    /// time begins. The second field is its length in ms, or [`FOREVER`].
    CutOff(CutOffAt, u64),
    /// The store dies when the piece with this number arrives. A piece is a part of a message
    /// ([`network`](crate::network)). The pieces that arrive at the store are counted from 1, over all connections
    /// together.
    StoreDies(u64),
}

/// A length in ms, longer than any run, for which the culprit cannot reach the store.
pub(crate) const FOREVER: u64 = 1 << 40;

/// The time at which the culprit is cut off from the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum CutOffAt {
    /// When the culprit makes the [step](super) with this number.
    Step(u64),
    /// When the culprit begins the [action](super) with this number, counted from 1 over all its meetings. So the
    /// culprit may lose the store after a decision and before it posts the outcome of its action. An action is to
    /// register or deregister windows, to wait for an idle device, or to open or map peers' memory. The search for a
    /// difference between pools does not count.
    Action(u64),
    /// Like [`Action`](Self::Action), but only the actions of retirements are counted. There are few of them in a run.
    RetirementAction(u64),
}

impl Trouble {
    pub(crate) fn draw(random: &mut Random) -> Self {
        // Draws the number of a step, up to one of three limits. So early steps are more likely than late steps, which
        // short programs never reach.
        let steps = |random: &mut Random| {
            let scale = *random.pick(&[20, 100, 400]);
            1 + random.below(scale)
        };
        // Draws a time in ms below one of three upper limits. So some times are shorter than the shortest time for
        // which members wait for outcomes, `OUTCOME_FLOOR` (5 s). Others are longer than the least time limit of an
        // action, `ACTION_FLOOR` (10 s).
        let pause = |random: &mut Random| {
            let scale = *random.pick(&[300, 3000, 30_000]);
            random.below(scale)
        };
        let outage = |random: &mut Random| if random.one_in(4) { FOREVER } else { pause(random) };
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
            31 => Self::CutOff(CutOffAt::Step(steps(random)), outage(random)),
            46 => {
                let at = match random.one_in(2) {
                    true => CutOffAt::Action(1 + random.below(16)),
                    false => CutOffAt::RetirementAction(1 + random.below(4)),
                };
                Self::CutOff(at, outage(random))
            }
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
    pub(crate) fn name(self) -> String {
        let name = format!("{self:?}");
        name.split(['(', ' ']).next().unwrap_or_default().to_owned()
    }

    /// Returns true if the trouble can make ranks come late to meetings or miss them.
    pub(crate) fn delays(self) -> bool {
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
    pub(crate) fn silences(self) -> bool {
        matches!(self, Self::Killed(_) | Self::Stopped(..) | Self::CutOff(..) | Self::StoreDies(_))
    }

    /// Returns true if the trouble can make ranks lose the store.
    pub(crate) fn loses_store(self) -> bool {
        matches!(self, Self::CutOff(..) | Self::StoreDies(_))
    }

    /// Returns true if the trouble can make the other members miss the culprit's [outcome](super) after a decision,
    /// although they get the outcomes of all other members:
    /// - The culprit dies.
    /// - The culprit stops for at least `OUTCOME_FLOOR`, the shortest time for which members wait for outcomes.
    /// - The culprit is cut off from the store for any time. It may give up before the store answers again, and then
    ///   never posts its outcome.
    ///
    /// Returns false for the death of the store, because then no member gets a result.
    pub(crate) fn loses_outcome(self) -> bool {
        match self {
            Self::Stopped(_, ms) => Duration::from_millis(ms) >= OUTCOME_FLOOR,
            Self::StoreDies(_) => false,
            _ => self.silences(),
        }
    }

    /// Returns true if the trouble can make a registration of windows take longer than its time limit, which is at
    /// least `ACTION_FLOOR`.
    pub(crate) fn blocks_registration(self) -> bool {
        match self {
            Self::RegistrationSlow(_, ms) | Self::Stopped(_, ms) => {
                // The few messages to and from the store during a registration take less than 50 ms together, since
                // each takes up to 2 ms (`Scenario::slowest`).
                Duration::from_millis(ms) + Duration::from_millis(50) >= ACTION_FLOOR
            }
            // The registrations of the other members wait for the dead rank.
            Self::Killed(_) => true,
            _ => false,
        }
    }

    /// Returns true if the trouble makes plain registrations of the culprit fail. A run with such a trouble uses a
    /// library without windows, because only segments without windows are registered plainly.
    pub(crate) fn forbids_plain(self) -> bool {
        matches!(self, Self::PlainFails(_) | Self::RegistersNothing)
    }

    /// Returns true if the trouble can make the culprit's pool differ from the pools of the other ranks.
    pub(crate) fn makes_pools_differ(self) -> bool {
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
