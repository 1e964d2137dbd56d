//! Element types and reductions.

use std::fmt;

use nccl_sys::{Version, ncclDataType_t, ncclRedOp_t};

/// The type of a collective's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DataType {
    /// Signed, 8 bits.
    I8,
    /// Unsigned, 8 bits.
    U8,
    /// Signed, 32 bits.
    I32,
    /// Unsigned, 32 bits.
    U32,
    /// Signed, 64 bits.
    I64,
    /// Unsigned, 64 bits.
    U64,
    /// IEEE half precision.
    F16,
    /// IEEE single precision.
    F32,
    /// IEEE double precision.
    F64,
    /// The upper half of a single.
    Bf16,
    /// 8-bit float with 4 bits of exponent; NCCL 2.24.3.
    F8E4M3,
    /// 8-bit float with 5 bits of exponent; NCCL 2.24.3.
    F8E5M2,
}

impl DataType {
    /// Every type.
    pub const ALL: [Self; 12] = [
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
    ];

    /// The size of one element in bytes.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::I8 | Self::U8 | Self::F8E4M3 | Self::F8E5M2 => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }

    /// The first release that knows the type.
    #[must_use]
    pub const fn since(self) -> Version {
        match self {
            Self::F8E4M3 | Self::F8E5M2 => Version::new(2, 24, 3),
            _ => Version::new(2, 0, 0),
        }
    }

    /// NCCL's number for it.
    #[must_use]
    pub const fn raw(self) -> ncclDataType_t {
        match self {
            Self::I8 => ncclDataType_t::ncclInt8,
            Self::U8 => ncclDataType_t::ncclUint8,
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
        })
    }
}

/// How a reducing collective combines elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReduceOp {
    /// The sum.
    Sum,
    /// The product.
    Prod,
    /// The largest.
    Max,
    /// The smallest.
    Min,
    /// The sum divided by the number of ranks; integers round towards zero.
    Avg,
}

impl ReduceOp {
    /// Every reduction.
    pub const ALL: [Self; 5] = [Self::Sum, Self::Prod, Self::Max, Self::Min, Self::Avg];

    /// NCCL's number for it.
    #[must_use]
    pub const fn raw(self) -> ncclRedOp_t {
        match self {
            Self::Sum => ncclRedOp_t::ncclSum,
            Self::Prod => ncclRedOp_t::ncclProd,
            Self::Max => ncclRedOp_t::ncclMax,
            Self::Min => ncclRedOp_t::ncclMin,
            Self::Avg => ncclRedOp_t::ncclAvg,
        }
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sum => "sum",
            Self::Prod => "prod",
            Self::Max => "max",
            Self::Min => "min",
            Self::Avg => "avg",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn raw_numbers_are_those_of_the_header() {
        let types: Vec<_> = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11].into();
        assert_eq!(DataType::ALL.map(|t| t.raw().0).to_vec(), types);
        let operations: HashSet<_> = ReduceOp::ALL.map(|op| op.raw().0).into();
        assert_eq!(operations, HashSet::from([0, 1, 2, 3, 4]));
    }
}
