//! Builds an [`ncclConfig_t`] for the loaded library. The builder checks the values. The resulting [`Config`] owns the
//! strings, and lists the fields that the library ignores.
//!
//! The raw structure has four pitfalls. An older library silently ignores a newer field. NCCL refuses `minCTAs` if
//! `maxCTAs` is not set. The string of `commName` must live as long as the communicator. Environment variables
//! override most fields ([`Config::overrides`]).

use std::ffi::{CStr, CString, c_int};
use std::fmt;
use std::sync::Arc;

use crate::{
    Api, Missing, Override, Version, config::item, ncclConfig_t, ncclHostCftMode_t, ncclNvlsHostMode_t,
    overrides,
};

/// NCCL's upper limit for the number of thread blocks (CTAs) of a kernel, and for the number of channels.
const MAX_CHANNELS: u32 = 64;

/// NCCL's upper limit for the number of thread blocks in a cluster.
const MAX_CLUSTER: u32 = 8;

/// Policy for the number of thread blocks (CTAs) that NCCL uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CtaPolicy {
    /// NCCL uses the number of thread blocks with which the collective is fastest, without regard to other kernels.
    Default,
    /// NCCL uses the fewest thread blocks with which it expects good performance, to leave more to other kernels.
    Efficiency,
    /// NCCL uses no thread blocks for a collective that copy engines can do. Since NCCL 2.28.
    Zero,
}

impl CtaPolicy {
    const fn raw(self) -> c_int {
        match self {
            Self::Default => crate::NCCL_CTA_POLICY_DEFAULT as c_int,
            Self::Efficiency => crate::NCCL_CTA_POLICY_EFFICIENCY as c_int,
            Self::Zero => crate::NCCL_CTA_POLICY_ZERO as c_int,
        }
    }
}

/// The use that captured graphs make of a communicator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GraphUsage {
    /// No captured graph uses the communicator.
    None = 0,
    /// One captured graph uses the communicator, and no other graph or launch uses it at the same time.
    Single = 1,
    /// Several graphs, or graphs and ordinary launches, use the communicator. This is NCCL's default. NCCL then adds
    /// to every graph a node that waits for an event, and a node that records it.
    Mixed = 2,
}

/// The reason why a configuration was not built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Fields are set that the library would silently ignore.
    #[error("the library ignores what the configuration sets: {}", list(.0))]
    Ignored(Vec<Missing>),
    /// A value that NCCL refuses or silently replaces, or that the C field cannot hold. For example, a name with a zero
    /// byte.
    #[error("`ncclConfig_t.{field}` cannot be {value}: {problem}")]
    Value {
        /// The field's name in C.
        field: &'static str,
        /// The value, as text.
        value: String,
        /// Description of the problem.
        problem: String,
    },
}

fn list(missing: &[Missing]) -> String {
    missing.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Builds a configuration. Fields that are not set are left to NCCL.
///
/// ```no_run
/// use nccl_sys::{Api, ConfigBuilder, CtaPolicy, ncclUniqueId};
///
/// let nccl = Api::load()?;
/// // Strict: an error if this library would ignore one of the settings.
/// let config = ConfigBuilder::new().ctas(4, 16).split_share(true).build(&nccl)?;
/// // Lenient: ignored settings are listed instead.
/// let config = ConfigBuilder::new().comm_name("world").cta_policy(CtaPolicy::Zero).build_lenient(&nccl)?;
/// for ignored in config.ignored() {
///     eprintln!("{ignored}");
/// }
/// for setting in config.overrides() {
///     eprintln!("{setting}");
/// }
///
/// let (mut raw, mut comm) = (config.raw(), std::ptr::null_mut());
/// # let id = ncclUniqueId::default();
/// // SAFETY: the id is one that `ncclGetUniqueId` made, and `config` is kept for longer than the communicator.
/// unsafe { nccl.comm_init_rank_config(&mut comm, 1, id, 0, &mut raw) }?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct ConfigBuilder {
    raw: ncclConfig_t,
    strings: [Option<Arc<CStr>>; 2],
    /// The error of the first setter that got a value which no release accepts.
    fault: Option<ConfigError>,
}

// SAFETY: the pointers of `raw` are null. `build_lenient` sets them in the `Config` that it returns.
unsafe impl Send for ConfigBuilder {}
// SAFETY: as above.
unsafe impl Sync for ConfigBuilder {}

impl Default for ConfigBuilder {
    fn default() -> Self {
        Self::new()
    }
}

const COMM_NAME: usize = 0;
const NET_NAME: usize = 1;

impl ConfigBuilder {
    /// Returns a builder that leaves every field to NCCL.
    pub fn new() -> Self {
        Self { raw: ncclConfig_t::default(), strings: [None, None], fault: None }
    }

    /// Sets whether calls on the communicator block, or may return `ncclInProgress` before they are done
    /// (`blocking`). Since NCCL 2.14.
    pub fn blocking(self, blocking: bool) -> Self {
        self.set(|raw| raw.blocking = blocking.into())
    }

    /// Sets the number of thread blocks in a cluster, 0 to 8 (`cgaClusterSize`). Since NCCL 2.17.
    pub fn cga_cluster_size(self, size: u32) -> Self {
        self.number("cgaClusterSize", size, 0..=MAX_CLUSTER, |raw| &mut raw.cgaClusterSize)
    }

    /// Sets the least and the most thread blocks that a launch may use, each 1 to 64 (`minCTAs`, `maxCTAs`). They are
    /// set together, because NCCL refuses `minCTAs` alone. Since NCCL 2.17.
    pub fn ctas(self, at_least: u32, at_most: u32) -> Self {
        if at_least > at_most {
            return self.refuse("minCTAs", at_least, format!("the most is {at_most}"));
        }
        self.number("minCTAs", at_least, 1..=MAX_CHANNELS, |raw| &mut raw.minCTAs).number(
            "maxCTAs",
            at_most,
            1..=MAX_CHANNELS,
            |raw| &mut raw.maxCTAs,
        )
    }

    /// Sets the name of the network plug-in (`netName`). NCCL copies the name. Since NCCL 2.17.
    pub fn net_name(self, name: impl Into<Vec<u8>>) -> Self {
        self.text("netName", NET_NAME, name)
    }

    /// Sets whether communicators split from this one share its resources (`splitShare`). Since NCCL 2.18.
    pub fn split_share(self, share: bool) -> Self {
        self.set(|raw| raw.splitShare = share.into())
    }

    /// Sets the traffic class of the network's packets (`trafficClass`). Since NCCL 2.26.
    pub fn traffic_class(self, class: u32) -> Self {
        self.number("trafficClass", class, 0..=i32::MAX as u32, |raw| &mut raw.trafficClass)
    }

    /// Sets the communicator's name in NCCL's messages (`commName`). NCCL does not copy the text, so the [`Config`]
    /// must outlive the communicator. Since NCCL 2.27.
    pub fn comm_name(self, name: impl Into<Vec<u8>>) -> Self {
        self.text("commName", COMM_NAME, name)
    }

    /// Enables or disables reductions by network switches (`collnetEnable`). Since NCCL 2.27.
    pub fn collnet(self, enable: bool) -> Self {
        self.set(|raw| raw.collnetEnable = enable.into())
    }

    /// Sets the policy for the number of thread blocks (`CTAPolicy`). Since NCCL 2.27.
    pub fn cta_policy(self, policy: CtaPolicy) -> Self {
        self.set(|raw| raw.CTAPolicy = policy.raw())
    }

    /// Sets whether communicators shrunk from this one share its resources (`shrinkShare`). Since NCCL 2.27.
    pub fn shrink_share(self, share: bool) -> Self {
        self.set(|raw| raw.shrinkShare = share.into())
    }

    /// Sets the number of thread blocks for NVLink multicast, 1 to 64 (`nvlsCTAs`). Since NCCL 2.27.
    pub fn nvls_ctas(self, ctas: u32) -> Self {
        self.number("nvlsCTAs", ctas, 1..=MAX_CHANNELS, |raw| &mut raw.nvlsCTAs)
    }

    /// Sets the number of channels to each peer over the network, 1 to 64 (`nChannelsPerNetPeer`). Since NCCL 2.28.
    pub fn channels_per_net_peer(self, channels: u32) -> Self {
        self.number("nChannelsPerNetPeer", channels, 1..=MAX_CHANNELS, |raw| &mut raw.nChannelsPerNetPeer)
    }

    /// Sets whether NCCL launches its kernels with the attribute `CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING`,
    /// which asks the device to schedule them for high use of NVLink (`nvlinkCentricSched`). Since NCCL 2.28.
    pub fn nvlink_centric(self, enable: bool) -> Self {
        self.set(|raw| raw.nvlinkCentricSched = enable.into())
    }

    /// Declares how captured graphs and ordinary launches will use the communicator (`graphUsageMode`). Since NCCL
    /// 2.29.
    pub fn graph_usage(self, usage: GraphUsage) -> Self {
        self.set(|raw| raw.graphUsageMode = usage as c_int)
    }

    /// Sets the number of contexts for one-sided transfers (`numRmaCtx`); 0 turns one-sided transfers off. Since NCCL
    /// 2.29.
    pub fn rma_contexts(self, contexts: u32) -> Self {
        self.number("numRmaCtx", contexts, 0..=i32::MAX as u32, |raw| &mut raw.numRmaCtx)
    }

    /// Sets the largest number of peers with which a rank exchanges messages at the same time, at least 1
    /// (`maxP2pPeers`). Since NCCL 2.30.
    pub fn max_p2p_peers(self, peers: u32) -> Self {
        self.number("maxP2pPeers", peers, 1..=i32::MAX as u32, |raw| &mut raw.maxP2pPeers)
    }

    /// Sets whether NCCL makes its captured kernels run one after the other, across all graphs and communicators of a
    /// GPU (`graphStreamOrdering`). With `false` the caller must order these kernels, and must set
    /// [`graph_usage`](Self::graph_usage) to a value other than [`GraphUsage::Mixed`]. Since NCCL 2.30.7.
    pub fn graph_stream_ordering(self, keep: bool) -> Self {
        self.set(|raw| raw.graphStreamOrdering = keep.into())
    }

    /// Sets whether launches of several communicators run in the order of the host's calls
    /// (`launchOrderImplicit`). Since NCCL 2.31.
    pub fn launch_order_implicit(self, implicit: bool) -> Self {
        self.set(|raw| raw.launchOrderImplicit = implicit.into())
    }

    /// Sets the number of signals for one-sided transfers (`numRmaSig`). Since NCCL 2.31.
    pub fn rma_signals(self, signals: u32) -> Self {
        self.number("numRmaSig", signals, 0..=i32::MAX as u32, |raw| &mut raw.numRmaSig)
    }

    /// Sets whether NCCL sets up one-sided transfers when it creates the communicator (`rmaEagerInit`). Otherwise
    /// NCCL runs a collective of its own at the first transfer to set them up. Since NCCL 2.31.
    pub fn rma_eager_init(self, eager: bool) -> Self {
        self.set(|raw| raw.rmaEagerInit = eager.into())
    }

    /// Sets the mode of host-side Compute Fabric Transport, CFT (`hostCftMode`). Since NCCL 2.31.
    pub fn host_cft_mode(self, mode: ncclHostCftMode_t) -> Self {
        self.set(|raw| raw.hostCftMode = mode.0)
    }

    /// Sets which uses of NVLink multicast (NVLS) are disabled (`nvlsHostMode`). Since NCCL 2.32.
    pub fn nvls_host_mode(self, mode: ncclNvlsHostMode_t) -> Self {
        self.set(|raw| raw.nvlsHostMode = mode.0)
    }

    /// Returns the structure with the fields that are set so far. Its pointers are null, even if a name is set: the
    /// [`Config`] that is built gets them.
    pub fn raw(&self) -> &ncclConfig_t {
        &self.raw
    }

    /// Builds the configuration for this library.
    ///
    /// # Errors
    /// [`ConfigError::Value`] for a value that the library refuses or silently replaces, or that the C field cannot
    /// hold. [`ConfigError::Ignored`] if fields are set that the library would ignore.
    pub fn build(self, api: &Api) -> Result<Config, ConfigError> {
        let config = self.build_lenient(api)?;
        if config.ignored.is_empty() { Ok(config) } else { Err(ConfigError::Ignored(config.ignored)) }
    }

    /// Builds the configuration for this library; [`Config::ignored`] lists the fields that the library
    /// ignores.
    ///
    /// # Errors
    /// [`ConfigError::Value`] for a value that the library refuses or silently replaces, or that the C field cannot
    /// hold.
    pub fn build_lenient(self, api: &Api) -> Result<Config, ConfigError> {
        let Self { mut raw, strings, fault } = self;
        if let Some(fault) = fault {
            return Err(fault);
        }
        let defaults = api.config();
        if raw.blocking == crate::NCCL_CONFIG_UNDEF_INT {
            raw.blocking = defaults.blocking;
        }
        let address = |text: &Option<Arc<CStr>>| text.as_ref().map_or(std::ptr::null(), |text| text.as_ptr());
        (raw.commName, raw.netName) = (address(&strings[COMM_NAME]), address(&strings[NET_NAME]));
        check(&raw, api.version())?;
        let mut ignored = api.ignored(&raw);
        // A library before 2.14 has no `blocking` field, and all its communicators are blocking. So the value 1 has its
        // effect there, and is not reported as ignored.
        ignored.retain(|missing| !(raw.blocking == 1 && missing.item == item("blocking")));
        Ok(Config { raw, ignored, release: api.version(), _strings: strings })
    }

    fn set(mut self, set: impl FnOnce(&mut ncclConfig_t)) -> Self {
        set(&mut self.raw);
        self
    }

    fn number(
        mut self,
        field: &'static str,
        value: u32,
        range: std::ops::RangeInclusive<u32>,
        place: impl FnOnce(&mut ncclConfig_t) -> &mut c_int,
    ) -> Self {
        match c_int::try_from(value) {
            Ok(number) if range.contains(&value) => {
                *place(&mut self.raw) = number;
                self
            }
            _ => self.refuse(field, value, format!("it goes from {} to {}", range.start(), range.end())),
        }
    }

    fn text(mut self, field: &'static str, place: usize, text: impl Into<Vec<u8>>) -> Self {
        match CString::new(text) {
            Ok(text) => {
                self.strings[place] = Some(text.into());
                self
            }
            Err(error) => {
                let text = String::from_utf8_lossy(&error.into_vec()).into_owned();
                self.refuse(
                    field,
                    format_args!("{text:?}"),
                    "it holds a zero byte, which C strings end at".into(),
                )
            }
        }
    }

    fn refuse(mut self, field: &'static str, value: impl fmt::Display, problem: String) -> Self {
        self.fault.get_or_insert(ConfigError::Value { field, value: value.to_string(), problem });
        self
    }
}

/// Returns an error for a value that this release refuses or silently replaces. Checks only fields that the release
/// reads; [`Api::ignored`](crate::Api::ignored) lists the others.
fn check(raw: &ncclConfig_t, release: Version) -> Result<(), ConfigError> {
    let refuse = |field, value: &str, problem: String| {
        Err(ConfigError::Value { field, value: value.to_owned(), problem })
    };
    // 2.27 reads the field, but knows only the first two policies.
    if raw.CTAPolicy == CtaPolicy::Zero.raw()
        && (Version::new(2, 27, 0)..Version::new(2, 28, 0)).contains(&release)
    {
        let problem = format!("the policy without thread blocks needs NCCL 2.28, but {release} is loaded");
        return refuse("CTAPolicy", "`NCCL_CTA_POLICY_ZERO`", problem);
    }
    let mixed = matches!(raw.graphUsageMode, crate::NCCL_CONFIG_UNDEF_INT | 2);
    if raw.graphStreamOrdering == 0 && mixed && release >= Version::new(2, 30, 7) {
        let problem = "NCCL keeps the order if `graphUsageMode` is 2, which is its default".to_owned();
        return refuse("graphStreamOrdering", "0", problem);
    }
    Ok(())
}

/// A configuration that a [`ConfigBuilder`] built for one library. Owns the strings to which the C structure points.
///
/// NCCL keeps the address of `commName` for the life of the communicator. So **keep this value until every communicator
/// that was made with it, and every child that inherited its settings, is destroyed or aborted**. Clones share the
/// strings, so keeping any one of them is enough.
#[derive(Debug, Clone)]
pub struct Config {
    raw: ncclConfig_t,
    ignored: Vec<Missing>,
    release: Version,
    _strings: [Option<Arc<CStr>>; 2],
}

// SAFETY: the pointers lead into `_strings`, which are shared, immutable, and not tied to a thread.
unsafe impl Send for Config {}
// SAFETY: as above.
unsafe impl Sync for Config {}

impl Config {
    /// Returns a copy of the C structure, to be passed to one call. The copy's pointers are valid while this value,
    /// or a clone of this value, lives.
    pub fn raw(&self) -> ncclConfig_t {
        self.raw
    }

    /// Returns the fields that are set and that the library silently ignores. Empty after [`ConfigBuilder::build`].
    pub fn ignored(&self) -> &[Missing] {
        &self.ignored
    }

    /// Returns the settings in this process's environment and in NCCL's configuration files that override fields set
    /// here. [`overrides`] returns those for all fields.
    pub fn overrides(&self) -> Vec<Override> {
        let mut found = overrides(self.release);
        found.retain(|found| self.raw.sets(found.field));
        found
    }
}
