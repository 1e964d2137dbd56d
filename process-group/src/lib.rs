//! NCCL process groups: stores, communicators, collectives, registration of cached memory

pub mod store;
