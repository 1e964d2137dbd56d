//! The PTX of the kernels.
//!
//! The folder `kernels/` contains the sources, and one compressed file with the PTX of all of them. Every supported
//! driver and device can load this PTX: its version and target architecture are the oldest that have all instructions
//! of the kernels.

use std::{io::Read, sync::LazyLock};

use ruzstd::decoding::StreamingDecoder;

use process_group::comm::{DataType, ReduceOp};

use super::arguments::TargetKind;
use super::fault::WaitKind;
use super::pad::LINE;
use super::{Kernel, MOST_RANKS, PadLayout};

/// The lowest compute capability on which the kernels run, as (major, minor). It is also the target architecture of
/// their PTX.
pub const LEAST_CAPABILITY: (u32, u32) = (7, 0);

/// Separates the PTX of one [`Unit`] from that of the next one in the packed PTX.
#[doc(hidden)]
pub const PTX_SEPARATOR: &str = "\0";

/// The PTX of all units, compressed as one zstd frame.
const PACKED: &[u8] = include_bytes!("../kernels/kernels.ptx.zst");

/// The PTX of every unit, in the order of [`UNITS`].
static UNPACKED: LazyLock<Vec<String>> = LazyLock::new(|| {
    let text = unpack(PACKED).expect("the crate's PTX is a frame of zstd");
    text.split(PTX_SEPARATOR).map(str::to_owned).collect()
});

fn unpack(packed: &[u8]) -> Option<String> {
    let mut text = String::new();
    StreamingDecoder::new(packed).ok()?.read_to_string(&mut text).ok()?;
    Some(text)
}

/// A compilation unit of the device code: one source file, compiled with certain macros. Its PTX is loaded as one
/// module.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Unit {
    /// Name of the unit.
    pub name: &'static str,
    /// Path of its source below `kernels/`.
    pub source: &'static str,
    /// Macros defined for its compilation, in addition to those of [`defines`].
    pub defines: &'static [&'static str],
    /// Names of its kernels.
    pub(crate) entries: &'static [&'static str],
}

impl Unit {
    /// The PTX, or an empty string if [`UNITS`] has no unit of this name. The first call unpacks the PTX of all units,
    /// which takes a few milliseconds.
    #[must_use]
    pub fn ptx(&self) -> &'static str {
        let index = UNITS.iter().position(|unit| unit.name == self.name);
        index.and_then(|index| UNPACKED.get(index)).map_or("", String::as_str)
    }
}

macro_rules! units {
    ($($element:literal)*) => {
        /// Every unit. After a change of this list, run `cargo xtask codegen kernels` to compile the PTX again.
        pub const UNITS: &[Unit] = &[
            Unit {
                name: "signals",
                source: "signals.cu",
                defines: &[],
                entries: &["symm_barrier", "symm_put_signal", "symm_wait_signal"],
            },
            Unit { name: "gather", source: "gather.cu", defines: &[], entries: &["symm_gather"] },
            $(Unit {
                name: concat!("reduce_", $element),
                source: "reduce.cu",
                defines: &[concat!("ELEMENT=", $element)],
                entries: &[
                    concat!("symm_reduce_", $element, "_sum"),
                    concat!("symm_reduce_", $element, "_prod"),
                    concat!("symm_reduce_", $element, "_max"),
                    concat!("symm_reduce_", $element, "_min"),
                    concat!("symm_reduce_", $element, "_avg"),
                ],
            },)*
        ];
    };
}

units!("i8" "u8" "i32" "u32" "i64" "u64" "f16" "bf16" "f32" "f64");

// Indices in `UNITS`. From `REDUCE` on, there is one unit for each element type. It has the kernels that combine
// elements of this type.
pub(crate) const SIGNALS: usize = 0;
pub(crate) const GATHER: usize = 1;
pub(crate) const REDUCE: usize = 2;

/// Element types that can be combined, in the order of their units.
pub(crate) const ELEMENTS: [DataType; 10] = [
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

/// The operations of the kernels in each unit that combines elements, in the order of these kernels.
pub(crate) const OPERATIONS: [ReduceOp; 5] = ReduceOp::ALL;

/// Returns the names and values of the macros that are defined for every unit: constants that host and device share.
#[must_use]
pub fn defines() -> Vec<(&'static str, u32)> {
    let mut defines = vec![
        ("USER_CHANNELS", PadLayout::USER_CHANNELS),
        ("KERNEL_CHANNELS", PadLayout::KERNEL_CHANNELS),
        // The cast cannot truncate, because the constant is small.
        ("LINE", LINE as u32),
        ("MOST_RANKS", MOST_RANKS),
    ];
    defines.extend(Kernel::ALL.map(|(kernel, name)| (name, kernel as u32)));
    defines.extend(WaitKind::ALL.map(|(waiting, name)| (name, waiting as u32)));
    defines.extend(TargetKind::ALL.map(|(target_kind, name)| (name, target_kind as u32)));
    defines
}
