//! The PTX that the crate comes with, and which of it a driver takes.
//!
//! Sources and PTX lie in `kernels/`. A unit is what is compiled, and loaded, as one. Each is there twice: a driver
//! refuses PTX of a newer toolkit than its own release, and newer PTX is made for newer devices.

use cuda_driver::sys::Version;

use super::fault::Waiting;
use super::pad::LINE;
use super::{Kernel, MOST_RANKS, PadLayout};

/// Which toolkit and architecture the code was compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CodeSet {
    /// PTX 7.7 for `compute_70`, by NVRTC 11.7: for every driver and device that is served.
    Compute70,
    /// PTX 8.0 for `compute_90`, by NVRTC 12.0.
    Compute90,
}

impl CodeSet {
    /// Both, the older first.
    pub const ALL: [Self; 2] = [Self::Compute70, Self::Compute90];

    /// The architecture, as NVRTC takes it; the folder of the PTX is called so too.
    #[must_use]
    pub const fn architecture(self) -> &'static str {
        match self {
            Self::Compute70 => "compute_70",
            Self::Compute90 => "compute_90",
        }
    }

    /// The best for a driver of this release and a device of this compute capability; none for one below 7.0.
    ///
    /// ```
    /// use symm_mem::kernels::CodeSet;
    /// let set = |major, minor, capability| CodeSet::choose(cuda_driver::sys::Version::new(major, minor), capability);
    /// assert_eq!(set(13, 0, (9, 0)), Some(CodeSet::Compute90));
    /// assert_eq!(set(11, 8, (9, 0)), Some(CodeSet::Compute70));
    /// assert_eq!(set(13, 0, (8, 6)), Some(CodeSet::Compute70));
    /// assert_eq!(set(12, 4, (6, 1)), None);
    /// ```
    #[must_use]
    pub fn choose(driver: Version, capability: (u32, u32)) -> Option<Self> {
        match capability {
            (..7, _) => None,
            (9.., _) if driver >= Version::new(12, 0) => Some(Self::Compute90),
            _ => Some(Self::Compute70),
        }
    }
}

/// What is compiled and loaded as one.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Unit {
    /// Its name, and that of its PTX.
    pub name: &'static str,
    /// Its source below `kernels/`.
    pub source: &'static str,
    /// What is defined for it, beside [`defines`].
    pub defines: &'static [&'static str],
    /// Its kernels.
    pub(super) entries: &'static [&'static str],
    ptx: [&'static str; 2],
}

impl Unit {
    /// The code.
    #[must_use]
    pub const fn ptx(&self, set: CodeSet) -> &'static str {
        self.ptx[set as usize]
    }
}

macro_rules! units {
    ($($name:literal from $source:literal with $defines:tt: $entries:expr;)*) => {
        /// Every unit. A new one begins with two empty files, which `cargo xtask codegen kernels` then writes.
        pub const UNITS: &[Unit] = &[$(Unit {
            name: $name,
            source: $source,
            defines: &$defines,
            entries: $entries,
            ptx: [
                include_str!(concat!("../../kernels/ptx/compute_70/", $name, ".ptx")),
                include_str!(concat!("../../kernels/ptx/compute_90/", $name, ".ptx")),
            ],
        }),*];
    };
}

/// The unit of the signals.
pub(super) const SIGNALS: usize = 0;

units! {
    "signals" from "signals.cu" with []: &["symm_barrier", "symm_put_signal", "symm_wait_signal"];
}

/// What is defined for every unit: numbers that both sides have to know.
#[must_use]
pub fn defines() -> Vec<(&'static str, u32)> {
    let mut defines = vec![
        ("USER_CHANNELS", PadLayout::USER_CHANNELS),
        ("KERNEL_CHANNELS", PadLayout::KERNEL_CHANNELS),
        // A small constant.
        ("LINE", LINE as u32),
        ("MOST_RANKS", MOST_RANKS),
    ];
    defines.extend(Kernel::ALL.map(|(kernel, name)| (name, kernel as u32)));
    defines.extend(Waiting::ALL.map(|(waiting, name)| (name, waiting as u32)));
    defines
}
