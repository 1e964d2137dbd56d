//! The flags of what a release may or may not have.

/// Defines `Feature`, and keeps each flag's documentation for [`Feature::summary`](crate::Feature::summary).
macro_rules! features {
    (
        $(#[$attribute:meta])*
        pub struct Feature: $bits:ty { $($(#[doc = $line:literal])+ const $name:ident = $value:expr;)+ }
    ) => {
        bitflags::bitflags! {
            $(#[$attribute])*
            pub struct Feature: $bits { $($(#[doc = $line])+ const $name = $value;)+ }
        }

        impl Feature {
            /// Returns the documentation of one feature, with the release that first has it; `None` for
            /// several features or none.
            pub fn summary(self) -> Option<&'static str> {
                let mut all = [$((Self::$name, concat!($($line),+))),+].into_iter();
                all.find(|(feature, _)| *feature == self).map(|(_, text)| text.trim_start())
            }
        }
    };
}
