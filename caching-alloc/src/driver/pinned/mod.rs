//! A source of pinned host memory, and an allocator whose blocks the host may access.

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
