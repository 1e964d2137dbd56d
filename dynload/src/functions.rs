//! A macro that defines a library's table of functions, and the methods that call them.

/// Defines `Table`, a structure with one optional function pointer for each C function; `FUNCTIONS`, the descriptions
/// of these functions; and the methods of the handle that [`api!`](macro@crate::api) defines.
///
/// ```ignore
/// functions! {
///     api crate::Api;
///     status ncclResult_t;
///     (2, 13, 4) "ncclCommCount" comm_count => ncclCommCount(comm: ncclComm_t, count: *mut c_int) -> ncclResult_t;
///     (2, 13, 4) "ncclGetErrorString" get_error_string =>
///         ncclGetErrorString(result: ncclResult_t) returns *const c_char;
/// }
/// ```
///
/// Each line declares one function:
/// - the first release whose library has it;
/// - `declared (2, 30, 4)`, if the header of a later release is the first to declare it;
/// - the symbol without the suffix of its revision, such as `cuMemAlloc` for `cuMemAlloc_v2`;
/// - the name of the method that calls it. It must differ from the symbol, which is the name of the accessor;
/// - the C declaration. `-> ncclResult_t` is for functions that return the status type. Other results follow `returns`.
#[macro_export]
macro_rules! functions {
    (
        api $Api:ty;
        status $Status:ty;
        $(
            ($major:literal, $minor:literal, $patch:literal)
                $(declared ($later_major:literal, $later_minor:literal, $later_patch:literal))?
                $base:literal $method:ident => $name:ident($($parameter:ident: $type:ty),*)
                $(-> $status:ident)? $(returns $value:ty)?;
        )*
    ) => {
        /// The library's functions by C symbol; `None` for a function that the loaded library lacks.
        ///
        /// To make a table of functions that do not come from the library, for example for a simulated device, start
        /// from `Table::default()`, which is empty.
        #[allow(non_snake_case, reason = "C's names")]
        #[derive(Clone, Default)]
        #[non_exhaustive]
        pub struct Table {
            $(
                #[doc = concat!("Since ", $major, ".", $minor, ".", $patch, ".")]
                $(#[doc = concat!(
                    "Declared by the header from ", $later_major, ".", $later_minor, ".", $later_patch, " on.",
                )])?
                pub $name: Option<unsafe extern "C" fn($($parameter: $type),*) $(-> $status)? $(-> $value)?>,
            )*
        }

        impl Table {
            /// Builds the table from the addresses that `find` returns. `find` takes the description of a function
            /// and returns its address, or null if the function is absent.
            ///
            /// # Safety
            /// Every address that is not null must be that of the C function asked for.
            pub unsafe fn from_addresses(
                mut find: impl FnMut(&'static $crate::Function) -> *const core::ffi::c_void,
            ) -> Self {
                let mut functions = FUNCTIONS.iter();
                let mut next = || functions.next().map_or(core::ptr::null(), &mut find);
                Self {
                    $(
                        // SAFETY: a pointer and an optional function pointer have the same size, and null is `None`.
                        // By the caller's contract, any other address is that of the function with this field's name:
                        // the fields are in the order of `FUNCTIONS`.
                        $name: unsafe {
                            core::mem::transmute::<
                                *const core::ffi::c_void,
                                Option<unsafe extern "C" fn($($parameter: $type),*) $(-> $status)? $(-> $value)?>,
                            >(next())
                        },
                    )*
                }
            }

            /// Returns the description of the function with this C symbol; `None` if the table does not have it.
            pub fn function(name: &str) -> Option<&'static $crate::Function> {
                FUNCTIONS.iter().find(|function| function.name == name)
            }

            /// Removes the function with this C symbol, as if the library lacked it. This serves for a function that is
            /// known to misbehave, or to test a program without the function. Returns false if the table did not have
            /// it.
            pub fn remove(&mut self, name: &str) -> bool {
                match name {
                    $(stringify!($name) => self.$name.take().is_some(),)*
                    _ => false,
                }
            }

            /// Returns the address of the function with this C symbol; `None` if the library lacks the function, or
            /// the table does not declare it.
            pub fn address(&self, name: &str) -> Option<*const core::ffi::c_void> {
                match name {
                    $(stringify!($name) => self.$name.map(|function| function as *const core::ffi::c_void),)*
                    _ => None,
                }
            }
        }

        /// Every function of [`Table`], in the order of its fields.
        pub static FUNCTIONS: &[$crate::Function] = &[
            $(
                $crate::Function::new(
                    stringify!($name),
                    $base,
                    $crate::Version::new($major, $minor, $patch),
                    // The first element is the later release if one is given, else `None`.
                    [$(Some($crate::Version::new($later_major, $later_minor, $later_patch)),)? None][0],
                ),
            )*
        ];

        /// One method for each function, which calls it.
        #[allow(non_snake_case, clippy::too_many_arguments, reason = "C's parameters")]
        impl $Api {
            $(
                #[doc = concat!("Calls `", stringify!($name), "`, since ", $major, ".", $minor, ".", $patch, ".")]
                ///
                /// # Errors
                /// [`CallError`](dynload::CallError) if the library lacks the function, or the function returns a
                /// status other than success.
                ///
                /// # Safety
                /// The arguments must keep the contract of the C function.
                #[inline]
                pub unsafe fn $method(
                    &self,
                    $($parameter: $type),*
                ) -> Result<($($value)?), $crate::CallError<$Status>> {
                    let Some(function) = self.table().$name else {
                        return Err(self.absent(stringify!($name)));
                    };
                    // SAFETY: the caller's contract. The function is the one that the table declares.
                    let returned = unsafe { function($($parameter),*) };
                    $crate::functions!(@outcome $name returned $($status)?)
                }
            )*
        }

        /// One accessor for each function, with the name of its C symbol. It returns the function pointer.
        #[allow(non_snake_case, reason = "C's names")]
        impl $Api {
            $(
                #[doc = concat!("Since ", $major, ".", $minor, ".", $patch, ".")]
                $(#[doc = concat!(
                    "Declared by the header from ", $later_major, ".", $later_minor, ".", $later_patch, " on.",
                )])?
                ///
                /// # Errors
                /// [`Missing`](dynload::Missing) if the library lacks the function.
                #[inline]
                pub fn $name(
                    &self,
                ) -> Result<
                    unsafe extern "C" fn($($parameter: $type),*) $(-> $status)? $(-> $value)?,
                    $crate::Missing,
                > {
                    match self.table().$name {
                        Some(function) => Ok(function),
                        None => Err(self.missing(stringify!($name))),
                    }
                }
            )*
        }
    };
    (@outcome $name:ident $returned:ident $status:ident) => {
        $crate::CallError::check(stringify!($name), $returned)
    };
    (@outcome $name:ident $returned:ident) => {
        Ok($returned)
    };
}
