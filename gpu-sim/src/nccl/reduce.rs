//! Reduction kernels over byte slices, for all reducing collectives.
//!
//! Inputs are folded in the order given, which is rank order in all callers. The result is a function of the inputs
//! alone, so every rank, and every way of splitting a buffer into slices, gets the same bits. Half types accumulate
//! in `f32` and are rounded once; integers wrap; [`Op::Avg`] sums, then divides (integers towards zero).
//!
//! Public as [`crate::kernel::reduce`], for kernels of other crates.
//!
//! `transport` provides the bytes; `collective` chooses the slice that a rank reduces.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// Elements folded at a time: accumulator and operand stay in the L1 cache.
const BLOCK: usize = 1024;

/// Calls a function of `Lane` for the type of the element.
macro_rules! by_lane {
    ($element:expr, $function:ident $arguments:tt) => {
        match $element {
            Element::I8 => $function::<i8> $arguments,
            Element::U8 => $function::<u8> $arguments,
            Element::I32 => $function::<i32> $arguments,
            Element::U32 => $function::<u32> $arguments,
            Element::I64 => $function::<i64> $arguments,
            Element::U64 => $function::<u64> $arguments,
            Element::F16 => $function::<f16> $arguments,
            Element::F32 => $function::<f32> $arguments,
            Element::F64 => $function::<f64> $arguments,
            Element::Bf16 => $function::<bf16> $arguments,
            Element::F8e4m3 => $function::<E4m3> $arguments,
            Element::F8e5m2 => $function::<E5m2> $arguments,
        }
    };
}

/// The type of one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
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
    /// bfloat16: the upper half of a single.
    Bf16,
    /// 8-bit float with 4 bits of exponent, from 2.24.
    F8e4m3,
    /// 8-bit float with 5 bits of exponent, from 2.24.
    F8e5m2,
}

impl Element {
    pub(crate) const ALL: [Self; 12] = [
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
        Self::F8e4m3,
        Self::F8e5m2,
    ];

    /// Returns the element of an `ncclDataType_t`; `None` for a value that this release does not have.
    pub(crate) fn from_raw(raw: u32, release: u32) -> Option<Self> {
        let element = *Self::ALL.get(raw as usize)?;
        let new = matches!(element, Self::F8e4m3 | Self::F8e5m2);
        (release >= 22403 || !new).then_some(element)
    }

    /// Bytes of one element.
    pub(crate) fn size(self) -> usize {
        match self {
            Self::I8 | Self::U8 | Self::F8e4m3 | Self::F8e5m2 => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }
}

/// Reduction operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// The sum.
    Sum,
    /// The product.
    Prod,
    /// The largest.
    Max,
    /// The smallest.
    Min,
    /// The sum, then divided by the number of inputs; integers towards zero.
    Avg,
    /// A sum of elements that are multiplied by a factor first (`ncclRedOpCreatePreMulSum`).
    PreMulSum,
}

impl Op {
    /// The built-in operators.
    pub(crate) const ALL: [Self; 5] = [Self::Sum, Self::Prod, Self::Max, Self::Min, Self::Avg];

    /// Returns the operator of an `ncclRedOp_t`; `None` for one that a program created, and for unknown values.
    pub(crate) fn from_raw(raw: u32) -> Option<Self> {
        Self::ALL.get(raw as usize).copied()
    }
}

/// Folds `inputs`, in their order, into `output`.
///
/// All slices have the same length, a multiple of the element's size; there is at least one input.
///
/// # Panics
/// If one of these conditions does not hold.
pub fn reduce(output: &mut [u8], inputs: &[&[u8]], element: Element, op: Op) {
    assert!(
        !inputs.is_empty() && output.len().is_multiple_of(element.size()),
        "reduce called with a broken shape"
    );
    assert!(inputs.iter().all(|input| input.len() == output.len()), "reduce called with unequal lengths");
    by_lane!(element, fold(output, inputs, op));
}

/// Multiplies each element by the element in the first bytes of `factor`; the product is rounded to the type.
pub(crate) fn scale(elements: &mut [u8], element: Element, factor: u64) {
    let factor = factor.to_ne_bytes();
    by_lane!(element, multiply(elements, &factor[..element.size()]));
}

fn multiply<L: Lane>(elements: &mut [u8], factor: &[u8]) {
    let mut by = [L::Acc::default()];
    L::load(&mut by, factor);
    let mut products = [L::Acc::default(); BLOCK];
    for block in elements.chunks_mut(BLOCK * size_of::<L>()) {
        let products = &mut products[..block.len() / size_of::<L>()];
        L::load(products, block);
        products.iter_mut().for_each(|value| *value = value.times(by[0]));
        L::store(block, products);
    }
}

fn fold<L: Lane>(output: &mut [u8], inputs: &[&[u8]], op: Op) {
    let step = BLOCK * size_of::<L>();
    let mut sum = [L::Acc::default(); BLOCK];
    let mut term = [L::Acc::default(); BLOCK];
    let mut start = 0;
    while start < output.len() {
        let end = output.len().min(start + step);
        let len = (end - start) / size_of::<L>();
        L::load(&mut sum[..len], &inputs[0][start..end]);
        for input in &inputs[1..] {
            L::load(&mut term[..len], &input[start..end]);
            combine(&mut sum[..len], &term[..len], op);
        }
        if op == Op::Avg {
            let count = inputs.len();
            sum[..len].iter_mut().for_each(|value| *value = value.divide(count));
        }
        L::store(&mut output[start..end], &sum[..len]);
        start = end;
    }
}

fn combine<A: Arithmetic>(sum: &mut [A], term: &[A], op: Op) {
    #[inline(always)]
    fn each<A: Copy>(sum: &mut [A], term: &[A], f: impl Fn(A, A) -> A) {
        for (a, &b) in sum.iter_mut().zip(term) {
            *a = f(*a, b);
        }
    }
    match op {
        Op::Sum | Op::Avg | Op::PreMulSum => each(sum, term, A::plus),
        Op::Prod => each(sum, term, A::times),
        Op::Max => each(sum, term, A::larger),
        Op::Min => each(sum, term, A::smaller),
    }
}

/// Arithmetic of an accumulator.
trait Arithmetic: Copy + Default {
    fn plus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    fn larger(self, other: Self) -> Self;
    fn smaller(self, other: Self) -> Self;
    fn divide(self, count: usize) -> Self;
}

macro_rules! integers {
    ($($type:ty),*) => {$(
        impl Arithmetic for $type {
            #[inline(always)]
            fn plus(self, other: Self) -> Self { self.wrapping_add(other) }
            #[inline(always)]
            fn times(self, other: Self) -> Self { self.wrapping_mul(other) }
            #[inline(always)]
            fn larger(self, other: Self) -> Self { Ord::max(self, other) }
            #[inline(always)]
            fn smaller(self, other: Self) -> Self { Ord::min(self, other) }
            #[inline(always)]
            fn divide(self, count: usize) -> Self {
                match <$type>::try_from(count) {
                    Ok(count) => self / count,
                    Err(_) => (i128::from(self) / count as i128) as $type,
                }
            }
        }
        native!($type);
    )*};
}

macro_rules! floats {
    ($($type:ty),*) => {$(
        impl Arithmetic for $type {
            #[inline(always)]
            fn plus(self, other: Self) -> Self { self + other }
            #[inline(always)]
            fn times(self, other: Self) -> Self { self * other }
            #[inline(always)]
            fn larger(self, other: Self) -> Self { self.max(other) }
            #[inline(always)]
            fn smaller(self, other: Self) -> Self { self.min(other) }
            #[inline(always)]
            fn divide(self, count: usize) -> Self { self / count as $type }
        }
        native!($type);
    )*};
}

/// A type that is its own accumulator: loading and storing are copies.
macro_rules! native {
    ($type:ty) => {
        impl Lane for $type {
            type Acc = Self;

            fn load(acc: &mut [Self], bytes: &[u8]) {
                for (value, element) in acc.iter_mut().zip(bytes.as_chunks().0) {
                    *value = Self::from_ne_bytes(*element);
                }
            }

            fn store(bytes: &mut [u8], acc: &[Self]) {
                for (element, value) in bytes.as_chunks_mut().0.iter_mut().zip(acc) {
                    *element = value.to_ne_bytes();
                }
            }
        }
    };
}

/// Memory representation of an element, and its accumulator type.
trait Lane {
    type Acc: Arithmetic;
    fn load(acc: &mut [Self::Acc], bytes: &[u8]);
    fn store(bytes: &mut [u8], acc: &[Self::Acc]);
}

integers!(i8, u8, i32, u32, i64, u64);
floats!(f32, f64);

impl Lane for f16 {
    type Acc = f32;

    fn load(acc: &mut [f32], bytes: &[u8]) {
        let mut halves = [f16::ZERO; BLOCK];
        let halves = &mut halves[..acc.len()];
        for (half, element) in halves.iter_mut().zip(bytes.as_chunks().0) {
            *half = f16::from_ne_bytes(*element);
        }
        halves.convert_to_f32_slice(acc);
    }

    fn store(bytes: &mut [u8], acc: &[f32]) {
        let mut halves = [f16::ZERO; BLOCK];
        let halves = &mut halves[..acc.len()];
        halves.convert_from_f32_slice(acc);
        for (element, half) in bytes.as_chunks_mut().0.iter_mut().zip(halves) {
            *element = half.to_ne_bytes();
        }
    }
}

impl Lane for bf16 {
    type Acc = f32;

    // The upper half of an `f32`.
    fn load(acc: &mut [f32], bytes: &[u8]) {
        for (value, element) in acc.iter_mut().zip(bytes.as_chunks().0) {
            *value = f32::from_bits(u32::from(u16::from_ne_bytes(*element)) << 16);
        }
    }

    fn store(bytes: &mut [u8], acc: &[f32]) {
        for (element, value) in bytes.as_chunks_mut().0.iter_mut().zip(acc) {
            *element = bf16::from_f32(*value).to_ne_bytes();
        }
    }
}

/// An 8-bit float. Values beyond its range become its largest value, as in NCCL's kernels.
struct Float8<const EXPONENT: u32>(#[allow(dead_code, reason = "its size counts")] u8);
type E4m3 = Float8<4>;
type E5m2 = Float8<5>;

impl<const EXPONENT: u32> Float8<EXPONENT> {
    const FRACTION: u32 = 7 - EXPONENT;
    const BIAS: i32 = (1 << (EXPONENT - 1)) - 1;
    /// E4M3 has no infinity and one NaN code; E5M2 is as in IEEE.
    const LARGEST: u8 = if EXPONENT == 4 { 0x7e } else { 0x7b };
    const NAN: u8 = 0x7f;

    fn decode(code: u8) -> f32 {
        let (magnitude, sign) = (code & 0x7f, if code & 0x80 == 0 { 1.0 } else { -1.0 });
        if magnitude > Self::LARGEST {
            return if EXPONENT == 5 && magnitude == 0x7c { sign * f32::INFINITY } else { f32::NAN };
        }
        let (exponent, fraction) = (magnitude >> Self::FRACTION, magnitude & ((1 << Self::FRACTION) - 1));
        // A subnormal number has the leading bit 0 and the exponent of the smallest normal number.
        let leading = if exponent == 0 { 0 } else { 1 << Self::FRACTION };
        let power = i32::from(exponent.max(1)) - Self::BIAS - Self::FRACTION as i32;
        sign * f32::from(leading + fraction) * 2f32.powi(power)
    }

    fn encode(value: f32) -> u8 {
        if value.is_nan() {
            return Self::NAN;
        }
        let magnitude = value.abs().min(Self::decode(Self::LARGEST));
        let exponent = ((magnitude.to_bits() >> 23) as i32 - 127).max(1 - Self::BIAS);
        let steps = (magnitude * 2f32.powi(Self::FRACTION as i32 - exponent)).round_ties_even() as i32;
        // The leading bit of a normal number, and a carry out of the fraction, count into the exponent.
        let code = ((exponent + Self::BIAS - 1) << Self::FRACTION) + steps;
        code as u8 | if value.is_sign_negative() { 0x80 } else { 0 }
    }
}

impl<const EXPONENT: u32> Lane for Float8<EXPONENT> {
    type Acc = f32;

    fn load(acc: &mut [f32], bytes: &[u8]) {
        acc.iter_mut().zip(bytes).for_each(|(value, code)| *value = Self::decode(*code));
    }

    fn store(bytes: &mut [u8], acc: &[f32]) {
        bytes.iter_mut().zip(acc).for_each(|(code, value)| *code = Self::encode(*value));
    }
}

#[cfg(test)]
#[path = "reduce_tests.rs"]
mod tests;
