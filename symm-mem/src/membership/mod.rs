//! The state of a [pool](crate::SymmetricPool) in the groups that it is committed for.
//!
//! - A pool's memory consists of segments.
//! - A [commit](crate::SymmetricPool::commit) for a group registers the pool's new segments as NCCL windows, on all
//!   members of the group.
//! - A [retirement](crate::SymmetricPool::retire) deregisters the windows of segments and frees the segments, on all
//!   ranks of the pool's [domain](crate::Domain).
//!
//! | file | subject |
//! |---|---|
//! | `commit` | the members of a group agree on the pool's segments and register them |
//! | `retire` | removal of segments, on all ranks or on none |
//! | `length` | agreement on the length of an allocation |
//! | `memberships` | the state of a pool in all of its groups |
//! | `group_state` | the state of a pool in one group, kept between commits |
//! | `mapped` | the segments, of all pools, whose memory all members of a group have mapped from each other |
//! | `lookup` | a pool's table of segments and of their states in the groups, and the results of a look-up |
//! | `index` | publishes each new version of this table, with a compact index for look-ups by address |
//! | `places` | positions of buffers in a pool, which the members of a group compare |
//! | `meetings` | counters of the agreements in which all ranks of the pool's domain take part |
//! | `group` | the interface through which commits and retirements use a group |
//! | `plain_registration` | a segment's registration with `ncclCommRegister`, for groups without windows |
//! | `registration_guard` | prevents two commits or retirements at a time from using one communicator |
//!
//! Only a commit creates windows. Unless a retirement deregisters them, they exist until the communicator ends.

pub(crate) mod commit;
mod group;
mod group_state;
mod index;
mod length;
mod lookup;
mod mapped;
mod meetings;
mod memberships;
mod places;
mod plain_registration;
mod registration_guard;
mod retire;

pub use self::{
    commit::{CommitOptions, CommitReport},
    group::{CommunicatorGroup, SymmetricGroup},
    lookup::{BufferLocation, LookupError, RegistrationState},
    retire::RetireReport,
};
pub use self::{group::readiness, group_state::GroupState, memberships::Memberships};
pub(crate) use self::{
    index::Index,
    mapped::{MappedSegment, MappedSegments, MappedUse},
};
