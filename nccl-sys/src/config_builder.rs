//! Making an [`ncclConfig_t`] for the library at hand: typed, owning its strings, silent about nothing.
//!
//! What the raw structure leaves to its user: an older library drops a newer field without a word, one of two bounds
//! is refused for the other's sake, the name must live as long as the communicator, and the environment beats all of
//! it ([`Config::overrides`]).

use std::ffi::{CStr, CString, c_int};
use std::fmt;
use std::sync::Arc;

use crate::{
    Api, Item, Missing, Override, Version, ncclConfig_t, ncclHostCftMode_t, ncclNvlsHostMode_t, overrides,
};

/// More thread blocks, or channels, than this are none of NCCL's.
const MAX_CHANNELS: u32 = 64;

/// The largest cluster of thread blocks.
const MAX_CLUSTER: u32 = 8;

/// How sparing with thread blocks NCCL is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CtaPolicy {
    /// The fastest for the collective alone.
    Default,
    /// As few as reach the bandwidth.
    Efficiency,
    /// None where copy engines can do it; since 2.28.
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

/// How a communicator's launches and captured graphs meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GraphUsage {
    /// The communicator is used in one graph at a time, or in none.
    Exclusive = 0,
    /// Several graphs use it, and nothing outside of them at the same time.
    Graphs = 1,
    /// Graphs and launches are mixed: NCCL's default, which costs every graph a wait and a record of an event.
    Mixed = 2,
}

/// Why a configuration was not made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Fields are set that the library would drop without a word.
    #[error("the library ignores what the configuration sets: {}", list(.0))]
    Ignored(Vec<Missing>),
    /// A value that NCCL refuses, or silently replaces.
    #[error("`ncclConfig_t.{field}` cannot be {value}: {problem}")]
    Value {
        /// The field.
        field: &'static str,
        /// The value, in words.
        value: String,
        /// What is wrong with it.
        problem: String,
    },
}

fn list(missing: &[Missing]) -> String {
    missing.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// A configuration in the making. What is not set is left to NCCL.
///
/// ```no_run
/// use nccl_sys::{Api, ConfigBuilder, CtaPolicy, ncclUniqueId};
///
/// let nccl = Api::load()?;
/// // Strict: an error if this library would ignore one of the settings.
/// let config = ConfigBuilder::new().ctas(4, 16).split_share(true).build(&nccl)?;
/// // Or let it, and say so.
/// let config = ConfigBuilder::new().comm_name("world").cta_policy(CtaPolicy::Zero).build_lenient(&nccl)?;
/// for ignored in config.ignored() {
///     eprintln!("{ignored}");
/// }
/// for winner in config.overrides() {
///     eprintln!("{winner}");
/// }
///
/// let (mut raw, mut comm) = (config.raw(), std::ptr::null_mut());
/// # let id = ncclUniqueId::default();
/// // SAFETY: the id is one that `ncclGetUniqueId` made, and `config` is kept for longer than the communicator.
/// let result = unsafe { (nccl.ncclCommInitRankConfig()?)(&mut comm, 1, id, 0, &mut raw) };
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct ConfigBuilder {
    raw: ncclConfig_t,
    strings: [Option<Arc<CStr>>; 2],
    /// The first value that no release takes.
    fault: Option<ConfigError>,
}

// SAFETY: the pointers of `raw` are null until it is built.
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
    /// Everything is left to NCCL.
    pub fn new() -> Self {
        Self { raw: ncclConfig_t::default(), strings: [None, None], fault: None }
    }

    /// Whether calls return when they are done (`blocking`); NCCL 2.14.
    pub fn blocking(self, blocking: bool) -> Self {
        self.set(|raw| raw.blocking = blocking.into())
    }

    /// Thread blocks in a cluster, 0 to 8 (`cgaClusterSize`); NCCL 2.17.
    pub fn cga_cluster_size(self, size: u32) -> Self {
        self.number("cgaClusterSize", size, 0..=MAX_CLUSTER, |raw| &mut raw.cgaClusterSize)
    }

    /// Thread blocks that a launch may use, at least and at most, 1 to 64 (`minCTAs`, `maxCTAs`); both, because NCCL
    /// refuses one alone. NCCL 2.17.
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

    /// The network plug-in (`netName`), which NCCL copies; NCCL 2.17.
    pub fn net_name(self, name: impl Into<Vec<u8>>) -> Self {
        self.text("netName", NET_NAME, name)
    }

    /// Whether communicators split from this one share its resources (`splitShare`); NCCL 2.18.
    pub fn split_share(self, share: bool) -> Self {
        self.set(|raw| raw.splitShare = share.into())
    }

    /// The network's traffic class (`trafficClass`); NCCL 2.26.
    pub fn traffic_class(self, class: u32) -> Self {
        self.number("trafficClass", class, 0..=i32::MAX as u32, |raw| &mut raw.trafficClass)
    }

    /// What NCCL calls the communicator in its messages (`commName`). NCCL keeps the address and not the text, so the
    /// [`Config`] must outlive the communicator. NCCL 2.27.
    pub fn comm_name(self, name: impl Into<Vec<u8>>) -> Self {
        self.text("commName", COMM_NAME, name)
    }

    /// Whether switches of the network reduce (`collnetEnable`); NCCL 2.27.
    pub fn collnet(self, enable: bool) -> Self {
        self.set(|raw| raw.collnetEnable = enable.into())
    }

    /// How sparing with thread blocks NCCL is (`CTAPolicy`); NCCL 2.27.
    pub fn cta_policy(self, policy: CtaPolicy) -> Self {
        self.set(|raw| raw.CTAPolicy = policy.raw())
    }

    /// Whether communicators shrunk from this one share its resources (`shrinkShare`); NCCL 2.27.
    pub fn shrink_share(self, share: bool) -> Self {
        self.set(|raw| raw.shrinkShare = share.into())
    }

    /// Thread blocks for NVLink's multicast, 1 to 64 (`nvlsCTAs`); NCCL 2.27.
    pub fn nvls_ctas(self, ctas: u32) -> Self {
        self.number("nvlsCTAs", ctas, 1..=MAX_CHANNELS, |raw| &mut raw.nvlsCTAs)
    }

    /// Channels to each peer over the network, 1 to 64 (`nChannelsPerNetPeer`); NCCL 2.28.
    pub fn channels_per_net_peer(self, channels: u32) -> Self {
        self.number("nChannelsPerNetPeer", channels, 1..=MAX_CHANNELS, |raw| &mut raw.nChannelsPerNetPeer)
    }

    /// Whether scheduling favours the use of NVLink (`nvlinkCentricSched`); NCCL 2.28.
    pub fn nvlink_centric(self, enable: bool) -> Self {
        self.set(|raw| raw.nvlinkCentricSched = enable.into())
    }

    /// How launches and captured graphs meet (`graphUsageMode`); NCCL 2.29.
    pub fn graph_usage(self, usage: GraphUsage) -> Self {
        self.set(|raw| raw.graphUsageMode = usage as c_int)
    }

    /// Contexts for one-sided transfers; 0 turns these off (`numRmaCtx`). NCCL 2.29.
    pub fn rma_contexts(self, contexts: u32) -> Self {
        self.number("numRmaCtx", contexts, 0..=i32::MAX as u32, |raw| &mut raw.numRmaCtx)
    }

    /// Peers that messages go to and come from at a time, at least 1 (`maxP2pPeers`); NCCL 2.30.
    pub fn max_p2p_peers(self, peers: u32) -> Self {
        self.number("maxP2pPeers", peers, 1..=i32::MAX as u32, |raw| &mut raw.maxP2pPeers)
    }

    /// Whether graphs keep the order of their streams (`graphStreamOrdering`); `false` needs a
    /// [`graph_usage`](Self::graph_usage) that is not mixed. NCCL 2.30.7.
    pub fn graph_stream_ordering(self, keep: bool) -> Self {
        self.set(|raw| raw.graphStreamOrdering = keep.into())
    }

    /// Whether launches of several communicators run in the host's order (`launchOrderImplicit`); NCCL 2.31.
    pub fn launch_order_implicit(self, implicit: bool) -> Self {
        self.set(|raw| raw.launchOrderImplicit = implicit.into())
    }

    /// Signals for one-sided transfers (`numRmaSig`); NCCL 2.31.
    pub fn rma_signals(self, signals: u32) -> Self {
        self.number("numRmaSig", signals, 0..=i32::MAX as u32, |raw| &mut raw.numRmaSig)
    }

    /// Whether one-sided transfers are set up with the communicator, and not by a hidden collective at the first of
    /// them (`rmaEagerInit`); NCCL 2.31.
    pub fn rma_eager_init(self, eager: bool) -> Self {
        self.set(|raw| raw.rmaEagerInit = eager.into())
    }

    /// The host's use of counted fabric transfers (`hostCftMode`); NCCL 2.31.
    pub fn host_cft_mode(self, mode: ncclHostCftMode_t) -> Self {
        self.set(|raw| raw.hostCftMode = mode.0)
    }

    /// What of NVLink's multicast the host leaves off (`nvlsHostMode`); NCCL 2.32.
    pub fn nvls_host_mode(self, mode: ncclNvlsHostMode_t) -> Self {
        self.set(|raw| raw.nvlsHostMode = mode.0)
    }

    /// The configuration for this library.
    ///
    /// # Errors
    /// [`ConfigError::Value`] for a value that the library refuses, [`ConfigError::Ignored`] if there are fields set
    /// that it would ignore.
    pub fn build(self, api: &Api) -> Result<Config, ConfigError> {
        let config = self.build_lenient(api)?;
        if config.ignored.is_empty() { Ok(config) } else { Err(ConfigError::Ignored(config.ignored)) }
    }

    /// The configuration for this library, which says [what it ignores](Config::ignored).
    ///
    /// # Errors
    /// [`ConfigError::Value`] for a value that the library refuses.
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
        // Blocking is what a library without the field is, too.
        ignored.retain(|missing| !(raw.blocking == 1 && missing.item == blocking()));
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

fn blocking() -> Item {
    Item::Field { structure: "ncclConfig_t", field: "blocking" }
}

/// What this release refuses, though it reads the field, or replaces without a word.
fn check(raw: &ncclConfig_t, release: Version) -> Result<(), ConfigError> {
    let refuse = |field, value: &str, problem: String| {
        Err(ConfigError::Value { field, value: value.to_owned(), problem })
    };
    // 2.27 knows the field, and two policies.
    if raw.CTAPolicy == CtaPolicy::Zero.raw()
        && (Version::new(2, 27, 0)..Version::new(2, 28, 0)).contains(&release)
    {
        let problem = format!("the policy without thread blocks needs NCCL 2.28, but {release} is loaded");
        return refuse("CTAPolicy", "`NCCL_CTA_POLICY_ZERO`", problem);
    }
    let mixed = matches!(raw.graphUsageMode, crate::NCCL_CONFIG_UNDEF_INT | 2);
    if raw.graphStreamOrdering == 0 && mixed && release >= Version::new(2, 30, 5) {
        let problem = "NCCL keeps the order if `graphUsageMode` is 2, which is its default".to_owned();
        return refuse("graphStreamOrdering", "0", problem);
    }
    Ok(())
}

/// A configuration for the library that it was built for, with the strings that it points to.
///
/// NCCL keeps the address of `commName` for the life of the communicator, so **keep this value until every
/// communicator that was made with it is destroyed or aborted**, and so the children that inherit its settings.
/// Clones share the strings: any one of them will do.
#[derive(Debug, Clone)]
pub struct Config {
    raw: ncclConfig_t,
    ignored: Vec<Missing>,
    release: Version,
    _strings: [Option<Arc<CStr>>; 2],
}

// SAFETY: the pointers lead into `_strings`, which are shared, immutable, and free of the thread that made them.
unsafe impl Send for Config {}
// SAFETY: as above.
unsafe impl Sync for Config {}

impl Config {
    /// The C structure for one call, which may write to it. Its pointers are good while this value, or a clone of it,
    /// lives.
    pub fn raw(&self) -> ncclConfig_t {
        self.raw
    }

    /// The fields that are set and that the library drops without a word. Empty after [`ConfigBuilder::build`].
    pub fn ignored(&self) -> &[Missing] {
        &self.ignored
    }

    /// What in this process's environment beats fields that are set here: NCCL takes the variable's value over the
    /// configuration's.
    pub fn overrides(&self) -> Vec<Override> {
        let mut found = overrides(self.release);
        found.retain(|found| self.raw.sets(found.field));
        found
    }
}
