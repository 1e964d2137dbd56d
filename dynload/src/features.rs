//! A macro for the features of a library that depend on its release. It defines a flag for each of them.

/// Defines the flags of a library's features, and the requirements of each.
///
/// ```ignore
/// features! {
///     /// A part of the library's interface that depends on the release.
///     pub struct Feature of crate::Table;
///
///     /// Windows (2.27.3; wrong in 2.28.3, mended in 2.28.7).
///     WINDOWS: ["register", "deregister"] wrong (2, 28, 3) until (2, 28, 7) "corrupts small messages";
///     /// Elements of 8-bit floats (2.24.3), for which the release added enumeration values and no function.
///     FLOAT8: [] since (2, 24, 3);
/// }
/// ```
///
/// Each feature lists the functions that it needs, by their C symbols. `since` gives the first release with the
/// feature, if its functions alone do not determine it. `wrong A until B "fault"` says that the releases from A up
/// to, but not including, B have the feature with this fault. A library of such a release counts as lacking the
/// feature.
///
/// The first sentence of a feature's documentation gives, in parentheses, the first release that has the feature.
/// The flags' method `summary` returns this documentation, so that a program can print it.
/// [`Requirement::needed`](crate::Requirement::needed) does not use the documentation. It computes the first release
/// from the functions and `since`.
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
                    // The first element is the release if one is given, else `None`.
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
            /// Returns the first release that has all of these features, or 0.0 if no feature is set. This does not
            /// consider known faults: the release may be in a range of [`known_bad`](Self::known_bad).
            pub fn since(self) -> $crate::Version {
                let library = <$Table as $crate::Table>::LIBRARY;
                let needed = $crate::Features::requirements(self).map(|needs| needs.needed(library));
                needed.max().unwrap_or_default()
            }

            /// Returns the functions that these features need, by their C symbols.
            pub fn functions(self) -> impl Iterator<Item = &'static str> {
                $crate::Features::requirements(self).flat_map(|needs| needs.functions).copied()
            }

            /// Returns the ranges of releases in which one of these features has a known fault. A library of such a
            /// release counts as lacking that feature.
            pub fn known_bad(self) -> impl Iterator<Item = &'static $crate::KnownBad> {
                $crate::Features::requirements(self).flat_map(|needs| needs.known_bad)
            }

            /// Returns the documentation of a feature, which gives the first release that has it; `None` unless
            /// exactly one feature is set.
            pub fn summary(self) -> Option<&'static str> {
                let mut all = [$((Self::$name, concat!($($line),+))),+].into_iter();
                all.find(|(feature, _)| *feature == self).map(|(_, text)| text.trim_start())
            }
        }
    };
}
