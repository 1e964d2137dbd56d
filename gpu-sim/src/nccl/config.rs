//! `ncclConfig_t` as a release reads it: a size-prefixed structure of any version.

use std::ffi::CStr;

use nccl_sys::{NCCL_API_MAGIC, NCCL_CONFIG_UNDEF_INT, ncclConfig_t, version_from_code};

use super::error::{Failure, Result};

/// The settings of a configuration that this device uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Config {
    /// Used in messages.
    pub(crate) name: Option<String>,
}

/// Reads a configuration as the release does. Fields beyond the size of either structure have the default value, and
/// fields newer than the declared version are ignored.
///
/// # Safety
/// `config` is null or points to a structure that is as long as its size field says.
pub(crate) unsafe fn parse(
    config: *const ncclConfig_t,
    release: u32,
    parent: Option<&Config>,
) -> Result<Config> {
    if config.is_null() {
        return Ok(parent.cloned().unwrap_or_default());
    }
    // SAFETY: every release's structure begins with size, magic and version.
    let (size, magic, version) =
        unsafe { ((*config).size, std::ptr::addr_of!((*config).magic).read(), (*config).version) };
    if magic != NCCL_API_MAGIC {
        return Err(Failure::argument(format!(
            "the configuration's magic is {magic:#x}, not {NCCL_API_MAGIC:#x}"
        )));
    }
    let mut own = ncclConfig_t::default();
    let known = ncclConfig_t::size_in(version_from_code(release as i32)).unwrap_or(0);
    let bytes = size.min(known).min(size_of::<ncclConfig_t>());
    // SAFETY: the caller's structure has `size` bytes and ours at least as many as are copied.
    unsafe { std::ptr::copy_nonoverlapping(config.cast::<u8>(), (&raw mut own).cast(), bytes) };
    if version < 21700 {
        (own.cgaClusterSize, own.minCTAs, own.maxCTAs) =
            (NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT);
    }
    if version < 21800 {
        own.splitShare = NCCL_CONFIG_UNDEF_INT;
    }
    if version < 22700 {
        (own.commName, own.CTAPolicy) = (std::ptr::null(), NCCL_CONFIG_UNDEF_INT);
    }
    match own.blocking {
        NCCL_CONFIG_UNDEF_INT | 1 => {}
        0 => return Err(Failure::argument("non-blocking communicators are not modelled")),
        other => return Err(Failure::argument(format!("blocking is {other}, neither 0 nor 1"))),
    }
    // An unset bound is compared as it is, so one bound alone can be refused, as in the real library.
    let bounds = (own.minCTAs, own.maxCTAs);
    let broken = (bounds.0 != NCCL_CONFIG_UNDEF_INT && bounds.0 <= 0)
        || (bounds.1 != NCCL_CONFIG_UNDEF_INT && bounds.1 <= 0)
        || bounds.0 > bounds.1;
    if broken {
        return Err(Failure::argument(format!("minCTAs {} and maxCTAs {} are no range", bounds.0, bounds.1)));
    }
    if own.cgaClusterSize != NCCL_CONFIG_UNDEF_INT && !(0..=8).contains(&own.cgaClusterSize) {
        return Err(Failure::argument(format!("cgaClusterSize is {}, not 0 to 8", own.cgaClusterSize)));
    }
    let name = if own.commName.is_null() {
        None
    } else {
        // SAFETY: a name that is set is a C string that outlives the communicator, by NCCL's contract.
        Some(unsafe { CStr::from_ptr(own.commName) }.to_string_lossy().into_owned())
    };
    Ok(Config { name })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> ncclConfig_t {
        ncclConfig_t { version: 23203, ..ncclConfig_t::default() }
    }

    fn read(config: &ncclConfig_t, release: u32) -> Result<Config> {
        // SAFETY: the reference is a whole structure.
        unsafe { parse(config, release, None) }
    }

    #[test]
    fn magic_blocking_and_bounds_are_checked() {
        assert!(read(&config(), 22809).is_ok());
        assert!(read(&ncclConfig_t { magic: 1, ..config() }, 22809).is_err());
        assert!(
            read(&ncclConfig_t { blocking: 0, ..config() }, 22809).unwrap_err().text.contains("modelled")
        );
        assert!(read(&ncclConfig_t { minCTAs: 4, ..config() }, 22809).is_err());
        assert!(read(&ncclConfig_t { minCTAs: 4, maxCTAs: 8, ..config() }, 22809).is_ok());
    }

    #[test]
    fn fields_of_a_newer_release_are_not_read() {
        let named = ncclConfig_t { commName: c"tp".as_ptr(), ..config() };
        assert_eq!(read(&named, 22703).unwrap().name.as_deref(), Some("tp"));
        assert_eq!(read(&named, 22602).unwrap().name, None);
        assert_eq!(read(&ncclConfig_t { version: 22602, ..named }, 22809).unwrap().name, None);
        assert_eq!(read(&ncclConfig_t { size: 48, ..named }, 22809).unwrap().name, None);
        let bounds = ncclConfig_t { minCTAs: 4, ..config() };
        assert!(read(&bounds, 21403).is_ok(), "2.14 has no such field");
    }

    #[test]
    fn children_without_a_configuration_inherit() {
        let parent = Config { name: Some("dp".into()) };
        // SAFETY: null is allowed.
        assert_eq!(unsafe { parse(std::ptr::null(), 22809, Some(&parent)) }.unwrap(), parent);
    }
}
