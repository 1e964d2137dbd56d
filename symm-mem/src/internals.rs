//! Parts of this crate that the crate `simulation` calls directly. They are not part of the public interface, and may
//! change without notice.

pub use crate::{
    domain::instance_key,
    exchange::{
        core::closed_key,
        generation::Generations,
        handles::{Handles, Key, Open},
        lease::{Lease, LeaseState},
        slots::Slots,
    },
    lock::lock,
    membership::{
        GroupState, Meetings, Memberships, PlainRegistration,
        commit::{Done, offer, peers::OpenedPeers},
        readiness,
    },
    pool::{Arena, GraphHold, PoolMemory},
    symmetric_pool::several,
};
