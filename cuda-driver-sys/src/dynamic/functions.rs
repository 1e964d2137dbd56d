//! The table of functions.

use crate::Version;

/// The facts about one function of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Function {
    /// The C symbol, and the field of [`Table`](crate::Table).
    pub name: &'static str,
    /// The symbol without the suffix of its revision: `cuMemAlloc` for `cuMemAlloc_v2`.
    pub base: &'static str,
    /// The release whose library first has it, in this revision.
    pub since: Version,
    /// The release whose header first declares it, if that is later than `since`.
    pub declared: Option<Version>,
}

impl Function {
    pub(crate) const fn new(
        name: &'static str,
        base: &'static str,
        since: Version,
        declared: Option<Version>,
    ) -> Self {
        Self { name, base, since, declared }
    }

    /// The function with this C symbol, if the table has it.
    pub fn named(name: &str) -> Option<&'static Self> {
        crate::FUNCTIONS.iter().find(|function| function.name == name)
    }
}

/// Defines `Table`, `FUNCTIONS`, and an accessor per function on `Api`:
/// `(major, minor, patch) "base" => symbol(parameter: type, …) -> type;`, the release being the first with it. Where
/// the header declares it later than the library has it, `declared (major, minor, patch)` follows the release.
macro_rules! functions {
    ($(
        ($major:literal, $minor:literal, $patch:literal)
            $(declared ($later_major:literal, $later_minor:literal, $later_patch:literal))? $base:literal =>
            $name:ident($($parameter:ident: $type:ty),*) $(-> $result:ty)?;
    )*) => {
        /// The library's functions by C symbol; `None` where the library at hand lacks one.
        ///
        /// A table of one's own starts from `Table::default()`, which is empty.
        #[derive(Clone, Default)]
        #[non_exhaustive]
        pub struct Table {
            $(
                #[doc = concat!("Since ", $major, ".", $minor, ".", $patch, ".")]
                $(#[doc = concat!(
                    "Declared by the header from ", $later_major, ".", $later_minor, ".", $later_patch, " on.",
                )])?
                pub $name: Option<unsafe extern "C" fn($($parameter: $type),*) $(-> $result)?>,
            )*
        }

        impl Table {
            /// Builds the table from the addresses that `find` returns; null is absent.
            ///
            /// # Safety
            /// Every address that is not null must be the C function asked for.
            pub(crate) unsafe fn resolve(
                mut find: impl FnMut(&crate::Function) -> *const core::ffi::c_void,
            ) -> Self {
                let mut functions = FUNCTIONS.iter();
                let mut next = || functions.next().map_or(core::ptr::null(), &mut find);
                Self {
                    $(
                        // SAFETY: a pointer and an optional function pointer have one size, null being `None`;
                        // that the rest is this function is the caller's contract. Fields and `FUNCTIONS` are
                        // in one order.
                        $name: unsafe {
                            core::mem::transmute::<
                                *const core::ffi::c_void,
                                Option<unsafe extern "C" fn($($parameter: $type),*) $(-> $result)?>,
                            >(next())
                        },
                    )*
                }
            }

            /// Removes the function with this C symbol, as if the library lacked it: for a function known to
            /// misbehave, or to test a program without it. Returns false if it was not there.
            pub fn remove(&mut self, name: &str) -> bool {
                match name {
                    $(stringify!($name) => self.$name.take().is_some(),)*
                    _ => false,
                }
            }

            /// The address of the function with this C symbol; `None` if it is absent or unknown.
            pub fn address(&self, name: &str) -> Option<*const core::ffi::c_void> {
                match name {
                    $(stringify!($name) => self.$name.map(|function| function as *const core::ffi::c_void),)*
                    _ => None,
                }
            }
        }

        /// Every function of [`Table`], in its order.
        pub static FUNCTIONS: &[crate::Function] = &[
            $(
                crate::Function::new(
                    stringify!($name),
                    $base,
                    crate::Version { major: $major, minor: $minor, patch: $patch },
                    // The first element: the later release if one is given, else `None`.
                    [
                        $(Some(crate::Version {
                            major: $later_major, minor: $later_minor, patch: $later_patch,
                        }),)?
                        None,
                    ][0],
                ),
            )*
        ];

        /// One accessor per function, of the function's name.
        impl crate::Api {
            $(
                #[doc = concat!("Since ", $major, ".", $minor, ".", $patch, ".")]
                $(#[doc = concat!(
                    "Declared by the header from ", $later_major, ".", $later_minor, ".", $later_patch, " on.",
                )])?
                ///
                /// # Errors
                /// [`Missing`](crate::Missing) if the library lacks it.
                #[inline]
                pub fn $name(
                    &self,
                ) -> Result<unsafe extern "C" fn($($parameter: $type),*) $(-> $result)?, crate::Missing> {
                    match self.table().$name {
                        Some(function) => Ok(function),
                        None => Err(self.missing(stringify!($name))),
                    }
                }
            )*
        }
    };
}
