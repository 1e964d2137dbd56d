//! Types that can be copied between host and device.

/// A type whose values can be copied between host and device byte by byte.
///
/// # Safety
/// Every bit pattern must be a valid value of the type, and the type must have no padding.
pub unsafe trait Element: Copy + Send + Sync + 'static {}

macro_rules! elements {
    ($($element:ty),*) => {
        $(
            // SAFETY: the type is a number. Every bit pattern is a valid value, and there is no padding.
            unsafe impl Element for $element {}
        )*
    };
}
elements!(u8, i8, u16, i16, u32, i32, u64, i64, usize, isize, f32, f64);
#[cfg(feature = "half")]
elements!(half::f16, half::bf16);
