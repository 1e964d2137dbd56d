//! NCCL process groups: stores, communicators, collectives, registration of cached memory

pub mod comm;
mod hash;
pub mod store;
