//! A library's exports that are not functions of the table: each such symbol must be known.

use std::collections::BTreeSet;

use nccl_sys::Table;

/// Exported, but not part of NCCL's interface, so the crate does not bind them.
const INTERNAL: [&str; 10] = [
    // No header declares these.
    "ncclParamDumpAllFlag",
    "ncclParamDumpAllFlagKey",
    "ncclParamEnvPluginGet",
    "ncclParamIsCacheDisabled",
    "ncclParamNoCacheStr",
    "ncclParamNoCacheStrKey",
    "ncclParamRegistryInstance",
    "ncclResetDebugInitInternal",
    // The headers declare these for Windows alone.
    "ncclGinInboxA2ACreateRequirement",
    "ncclGinOutboxCreateRequirement",
];

/// Returns the symbols of NCCL that are in neither the table nor the list of internals. `pncclX` is another name of
/// `ncclX`, for profilers.
pub(super) fn faults(exports: &BTreeSet<String>) -> Vec<String> {
    let ours = exports.iter().map(|symbol| symbol.strip_prefix('p').unwrap_or(symbol));
    let ours: BTreeSet<_> = ours.filter(|name| name.starts_with("nccl")).collect();
    let unknown = ours.into_iter().filter(|name| Table::function(name).is_none() && !INTERNAL.contains(name));
    unknown
        .map(|name| format!("it exports {name}, which is neither in the table nor known as internal"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_symbol_that_nobody_knows_is_told() {
        let exports = ["ncclSend", "pncclSend", "ncclResetDebugInitInternal", "pncclNew", "ncclNew", "_end"];
        let faults = faults(&exports.map(str::to_owned).into());
        assert_eq!(faults, ["it exports ncclNew, which is neither in the table nor known as internal"]);
    }
}
