//! The soak of aborts as a user runs it, for a few rounds.

use std::process::Command;

use crate::lab;

/// A limit for slow machines; the command itself measures the time of the aborts.
const LIMIT: &str = "60";

fn soak(options: &[&str]) -> serde_json::Value {
    let mut command = Command::new(lab());
    command.args(["soak", "abort", "--backend", "sim", "--json", "--limit", LIMIT]).args(options);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn every_case_leaves_nothing_behind() {
    let report = soak(&["--times", "4"]);
    let cases = report["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 12, "{report}");
    // Three ranks. The absent one has nothing to abort in cases in which it makes no communicator.
    assert!(cases.iter().all(|case| case["rounds"].as_u64().is_some_and(|rounds| rounds >= 8)), "{report}");
    // The first rounds may keep resources. The rounds after them must leave nothing.
    let nothing = |case: &serde_json::Value| {
        let none = serde_json::json!({
            "threads": {}, "descriptors": {}, "shared_mappings": {}, "device_bytes": [0, 0, 0],
        });
        case["left"] == none && case["grew"] == serde_json::json!([]) && case["kept"].is_object()
    };
    assert!(cases.iter().all(nothing), "{report}");
    assert_eq!(report["skipped"].as_array().unwrap().len(), 0, "{report}");
}
