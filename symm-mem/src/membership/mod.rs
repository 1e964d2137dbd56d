//! The state of a pool in the groups that it is committed for: commits, retirements, windows and look-up.
//!
//! | file | subject |
//! |---|---|
//! | `commit` | the members of a group agree on the pool's segments and register them |
//! | `retire` | removal of segments, on all ranks or on none |
//! | `agreed` | agreement on the length of an allocation |
//! | `memberships` | the state of a pool in all of its groups |
//! | `group_state` | the state of a pool in one group, kept between commits |
//! | `mapped` | the segments, of all pools, that all members of a group have mapped |
//! | `lookup` | the table of a pool's segments and of their states in the groups |
//! | `index` | the published table, and the search for an address |
//! | `places` | positions of buffers in a pool, which the members of a group compare |
//! | `meetings` | counters of the agreements in which the whole domain takes part |
//! | `group` | the interface through which commits and retirements use a group |
//! | `circumstances` | the conditions that a rank checks first in a commit or a retirement |
//! | `plain_registration` | a segment's registration with `ncclCommRegister` |
//! | `registration_guard` | allows one commit or retirement of a communicator at a time |
//!
//! Only a commit creates windows. They are removed by a retirement, or with the communicator.

mod agreed;
mod circumstances;
pub(crate) mod commit;
mod group;
mod group_state;
mod index;
mod lookup;
mod mapped;
mod meetings;
mod memberships;
mod places;
mod plain_registration;
mod registration_guard;
mod retire;

#[cfg(any(test, feature = "simulation"))]
pub(crate) use self::circumstances::Circumstances;
#[cfg(any(test, feature = "simulation"))]
pub(crate) use self::group_state::GroupState;
#[cfg(any(test, feature = "simulation"))]
pub(crate) use self::retire::Found as RetirementFound;
pub use self::{
    commit::{CommitOptions, CommitReport},
    group::{CommunicatorGroup, SymmetricGroup},
    lookup::{BufferLocation, LookupError, Standing},
    retire::RetireReport,
};
pub(crate) use self::{
    group_state::lock,
    index::Index,
    mapped::{MappedSegment, MappedSegments},
    memberships::Memberships,
};
