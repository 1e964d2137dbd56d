//! Macros for C enumerations and structures. An enumeration is a transparent integer with constants, because a newer
//! library may use values that this crate does not know.

/// Defines one enumeration: `Name: integer { CONSTANT = value, … }`, or `Name: flags integer { … }` if its constants
/// can be combined.
#[macro_export]
macro_rules! enumeration {
    ($name:ident: flags $repr:ident { $($body:tt)* }) => {
        $crate::enumeration!($name: $repr { $($body)* });

        impl core::ops::BitOr for $name {
            type Output = Self;

            fn bitor(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }
        }

        impl $name {
            /// Returns true if every bit of `flags` is set in `self`.
            pub const fn contains(self, flags: Self) -> bool {
                self.0 & flags.0 == flags.0
            }
        }
    };
    ($name:ident: $repr:ident { $($constant:ident = $value:expr,)* }) => {
        #[doc = concat!("The C enumeration `", stringify!($name), "`; any value may occur.")]
        #[repr(transparent)]
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $repr);

        impl $name {
            $(
                #[doc = concat!("`", stringify!($value), "`.")]
                pub const $constant: Self = Self($value);
            )*

            /// Every constant with its name in C, in the order of the header.
            pub const CONSTANTS: &'static [(&'static str, Self)] =
                &[$((stringify!($constant), Self::$constant),)*];

            /// Returns the name in C of the constant with this value; `None` for a value unknown to this crate, or a
            /// combination of flags. If several constants have the value, the first in the header is returned.
            #[allow(unreachable_patterns)]
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$constant => Some(stringify!($constant)),)*
                    _ => None,
                }
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self.name() {
                    Some(name) => formatter.write_str(name),
                    None => write!(formatter, concat!(stringify!($name), "({})"), self.0),
                }
            }
        }
    };
}

/// Implements [`Status`](crate::Status) for an enumeration of 32 bits, with its constant for success.
#[macro_export]
macro_rules! status {
    ($name:ident, $success:ident) => {
        impl $crate::Status for $name {
            const SUCCESS: Self = Self::$success;

            fn number(self) -> u32 {
                self.0
            }

            fn name(self) -> Option<&'static str> {
                self.name()
            }
        }
    };
}

/// Implements `Default` as all bytes zero, like C's `= {0}`.
///
/// Used by the code that `cargo xtask codegen` generates. The generator lists only plain C structures of integers,
/// pointers, arrays and optional function pointers. All bytes zero are a value of each of these.
#[doc(hidden)]
#[macro_export]
macro_rules! zeroed {
    ($($name:ident,)*) => {
        $(
            impl Default for $name {
                fn default() -> Self {
                    // SAFETY: all bytes zero are a value of each type that `xtask codegen` lists here.
                    unsafe { core::mem::zeroed() }
                }
            }
        )*
    };
}
