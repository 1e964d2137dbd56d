//! End-to-end tests of the crate, through its public interface.

mod network;
mod other;
mod ports;
mod python;
#[cfg(feature = "simulation")]
mod seeded_deadlines;
#[cfg(feature = "simulation")]
mod seeded_ranks;
#[cfg(feature = "simulation")]
mod seeded_routes;
#[cfg(feature = "simulation")]
mod seeded_tcp;
mod several_hosts;
mod store_attack;
mod store_every;
mod store_file;
mod store_garbage;
mod store_hostile;
mod store_memory;
mod store_model;
mod store_rendezvous;
mod store_secret;
mod store_tcp;
mod store_torch;

/// Returns the factor by which seeded tests multiply their number of seeds: the environment variable `TEST_EFFORT`, or
/// 1.
#[cfg(feature = "simulation")]
fn test_effort() -> u64 {
    std::env::var("TEST_EFFORT").map_or(1, |times| times.parse().expect("TEST_EFFORT is a whole number"))
}

/// The first bytes of a client without a secret.
const GREETING: &[u8] = b"\0\xce\xf7\x85\x3c";

/// Returns a deadline that passes only if a test hangs.
fn soon() -> bootstrap::store::Deadline {
    bootstrap::store::Deadline::after(std::time::Duration::from_secs(60))
}
