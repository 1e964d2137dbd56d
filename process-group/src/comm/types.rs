//! Element types and reductions.

use std::fmt;

use cuda_driver::DevicePtr;
use nccl_sys::{Version, ncclDataType_t, ncclRedOp_t};

/// The type of a collective's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DataType {
    /// Signed integer, 8 bits.
    I8,
    /// Unsigned integer, 8 bits.
    U8,
    /// Signed integer, 32 bits.
    I32,
    /// Unsigned integer, 32 bits.
    U32,
    /// Signed integer, 64 bits.
    I64,
    /// Unsigned integer, 64 bits.
    U64,
    /// IEEE half precision.
    F16,
    /// IEEE single precision.
    F32,
    /// IEEE double precision.
    F64,
    /// bfloat16: the upper 16 bits of a single.
    Bf16,
    /// 8-bit float with a 4-bit exponent. NCCL reduces this type from 2.24.3. Older releases can only transfer it, as
    /// bytes.
    F8E4M3,
    /// 8-bit float with a 5-bit exponent. Needs the same release as [`F8E4M3`](Self::F8E4M3).
    F8E5M2,
    /// A byte that is 1 (true) or 0 (false). The sum of such elements is logical or, the product is logical and.
    Bool,
}

impl DataType {
    /// Every type.
    pub const ALL: [Self; 13] = [
        Self::I8,
        Self::U8,
        Self::I32,
        Self::U32,
        Self::I64,
        Self::U64,
        Self::F16,
        Self::F32,
        Self::F64,
        Self::Bf16,
        Self::F8E4M3,
        Self::F8E5M2,
        Self::Bool,
    ];

    /// Returns the size of one element in bytes.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::I8 | Self::U8 | Self::F8E4M3 | Self::F8E5M2 | Self::Bool => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }

    /// Returns the oldest NCCL release that can reduce the type. `2.0.0` means that every supported release can. Every
    /// release can transfer it.
    #[must_use]
    pub const fn since(self) -> Version {
        match self {
            Self::F8E4M3 | Self::F8E5M2 => Version::new(2, 24, 3),
            _ => Version::new(2, 0, 0),
        }
    }

    /// Returns the NCCL type with which elements of this type are reduced.
    #[must_use]
    pub const fn raw(self) -> ncclDataType_t {
        match self {
            Self::I8 => ncclDataType_t::ncclInt8,
            Self::U8 | Self::Bool => ncclDataType_t::ncclUint8,
            Self::I32 => ncclDataType_t::ncclInt32,
            Self::U32 => ncclDataType_t::ncclUint32,
            Self::I64 => ncclDataType_t::ncclInt64,
            Self::U64 => ncclDataType_t::ncclUint64,
            Self::F16 => ncclDataType_t::ncclFloat16,
            Self::F32 => ncclDataType_t::ncclFloat32,
            Self::F64 => ncclDataType_t::ncclFloat64,
            Self::Bf16 => ncclDataType_t::ncclBfloat16,
            Self::F8E4M3 => ncclDataType_t::ncclFloat8e4m3,
            Self::F8E5M2 => ncclDataType_t::ncclFloat8e5m2,
        }
    }

    /// Returns the NCCL type with which elements of this type are transferred: bytes, if the release does not have
    /// the type.
    pub(crate) fn moved(self, release: Version) -> ncclDataType_t {
        if release < self.since() { ncclDataType_t::ncclUint8 } else { self.raw() }
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::I8 => "i8",
            Self::U8 => "u8",
            Self::I32 => "i32",
            Self::U32 => "u32",
            Self::I64 => "i64",
            Self::U64 => "u64",
            Self::F16 => "f16",
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::Bf16 => "bf16",
            Self::F8E4M3 => "f8e4m3",
            Self::F8E5M2 => "f8e5m2",
            Self::Bool => "bool",
        })
    }
}

/// The reduction operator of a collective.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum ReduceOp {
    /// The sum.
    Sum,
    /// The product.
    Prod,
    /// The maximum.
    Max,
    /// The minimum.
    Min,
    /// The sum divided by the number of ranks. Integers round towards zero. Not for [`DataType::Bool`].
    Avg,
    /// The sum of the ranks' elements, each multiplied by its rank's factor. The factor is first rounded to the
    /// element type. Only for [`F16`](DataType::F16), [`Bf16`](DataType::Bf16), [`F32`](DataType::F32) and
    /// [`F64`](DataType::F64).
    #[doc(alias = "ncclRedOpCreatePreMulSum")]
    PreMulSum(f64),
    /// Like [`PreMulSum`](Self::PreMulSum), with the factor in memory that the device can read: one aligned element
    /// of the operation's type. The device reads the factor when the operation runs, and again at every launch of a
    /// captured graph. The memory stays valid and unchanged until the work is done, like the operation's buffers.
    PreMulSumAt(DevicePtr),
}

impl ReduceOp {
    /// Every reduction without a factor.
    pub const ALL: [Self; 5] = [Self::Sum, Self::Prod, Self::Max, Self::Min, Self::Avg];

    /// Returns true if the reduction is defined for `dtype`.
    #[must_use]
    pub const fn allows(self, dtype: DataType) -> bool {
        match self {
            Self::Sum | Self::Prod | Self::Max | Self::Min => true,
            Self::Avg => !matches!(dtype, DataType::Bool),
            Self::PreMulSum(_) | Self::PreMulSumAt(_) => {
                matches!(dtype, DataType::F16 | DataType::Bf16 | DataType::F32 | DataType::F64)
            }
        }
    }

    /// Returns the NCCL operator of the reduction for `dtype`. `None` for a reduction with a factor, whose operator
    /// is created per call.
    pub(crate) const fn raw(self, dtype: DataType) -> Option<ncclRedOp_t> {
        Some(match (self, dtype) {
            // For bytes that are 1 or 0, the maximum is logical or, and the minimum is logical and. A sum of `u8`
            // would wrap to 0 at 256 true values; the maximum does not.
            (Self::Sum | Self::Max, DataType::Bool) => ncclRedOp_t::ncclMax,
            (Self::Prod | Self::Min, DataType::Bool) => ncclRedOp_t::ncclMin,
            (Self::Sum, _) => ncclRedOp_t::ncclSum,
            (Self::Prod, _) => ncclRedOp_t::ncclProd,
            (Self::Max, _) => ncclRedOp_t::ncclMax,
            (Self::Min, _) => ncclRedOp_t::ncclMin,
            (Self::Avg, _) => ncclRedOp_t::ncclAvg,
            (Self::PreMulSum(_) | Self::PreMulSumAt(_), _) => return None,
        })
    }
}

/// Converts the factor to `dtype`. The element occupies the low bytes of the result, whose address is passed to NCCL.
pub(crate) fn scalar(factor: f64, dtype: DataType) -> u64 {
    // Every host that CUDA supports is little-endian, so the low bytes come first in memory.
    match dtype {
        DataType::F16 => narrow(factor, 10, -14),
        DataType::Bf16 => narrow(factor, 7, -126),
        DataType::F32 => u64::from((factor as f32).to_bits()),
        _ => factor.to_bits(),
    }
}

/// Rounds to the nearest number of a 16-bit float type, ties to even, and returns its bits. The type has `mantissa`
/// mantissa bits, and its least normal number is 2 to the power of `least`.
///
/// The crate `half` has no such function: its `from_f64` rounds twice on x86, first to a single.
fn narrow(value: f64, mantissa: i32, least: i32) -> u64 {
    let sign = value.to_bits() >> 48 & 0x8000;
    let infinity = 0x7fff >> mantissa << mantissa;
    if value.is_nan() {
        return sign | infinity | 1 << (mantissa - 1);
    }
    // Subnormal numbers have the spacing of the least normal ones.
    let exponent = ((value.to_bits() >> 52 & 0x7ff) as i32 - 1023).max(least);
    // The magnitude in units of the last mantissa bit. The product is exact, because the factor is a power of two.
    let units = (value.abs() * 2f64.powi(mantissa - exponent)).round_ties_even() as u64;
    // Adding, instead of combining the fields, carries into the exponent: from the implicit bit of a normal number, and
    // from a mantissa that was rounded up to the next power of two.
    let magnitude = (((exponent - least) as u64) << mantissa).saturating_add(units);
    sign | magnitude.min(infinity)
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sum => "sum",
            Self::Prod => "prod",
            Self::Max => "max",
            Self::Min => "min",
            Self::Avg => "avg",
            Self::PreMulSum(factor) => return write!(f, "sum of {factor} times"),
            Self::PreMulSumAt(factor) => return write!(f, "sum of the factor at {:#x} times", factor.0),
        })
    }
}

/// Rank, size and NCCL release of a communicator, for argument checks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) release: Version,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn raw_numbers_are_those_of_the_header() {
        let types = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 1];
        assert_eq!(DataType::ALL.map(|t| t.raw().0), types);
        let operations = ReduceOp::ALL.map(|op| op.raw(DataType::F32).unwrap().0);
        assert_eq!(operations, [0, 1, 2, 3, 4]);
        assert_eq!(ReduceOp::ALL.map(|op| op.raw(DataType::Bool).unwrap().0)[..4], [2, 3, 2, 3]);
        assert_eq!(ReduceOp::PreMulSum(0.5).raw(DataType::F32), None);
    }

    #[test]
    fn a_factor_is_an_element_of_the_type() {
        let scalars = [DataType::F16, DataType::Bf16, DataType::F32, DataType::F64].map(|t| scalar(-1.5, t));
        assert_eq!(scalars, [0xbe00, 0xbfc0, 0xbfc0_0000, 0xbff8_0000_0000_0000]);
    }
    proptest! {
        #[test]
        fn a_single_is_rounded_like_the_crate_half_does(bits in any::<u32>(), exponent in 100u32..145) {
            // Any single, and one whose exponent is near the range of half precision.
            for bits in [bits, bits & 0x807f_ffff | exponent << 23] {
                let value = f32::from_bits(bits);
                let [f16, bf16] = [DataType::F16, DataType::Bf16].map(|t| scalar(value.into(), t) as u16);
                let (f16, bf16) = (half::f16::from_bits(f16), half::bf16::from_bits(bf16));
                if value.is_nan() {
                    prop_assert!(f16.is_nan() && bf16.is_nan());
                } else {
                    let expected = (half::f16::from_f32(value), half::bf16::from_f32(value));
                    prop_assert_eq!((f16.to_bits(), bf16.to_bits()), (expected.0.to_bits(), expected.1.to_bits()));
                }
            }
        }

        /// The doubles nearest to the middle between two neighbours would be rounded to the middle by a first rounding
        /// to a single.
        #[test]
        fn a_factor_is_rounded_once(f16 in 0u16..0x7bff, bf16 in 0u16..0x7f7f) {
            let number_of = |bits| (half::f16::from_bits(bits).to_f64(), half::bf16::from_bits(bits).to_f64());
            let middles = [
                (DataType::F16, f16, number_of(f16).0.midpoint(number_of(f16 + 1).0)),
                (DataType::Bf16, bf16, number_of(bf16).1.midpoint(number_of(bf16 + 1).1)),
            ];
            for (dtype, low, middle) in middles {
                let (low, high) = (u64::from(low), u64::from(low) + 1);
                let expected = [low, low + low % 2, high];
                let found = [middle.next_down(), middle, middle.next_up()].map(|value| scalar(value, dtype));
                prop_assert_eq!(found, expected);
            }
        }

        #[test]
        fn a_factor_keeps_its_sign_and_overflows_to_infinity(bits in any::<u64>()) {
            let value = f64::from_bits(bits);
            for (dtype, infinity, overflow) in
                [(DataType::F16, 0x7c00, 65520.0), (DataType::Bf16, 0x7f80, 255.5 * 2f64.powi(120))]
            {
                let found = scalar(value, dtype);
                prop_assert_eq!(found >> 15, bits >> 63);
                if !value.is_nan() {
                    prop_assert_eq!(found & 0x7fff == infinity, value.abs() >= overflow);
                }
            }
        }
    }
}
