//! Benchmarks: their figures as JSON, and an exit code that says whether the bars hold.

use std::process::{Command, Output};

use serde_json::Value;

use crate::lockstep;

fn bench(arguments: &[&str]) -> Output {
    Command::new(lockstep()).arg("bench").args(arguments).output().unwrap()
}

/// The first object that was printed. After it comes that of the error, if there is one.
fn figures(output: &Output) -> Value {
    let mut objects = serde_json::Deserializer::from_slice(&output.stdout).into_iter();
    objects.next().unwrap().unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

#[test]
fn check_fails_exactly_if_a_bar_does_not_hold() {
    // Without the option there is no note on the bars.
    let output = bench(&["pool"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let (told, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(told.contains("limits; with --check, one that does not hold is an error:\n"), "{told}");
    assert!(!said.contains("limit") && !said.contains("hold"), "{said}");
    let output = bench(&["pool", "--check", "--json"]);
    let report = figures(&output);
    let bars = report["bars"].as_array().unwrap();
    assert!(!bars.is_empty(), "{report}");
    let all_hold = bars.iter().all(|bar| bar["holds"].as_bool().unwrap());
    assert_eq!(output.status.code(), Some(i32::from(!all_hold)), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(said.contains("(does not hold)"), !all_hold, "{said}");
    if report["machine"].as_str().unwrap().starts_with("embedded device") {
        assert!(said.contains("note: limits of times are not checked: they are for GPUs"), "{said}");
    }
    for footprint in report["footprints"].as_array().unwrap() {
        for key in ["reserved_bytes", "segments", "windows"] {
            assert!(footprint[key].is_u64(), "{footprint}");
        }
    }
    assert!(!said.contains('\u{1b}'), "no colours or progress outside a terminal: {said:?}");
}

#[test]
fn the_store_is_measured_without_pytorch() {
    let few = ["store", "--rounds", "1", "--calls", "2", "--joins", "1", "--clients", "2", "--json"];
    let output = bench(&few);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(figures(&output)["servers"][0]["server"], "ours");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.matches("debug build").count() <= 1, "parts of the benchmark say it again: {said}");
}

#[test]
fn a_check_without_a_bar_is_a_usage_error_that_names_the_benchmarks_with_bars() {
    for name in ["alloc", "kernels", "store"] {
        let output = bench(&[name, "--check"]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{name}: {error}");
        assert!(error.contains(&format!("--check: `bench {name}` has no limits to check")), "{error}");
        assert!(
            error.contains("`bench call`, `bench p2p`, `bench pool`, `bench symm` or `bench store --attack`"),
            "{error}"
        );
    }
}
