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

#[test]
fn the_kernels_are_measured_beside_nccl() {
    let output = bench(&["kernels", "--largest", "1", "--json"]);
    assert!(output.status.success(), "{output:?}");
    let report = figures(&output);
    assert_eq!(report["ranks"], 2);
    let rows = report["rows"].as_array().unwrap();
    let collectives =
        ["all-reduce, one-shot", "all-reduce, two-shot", "reduce-scatter", "all-gather", "all-to-all"];
    for collective in collectives {
        let of: Vec<_> = rows.iter().filter(|row| row["collective"] == collective).collect();
        let bytes: Vec<_> = of.iter().map(|row| row["bytes"].as_u64().unwrap()).collect();
        assert_eq!(bytes, [8, 64, 512, 4096, 32_768, 262_144, 1 << 20], "{collective}");
        for row in of {
            assert!(row["eager_us"].is_f64() && row["graph_us"].is_f64(), "{row}");
            let peers = row["peers"].as_array().unwrap();
            let names: Vec<_> = peers.iter().map(|peer| peer["contender"].as_str().unwrap()).collect();
            let torch: &[&str] = if collective.starts_with("all-reduce") {
                &["torch one-shot", "torch two-shot"]
            } else {
                &[]
            };
            assert_eq!(names, [&["NCCL", "NCCL with windows"], torch].concat(), "{collective}");
            for peer in peers {
                let is_measured = peer["eager_us"].is_f64() && peer["graph_us"].is_f64();
                assert_eq!(is_measured, peer["left_out"].is_null(), "a time or a reason: {peer}");
            }
            // The embedded NCCL has windows.
            if report["machine"].as_str().unwrap().starts_with("embedded device") {
                assert!(peers[..2].iter().all(|peer| peer["eager_us"].is_f64()), "{row}");
            }
        }
    }
}

#[test]
fn a_single_rank_measures_its_kernels() {
    let output = bench(&["kernels", "--ranks", "1", "--largest", "1"]);
    assert!(output.status.success(), "{output:?}");
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(told.starts_with("collective kernels, bf16, 1 ranks on "), "{told}");
    assert!(told.contains("NCCL with windows: left out: "), "{told}");
}
