//! Pinned host memory: its source, and blocks that the host may access.

mod allocator;
mod block;
mod chain;
mod error;
mod host_memory;
mod source;

pub use self::allocator::PinnedAllocator;
pub use self::block::PinnedBlock;
pub use self::chain::PinnedSource;
pub use self::error::PinnedError;
pub use self::source::PinnedHostSource;
