//! Macros for C enumerations and structures. A C enumeration becomes a type that wraps an integer, with a constant
//! for each known value. It does not become a Rust `enum`, because a newer library may return values that are not
//! declared.

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

            /// Returns the name in C of the constant with this value. Returns `None` if no constant has the value,
            /// for example for a combination of flags. If several constants have it, returns the first in the header.
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

/// Implements [`Status`](crate::Status) for an enumeration over `u32`. `status!(Name, CONSTANT)` takes the name of
/// the enumeration and its constant for success.
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

/// Implements `Default` for structures and unions, as all bytes zero, like C's `= {0}`.
///
/// Used by the code that `cargo xtask codegen` generates. The generator lists only plain C structures and unions,
/// whose fields are numbers, `bool`, pointers, optional function pointers, and arrays, structures and unions of
/// these. All bytes zero are a valid value of each of these types.
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
