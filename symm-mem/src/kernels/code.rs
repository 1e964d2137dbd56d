//! The PTX of the crate, and the choice of PTX for a driver.
//!
//! Sources and PTX lie in `kernels/`. A unit is compiled and loaded as one module. Each unit exists twice: a driver
//! refuses PTX of a toolkit newer than its own release, and newer devices profit from newer PTX.

use cuda_driver::sys::Version;
use process_group::comm::{DataType, ReduceOp};

use super::arguments::Placing;
use super::fault::Waiting;
use super::pad::LINE;
use super::{Kernel, MOST_RANKS, PadLayout};

/// The toolkit and the architecture of the PTX.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CodeSet {
    /// PTX 7.7 for `compute_70`, by NVRTC 11.7: for every supported driver and device.
    Compute70,
    /// PTX 8.0 for `compute_90`, by NVRTC 12.0.
    Compute90,
}

impl CodeSet {
    /// Both, the older first.
    pub const ALL: [Self; 2] = [Self::Compute70, Self::Compute90];

    /// The architecture as NVRTC names it; also the folder of the PTX.
    #[must_use]
    pub const fn architecture(self) -> &'static str {
        match self {
            Self::Compute70 => "compute_70",
            Self::Compute90 => "compute_90",
        }
    }

    /// The best set for a driver of this release and a device of this compute capability; `None` below capability
    /// 7.0.
    ///
    /// ```
    /// use symm_mem::kernels::CodeSet;
    /// let set = |major, minor, capability| CodeSet::choose(cuda_driver::sys::Version::new(major, minor, 0), capability);
    /// assert_eq!(set(13, 0, (9, 0)), Some(CodeSet::Compute90));
    /// assert_eq!(set(11, 8, (9, 0)), Some(CodeSet::Compute70));
    /// assert_eq!(set(13, 0, (8, 6)), Some(CodeSet::Compute70));
    /// assert_eq!(set(12, 4, (6, 1)), None);
    /// ```
    #[must_use]
    pub fn choose(driver: Version, capability: (u32, u32)) -> Option<Self> {
        match capability {
            (..7, _) => None,
            (9.., _) if driver >= Version::new(12, 0, 0) => Some(Self::Compute90),
            _ => Some(Self::Compute70),
        }
    }
}

/// A unit that is compiled and loaded as one module.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Unit {
    /// Name of the unit and of its PTX file.
    pub name: &'static str,
    /// Path of its source below `kernels/`.
    pub source: &'static str,
    /// Macros defined for its compilation, beside [`defines`].
    pub defines: &'static [&'static str],
    /// Its kernels.
    pub(super) entries: &'static [&'static str],
    ptx: [&'static str; 2],
}

impl Unit {
    /// The PTX.
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
            entries: &$entries,
            ptx: [
                include_str!(concat!("../../kernels/ptx/compute_70/", $name, ".ptx")),
                include_str!(concat!("../../kernels/ptx/compute_90/", $name, ".ptx")),
            ],
        }),*];
    };
}

/// Indices in [`UNITS`]: the signals, the unit that moves bytes, and the first unit that combines elements.
pub(super) const SIGNALS: usize = 0;
pub(super) const GATHER: usize = 1;
pub(super) const REDUCE: usize = 2;

macro_rules! reduce {
    ($element:literal) => {
        [
            concat!("symm_reduce_", $element, "_sum"),
            concat!("symm_reduce_", $element, "_prod"),
            concat!("symm_reduce_", $element, "_max"),
            concat!("symm_reduce_", $element, "_min"),
            concat!("symm_reduce_", $element, "_avg"),
        ]
    };
}

units! {
    "signals" from "signals.cu" with []: ["symm_barrier", "symm_put_signal", "symm_wait_signal"];
    "gather" from "gather.cu" with []: ["symm_gather"];
    "reduce_i8" from "reduce.cu" with ["ELEMENT=i8"]: reduce!("i8");
    "reduce_u8" from "reduce.cu" with ["ELEMENT=u8"]: reduce!("u8");
    "reduce_i32" from "reduce.cu" with ["ELEMENT=i32"]: reduce!("i32");
    "reduce_u32" from "reduce.cu" with ["ELEMENT=u32"]: reduce!("u32");
    "reduce_i64" from "reduce.cu" with ["ELEMENT=i64"]: reduce!("i64");
    "reduce_u64" from "reduce.cu" with ["ELEMENT=u64"]: reduce!("u64");
    "reduce_f16" from "reduce.cu" with ["ELEMENT=f16"]: reduce!("f16");
    "reduce_bf16" from "reduce.cu" with ["ELEMENT=bf16"]: reduce!("bf16");
    "reduce_f32" from "reduce.cu" with ["ELEMENT=f32"]: reduce!("f32");
    "reduce_f64" from "reduce.cu" with ["ELEMENT=f64"]: reduce!("f64");
}

/// Element types that can be combined, in the order of their units.
pub(super) const ELEMENTS: [DataType; 10] = [
    DataType::I8,
    DataType::U8,
    DataType::I32,
    DataType::U32,
    DataType::I64,
    DataType::U64,
    DataType::F16,
    DataType::Bf16,
    DataType::F32,
    DataType::F64,
];

/// Operations, in the order of each unit's kernels.
pub(super) const OPERATIONS: [ReduceOp; 5] = ReduceOp::ALL;

/// Macros defined for every unit: constants that host and device share.
#[must_use]
pub fn defines() -> Vec<(&'static str, u32)> {
    let mut defines = vec![
        ("USER_CHANNELS", PadLayout::USER_CHANNELS),
        ("KERNEL_CHANNELS", PadLayout::KERNEL_CHANNELS),
        // A small constant: the cast cannot truncate.
        ("LINE", LINE as u32),
        ("MOST_RANKS", MOST_RANKS),
    ];
    defines.extend(Kernel::ALL.map(|(kernel, name)| (name, kernel as u32)));
    defines.extend(Waiting::ALL.map(|(waiting, name)| (name, waiting as u32)));
    defines.extend(Placing::ALL.map(|(placing, name)| (name, placing as u32)));
    defines
}
