//! Settings of a communicator.

use nccl_sys::{ConfigBuilder, Missing};

pub use nccl_sys::CtaPolicy;

use super::{Nccl, Result, WindowFacts};

/// Settings of a communicator. NCCL chooses settings that are not set. Its environment variables override both.
///
/// Communicators are blocking: a non-blocking one costs 25 to 30 µs more per call, and the service thread keeps
/// deadlines instead. A release that does not know a setting ignores it silently; [`ignored_by`](Self::ignored_by)
/// lists such settings.
///
/// From 2.31 NCCL also takes some of these settings per call (`ncclAllReduceConfig` and similar, raw in `nccl-sys`).
/// They are not used here: all ranks must give a call the same settings, and NCCL does not compare them. A
/// communicator that is [split](super::Communicator::split) off with other settings, agreed once, has the same
/// effect.
#[doc(alias = "ncclConfig_t")]
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// The name in NCCL's messages and in errors of this crate; NCCL 2.27.
    pub name: Option<String>,
    /// Minimum and maximum number of thread blocks per launch, 1 to 64. Both are set, because NCCL refuses one alone.
    /// NCCL 2.17.
    pub ctas: Option<(u32, u32)>,
    /// Thread blocks per cluster, 0 to 8; NCCL 2.17.
    pub cga_cluster_size: Option<u32>,
    /// The network plug-in; NCCL 2.17.
    pub network: Option<String>,
    /// The policy for the number of thread blocks that NCCL uses; NCCL 2.27.
    pub cta_policy: Option<CtaPolicy>,
    /// Facts about the ranks' hosts and devices that decide whether windows are supported. A process group fills them
    /// in from its members' data. A caller that makes communicators directly sets them.
    pub window_facts: WindowFacts,
}

impl Config {
    /// Returns a configuration without settings.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the name.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets the minimum and maximum number of thread blocks.
    #[must_use]
    pub fn ctas(mut self, at_least: u32, at_most: u32) -> Self {
        self.ctas = Some((at_least, at_most));
        self
    }

    /// Sets the policy for the number of thread blocks.
    #[must_use]
    pub fn cta_policy(mut self, policy: CtaPolicy) -> Self {
        self.cta_policy = Some(policy);
        self
    }

    /// Returns the settings that are set here but that the loaded release would ignore. For environment variables
    /// that override the settings, see [`nccl_sys::overrides`].
    ///
    /// # Errors
    /// [`CommError::Config`](super::CommError::Config) for a value that the release does not accept.
    pub fn ignored_by(&self, nccl: &Nccl) -> Result<Vec<Missing>> {
        Ok(self.lower(nccl)?.ignored().to_vec())
    }

    /// Returns the settings as NCCL reads them. NCCL keeps the name's address, so the value must live as long as the
    /// communicator.
    pub(crate) fn lower(&self, nccl: &Nccl) -> Result<nccl_sys::Config> {
        // Blocking, independent of the release's default.
        let mut builder = ConfigBuilder::new().blocking(true);
        if let Some(name) = &self.name {
            builder = builder.comm_name(name.as_str());
        }
        if let Some((at_least, at_most)) = self.ctas {
            builder = builder.ctas(at_least, at_most);
        }
        if let Some(size) = self.cga_cluster_size {
            builder = builder.cga_cluster_size(size);
        }
        if let Some(network) = &self.network {
            builder = builder.net_name(network.as_str());
        }
        if let Some(policy) = self.cta_policy {
            builder = builder.cta_policy(policy);
        }
        Ok(builder.build_lenient(nccl.api())?)
    }
}
