//! Tests of configurations and of the settings that override them, with tables that report chosen releases.

use std::ffi::{CStr, OsStr, c_int};
use std::path::Path;

use nccl_sys::{
    Api, CONFIG_FIELDS, Config, ConfigBuilder, ConfigError, CtaPolicy, GraphUsage, Item, Missing,
    NCCL_CONFIG_UNDEF_INT, Table, Version, ncclHostCftMode_t, ncclNvlsHostMode_t, ncclResult_t, overrides,
};
use proptest::prelude::*;
use rusty_fork::rusty_fork_test;

/// Returns a handle whose table has only the version function, which reports `CODE`.
fn api<const CODE: c_int>() -> Api {
    unsafe extern "C" fn version<const CODE: c_int>(version: *mut c_int) -> ncclResult_t {
        // SAFETY: the crate passes room for one integer.
        unsafe { *version = CODE };
        ncclResult_t::ncclSuccess
    }
    let mut table = Table::default();
    table.ncclGetVersion = Some(version::<CODE>);
    // SAFETY: the function keeps NCCL's declaration.
    unsafe { Api::from_parts(table) }.unwrap()
}

/// Returns handles of releases before and after the first release of every field.
fn apis() -> Vec<Api> {
    vec![
        api::<21304>(),
        api::<21403>(),
        api::<21605>(),
        api::<21701>(),
        api::<21803>(),
        api::<22501>(),
        api::<22605>(),
        api::<22707>(),
        api::<22809>(),
        api::<22907>(),
        api::<23004>(),
        api::<23007>(),
        api::<23102>(),
        api::<23203>(),
    ]
}

fn fields(ignored: &[Missing]) -> Vec<&'static str> {
    let field = |missing: &Missing| match missing.item {
        Item::Field { field, .. } => field,
        other => panic!("{other:?}"),
    };
    ignored.iter().map(field).collect()
}

/// A setter of the builder, with the fields that it sets: two for the bounds of thread blocks, one for any other.
type Setting = (&'static [&'static str], fn(ConfigBuilder) -> ConfigBuilder);

/// Every setter of the builder.
const SETTINGS: &[Setting] = &[
    (&["blocking"], |config| config.blocking(false)),
    (&["cgaClusterSize"], |config| config.cga_cluster_size(2)),
    (&["minCTAs", "maxCTAs"], |config| config.ctas(2, 8)),
    (&["netName"], |config| config.net_name("Socket")),
    (&["splitShare"], |config| config.split_share(true)),
    (&["trafficClass"], |config| config.traffic_class(3)),
    (&["commName"], |config| config.comm_name("world")),
    (&["collnetEnable"], |config| config.collnet(false)),
    (&["CTAPolicy"], |config| config.cta_policy(CtaPolicy::Efficiency)),
    (&["shrinkShare"], |config| config.shrink_share(true)),
    (&["nvlsCTAs"], |config| config.nvls_ctas(4)),
    (&["nChannelsPerNetPeer"], |config| config.channels_per_net_peer(4)),
    (&["nvlinkCentricSched"], |config| config.nvlink_centric(true)),
    (&["graphUsageMode"], |config| config.graph_usage(GraphUsage::None)),
    (&["numRmaCtx"], |config| config.rma_contexts(2)),
    (&["maxP2pPeers"], |config| config.max_p2p_peers(4)),
    (&["graphStreamOrdering"], |config| config.graph_stream_ordering(true)),
    (&["launchOrderImplicit"], |config| config.launch_order_implicit(true)),
    (&["numRmaSig"], |config| config.rma_signals(2)),
    (&["rmaEagerInit"], |config| config.rma_eager_init(true)),
    (&["hostCftMode"], |config| config.host_cft_mode(ncclHostCftMode_t::ncclHostCftFallback)),
    (&["nvlsHostMode"], |config| config.nvls_host_mode(ncclNvlsHostMode_t::ncclNvlsHostModeDisable)),
];

#[test]
fn every_field_has_a_setter() {
    let set: Vec<_> = SETTINGS.iter().flat_map(|(fields, _)| *fields).copied().collect();
    assert_eq!(set, CONFIG_FIELDS.iter().map(|field| field.name).collect::<Vec<_>>());
}

proptest! {
    /// For any subset of the setters: the fields of these setters are set, and no others, except `blocking` for a release
    /// before 2.17. Exactly those of the setters' fields that the release does not read are reported as ignored.
    #[test]
    fn what_is_set_and_not_read_is_reported(
        chosen in proptest::sample::subsequence(SETTINGS, 0..=SETTINGS.len()),
        api in proptest::sample::select(apis()),
    ) {
        let builder = chosen.iter().fold(ConfigBuilder::new(), |builder, (_, set)| set(builder));
        let set: Vec<_> = chosen.iter().flat_map(|(fields, _)| *fields).copied().collect();
        let unread: Vec<_> = CONFIG_FIELDS
            .iter()
            .filter(|field| api.version() < field.since && set.contains(&field.name))
            .map(|field| field.name)
            .collect();

        let config = builder.clone().build_lenient(&api).unwrap();
        prop_assert_eq!(fields(config.ignored()), unread.clone());
        for field in CONFIG_FIELDS {
            // A library before 2.17 does not accept an undefined `blocking`, so the builder sets the field.
            let needed = field.name == "blocking" && api.version() < Version::new(2, 17, 1);
            prop_assert_eq!(config.raw().sets(field.name), set.contains(&field.name) || needed);
        }
        match builder.build(&api) {
            Ok(strict) => prop_assert!(unread.is_empty() && strict.ignored().is_empty()),
            Err(ConfigError::Ignored(ignored)) => prop_assert_eq!(fields(&ignored), unread),
            Err(error) => return Err(TestCaseError::fail(error.to_string())),
        }
    }

    /// The builder accepts exactly the bounds that are a range of thread blocks within 1 to 64.
    #[test]
    fn bounds_are_a_range_or_an_error(at_least in 0..70_u32, at_most in 0..70_u32) {
        let good = 1 <= at_least && at_least <= at_most && at_most <= 64;
        match ConfigBuilder::new().ctas(at_least, at_most).build(&api::<22809>()) {
            Ok(config) => {
                prop_assert!(good);
                prop_assert_eq!((config.raw().minCTAs as u32, config.raw().maxCTAs as u32), (at_least, at_most));
            }
            Err(ConfigError::Value { field, .. }) => prop_assert!(!good && field.ends_with("CTAs")),
            Err(error) => return Err(TestCaseError::fail(error.to_string())),
        }
    }
}

#[test]
fn strings_live_as_long_as_any_clone() {
    let built = ConfigBuilder::new().comm_name("tp").net_name("IB").build(&api::<22809>()).unwrap();
    let kept: Config = built.clone();
    let raw = built.raw();
    drop(built);
    // SAFETY: the clone keeps both strings alive.
    let text = |at| unsafe { CStr::from_ptr(at) }.to_str().unwrap();
    assert_eq!((text(raw.commName), text(raw.netName)), ("tp", "IB"));
    assert_eq!(kept.raw().commName, raw.commName);
}

#[test]
fn values_that_a_release_refuses_are_named() {
    let zero = || ConfigBuilder::new().cta_policy(CtaPolicy::Zero);
    let text = |result: Result<Config, ConfigError>| result.unwrap_err().to_string();
    assert_eq!(
        text(zero().build_lenient(&api::<22707>())),
        "`ncclConfig_t.CTAPolicy` cannot be `NCCL_CTA_POLICY_ZERO`: the policy without thread blocks needs NCCL 2.28, \
         but 2.27.7 is loaded"
    );
    assert_eq!(zero().build(&api::<22809>()).unwrap().raw().CTAPolicy, 2);
    // Older libraries do not read the field, so the setting is ignored and not refused.
    assert_eq!(fields(zero().build_lenient(&api::<22605>()).unwrap().ignored()), ["CTAPolicy"]);

    let newest = api::<23203>();
    let unordered = || ConfigBuilder::new().graph_stream_ordering(false);
    assert!(text(unordered().build(&newest)).contains("`graphUsageMode` is 2"));
    assert!(
        text(unordered().graph_usage(GraphUsage::Mixed).build(&newest)).contains("`graphUsageMode` is 2")
    );
    unordered().graph_usage(GraphUsage::Single).build(&newest).unwrap();

    assert_eq!(
        text(ConfigBuilder::new().cga_cluster_size(9).build(&newest)),
        "`ncclConfig_t.cgaClusterSize` cannot be 9: it goes from 0 to 8"
    );
    assert!(text(ConfigBuilder::new().rma_contexts(u32::MAX).build(&newest)).contains("4294967295"));
    assert_eq!(
        text(ConfigBuilder::new().comm_name("a\0b").build(&newest)),
        "`ncclConfig_t.commName` cannot be \"a\\0b\": it holds a zero byte, which C strings end at"
    );
}

#[test]
fn what_is_ignored_reads_well() {
    let error = ConfigBuilder::new().traffic_class(1).comm_name("x").build(&api::<22105>()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the library ignores what the configuration sets: `ncclConfig_t.trafficClass` needs NCCL 2.26.2 or newer; \
         found 2.21.5 (a table that was handed over); `ncclConfig_t.commName` needs NCCL 2.27.3 or newer; found \
         2.21.5 (a table that was handed over)"
    );
}

#[test]
fn blocking_is_what_a_release_without_the_field_is() {
    let oldest = api::<21304>();
    assert!(ConfigBuilder::new().blocking(true).build(&oldest).is_ok());
    assert!(matches!(ConfigBuilder::new().blocking(false).build(&oldest), Err(ConfigError::Ignored(_))));
    assert_eq!(ConfigBuilder::new().build(&api::<21605>()).unwrap().raw().blocking, 1);
    assert_eq!(ConfigBuilder::new().build(&api::<21701>()).unwrap().raw().blocking, NCCL_CONFIG_UNDEF_INT);
}

/// For every release, the builder declares the newest size and version, and leaves a `trafficClass` that is not set
/// undefined. It never declares 2.18 to 2.25. There the structure has padding in the place of `trafficClass`, and a later
/// library decides by the declared version alone whether it reads the field.
#[test]
fn padding_is_never_taken_for_a_field() {
    for api in apis() {
        let raw = ConfigBuilder::new().split_share(true).build_lenient(&api).unwrap().raw();
        assert_eq!(raw.trafficClass, NCCL_CONFIG_UNDEF_INT);
        assert_eq!((raw.size, raw.version), (size_of_val(&raw), nccl_sys::NCCL_VERSION_CODE));
    }
}

rusty_fork_test! {
    #[test]
    fn what_the_environment_beats_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("nccl.conf");
        std::fs::write(&file, "NCCL_MIN_CTAS=8\nNCCL_NET=Socket\nNCCL_CTA_POLICY=ZERO\n").unwrap();
        let set = |name: &str, value: &OsStr| {
            // SAFETY: this process runs only this one test, and no other thread uses the environment meanwhile.
            unsafe { std::env::set_var(name, value) };
        };
        set("NCCL_CONF_FILE", file.as_os_str());
        set("NCCL_NET", OsStr::new("IB"));
        set("NCCL_COMM_BLOCKING", OsStr::new("1"));

        let config = ConfigBuilder::new().blocking(false).ctas(1, 4).net_name("x").cta_policy(CtaPolicy::Efficiency);
        let config = config.build_lenient(&api::<22605>()).unwrap();
        let found: Vec<_> = config.overrides().into_iter()
            .map(|found| (found.field, found.variable, found.value.into_string().unwrap(), found.file)).collect();
        let file = Path::new(&file).to_path_buf();
        assert_eq!(found, [
            ("blocking", "NCCL_COMM_BLOCKING", "1".to_owned(), None),
            ("minCTAs", "NCCL_MIN_CTAS", "8".to_owned(), Some(file.clone())),
            ("netName", "NCCL_NET", "IB".to_owned(), None),
            // 2.26 does not read `CTAPolicy`, so `NCCL_CTA_POLICY` overrides nothing.
        ]);
        assert_eq!(config.overrides()[2].to_string(), "`ncclConfig_t.netName` is overridden by NCCL_NET=IB");
        let policy = overrides(Version::new(2, 27, 3)).into_iter().find(|found| found.field == "CTAPolicy").unwrap();
        assert_eq!(policy.file, Some(file));
        assert!(ConfigBuilder::new().build(&api::<22809>()).unwrap().overrides().is_empty());
    }
}
