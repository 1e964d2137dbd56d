//! The kernels against plain references in `i128` and `f64`.

use super::*;
use proptest::prelude::*;

/// Bytes of one element of the reference result, or a check for floats.
fn expected(element: Element, op: Op, terms: &[&[u8]]) -> Vec<u8> {
    macro_rules! integer {
        ($type:ty) => {{
            let values: Vec<$type> =
                terms.iter().map(|b| <$type>::from_ne_bytes((*b).try_into().unwrap())).collect();
            let wide = values.iter().map(|&v| i128::from(v));
            let n = values.len() as i128;
            let result: $type = match op {
                Op::Sum => wide.sum::<i128>() as $type,
                Op::Prod => values.iter().fold(1, |a: $type, &v| a.wrapping_mul(v)),
                Op::Max => wide.max().unwrap() as $type,
                Op::Min => wide.min().unwrap() as $type,
                Op::PreMulSum => unreachable!("made by programs"),
                Op::Avg => (i128::from(wide.sum::<i128>() as $type) / n) as $type,
            };
            result.to_ne_bytes().to_vec()
        }};
    }
    // Small whole numbers are exact in every float type, and their sums and products in the accumulators.
    macro_rules! float {
        ($type:ty, $read:expr, $write:expr) => {{
            let values: Vec<f64> =
                terms.iter().map(|b| $read(<$type>::from_ne_bytes((*b).try_into().unwrap()))).collect();
            let n = values.len() as f64;
            let result: f64 = match op {
                Op::Sum => values.iter().sum(),
                Op::Prod => values.iter().product(),
                Op::Max => values.iter().copied().fold(f64::MIN, f64::max),
                Op::Min => values.iter().copied().fold(f64::MAX, f64::min),
                Op::PreMulSum => unreachable!("made by programs"),
                Op::Avg => values.iter().sum::<f64>() / n,
            };
            $write(result).to_ne_bytes().to_vec()
        }};
    }
    match element {
        Element::I8 => integer!(i8),
        Element::U8 => integer!(u8),
        Element::I32 => integer!(i32),
        Element::U32 => integer!(u32),
        Element::I64 => integer!(i64),
        Element::U64 => integer!(u64),
        Element::F32 => float!(f32, f64::from, |v| v as f32),
        Element::F64 => float!(f64, |v| v, |v: f64| v),
        Element::F16 => {
            float!(f16, f64::from, |v: f64| f16::from_f32(v as f32))
        }
        Element::Bf16 => {
            float!(bf16, f64::from, |v: f64| bf16::from_f32(v as f32))
        }
        Element::F8e4m3 => float!(u8, |code| f64::from(E4m3::decode(code)), nearest::<4>),
        Element::F8e5m2 => float!(u8, |code| f64::from(E5m2::decode(code)), nearest::<5>),
    }
}

/// Raw bytes for integers; small whole numbers for floats.
fn encode(element: Element, seeds: &[u64]) -> Vec<u8> {
    seeds
        .iter()
        .flat_map(|&seed| {
            let small = (seed % 13) as f64 - 6.0;
            match element {
                Element::F16 => f16::from_f64(small).to_ne_bytes().to_vec(),
                Element::Bf16 => bf16::from_f64(small).to_ne_bytes().to_vec(),
                Element::F32 => (small as f32).to_ne_bytes().to_vec(),
                Element::F64 => small.to_ne_bytes().to_vec(),
                Element::F8e4m3 => vec![nearest::<4>(small)],
                Element::F8e5m2 => vec![nearest::<5>(small)],
                other => seed.to_ne_bytes()[..other.size()].to_vec(),
            }
        })
        .collect()
}

/// Returns the code of the number nearest to a value; of two, the one whose last bit is 0.
fn nearest<const EXPONENT: u32>(value: f64) -> u8 {
    let distance = |code: u8| (f64::from(Float8::<EXPONENT>::decode(code)) - value).abs();
    let better = |a: &u8, b: &u8| distance(*a).total_cmp(&distance(*b)).then((a & 1).cmp(&(b & 1)));
    let code = (0..=u8::MAX).filter(|code| Float8::<EXPONENT>::decode(*code).is_finite()).min_by(better);
    // Zero keeps its sign, as it does everywhere.
    code.unwrap() & 0x7f | if value.is_sign_negative() { 0x80 } else { 0 }
}

proptest! {
    #[test]
    fn equals_the_reference_and_does_not_depend_on_slicing(
        element in proptest::sample::select(Element::ALL.to_vec()),
        op in proptest::sample::select(Op::ALL.to_vec()),
        ranks in 1usize..6,
        len in 0usize..3000,
        cut in 0.0f64..1.0,
        seed: u64,
    ) {
        let inputs: Vec<Vec<u8>> = (0..ranks as u64)
            .map(|rank| {
                let seeds: Vec<u64> = (0..len as u64)
                    .map(|i| (seed ^ (i << 8) ^ rank).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23))
                    .collect();
                encode(element, &seeds)
            })
            .collect();
        let inputs: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
        let size = element.size();

        let mut whole = vec![0u8; len * size];
        reduce(&mut whole, &inputs, element, op);
        for i in 0..len {
            let at = i * size..(i + 1) * size;
            let terms: Vec<&[u8]> = inputs.iter().map(|input| &input[at.clone()]).collect();
            prop_assert_eq!(&whole[at], expected(element, op, &terms), "element {}", i);
        }

        let cut = (cut * len as f64) as usize * size;
        let mut parts = vec![0u8; len * size];
        let (left, right) = parts.split_at_mut(cut);
        reduce(left, &inputs.iter().map(|input| &input[..cut]).collect::<Vec<_>>(), element, op);
        reduce(right, &inputs.iter().map(|input| &input[cut..]).collect::<Vec<_>>(), element, op);
        prop_assert_eq!(parts, whole);
    }
}

#[test]
fn averages_of_more_ranks_than_the_type_can_count() {
    let inputs = [[0x80u8]; 128];
    let inputs: Vec<&[u8]> = inputs.iter().map(|b| &b[..]).collect();
    let mut out = [0u8];
    reduce(&mut out, &inputs, Element::I8, Op::Avg);
    // -128 * 128 wraps to 0.
    assert_eq!(out, [0]);
    reduce(&mut out, &inputs[..127], Element::I8, Op::Avg);
    assert_eq!(out[0] as i8, ((-128i32 * 127) as i8) / 127);
}

#[test]
fn data_types_know_their_release() {
    assert_eq!(Element::from_raw(10, 22304), None);
    assert_eq!(Element::from_raw(10, 22403), Some(Element::F8e4m3));
    assert_eq!(Element::from_raw(9, 21304), Some(Element::Bf16));
    assert_eq!(Element::from_raw(12, 23203), None);
    assert_eq!(Op::from_raw(4), Some(Op::Avg));
    assert_eq!(Op::from_raw(5), None);
}

#[test]
fn eight_bit_floats_are_those_of_their_formats() {
    // From the formats' tables: the largest, one, the smallest normal and the smallest number.
    let e4m3 = [(0x7e, 448.0), (0x38, 1.0), (0x08, 2f32.powi(-6)), (0x01, 2f32.powi(-9)), (0xc4, -3.0)];
    let e5m2 = [(0x7b, 57344.0), (0x3c, 1.0), (0x04, 2f32.powi(-14)), (0x01, 2f32.powi(-16)), (0xc2, -3.0)];
    for (code, value) in e4m3 {
        assert_eq!((E4m3::decode(code), E4m3::encode(value)), (value, code));
    }
    for (code, value) in e5m2 {
        assert_eq!((E5m2::decode(code), E5m2::encode(value)), (value, code));
    }
    assert_eq!((E4m3::encode(1e9), E5m2::encode(f32::NEG_INFINITY)), (0x7e, 0xfb));
    assert!(
        E4m3::decode(0x7f).is_nan() && E4m3::encode(f32::NAN) == 0x7f && E5m2::decode(0x7c).is_infinite()
    );
}

proptest! {
    #[test]
    fn eight_bit_floats_round_to_the_nearest(value in -500f32..500.0, small in -0.05f32..0.05) {
        for value in [value, small] {
            prop_assert_eq!(E4m3::encode(value), nearest::<4>(value.into()));
            prop_assert_eq!(E5m2::encode(value), nearest::<5>(value.into()));
        }
    }

    #[test]
    fn a_factor_multiplies_every_element(values in proptest::collection::vec(-100i16..100, 0..3000), by in -8i8..8) {
        let mut bytes: Vec<u8> = values.iter().flat_map(|v| f16::from_f32((*v).into()).to_ne_bytes()).collect();
        scale(&mut bytes, Element::F16, f16::from_f32(by.into()).to_bits().into());
        let products = values.iter().flat_map(|v| f16::from_f32(f32::from(*v) * f32::from(by)).to_ne_bytes());
        prop_assert_eq!(bytes, products.collect::<Vec<u8>>());
    }
}
