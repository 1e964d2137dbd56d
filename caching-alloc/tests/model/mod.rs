//! The allocator against a model that keeps plain intervals and who used them last.
//!
//! - [`step`]: what a program may do, out of a number
//! - [`scenario`]: settings and steps, and how they are drawn
//! - [`machine`]: the allocator and the model, a step at a time; what each request got
//! - [`whole`]: what holds for everything together, now and then and at the end
//! - [`ledger`], [`watched`]: who has which memory and what still uses it; a source and a tracker that ask that
//! - [`mirror`]: an allocator's structure, from its entries alone
//! - [`intervals`]: ranges with a value each
//! - [`search`]: many scenarios, from a seed
//!
//! `modelled.rs` runs a million operations, `soak.rs` as many as it is told.

pub(crate) mod intervals;
mod ledger;
mod machine;
mod mirror;
mod scenario;
pub(crate) mod search;
mod step;
mod watched;
mod whole;
