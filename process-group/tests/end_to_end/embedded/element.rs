//! Conversion of elements of every type to `f64` and back: the arithmetic of the reference results.

use half::{bf16, f16};
use process_group::comm::DataType;

/// Rounds a number to the type: to the nearest value, integers towards zero.
pub(crate) fn number(dtype: DataType, value: f64) -> f64 {
    decode(dtype, &encode(dtype, value))
}

/// The element nearest to a number.
pub(crate) fn encode(dtype: DataType, value: f64) -> Vec<u8> {
    match dtype {
        DataType::I8 => (value as i8).to_ne_bytes().to_vec(),
        DataType::U8 | DataType::Bool => vec![value as u8],
        DataType::I32 => (value as i32).to_ne_bytes().to_vec(),
        DataType::U32 => (value as u32).to_ne_bytes().to_vec(),
        DataType::I64 => (value as i64).to_ne_bytes().to_vec(),
        DataType::U64 => (value as u64).to_ne_bytes().to_vec(),
        DataType::F16 => f16::from_f64(value).to_ne_bytes().to_vec(),
        DataType::Bf16 => bf16::from_f64(value).to_ne_bytes().to_vec(),
        DataType::F32 => (value as f32).to_ne_bytes().to_vec(),
        DataType::F64 => value.to_ne_bytes().to_vec(),
        DataType::F8E4M3 | DataType::F8E5M2 => {
            let distance = |code: u8| (decode(dtype, &[code]) - value).abs();
            // Ties go to the value whose last bit is 0.
            let better = |a: &u8, b: &u8| distance(*a).total_cmp(&distance(*b)).then((a & 1).cmp(&(b & 1)));
            let finite = (0..=u8::MAX).filter(|code| decode(dtype, &[*code]).is_finite());
            vec![finite.min_by(better).unwrap()]
        }
        other => panic!("the tests do not know {other:?}"),
    }
}

pub(crate) fn decode(dtype: DataType, bytes: &[u8]) -> f64 {
    macro_rules! read {
        ($type:ty) => {
            <$type>::from_ne_bytes(bytes.try_into().unwrap())
        };
    }
    match dtype {
        DataType::I8 => f64::from(read!(i8)),
        DataType::U8 | DataType::Bool => f64::from(bytes[0]),
        DataType::I32 => f64::from(read!(i32)),
        DataType::U32 => f64::from(read!(u32)),
        DataType::I64 => read!(i64) as f64,
        DataType::U64 => read!(u64) as f64,
        DataType::F16 => f64::from(read!(f16)),
        DataType::Bf16 => f64::from(read!(bf16)),
        DataType::F32 => f64::from(read!(f32)),
        DataType::F64 => read!(f64),
        // An 8-bit float with 5 exponent bits is the upper byte of an `f16`.
        DataType::F8E5M2 => f64::from(f16::from_bits(u16::from(bytes[0]) << 8)),
        DataType::F8E4M3 => {
            let (exponent, fraction) = (i32::from(bytes[0] >> 3 & 15), f64::from(bytes[0] & 7));
            let magnitude = match (exponent, fraction) {
                (15, 7.0) => f64::NAN,
                (0, _) => fraction / 8.0 * 2f64.powi(-6),
                _ => (1.0 + fraction / 8.0) * 2f64.powi(exponent - 7),
            };
            if bytes[0] & 0x80 == 0 { magnitude } else { -magnitude }
        }
        other => panic!("the tests do not know {other:?}"),
    }
}
