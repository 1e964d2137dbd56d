//! The flags of the features that depend on the release.

/// Defines the flags of a library's features, with the requirements of each.
///
/// ```ignore
/// features! {
///     /// A part of the library's interface that depends on the release.
///     pub struct Feature of crate::Table;
///
///     /// Windows (2.27.3; wrong in 2.28.3, mended in 2.28.7).
///     WINDOWS: ["register", "deregister"] wrong (2, 28, 3) until (2, 28, 7) "corrupts small messages";
///     /// Elements of 8-bit floats (2.24.3): a value, and no function.
///     FLOAT8: [] since (2, 24, 3);
/// }
/// ```
///
/// The last bracket of a feature's first line of documentation is the release that first has it. `since` is for a
/// feature whose functions alone do not tell.
#[macro_export]
macro_rules! features {
    (
        $(#[$attribute:meta])*
        $visibility:vis struct $Feature:ident of $Table:ty;
        $(
            $(#[doc = $line:literal])+
            $name:ident: [$($function:literal),* $(,)?]
                $(since $since:tt)?
                $(wrong $first:tt until $mended:tt $fault:literal)*;
        )+
    ) => {
        $crate::bitflags::bitflags! {
            $(#[$attribute])*
            #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
            $visibility struct $Feature: u64 {
                $($(#[doc = $line])+ const $name = 1 << FeatureBit::$name as u64;)+
            }
        }

        #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
        enum FeatureBit { $($name,)+ }

        impl $crate::Features for $Feature {
            const REQUIREMENTS: &'static [$crate::Requirement] = &[$(
                $crate::Requirement {
                    feature: stringify!($name),
                    bit: 1 << FeatureBit::$name as u64,
                    functions: &[$($function),*],
                    // The first element: the release if one is given, else `None`.
                    since: [$(Some($crate::Version::new $since),)? None][0],
                    known_bad: &[$($crate::KnownBad {
                        first: $crate::Version::new $first,
                        mended: $crate::Version::new $mended,
                        fault: $fault,
                    },)*],
                },
            )+];

            fn bits(self) -> u64 {
                Self::bits(&self)
            }

            fn from_bits(bits: u64) -> Self {
                Self::from_bits_retain(bits)
            }
        }

        impl $Feature {
            /// The release that first has all of it.
            pub fn since(self) -> $crate::Version {
                let library = <$Table as $crate::Table>::LIBRARY;
                let needed = $crate::Features::requirements(self).map(|needs| needs.needed(library));
                needed.max().unwrap_or_default()
            }

            /// The functions that it needs, by their C symbols.
            pub fn functions(self) -> impl Iterator<Item = &'static str> {
                $crate::Features::requirements(self).flat_map(|needs| needs.functions).copied()
            }

            /// The releases that do it wrong, and so do not have it.
            pub fn known_bad(self) -> impl Iterator<Item = &'static $crate::KnownBad> {
                $crate::Features::requirements(self).flat_map(|needs| needs.known_bad)
            }

            /// Returns the documentation of one feature, with the release that first has it; `None` for
            /// several features or none.
            pub fn summary(self) -> Option<&'static str> {
                let mut all = [$((Self::$name, concat!($($line),+))),+].into_iter();
                all.find(|(feature, _)| *feature == self).map(|(_, text)| text.trim_start())
            }
        }
    };
}
