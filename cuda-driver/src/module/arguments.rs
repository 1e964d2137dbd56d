//! The arguments of a kernel: the addresses of their values, which the driver reads, and their sizes, which this
//! crate checks.

use std::ffi::c_void;
use std::marker::PhantomData;

use crate::DevicePtr;

/// A type whose values can be passed to a kernel. The bytes of the value become the kernel's parameter.
///
/// A structure of the program can implement it:
/// ```
/// #[derive(Clone, Copy)]
/// #[repr(C)]
/// struct Range { start: u64, len: u32 }
///
/// // SAFETY: has the layout of the kernel's own structure with the same fields.
/// unsafe impl cuda_driver::module::Parameter for Range {}
/// ```
///
/// # Safety
/// The type must have a fixed layout (`repr(C)` or `repr(transparent)`), and the device code must expect this layout.
/// It must not hold references to host memory.
pub unsafe trait Parameter: Copy + 'static {}

macro_rules! parameters {
    ($($parameter:ty),*) => {
        $(
            // SAFETY: a scalar type with the same layout on host and device.
            unsafe impl Parameter for $parameter {}
        )*
    };
}
parameters!(bool, u8, i8, u16, i16, u32, i32, u64, i64, u128, i128, usize, isize, f32, f64, DevicePtr);
#[cfg(feature = "half")]
parameters!(half::f16, half::bf16);

// SAFETY: on host and device, an array is laid out as its elements one after the other.
unsafe impl<T: Parameter, const N: usize> Parameter for [T; N] {}

/// One argument of a launch: the address of its bytes and their number.
#[derive(Clone, Copy, Debug)]
pub struct Argument<'a> {
    value: *const c_void,
    bytes: usize,
    borrowed: PhantomData<&'a ()>,
}

impl<'a> Argument<'a> {
    /// Returns an argument with this value.
    #[must_use]
    pub fn of<T: Parameter>(value: &'a T) -> Self {
        Self { value: std::ptr::from_ref(value).cast(), bytes: size_of::<T>(), borrowed: PhantomData }
    }

    /// Returns an argument with these bytes.
    #[must_use]
    pub fn of_bytes(bytes: &'a [u8]) -> Self {
        Self { value: bytes.as_ptr().cast(), bytes: bytes.len(), borrowed: PhantomData }
    }

    /// The size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// The arguments of a launch: a tuple of up to 16 [`Parameter`]s, or `()` for none. If the number or the types of the
/// arguments are not known at compile time, pass a slice of [`Argument`]s. The driver copies the arguments before the
/// launch call returns, so they need not outlive it.
///
/// An address of host memory is not a [`Parameter`], so this does not compile:
/// ```compile_fail,E0277
/// # use cuda_driver::{Stream, module::{Function, LaunchConfig}};
/// unsafe fn wrong(stream: &Stream, kernel: &Function, host: &mut [f32]) {
///     let _ = unsafe { stream.launch_kernel(kernel, &LaunchConfig::linear(1, 1), (host.as_mut_ptr(),)) };
/// }
/// ```
pub trait Arguments: sealed::Pack {}

impl<T: sealed::Pack> Arguments for T {}

pub(super) mod sealed {
    use super::{Argument, Parameter, c_void};

    /// Converts the arguments to the addresses that the driver takes and the sizes that this crate checks.
    pub trait Pack {
        /// Calls `launch` with the addresses of the values and their sizes in bytes, two slices of the same length.
        /// Returns the result of `launch`.
        fn pack<R>(&self, launch: impl FnOnce(&mut [*mut c_void], &[usize]) -> R) -> R;
    }

    impl Pack for &[Argument<'_>] {
        fn pack<R>(&self, launch: impl FnOnce(&mut [*mut c_void], &[usize]) -> R) -> R {
            let mut values: Vec<_> = self.iter().map(|argument| argument.value.cast_mut()).collect();
            let sizes: Vec<_> = self.iter().map(|argument| argument.bytes).collect();
            launch(&mut values, &sizes)
        }
    }

    impl<const N: usize> Pack for &[Argument<'_>; N] {
        fn pack<R>(&self, launch: impl FnOnce(&mut [*mut c_void], &[usize]) -> R) -> R {
            self.as_slice().pack(launch)
        }
    }

    impl Pack for () {
        fn pack<R>(&self, launch: impl FnOnce(&mut [*mut c_void], &[usize]) -> R) -> R {
            launch(&mut [], &[])
        }
    }

    macro_rules! tuples {
        () => {};
        ($first:ident $($rest:ident)*) => {
            impl<$first: Parameter, $($rest: Parameter),*> Pack for ($first, $($rest,)*) {
                #[allow(non_snake_case, reason = "one name for a type and its value")]
                fn pack<R>(&self, launch: impl FnOnce(&mut [*mut c_void], &[usize]) -> R) -> R {
                    let ($first, $($rest,)*) = self;
                    launch(
                        &mut [
                            std::ptr::from_ref($first).cast_mut().cast(),
                            $(std::ptr::from_ref($rest).cast_mut().cast()),*
                        ],
                        &[size_of::<$first>(), $(size_of::<$rest>()),*],
                    )
                }
            }
            tuples!($($rest)*);
        };
    }
    tuples!(A B C D E F G H I J K L M N O P);
}
