//! Reduction kernels over byte slices: what the communicators compute.
//!
//! Inputs are folded in the order given, which callers make rank order: the result is a function of the inputs
//! alone, so every rank, and every way of cutting a buffer into slices, gets the same bits. Half types accumulate in
//! `f32` and are rounded once; integers wrap; [`Op::Avg`] sums, then divides (integers towards zero).
//!
//! Not here: where the bytes come from (`transport`) and which slice a rank reduces (`collective`).

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// Elements that are folded at a time: accumulator and operand stay in the first-level cache.
const BLOCK: usize = 1024;

/// The type of one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Element {
    I8,
    U8,
    I32,
    U32,
    I64,
    U64,
    F16,
    F32,
    F64,
    Bf16,
    /// 8-bit float, from 2.24: moved, not reduced.
    F8e4m3,
    /// 8-bit float, from 2.24: moved, not reduced.
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

    /// The element of an `ncclDataType_t`; `None` for a value that this release does not have.
    pub(crate) fn from_raw(raw: u32, release: u32) -> Option<Self> {
        let element = *Self::ALL.get(raw as usize)?;
        (release >= 22403 || element.reducible()).then_some(element)
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

    /// Whether [`reduce`] knows the type.
    pub(crate) fn reducible(self) -> bool {
        !matches!(self, Self::F8e4m3 | Self::F8e5m2)
    }
}

/// How elements are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Op {
    Sum,
    Prod,
    Max,
    Min,
    Avg,
}

impl Op {
    pub(crate) const ALL: [Self; 5] = [Self::Sum, Self::Prod, Self::Max, Self::Min, Self::Avg];

    /// The operation of an `ncclRedOp_t`; `None` for user-made operations and unknown values.
    pub(crate) fn from_raw(raw: u32) -> Option<Self> {
        Self::ALL.get(raw as usize).copied()
    }
}

/// Folds `inputs`, in their order, into `output`.
///
/// All slices have the same length, a multiple of the element's size; there is at least one input, and the element
/// is [`Element::reducible`].
pub(crate) fn reduce(output: &mut [u8], inputs: &[&[u8]], element: Element, op: Op) {
    assert!(
        !inputs.is_empty() && output.len().is_multiple_of(element.size()),
        "reduce called with a broken shape"
    );
    assert!(inputs.iter().all(|input| input.len() == output.len()), "reduce called with unequal lengths");
    match element {
        Element::I8 => fold::<i8>(output, inputs, op),
        Element::U8 => fold::<u8>(output, inputs, op),
        Element::I32 => fold::<i32>(output, inputs, op),
        Element::U32 => fold::<u32>(output, inputs, op),
        Element::I64 => fold::<i64>(output, inputs, op),
        Element::U64 => fold::<u64>(output, inputs, op),
        Element::F16 => fold::<f16>(output, inputs, op),
        Element::F32 => fold::<f32>(output, inputs, op),
        Element::F64 => fold::<f64>(output, inputs, op),
        Element::Bf16 => fold::<bf16>(output, inputs, op),
        Element::F8e4m3 | Element::F8e5m2 => unreachable!("callers refuse reductions of 8-bit floats"),
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
        Op::Sum | Op::Avg => each(sum, term, A::plus),
        Op::Prod => each(sum, term, A::times),
        Op::Max => each(sum, term, A::larger),
        Op::Min => each(sum, term, A::smaller),
    }
}

/// What an accumulator can do.
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

/// A type that accumulates in itself: loading and storing are copies.
macro_rules! native {
    ($type:ty) => {
        impl Lane for $type {
            type Acc = Self;

            fn load(acc: &mut [Self], bytes: &[u8]) {
                for (value, chunk) in acc.iter_mut().zip(bytes.chunks_exact(size_of::<Self>())) {
                    *value = Self::from_ne_bytes(std::array::from_fn(|i| chunk[i]));
                }
            }

            fn store(bytes: &mut [u8], acc: &[Self]) {
                for (chunk, value) in bytes.chunks_exact_mut(size_of::<Self>()).zip(acc) {
                    chunk.copy_from_slice(&value.to_ne_bytes());
                }
            }
        }
    };
}

/// How an element lies in memory and what it accumulates in.
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
        for (half, chunk) in halves.iter_mut().zip(bytes.chunks_exact(2)) {
            *half = f16::from_bits(u16::from_ne_bytes([chunk[0], chunk[1]]));
        }
        halves.convert_to_f32_slice(acc);
    }

    fn store(bytes: &mut [u8], acc: &[f32]) {
        let mut halves = [f16::ZERO; BLOCK];
        let halves = &mut halves[..acc.len()];
        halves.convert_from_f32_slice(acc);
        for (chunk, half) in bytes.chunks_exact_mut(2).zip(halves) {
            chunk.copy_from_slice(&half.to_bits().to_ne_bytes());
        }
    }
}

impl Lane for bf16 {
    type Acc = f32;

    // The upper half of an `f32`.
    fn load(acc: &mut [f32], bytes: &[u8]) {
        for (value, chunk) in acc.iter_mut().zip(bytes.chunks_exact(2)) {
            *value = f32::from_bits(u32::from(u16::from_ne_bytes([chunk[0], chunk[1]])) << 16);
        }
    }

    fn store(bytes: &mut [u8], acc: &[f32]) {
        for (chunk, value) in bytes.chunks_exact_mut(2).zip(acc) {
            chunk.copy_from_slice(&bf16::from_f32(*value).to_bits().to_ne_bytes());
        }
    }
}

#[cfg(test)]
#[path = "reduce_tests.rs"]
mod tests;
