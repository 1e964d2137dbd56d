//! The handle that a raw crate offers.

/// Defines the handle of a loaded library, with the functions `candidates` and `releases`.
///
/// `api!(Api, Table, Feature)` takes the name of the handle, the type that implements [`Table`](crate::Table), and the
/// flags of [`features!`](macro@crate::features). [`functions!`](macro@crate::functions) adds a method for each function.
#[macro_export]
macro_rules! api {
    ($(#[$attribute:meta])* $Api:ident, $Table:ty, $Feature:ty) => {
        $(#[$attribute])*
        ///
        /// Cheap to clone, and shared by threads. Every C function has a method that calls it, and an accessor of the C
        /// function's name that returns the function pointer. The release, the file and the features are those of
        /// [`Loaded`](dynload::Loaded), to which this handle dereferences. The library is never unloaded.
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
            /// Loads the library. In this order:
            /// 1. the file that the environment variable [`VARIABLE`](crate::VARIABLE) names;
            /// 2. a copy that this process has loaded already;
            /// 3. the names [`NAMES`](crate::NAMES), as the system's loader finds them.
            ///
            /// # Errors
            /// [`LoadError`](dynload::LoadError); a path in the variable that cannot be used is an error, and the
            /// search stops.
            pub fn load() -> Result<Self, $crate::LoadError> {
                $crate::Loaded::load().map(Self)
            }

            /// Loads the library from `path`, as [`Loaded::load_from`](dynload::Loaded::load_from) does.
            ///
            /// # Errors
            /// [`LoadError`](dynload::LoadError), also if this process has another copy loaded already.
            ///
            /// # Safety
            /// Loading runs the file's initialisers and calls its functions under the signatures of this crate's
            /// headers. The file must be the library, or one that keeps the same C contracts, and must not be changed
            /// or cut off while the process runs.
            pub unsafe fn load_from(path: impl AsRef<std::path::Path>) -> Result<Self, $crate::LoadError> {
                // SAFETY: the caller's contract.
                unsafe { $crate::Loaded::load_from(path) }.map(Self)
            }

            /// Builds the handle from the addresses that `symbol` returns for C symbols, null for a symbol that is
            /// absent.
            ///
            /// # Errors
            /// [`LoadError`](dynload::LoadError) if a required function is absent, or the release cannot be queried.
            ///
            /// # Safety
            /// Every address must be that of the C function asked for, and stay valid for the rest of the process.
            pub unsafe fn from_loader(
                symbol: impl FnMut(&core::ffi::CStr) -> *const core::ffi::c_void,
            ) -> Result<Self, $crate::LoadError> {
                // SAFETY: the caller's contract.
                unsafe { $crate::Loaded::from_loader(symbol) }.map(Self)
            }

            /// Builds the handle from a table that the caller supplies, for example that of a simulated device.
            ///
            /// # Errors
            /// [`LoadError`](dynload::LoadError) if the table's version function does not report a release.
            ///
            /// # Safety
            /// Every function must do what its C declaration promises, for the rest of the process.
            pub unsafe fn from_parts(table: $Table) -> Result<Self, $crate::LoadError> {
                // SAFETY: the caller's contract.
                unsafe { $crate::Loaded::from_parts(table) }.map(Self)
            }
        }

        /// Returns the copies of the library on this host: see [`Library::candidates`](dynload::Library::candidates).
        pub fn candidates() -> Vec<$crate::Candidate> {
            <$Table as $crate::Table>::LIBRARY.candidates()
        }

        /// The additions of one release.
        pub type Release = $crate::Release<$Feature>;

        /// Returns every release that adds something, the oldest first: see [`dynload::releases`].
        pub fn releases() -> Vec<Release> {
            $crate::releases::<$Table>()
        }
    };
}
