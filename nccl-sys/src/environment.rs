//! The environment variables that override fields of [`ncclConfig_t`](crate::ncclConfig_t). NCCL's configuration files
//! can set these variables too.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::{env, fmt, fs};

use crate::{CONFIG_FIELDS, Version};

/// The fields that an environment variable overrides, each with its variable.
const VARIABLES: &[(&str, &str)] = &[
    ("blocking", "NCCL_COMM_BLOCKING"),
    ("cgaClusterSize", "NCCL_CGA_CLUSTER_SIZE"),
    ("minCTAs", "NCCL_MIN_CTAS"),
    ("maxCTAs", "NCCL_MAX_CTAS"),
    ("netName", "NCCL_NET"),
    ("splitShare", "NCCL_COMM_SPLIT_SHARE_RESOURCES"),
    ("trafficClass", "NCCL_IB_TC"),
    ("collnetEnable", "NCCL_COLLNET_ENABLE"),
    ("CTAPolicy", "NCCL_CTA_POLICY"),
    ("shrinkShare", "NCCL_COMM_SHRINK_SHARE_RESOURCES"),
    ("nvlsCTAs", "NCCL_NVLS_NCHANNELS"),
    ("nChannelsPerNetPeer", "NCCL_NCHANNELS_PER_NET_PEER"),
    ("nvlinkCentricSched", "NCCL_NVLINK_UTIL_CENTRIC_SCHED_ENABLE"),
    ("graphUsageMode", "NCCL_GRAPH_MIXING_SUPPORT"),
    ("numRmaCtx", "NCCL_NUM_RMA_CTX"),
    ("maxP2pPeers", "NCCL_P2P_MAX_PEERS"),
    ("graphStreamOrdering", "NCCL_GRAPH_STREAM_ORDERING"),
    ("launchOrderImplicit", "NCCL_LAUNCH_ORDER_IMPLICIT"),
    ("rmaEagerInit", "NCCL_RMA_EAGER_INIT"),
];

/// A setting that overrides a field of the configuration. It comes from the environment of this process, or from a
/// configuration file of NCCL.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Override {
    /// The name in C of the overridden field.
    pub field: &'static str,
    /// The name of the variable.
    pub variable: &'static str,
    /// The variable's value, as text. If it is not valid for the field, NCCL may ignore it and use the value in the
    /// structure.
    pub value: OsString,
    /// The file that sets the variable, such as `/etc/nccl.conf`; `None` if the process's environment sets it.
    pub file: Option<PathBuf>,
}

impl fmt::Display for Override {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { field, variable, value, file } = self;
        write!(f, "`ncclConfig_t.{field}` is overridden by {variable}={}", value.display())?;
        file.as_ref().map_or(Ok(()), |file| write!(f, " ({})", file.display()))
    }
}

/// Returns the settings that override fields that `release` reads. If several places set the same variable, this
/// process's own environment wins. Next comes the file that `NCCL_CONF_FILE` names (`$HOME/.nccl.conf` if it names
/// none), then `/etc/nccl.conf`. The settings of an environment plug-in of NCCL (since 2.28.7) are not included.
///
/// The files are read as 2.30.3 reads them. Releases before 2.30.3 take the home directory from the user database
/// instead of `HOME`, and keep a carriage return at the end of a line. Releases before 2.23.4 ignore `NCCL_CONF_FILE`.
pub fn overrides(release: Version) -> Vec<Override> {
    let own = own_file(release, env::var_os("NCCL_CONF_FILE"), env::var_os("HOME"));
    let files = own.into_iter().chain([PathBuf::from("/etc/nccl.conf")]);
    let files: Vec<_> = files.filter_map(|path| fs::read(&path).ok().map(|text| (path, text))).collect();

    let read = |field: &str| CONFIG_FIELDS.iter().any(|known| known.name == field && known.since <= release);
    let find = |variable: &str| {
        env::var_os(variable).map(|value| (value, None)).or_else(|| {
            files.iter().find_map(|(path, text)| Some((assigned(text, variable)?, Some(path.clone()))))
        })
    };
    let fields = VARIABLES.iter().filter(|(field, _)| read(field));
    fields
        .filter_map(|(field, variable)| {
            find(variable).map(|(value, file)| Override { field, variable, value, file })
        })
        .collect()
}

/// Returns the user's configuration file that `release` reads, for these values of `NCCL_CONF_FILE` and `HOME`.
/// `None` if `HOME` is needed and not set.
fn own_file(release: Version, named: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let named = named.filter(|file| !file.is_empty() && release >= Version::new(2, 23, 4));
    named.map(PathBuf::from).or_else(|| Some(Path::new(&home?).join(".nccl.conf")))
}

/// Returns the value of `variable` in the first line of the form `variable=value`; `None` if there is no such line.
fn assigned(text: &[u8], variable: &str) -> Option<OsString> {
    let value = |line: &[u8]| -> Option<OsString> {
        let value = line.strip_prefix(variable.as_bytes())?.strip_prefix(b"=")?;
        Some(OsStr::from_bytes(value.strip_suffix(b"\r").unwrap_or(value)).to_owned())
    };
    text.split(|byte| *byte == b'\n').find_map(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variable_is_of_a_field() {
        for (field, variable) in VARIABLES {
            assert!(CONFIG_FIELDS.iter().any(|known| known.name == *field), "{field}");
            assert!(variable.starts_with("NCCL_"));
        }
    }

    #[test]
    fn a_named_file_replaces_the_one_in_the_home_directory() {
        let file = |release, named: &str| own_file(release, Some(named.into()), Some("/home/me".into()));
        let (old, new) = (Version::new(2, 22, 3), Version::new(2, 23, 4));
        assert_eq!(file(new, "/job.conf"), Some("/job.conf".into()));
        assert_eq!(file(new, ""), Some("/home/me/.nccl.conf".into()));
        assert_eq!(file(old, "/job.conf"), Some("/home/me/.nccl.conf".into()));
        assert_eq!(own_file(old, Some("/job.conf".into()), None), None);
    }

    #[test]
    fn files_are_read_as_nccl_does() {
        let text = b"# NCCL_NET=no\nNCCL_NET=IB\r\nNCCL_NETS=x\nNCCL_NET=later\nNCCL_EMPTY=";
        assert_eq!(assigned(text, "NCCL_NET"), Some("IB".into()));
        assert_eq!(assigned(text, "NCCL_EMPTY"), Some("".into()));
        assert_eq!(assigned(text, "NCCL_NE"), None);
    }
}
