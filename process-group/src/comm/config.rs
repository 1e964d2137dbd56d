//! How a communicator is to be made.

use nccl_sys::{ConfigBuilder, Missing};

pub use nccl_sys::CtaPolicy;

use super::{Nccl, Result, WindowFacts};

/// Settings of a communicator. What is not set is NCCL's choice (or its environment's, which beats both).
///
/// Communicators are blocking ones: a non-blocking one costs 25 to 30 µs more a call, and deadlines are kept by
/// the service thread instead. A release that does not know a setting ignores it without a word;
/// [`ignored_by`](Self::ignored_by) tells.
///
/// From 2.31 NCCL takes some of these settings with a call too (`ncclAllReduceConfig` and its like, raw in `nccl-sys`).
/// They are not used here: all ranks must give a call the same ones, which NCCL does not compare, and a communicator
/// that is [split](super::Communicator::split) off with other settings, agreed once, does the same for its calls.
#[doc(alias = "ncclConfig_t")]
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// The name that NCCL's own messages and ours use; NCCL 2.27.
    pub name: Option<String>,
    /// Thread blocks a launch may use, at least and at most, 1 to 64; both, because NCCL refuses one alone. NCCL 2.17.
    pub ctas: Option<(u32, u32)>,
    /// Thread blocks in a cluster, 0 to 8; NCCL 2.17.
    pub cga_cluster_size: Option<u32>,
    /// The network plug-in; NCCL 2.17.
    pub network: Option<String>,
    /// How sparing with thread blocks NCCL is; NCCL 2.27.
    pub cta_policy: Option<CtaPolicy>,
    /// Facts about the ranks' hosts and devices that decide whether windows can be had. A process group fills them
    /// in from what its members said; who makes communicators alone states them.
    pub window_facts: WindowFacts,
}

impl Config {
    /// No setting at all.
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

    /// Sets the bounds of thread blocks.
    #[must_use]
    pub fn ctas(mut self, at_least: u32, at_most: u32) -> Self {
        self.ctas = Some((at_least, at_most));
        self
    }

    /// Sets the policy of thread blocks.
    #[must_use]
    pub fn cta_policy(mut self, policy: CtaPolicy) -> Self {
        self.cta_policy = Some(policy);
        self
    }

    /// The settings that are set but that the loaded release would ignore. What in the environment beats the others,
    /// [`nccl_sys::overrides`] tells.
    ///
    /// # Errors
    /// [`CommError::Config`](super::CommError::Config) for a value that the release does not take.
    pub fn ignored_by(&self, nccl: &Nccl) -> Result<Vec<Missing>> {
        Ok(self.lower(nccl)?.ignored().to_vec())
    }

    /// The settings as NCCL reads them. NCCL keeps the name's address, so this lives as long as the communicator.
    pub(crate) fn lower(&self, nccl: &Nccl) -> Result<nccl_sys::Config> {
        // Blocking, whatever a release takes for its default.
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
