//! NCCL's configuration structures: initialised as the header's macros do, and compared with the library at hand.
//!
//! One structure suits every release: it says its own size and version, an older library reads as much of it as
//! it knows, and a newer one takes the rest as undefined. [`Api::config`] makes it. But an older library does not
//! say that it has dropped a field; [`Api::ignored`] does.

use std::ffi::{c_char, c_int, c_uint};
use std::mem::offset_of;
use std::ptr;

use crate::{
    Api, Item, Missing, NCCL_API_MAGIC, NCCL_VERSION_CODE, Version, Why, ncclCollConfig_t, ncclConfig_t,
    ncclEncryptionConfig_t, ncclEncryptionMode_t, ncclSimInfo_t,
};

/// The value of an integer field that is left to NCCL.
pub const NCCL_CONFIG_UNDEF_INT: c_int = c_int::MIN;

/// The value of a pointer field that is left to NCCL.
pub const NCCL_CONFIG_UNDEF_PTR: *const c_char = ptr::null();

/// What `ncclSimInfo_t` carries in place of [`NCCL_API_MAGIC`].
pub const NCCL_SIM_INFO_MAGIC: c_uint = 0x7468_5283;

/// A field of [`ncclConfig_t`].
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct ConfigField {
    /// Its name in C.
    pub name: &'static str,
    /// The release that first reads it.
    pub since: Version,
    /// Where it lies, in bytes.
    pub offset: usize,
    /// Its size in bytes.
    pub size: usize,
    /// Whether a configuration leaves it to NCCL.
    is_undefined: fn(&ncclConfig_t) -> bool,
}

/// A field's value that stands for none.
trait Undefined {
    fn is_undefined(&self) -> bool;
}

impl Undefined for c_int {
    fn is_undefined(&self) -> bool {
        *self == NCCL_CONFIG_UNDEF_INT
    }
}

impl Undefined for *const c_char {
    fn is_undefined(&self) -> bool {
        self.is_null()
    }
}

/// Defines [`CONFIG_FIELDS`], and the configuration in which all of them are undefined.
macro_rules! fields {
    ($($name:ident = $undefined:ident since ($major:literal, $minor:literal, $patch:literal);)*) => {
        /// The fields of [`ncclConfig_t`] that a user may set, in their order.
        pub static CONFIG_FIELDS: &[ConfigField] = &[$(
            ConfigField {
                name: stringify!($name),
                since: Version::new($major, $minor, $patch),
                offset: offset_of!(ncclConfig_t, $name),
                size: size_of_val(&UNDEFINED.$name),
                is_undefined: |config| config.$name.is_undefined(),
            },
        )*];

        const UNDEFINED: ncclConfig_t = ncclConfig_t {
            size: size_of::<ncclConfig_t>(),
            magic: NCCL_API_MAGIC,
            version: NCCL_VERSION_CODE,
            $($name: $undefined,)*
        };
    };
}

fields! {
    blocking = NCCL_CONFIG_UNDEF_INT since (2, 14, 3);
    cgaClusterSize = NCCL_CONFIG_UNDEF_INT since (2, 17, 1);
    minCTAs = NCCL_CONFIG_UNDEF_INT since (2, 17, 1);
    maxCTAs = NCCL_CONFIG_UNDEF_INT since (2, 17, 1);
    netName = NCCL_CONFIG_UNDEF_PTR since (2, 17, 1);
    splitShare = NCCL_CONFIG_UNDEF_INT since (2, 18, 1);
    trafficClass = NCCL_CONFIG_UNDEF_INT since (2, 26, 2);
    commName = NCCL_CONFIG_UNDEF_PTR since (2, 27, 3);
    collnetEnable = NCCL_CONFIG_UNDEF_INT since (2, 27, 3);
    CTAPolicy = NCCL_CONFIG_UNDEF_INT since (2, 27, 3);
    shrinkShare = NCCL_CONFIG_UNDEF_INT since (2, 27, 3);
    nvlsCTAs = NCCL_CONFIG_UNDEF_INT since (2, 27, 3);
    nChannelsPerNetPeer = NCCL_CONFIG_UNDEF_INT since (2, 28, 3);
    nvlinkCentricSched = NCCL_CONFIG_UNDEF_INT since (2, 28, 3);
    graphUsageMode = NCCL_CONFIG_UNDEF_INT since (2, 29, 2);
    numRmaCtx = NCCL_CONFIG_UNDEF_INT since (2, 29, 2);
    maxP2pPeers = NCCL_CONFIG_UNDEF_INT since (2, 30, 3);
    graphStreamOrdering = NCCL_CONFIG_UNDEF_INT since (2, 30, 7);
    launchOrderImplicit = NCCL_CONFIG_UNDEF_INT since (2, 31, 2);
    numRmaSig = NCCL_CONFIG_UNDEF_INT since (2, 31, 2);
    rmaEagerInit = NCCL_CONFIG_UNDEF_INT since (2, 31, 2);
    hostCftMode = NCCL_CONFIG_UNDEF_INT since (2, 31, 2);
    nvlsHostMode = NCCL_CONFIG_UNDEF_INT since (2, 32, 3);
}

impl Default for ncclConfig_t {
    /// Every field left to NCCL: `NCCL_CONFIG_INITIALIZER` from 2.17 on; [`ncclConfig_t::for_release`] knows the
    /// others.
    fn default() -> Self {
        UNDEFINED
    }
}

impl ncclConfig_t {
    /// As the header of `release` initialises it. Before 2.17 the library takes no undefined `blocking`: there it
    /// is 1, which is everywhere the default.
    pub fn for_release(release: Version) -> Self {
        let blocking = if release < Version::new(2, 17, 1) { 1 } else { NCCL_CONFIG_UNDEF_INT };
        Self { blocking, ..UNDEFINED }
    }

    /// The size in bytes that the structure has in the header of `release`; `None` before 2.14, which has none.
    pub fn size_in(release: Version) -> Option<usize> {
        let known = CONFIG_FIELDS.iter().filter(|field| field.since <= release);
        let end = known.map(|field| field.offset + field.size).max()?;
        Some(end.next_multiple_of(align_of::<Self>()))
    }

    /// Whether the field of this name is set, and not left to NCCL.
    pub fn sets(&self, field: &str) -> bool {
        CONFIG_FIELDS.iter().any(|known| known.name == field && !(known.is_undefined)(self))
    }

    /// The fields that are set and that `release` does not read.
    pub fn ignored_by(&self, release: Version) -> impl Iterator<Item = &'static ConfigField> {
        CONFIG_FIELDS.iter().filter(move |field| release < field.since && !(field.is_undefined)(self))
    }
}

impl Api {
    /// A configuration for this library, in which everything is left to it.
    pub fn config(&self) -> ncclConfig_t {
        ncclConfig_t::for_release(self.version())
    }

    /// The fields set in `config` that this library drops without a word, being older than they are.
    pub fn ignored(&self, config: &ncclConfig_t) -> Vec<Missing> {
        let ignored = config.ignored_by(self.version());
        ignored
            .map(|field| Missing {
                item: Item::Field { structure: "ncclConfig_t", field: field.name },
                needed: field.since,
                found: self.version(),
                path: self.path().map(ToOwned::to_owned),
                why: Why::TooOld,
            })
            .collect()
    }
}

impl Default for ncclCollConfig_t {
    /// Every field left to NCCL: `NCCL_COLLCONFIG_INITIALIZER`. An algorithm that is named must be usable.
    fn default() -> Self {
        Self {
            size: size_of::<Self>(),
            magic: NCCL_API_MAGIC,
            version: NCCL_VERSION_CODE,
            ext: ptr::null_mut(),
            minCTAs: NCCL_CONFIG_UNDEF_INT,
            maxCTAs: NCCL_CONFIG_UNDEF_INT,
            nvlsCTAs: NCCL_CONFIG_UNDEF_INT,
            cgaClusterSize: NCCL_CONFIG_UNDEF_INT,
            algSelection: NCCL_CONFIG_UNDEF_PTR,
            forceAlgSelection: 1,
            CTAPolicy: NCCL_CONFIG_UNDEF_INT,
            userProfilerTag: 0,
            launchCompletionEvent: ptr::null_mut(),
        }
    }
}

impl Default for ncclSimInfo_t {
    /// `NCCL_SIM_INFO_INITIALIZER`.
    fn default() -> Self {
        Self {
            size: size_of::<Self>(),
            magic: NCCL_SIM_INFO_MAGIC,
            version: NCCL_VERSION_CODE,
            estimatedTime: crate::NCCL_UNDEF_FLOAT as f32,
        }
    }
}

impl Default for ncclEncryptionConfig_t {
    /// No encryption: `NCCL_ENCRYPTION_CONFIG_INITIALIZER`.
    fn default() -> Self {
        Self {
            size: size_of::<Self>(),
            magic: NCCL_API_MAGIC,
            version: NCCL_VERSION_CODE,
            mode: ncclEncryptionMode_t::NCCL_ENCRYPTION_MODE_NONE.0 as c_int,
            psk: ptr::null(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structure_is_as_large_as_its_fields() {
        let newest = Version::from_code(NCCL_VERSION_CODE as c_int);
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
