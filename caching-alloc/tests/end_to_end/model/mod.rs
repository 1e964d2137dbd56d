//! Compares the allocator with a model, which has plain intervals of memory and the last users of each.
//!
//! - [`step`]: operations of a program, decoded from a number
//! - [`scenario`]: settings and steps, and their random generation
//! - [`machine`]: the allocator and the model, step by step; checks of each request
//! - [`whole`]: checks of everything together, at intervals and at the end
//! - [`ledger`], [`watched`]: the owners and uses of memory; a source and a tracker with checks against them
//! - [`mirror`]: an allocator's live segments, rebuilt from its entries alone
//! - [`intervals`]: ranges with a value each
//! - [`search`]: many scenarios, from a seed
//!
//! `modelled.rs` runs 125,000 operations times the variable `TEST_EFFORT`, and `soak.rs` as many as its caller
//! requests.

pub(crate) mod intervals;
mod ledger;
mod machine;
mod mirror;
mod scenario;
pub(crate) mod search;
mod step;
mod watched;
mod whole;
