//! How a communicator is to be made.

use std::ffi::{CString, c_int};

use nccl_sys::{Missing, Version, ncclConfig_t};

use super::{CommError, Nccl, Result, WindowFacts};

/// Settings of a communicator. What is not set is NCCL's choice (or its environment's, which beats both).
///
/// Communicators are blocking ones: a non-blocking one costs 25 to 30 µs more a call, and deadlines are kept by
/// the service thread instead. A release that does not know a setting ignores it without a word;
/// [`ignored_by`](Self::ignored_by) tells.
#[doc(alias = "ncclConfig_t")]
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// The name that NCCL's own messages and ours use; NCCL 2.27.
    pub name: Option<String>,
    /// Thread blocks a launch may use, at least and at most; both, because NCCL refuses one alone. NCCL 2.17.
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

/// How sparing with thread blocks NCCL is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CtaPolicy {
    /// The fastest for the collective alone.
    Default,
    /// As few as reach the bandwidth.
    Efficiency,
    /// None where copy engines can do it; NCCL 2.28.
    Zero,
}

impl CtaPolicy {
    const fn raw(self) -> c_int {
        match self {
            Self::Default => nccl_sys::NCCL_CTA_POLICY_DEFAULT.cast_signed(),
            Self::Efficiency => nccl_sys::NCCL_CTA_POLICY_EFFICIENCY.cast_signed(),
            Self::Zero => nccl_sys::NCCL_CTA_POLICY_ZERO.cast_signed(),
        }
    }
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

    /// The settings that are set but that the loaded release would ignore.
    ///
    /// # Errors
    /// [`CommError::Setting`] for one that no release takes.
    pub fn ignored_by(&self, nccl: &Nccl) -> Result<Vec<Missing>> {
        Ok(nccl.api().ignored(&self.lower(nccl)?.raw))
    }

    /// The settings as NCCL reads them.
    pub(crate) fn lower(&self, nccl: &Nccl) -> Result<RawConfig> {
        let text = |setting: &'static str, text: &Option<String>| match text {
            None => Ok(None),
            Some(text) => CString::new(text.as_str()).map(Some).map_err(|_| CommError::Setting {
                setting,
                problem: format!("{text:?} holds a zero byte, which C strings cannot"),
            }),
        };
        let number = |setting: &'static str, value: u32| {
            c_int::try_from(value)
                .map_err(|_| CommError::Setting { setting, problem: format!("{value} is too large") })
        };
        // Blocking, whatever a release takes for its default.
        let mut raw = ncclConfig_t { blocking: 1, ..nccl.api().config() };
        let (name, network) = (text("name", &self.name)?, text("network", &self.network)?);
        if let Some(name) = &name {
            raw.commName = name.as_ptr();
        }
        if let Some(network) = &network {
            raw.netName = network.as_ptr();
        }
        if let Some((least, most)) = self.ctas {
            if least == 0 || least > most {
                let problem = format!("{least} to {most} is no range of at least one thread block");
                return Err(CommError::Setting { setting: "ctas", problem });
            }
            (raw.minCTAs, raw.maxCTAs) = (number("ctas", least)?, number("ctas", most)?);
        }
        if let Some(size) = self.cga_cluster_size {
            raw.cgaClusterSize = number("cga_cluster_size", size)?;
        }
        if let Some(policy) = self.cta_policy {
            // 2.27 reads the field, and refuses the value.
            let release = nccl.release();
            if policy == CtaPolicy::Zero
                && (Version::new(2, 27, 0)..Version::new(2, 28, 0)).contains(&release)
            {
                let problem =
                    format!("the policy without thread blocks needs NCCL 2.28, but {release} is loaded");
                return Err(CommError::Setting { setting: "cta_policy", problem });
            }
            raw.CTAPolicy = policy.raw();
        }
        Ok(RawConfig { raw, _texts: [name, network] })
    }
}

/// The C structure with the strings that it points to. NCCL keeps the name's address, so this lives as long as the
/// communicator.
#[derive(Debug)]
pub(crate) struct RawConfig {
    raw: ncclConfig_t,
    _texts: [Option<CString>; 2],
}

// SAFETY: the pointers lead into `_texts`, which move with it and are never changed.
unsafe impl Send for RawConfig {}
// SAFETY: as above.
unsafe impl Sync for RawConfig {}

impl RawConfig {
    /// A copy for one call: NCCL may write to what it is given. Its pointers are good while `self` lives.
    pub(crate) fn copy(&self) -> ncclConfig_t {
        self.raw
    }
}
