//! The history of structures, fields and constants. For each field and constant: the first release with the offset or
//! value that this crate declares. For each structure: its size in every release.
//!
//! The tables are generated. Layouts and values come from the newest headers, and releases from a comparison of the
//! headers of all releases from 2.13.4 on. Anything older is listed as added in 2.13.4.

use crate::{STRUCTURES, Version};

/// A structure of the headers.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Structure {
    /// The name in C.
    pub name: &'static str,
    /// The sizes in bytes, oldest first. Each comes with the first release in which the structure has this size.
    pub sizes: &'static [(Version, usize)],
    /// The fields in their order in C. Empty for a structure that is opaque in this crate.
    pub fields: &'static [Field],
}

/// A field of a [`Structure`].
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Field {
    /// The name in C. If the type of a field `outer` is an unnamed structure or union, its field `inner` has the name
    /// `outer.inner`.
    pub name: &'static str,
    /// The first release in which the field has this offset.
    pub since: Version,
    /// The offset in bytes.
    pub offset: usize,
    /// The size in bytes.
    pub size: usize,
}

/// A constant of the headers, from an enumeration or a macro.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Constant {
    /// The name in C.
    pub name: &'static str,
    /// The value.
    pub value: i64,
    /// The first release in which the constant has this value.
    pub since: Version,
}

impl Structure {
    /// Returns the structure with this name in C; `None` if the tables do not have it.
    pub fn named(name: &str) -> Option<&'static Self> {
        STRUCTURES.iter().find(|structure| structure.name == name)
    }

    /// Returns the size in bytes in the headers of `release`, or the newest known size for a release newer than the
    /// tables. `None` if the release is older than the first in the tables that has the structure.
    pub fn size_in(&self, release: Version) -> Option<usize> {
        self.sizes.iter().rev().find(|(since, _)| *since <= release).map(|(_, size)| *size)
    }
}

/// Returns the size of `F` in bytes. `_field` is never called: it only lets the compiler infer `F`.
pub(crate) const fn pointee_size<S, F>(_field: fn(*const S) -> *const F) -> usize {
    size_of::<F>()
}

/// Defines `STRUCTURES`. Asserts for each structure except opaque ones that its size equals the size in the newest
/// headers.
macro_rules! structures {
    (
        known {$(
            $name:ident: [$($release:tt = $size:literal),*] { $($($field:ident).+ ($($since:tt)+),)* }
        )*}
        opaque {$(
            $opaque:ident: [$($opaque_release:tt = $opaque_size:literal),*]
        )*}
    ) => {
        /// Every structure of the headers.
        pub static STRUCTURES: &[crate::Structure] = &[
            $(crate::Structure {
                name: stringify!($name),
                sizes: &[$((release!($release), $size)),*],
                fields: &[$(crate::Field {
                    name: dotted!($($field).+),
                    since: release!(($($since)+)),
                    offset: core::mem::offset_of!(crate::$name, $($field).+),
                    // SAFETY: the closure is never called; only the type of its result matters.
                    size: crate::history::pointee_size(|this: *const crate::$name| unsafe {
                        &raw const (*this).$($field).+
                    }),
                },)*],
            },)*
            $(crate::Structure {
                name: stringify!($opaque),
                sizes: &[$((release!($opaque_release), $opaque_size)),*],
                fields: &[],
            },)*
        ];

        $(const _: () = {
            let sizes = [$($size),*];
            assert!(size_of::<crate::$name>() == sizes[sizes.len() - 1]);
        };)*
    };
}

/// Defines `CONSTANTS`.
macro_rules! constants {
    (
        enumerations {$( $enumeration:ident { $($constant:ident $since:tt,)* } )*}
        macros { $($name:ident $macro_since:tt,)* }
    ) => {
        /// The constants of the headers that are numbers: those of the enumerations, and the macros that the code
        /// generator can evaluate.
        pub static CONSTANTS: &[crate::Constant] = &[
            $($(crate::Constant {
                name: stringify!($constant),
                value: crate::$enumeration::$constant.0 as i64,
                since: release!($since),
            },)*)*
            $(crate::Constant {
                name: stringify!($name),
                value: crate::$name as i64,
                since: release!($macro_since),
            },)*
        ];
    };
}

/// Expands a release such as `(2, 14, 3)` to a `Version`.
macro_rules! release {
    (($major:literal, $minor:literal, $patch:literal)) => {
        crate::Version::new($major, $minor, $patch)
    };
}

/// Expands the path of a field to a string, written as in C.
macro_rules! dotted {
    ($first:ident $(. $next:ident)*) => {
        concat!(stringify!($first) $(, ".", stringify!($next))*)
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CONSTANTS, ncclDataType_t};

    #[test]
    fn a_structures_size_is_that_of_its_release() {
        let communicator = Structure::named("ncclDevComm").unwrap();
        let size = |minor, patch| communicator.size_in(Version::new(2, minor, patch));
        assert_eq!(size(27, 7), None);
        assert_eq!((size(28, 3), size(28, 9), size(29, 7)), (Some(88), Some(200), Some(224)));
        assert_eq!(size(99, 0), Some(248));
        assert!(Structure::named("ncclNothing").is_none());
    }

    #[test]
    fn a_field_of_an_unnamed_structure_is_named_by_its_path() {
        let extension = Structure::named("ncclConfigExt").unwrap();
        let field = extension.fields.iter().find(|field| field.name == "key.optionId").unwrap();
        assert_eq!((field.offset, field.size), (12, 4));
    }

    #[test]
    fn a_constant_is_dated() {
        let since = |name: &str| CONSTANTS.iter().find(|constant| constant.name == name).unwrap().since;
        assert_eq!(since("ncclFloat8e4m3"), Version::new(2, 24, 3));
        assert_eq!(since("ncclTimeout"), Version::new(2, 30, 3));
        for (name, value) in ncclDataType_t::CONSTANTS {
            assert!(
                CONSTANTS.iter().any(|one| one.name == *name && one.value == i64::from(value.0)),
                "{name}"
            );
        }
    }

    #[test]
    fn fields_lie_inside_their_structure_and_came_with_it_or_later() {
        for structure in STRUCTURES {
            let (first, _) = structure.sizes[0];
            assert!(structure.sizes.is_sorted_by_key(|(release, _)| *release), "{}", structure.name);
            for field in structure.fields {
                let end = field.offset + field.size;
                assert!(field.since >= first, "{}.{}", structure.name, field.name);
                assert!(structure.size_in(field.since).unwrap() >= end, "{}.{}", structure.name, field.name);
            }
        }
    }
}
