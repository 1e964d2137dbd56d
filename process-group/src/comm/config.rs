//! Settings of a communicator.

use nccl_sys::{ConfigError, Missing, NCCL_CONFIG_UNDEF_INT, overrides};

pub use nccl_sys::{ConfigBuilder, CtaPolicy, GraphUsage};

use super::{Nccl, Result, WindowFacts};

/// Settings of a communicator. NCCL chooses the values of settings that are not set. NCCL's environment variables
/// override all settings. Making a communicator fails if a variable sets `blocking`, `splitShare` or `shrinkShare` to a
/// value that [`nccl`](Self::nccl()) refuses.
///
/// Communicators are always blocking, because a non-blocking communicator costs 25 to 30 µs more per call. Deadlines of
/// blocking calls are kept by the service thread. An NCCL release silently ignores settings that it does not know;
/// [`ignored_by`](Self::ignored_by) lists them. The release at the end of a field's description is the first that knows
/// the setting.
///
/// From 2.31 on, NCCL also takes some of these settings per call (`ncclAllReduceConfig` and similar, raw in
/// `nccl-sys`). This crate does not use these functions: all ranks must pass the same settings to a call, and NCCL does
/// not check that they do. For the same effect, [split](super::Communicator::split) off a communicator with other
/// settings, on which all ranks agree once.
#[doc(alias = "ncclConfig_t")]
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Config {
    /// The name in NCCL's messages and in errors of this crate; NCCL 2.27.
    pub name: Option<String>,
    /// Minimum and maximum number of thread blocks per launch, 1 to 64. NCCL refuses one without the other. NCCL 2.17.
    pub ctas: Option<(u32, u32)>,
    /// Thread blocks per cluster, 0 to 8; NCCL 2.17.
    pub cga_cluster_size: Option<u32>,
    /// Name of the network plug-in; NCCL 2.17.
    pub network: Option<String>,
    /// The policy for the number of thread blocks that NCCL uses; NCCL 2.27.
    pub cta_policy: Option<CtaPolicy>,
    /// Facts about the ranks' hosts and devices that decide whether windows are supported. A process group derives them
    /// from its members' data. A program that makes communicators directly sets this field.
    pub window_facts: WindowFacts,
    /// All other settings of NCCL; see [`Config::nccl`](Self::nccl()).
    pub nccl: ConfigBuilder,
    pub(crate) graph_usage: Option<GraphUsage>,
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

    /// Sets the settings of `ncclConfig_t` for which this type has no field, such as the traffic class. If `settings`
    /// and a field of this type set the same value, the field has priority.
    ///
    /// ```
    /// use process_group::comm::{Config, ConfigBuilder};
    ///
    /// let config = Config::new().ctas(1, 16).nccl(ConfigBuilder::new().traffic_class(3).nvls_ctas(8));
    /// # drop(config);
    /// ```
    ///
    /// Making a communicator fails with [`CommError::Config`](super::CommError::Config) for these values:
    /// - `blocking` 0: this crate does not drive non-blocking communicators.
    /// - `splitShare` and `shrinkShare` 1: NCCL would abort a parent together with its children, but this crate ends
    ///   communicators one by one.
    /// - `graphUsageMode` 0 and 1: if graphs are used otherwise than declared, behaviour is undefined, so
    ///   [`graph_usage`](Self::graph_usage) is `unsafe`.
    /// - `graphStreamOrdering` 0: NCCL would not order its kernels in graphs.
    #[must_use]
    pub fn nccl(mut self, settings: ConfigBuilder) -> Self {
        self.nccl = settings;
        self
    }

    /// Declares how captured graphs use the communicator (`graphUsageMode`, NCCL 2.29). NCCL then adds fewer nodes to
    /// graphs.
    ///
    /// # Safety
    /// Every communicator that is made with this configuration is used in graphs and in launches only as `usage`
    /// declares. NCCL does not order other uses, so they may run at the same time on the same buffers.
    #[must_use]
    pub unsafe fn graph_usage(mut self, usage: GraphUsage) -> Self {
        self.graph_usage = Some(usage);
        self
    }

    /// Returns the settings that this configuration sets but the loaded release would ignore. For environment variables
    /// that override settings, see [`nccl_sys::overrides`].
    ///
    /// # Errors
    /// [`CommError::Config`](super::CommError::Config) for a value that the release does not accept.
    pub fn ignored_by(&self, nccl: &Nccl) -> Result<Vec<Missing>> {
        Ok(self.lower(nccl)?.ignored().to_vec())
    }

    /// Converts the settings to `nccl_sys::Config`. NCCL keeps the address of the name in the returned value, so that
    /// value must live as long as the communicator.
    pub(crate) fn lower(&self, nccl: &Nccl) -> Result<nccl_sys::Config> {
        self.check(nccl)?;
        // Always set to blocking, whatever the default of the release.
        let mut builder = self.nccl.clone().blocking(true);
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
        if let Some(usage) = self.graph_usage {
            builder = builder.graph_usage(usage);
        }
        Ok(builder.build_lenient(nccl.api())?)
    }

    /// Refuses settings that would break guarantees of this crate.
    fn check(&self, nccl: &Nccl) -> Result<()> {
        const UNSET: i32 = NCCL_CONFIG_UNDEF_INT;
        let raw = self.nccl.raw();
        let one_by_one = "communicators of this crate end one by one, and share no resources";
        let unsafe_method = "its wrong use is undefined behaviour: set Config::graph_usage";
        let refused = [
            ("blocking", raw.blocking, [UNSET, 1], "communicators of this crate are blocking"),
            ("splitShare", raw.splitShare, [UNSET, 0], one_by_one),
            ("shrinkShare", raw.shrinkShare, [UNSET, 0], one_by_one),
            ("graphUsageMode", raw.graphUsageMode, [UNSET, GraphUsage::Mixed as i32], unsafe_method),
            (
                "graphStreamOrdering",
                raw.graphStreamOrdering,
                [UNSET, 1],
                "NCCL must order its kernels in graphs",
            ),
        ];
        if let Some((field, value, _, problem)) =
            refused.iter().find(|(_, value, allowed, _)| !allowed.contains(value))
        {
            let (value, problem) = (value.to_string(), (*problem).to_owned());
            return Err(ConfigError::Value { field, value, problem }.into());
        }
        // NCCL's variables for graphs are left to the user: their wrong use is undefined behaviour in every program.
        for found in overrides(nccl.release()) {
            let value = found.value.to_str().and_then(|value| value.trim().parse::<i32>().ok());
            let known = refused[..3].iter().find(|(field, ..)| *field == found.field).zip(value);
            if let Some(((field, _, allowed, problem), value)) = known
                && !allowed.contains(&value)
            {
                let problem = format!("{problem}; unset {}", found.variable);
                return Err(ConfigError::Value { field, value: value.to_string(), problem }.into());
            }
        }
        Ok(())
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use rusty_fork::rusty_fork_test;

    use crate::embedded_machine::machine_with;

    #[test]
    fn every_setting_reaches_nccl_except_those_that_break_promises() {
        let machine = machine_with(1, 22907);
        let lower = |config: Config| config.lower(&machine.nccl).map(|lowered| lowered.raw());
        let builder = ConfigBuilder::new;
        let all = builder().traffic_class(3).nvls_ctas(8).ctas(1, 64).rma_contexts(2).split_share(false);
        let raw = lower(Config::new().nccl(all).ctas(2, 4)).unwrap();
        assert_eq!((raw.trafficClass, raw.nvlsCTAs, raw.numRmaCtx, raw.blocking), (3, 8, 2, 1));
        // The field `ctas` has priority over the builder's value.
        assert_eq!((raw.minCTAs, raw.maxCTAs), (2, 4));
        let refused = [
            (builder().blocking(false), "blocking"),
            (builder().split_share(true), "splitShare"),
            (builder().shrink_share(true), "shrinkShare"),
            (builder().graph_usage(GraphUsage::None), "graphUsageMode"),
            (builder().graph_stream_ordering(false), "graphStreamOrdering"),
            (builder().nvls_ctas(0), "nvlsCTAs"),
        ];
        for (settings, field) in refused {
            let error = crate::error_text(&lower(Config::new().nccl(settings)).unwrap_err());
            assert!(error.contains(&format!("`ncclConfig_t.{field}` cannot be")), "{error}");
        }
        // SAFETY: no communicator is made.
        let declared = unsafe { Config::new().graph_usage(GraphUsage::Single) };
        assert_eq!(lower(declared).unwrap().graphUsageMode, 1);
        let ignored = Config::new().nccl(builder().rma_signals(1)).ignored_by(&machine.nccl).unwrap();
        assert_eq!(ignored.len(), 1);
    }

    rusty_fork_test! {
        /// NCCL reads these variables after the configuration.
        #[test]
        fn variables_that_break_promises_are_refused() {
            let machine = machine_with(1, 22907);
            for (variable, bad, good) in [
                ("NCCL_COMM_SPLIT_SHARE_RESOURCES", "1", "0"),
                ("NCCL_COMM_SHRINK_SHARE_RESOURCES", " 1", "0"),
                ("NCCL_COMM_BLOCKING", "0", "1"),
            ] {
                // SAFETY: this process runs only this test, and no other thread reads the environment.
                unsafe { std::env::set_var(variable, bad) };
                let error = crate::error_text(&Config::new().lower(&machine.nccl).unwrap_err());
                assert!(error.contains(&format!("unset {variable}")), "{error}");
                // SAFETY: as above.
                unsafe { std::env::set_var(variable, good) };
                Config::new().lower(&machine.nccl).unwrap();
            }
        }
    }
}
