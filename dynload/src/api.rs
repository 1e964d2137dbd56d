//! A macro that defines a raw crate's handle, through which a program calls the loaded library. A raw crate is a
//! crate that declares the C interface of one library.

/// Defines the handle of a loaded library, the type `Release`, and the functions `candidates` and `releases`.
///
/// `api!(Api, Table, Feature)` takes the name of the handle, the type that implements [`Table`](crate::Table), and
/// the type of flags that [`features!`](macro@crate::features) defines. [`functions!`](macro@crate::functions) adds
/// to the handle a method and an accessor for each C function.
#[macro_export]
macro_rules! api {
    ($(#[$attribute:meta])* $Api:ident, $Table:ty, $Feature:ty) => {
        $(#[$attribute])*
        ///
        /// Clones are cheap, and threads can share the handle. Every C function has a method that calls it, and an
        /// accessor with the name of its C symbol that returns the function pointer. The handle dereferences to
        /// [`Loaded`](dynload::Loaded), whose methods return the release, the file and the features of the library.
        /// The library is never unloaded.
        #[derive(Clone, Debug)]
        pub struct $Api($crate::Loaded<$Table>);

        impl core::ops::Deref for $Api {
            type Target = $crate::Loaded<$Table>;

            #[inline]
            fn deref(&self) -> &Self::Target {
                &self.0
            }
        }

        impl $Api {
            /// Loads the library from the first of these sources that applies:
            /// 1. the file that the environment variable [`VARIABLE`](crate::VARIABLE) names, if it is set and not
            ///    empty;
            /// 2. a copy that this process has loaded already;
            /// 3. the file that the system's loader (`dlopen`) finds for one of the names in [`NAMES`](crate::NAMES).
            ///
            /// # Errors
            /// [`LoadError`](dynload::LoadError) if there is no copy, or the copy cannot be used. If the file that
            /// the variable names cannot be used, the other sources are not tried.
            pub fn load() -> Result<Self, $crate::LoadError> {
                $crate::Loaded::load().map(Self)
            }

            /// Loads the library from `path`, as [`Loaded::load_from`](dynload::Loaded::load_from) does.
            ///
            /// # Errors
            /// [`LoadError`](dynload::LoadError), also if this process has another copy loaded already.
            ///
            /// # Safety
            /// Loading runs the file's initialisers. This crate calls the file's functions with the signatures that
            /// it declares. The file must be the library, or one that keeps the same C contracts. It must not be
            /// changed or truncated while the process runs.
            pub unsafe fn load_from(path: impl AsRef<std::path::Path>) -> Result<Self, $crate::LoadError> {
                // SAFETY: the caller's contract.
                unsafe { $crate::Loaded::load_from(path) }.map(Self)
            }

            /// Builds the handle from the addresses that `symbol` returns. `symbol` takes the name of a C symbol and
            /// returns its address, or null if the symbol is absent.
            ///
            /// # Errors
            /// [`LoadError`](dynload::LoadError) if one of the functions in
            /// [`Library::required`](dynload::Library::required) is absent, or if the library does not report its
            /// release.
            ///
            /// # Safety
            /// Every address that is not null must be that of the C function asked for, and stay valid for the rest
            /// of the process.
            pub unsafe fn from_loader(
                symbol: impl FnMut(&core::ffi::CStr) -> *const core::ffi::c_void,
            ) -> Result<Self, $crate::LoadError> {
                // SAFETY: the caller's contract.
                unsafe { $crate::Loaded::from_loader(symbol) }.map(Self)
            }

            /// Builds the handle from a table that the caller supplies, for example that of a simulated device.
            ///
            /// # Errors
            /// [`LoadError`](dynload::LoadError) if the table's version function is absent or does not report a
            /// release.
            ///
            /// # Safety
            /// Every function of the table must keep the contract of the C function whose name it has, for the rest
            /// of the process.
            pub unsafe fn from_parts(table: $Table) -> Result<Self, $crate::LoadError> {
                // SAFETY: the caller's contract.
                unsafe { $crate::Loaded::from_parts(table) }.map(Self)
            }
        }

        /// Returns the copies of the library on this host: see [`Library::candidates`](dynload::Library::candidates).
        pub fn candidates() -> Vec<$crate::Candidate> {
            <$Table as $crate::Table>::LIBRARY.candidates()
        }

        /// The functions and features that one release adds.
        pub type Release = $crate::Release<$Feature>;

        /// Returns every release that adds a function or a feature, the oldest first: see [`dynload::releases`].
        pub fn releases() -> Vec<Release> {
            $crate::releases::<$Table>()
        }
    };
}
