//! Expected results of collectives, computed independently: integers in 128 bits, floats in f64 with an error bound.

use half::{bf16, f16};
use process_group::comm::{DataType, ReduceOp};

/// The types that can be combined.
pub(super) const TYPES: [DataType; 11] = [
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
    DataType::Bool,
];

/// An element of random bits. For floats, a number of magnitude 1/2 to 2, so that no product leaves the type's range.
pub(super) fn element(dtype: DataType, random: u64) -> Vec<u8> {
    let fraction = (random >> 12) as f64 / (1_u64 << 52) as f64;
    let magnitude = if random & 1 == 0 { 0.5 + fraction / 2.0 } else { 1.0 + fraction };
    let float = if random & 2 == 0 { magnitude } else { -magnitude };
    match dtype {
        DataType::F16 => f16::from_f64(float).to_ne_bytes().to_vec(),
        DataType::Bf16 => bf16::from_f64(float).to_ne_bytes().to_vec(),
        DataType::F32 => (float as f32).to_ne_bytes().to_vec(),
        DataType::F64 => float.to_ne_bytes().to_vec(),
        DataType::Bool => vec![(random & 1) as u8],
        integer => random.to_ne_bytes()[..integer.size()].to_vec(),
    }
}

enum Number {
    Integer(i128),
    /// The value, and the unit in the last place of its type, relative to 1.
    Float(f64, f64),
}

fn read(dtype: DataType, bytes: &[u8]) -> Number {
    macro_rules! read {
        ($type:ty) => {
            <$type>::from_ne_bytes(bytes.try_into().expect("an element's bytes"))
        };
    }
    match dtype {
        DataType::I8 => Number::Integer(read!(i8).into()),
        DataType::U8 | DataType::Bool => Number::Integer(read!(u8).into()),
        DataType::I32 => Number::Integer(read!(i32).into()),
        DataType::U32 => Number::Integer(read!(u32).into()),
        DataType::I64 => Number::Integer(read!(i64).into()),
        DataType::U64 => Number::Integer(read!(u64).into()),
        DataType::F16 => Number::Float(read!(f16).into(), 2f64.powi(-11)),
        DataType::Bf16 => Number::Float(read!(bf16).into(), 2f64.powi(-8)),
        DataType::F32 => Number::Float(read!(f32).into(), 2f64.powi(-24)),
        DataType::F64 => Number::Float(read!(f64), 2f64.powi(-53)),
        other => unreachable!("{other} is not combined"),
    }
}

/// Wraps a number to an integer type.
fn wrapped(dtype: DataType, number: i128) -> i128 {
    match dtype {
        DataType::I8 => (number as i8).into(),
        DataType::U8 => (number as u8).into(),
        DataType::I32 => (number as i32).into(),
        DataType::U32 => (number as u32).into(),
        DataType::I64 => (number as i64).into(),
        DataType::U64 => (number as u64).into(),
        _ => number,
    }
}

/// Checks that `found` is the combination of the ranks' elements, in their order. The error is the expected value.
pub(super) fn check(dtype: DataType, op: ReduceOp, elements: &[&[u8]], found: &[u8]) -> Result<(), String> {
    let count = elements.len();
    let numbers: Vec<_> = elements.iter().map(|bytes| read(dtype, bytes)).collect();
    match read(dtype, found) {
        Number::Integer(found) => {
            let integers =
                || numbers.iter().map(|number| if let Number::Integer(i) = number { *i } else { 0 });
            let sum = || wrapped(dtype, integers().sum());
            let any = |wanted| i128::from(integers().any(|i| i == wanted));
            let expected = match (dtype, op) {
                (DataType::Bool, ReduceOp::Sum | ReduceOp::Max) => any(1),
                (DataType::Bool, _) => 1 - any(0),
                (_, ReduceOp::Sum) => sum(),
                (_, ReduceOp::Prod) => {
                    integers().fold(1_i128, |product, i| wrapped(dtype, product.wrapping_mul(i)))
                }
                (_, ReduceOp::Max) => integers().max().unwrap_or(0),
                (_, ReduceOp::Min) => integers().min().unwrap_or(0),
                (_, _) => sum() / count as i128,
            };
            if found == expected { Ok(()) } else { Err(format!("{found}, should be {expected}")) }
        }
        Number::Float(found, unit) => {
            let floats =
                || numbers.iter().map(|number| if let Number::Float(f, _) = number { *f } else { 0.0 });
            // Error bound: one rounding for each step, and one at the end.
            let steps = |size: f64| size * (unit + count as f64 * unit.min(2f64.powi(-24)));
            let size: f64 = floats().map(f64::abs).sum();
            let (expected, bound) = match op {
                ReduceOp::Sum => (floats().sum(), steps(size)),
                ReduceOp::Prod => {
                    let product: f64 = floats().product();
                    (product, steps(product.abs()))
                }
                ReduceOp::Max => (floats().fold(f64::MIN, f64::max), 0.0),
                ReduceOp::Min => (floats().fold(f64::MAX, f64::min), 0.0),
                _ => (floats().sum::<f64>() / count as f64, steps(size / count as f64)),
            };
            let off = (found - expected).abs();
            if off <= bound { Ok(()) } else { Err(format!("{found}, should be {expected} ± {bound}")) }
        }
    }
}

#[test]
fn the_reference_tells_right_from_wrong() {
    let two = |a: f32, b: f32, found: f32| {
        let elements = [a, b].map(f32::to_ne_bytes);
        let elements: Vec<_> = elements.iter().map(|bytes| &bytes[..]).collect();
        check(DataType::F32, ReduceOp::Sum, &elements, &found.to_ne_bytes()).is_ok()
    };
    assert!(two(1.0, 0.5, 1.5) && !two(1.0, 0.5, 1.5 + 1e-5));
    let elements: [&[u8]; 2] = [&[0x81], &[0xfe]];
    let average = |found: i8| check(DataType::I8, ReduceOp::Avg, &elements, &found.to_ne_bytes()).is_ok();
    assert!(average(63) && !average(-64), "-127 - 2 wraps to 127, and 63.5 goes towards zero");
}
