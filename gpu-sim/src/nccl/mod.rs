//! NCCL of the embedded device: its C functions over host memory, with ranks as threads, processes or actors.
//!
//! | module | subject |
//! |---|---|
//! | `abi` | the C functions: arguments in, codes out |
//! | `library` | the objects behind a world's handles |
//! | `error` | codes, texts, `ncclGetLastError` |
//! | `bootstrap` | unique ids, the root, the ranks' meeting and its checks |
//! | `shm` | the memory that the ranks of a communicator share |
//! | `comm` | one rank's end of a communicator: state, waiting, abort |
//! | `init`, `children` | making communicators: from an id, by split, by shrink |
//! | `config` | `ncclConfig_t` of any version |
//! | `group` | queued calls, and running them at the end of a group |
//! | `plan`, `ticket` | a launch on a stream: comparison with the other ranks, launch order |
//! | `transport` | cards and barriers between ranks |
//! | `collective`, `p2p`, `reduce` | moving and reducing data |
//! | `rma` | one-sided operations |
//! | `host` | collective calls of the host |
//! | `register`, `window` | local registration; windows, by release |
//!
//! Invariants: every blocking call waits on the communicator's one signal, for its condition or an abort. No lock
//! lies in shared memory, so a killed process leaves ranks that wait, as with the real library, and nothing else.
//! Results do not depend on timing, thread count or rank. A strict world turns every difference between ranks into an
//! error on all of them; a faithful one hangs where the real library hangs.
//!
//! Every device has peer access to every other, so communicators have window support. `NCCL_WIN_ENABLE=0` in the
//! environment of a rank disables it, as with the real library.

mod abi;
mod bootstrap;
mod children;
mod collective;
mod comm;
mod config;
mod error;
mod group;
mod host;
mod init;
mod library;
mod p2p;
mod plan;
pub(crate) mod reduce;
mod register;
mod rma;
mod shm;
mod ticket;
mod transport;
mod window;

pub(crate) use abi::table;
