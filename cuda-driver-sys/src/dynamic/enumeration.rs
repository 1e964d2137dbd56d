//! C enumerations as transparent integers with constants: a value that a newer library invents is data.

/// Defines one enumeration: `Name: integer { CONSTANT = value, … }`, where `Name: flags integer` is one whose
/// constants are combined.
macro_rules! enumeration {
    ($name:ident: flags $repr:ident { $($body:tt)* }) => {
        enumeration!($name: $repr { $($body)* });

        impl core::ops::BitOr for $name {
            type Output = Self;

            fn bitor(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }
        }

        impl $name {
            /// Returns true if every bit of `flags` is set.
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

            /// Every constant by its name in C, in the header's order.
            pub const CONSTANTS: &'static [(&'static str, Self)] =
                &[$((stringify!($constant), Self::$constant),)*];

            /// The constant's name as C spells it; `None` for a value unknown to this crate, or a combination. Of
            /// several names for one value the first in the header is taken.
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
