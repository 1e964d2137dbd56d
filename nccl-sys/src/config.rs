//! A communicator's configuration, and the fields of it that the loaded library ignores.
//!
//! One structure suits every release, because it declares its own size and version. An older library reads only the
//! fields that it knows, and silently ignores the newer fields. [`Api::ignored`] lists the ignored fields that are
//! set. A newer library chooses the values of the fields that the structure lacks. [`Api::config`] makes the structure.

use std::ffi::{c_char, c_int, c_uint};
use std::ptr;

use crate::{Api, CONFIG_FIELDS, Item, Missing, Structure, UNDEFINED, Version, Why, ncclConfig_t};

/// The value of an integer field that is left to NCCL.
pub const NCCL_CONFIG_UNDEF_INT: c_int = c_int::MIN;

/// The value of a pointer field that is left to NCCL.
pub const NCCL_CONFIG_UNDEF_PTR: *const c_char = ptr::null();

/// The magic number of `ncclSimInfo_t`, which does not use [`NCCL_API_MAGIC`](crate::NCCL_API_MAGIC).
pub const NCCL_SIM_INFO_MAGIC: c_uint = 0x7468_5283;

/// A field of [`ncclConfig_t`].
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct ConfigField {
    /// The field's name in C.
    pub name: &'static str,
    /// The first release that reads the field.
    pub since: Version,
    /// The field's offset in the structure, in bytes.
    pub offset: usize,
    /// The field's size in bytes.
    pub size: usize,
    /// Returns true if a configuration leaves this field to NCCL.
    pub(crate) is_undefined: fn(&ncclConfig_t) -> bool,
}

/// A field type with a value for "undefined", which leaves the field to NCCL.
pub(crate) trait Undefined {
    const UNDEFINED: Self;

    fn is_undefined(&self) -> bool;
}

impl Undefined for c_int {
    const UNDEFINED: Self = NCCL_CONFIG_UNDEF_INT;

    fn is_undefined(&self) -> bool {
        *self == Self::UNDEFINED
    }
}

impl Undefined for *const c_char {
    const UNDEFINED: Self = NCCL_CONFIG_UNDEF_PTR;

    fn is_undefined(&self) -> bool {
        self.is_null()
    }
}

/// Defines `CONFIG_FIELDS`, and the configuration in which all of them are undefined.
macro_rules! config_fields {
    ($($name:ident $since:tt,)*) => {
        /// The fields of [`ncclConfig_t`](crate::ncclConfig_t) that a user may set, in their order in C.
        pub static CONFIG_FIELDS: &[crate::ConfigField] = &[$(
            crate::ConfigField {
                name: stringify!($name),
                since: release!($since),
                offset: core::mem::offset_of!(crate::ncclConfig_t, $name),
                size: size_of_val(&UNDEFINED.$name),
                is_undefined: |config| crate::config::Undefined::is_undefined(&config.$name),
            },
        )*];

        pub(crate) const UNDEFINED: crate::ncclConfig_t = crate::ncclConfig_t {
            size: size_of::<crate::ncclConfig_t>(),
            magic: crate::NCCL_API_MAGIC,
            version: crate::NCCL_VERSION_CODE,
            $($name: crate::config::Undefined::UNDEFINED,)*
        };
    };
}

impl Default for ncclConfig_t {
    /// Leaves every field to NCCL, as `NCCL_CONFIG_INITIALIZER` does from 2.17 on. For an older library, use
    /// [`ncclConfig_t::for_release`].
    fn default() -> Self {
        UNDEFINED
    }
}

impl ncclConfig_t {
    /// Returns a configuration for a library of `release` that leaves every field to NCCL. A library before 2.17 does
    /// not accept an undefined `blocking`. For such a library `blocking` is 1, the default of every release. The
    /// declared size and version are those of the newest header, which every library accepts.
    pub fn for_release(release: Version) -> Self {
        let blocking = if release < Version::new(2, 17, 1) { 1 } else { NCCL_CONFIG_UNDEF_INT };
        Self { blocking, ..UNDEFINED }
    }

    /// Returns the structure's size in bytes in the header of `release`, or the newest known size for a release newer
    /// than this crate. `None` before 2.14, where the structure does not exist.
    pub fn size_in(release: Version) -> Option<usize> {
        Structure::named("ncclConfig_t")?.size_in(release)
    }

    /// Returns true if the field with this name in C is set, and so not left to NCCL.
    pub fn sets(&self, field: &str) -> bool {
        CONFIG_FIELDS.iter().any(|known| known.name == field && !(known.is_undefined)(self))
    }

    /// Returns the fields that are set and that `release` does not read.
    pub fn ignored_by(&self, release: Version) -> impl Iterator<Item = &'static ConfigField> {
        CONFIG_FIELDS.iter().filter(move |field| release < field.since && !(field.is_undefined)(self))
    }
}

/// Returns the [`Item`] for the field of [`ncclConfig_t`] with this name in C.
pub(crate) fn item(field: &'static str) -> Item {
    Item::Field { structure: "ncclConfig_t", field }
}

impl Api {
    /// Returns a configuration for this library that leaves every field to NCCL.
    pub fn config(&self) -> ncclConfig_t {
        ncclConfig_t::for_release(self.version())
    }

    /// Returns the fields set in `config` that this library silently ignores, because it is older than the fields.
    pub fn ignored(&self, config: &ncclConfig_t) -> Vec<Missing> {
        let ignored = config.ignored_by(self.version());
        ignored.map(|field| self.lacks(item(field.name), field.since, Why::TooOld)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NCCL_VERSION_CODE;

    #[test]
    fn the_structure_is_as_large_as_its_fields() {
        let newest = crate::version_from_code(NCCL_VERSION_CODE as c_int);
        assert_eq!(ncclConfig_t::size_in(newest), Some(size_of::<ncclConfig_t>()));
        assert_eq!(ncclConfig_t::size_in(Version::new(2, 13, 4)), None);
        let sizes =
            [(14, 3, 24), (17, 1, 40), (18, 3, 48), (26, 5, 48), (27, 7, 72), (28, 9, 80), (29, 7, 88)];
        for (minor, patch, size) in sizes {
            assert_eq!(ncclConfig_t::size_in(Version::new(2, minor, patch)), Some(size), "2.{minor}.{patch}");
        }
    }

    #[test]
    fn an_older_release_ignores_what_came_later() {
        let mut config = ncclConfig_t::default();
        let ignored = |config: &ncclConfig_t, release| -> Vec<_> {
            config.ignored_by(release).map(|field| field.name).collect()
        };
        assert!(ignored(&config, Version::new(2, 13, 4)).is_empty());
        assert_eq!(ncclConfig_t::for_release(Version::new(2, 16, 5)).blocking, 1);
        assert_eq!(ncclConfig_t::for_release(Version::new(2, 17, 1)).blocking, config.blocking);
        config.blocking = 0;
        config.trafficClass = 3;
        config.commName = c"world".as_ptr();
        assert_eq!(ignored(&config, Version::new(2, 21, 5)), ["trafficClass", "commName"]);
        assert_eq!(ignored(&config, Version::new(2, 26, 2)), ["commName"]);
        assert!(ignored(&config, Version::new(2, 27, 3)).is_empty());
    }
}
