//! Untyped memory of the device and of the host. [`mod@crate::slice`] has typed memory with a safe interface.
//!
//! | type | source | on drop |
//! | --- | --- | --- |
//! | [`DeviceMemory`] | `cuMemAlloc` | freed; may wait for the device |
//! | [`StreamMemory`] | `cuMemAllocAsync`, or a [`MemoryPool`] | freed in stream order |
//! | [`PinnedMemory`] | `cuMemHostAlloc` | freed; may wait for the device |
//! | [`RegisteredMemory`] | host memory of the program | unpinned, not freed |
//! | [`ImportedMemory`] | another process ([`IpcHandle`]) | closed, not freed |
//!
//! [`vmm`](crate::vmm) has memory that is mapped at reserved addresses, page by page.

mod copy;
mod device;
mod ipc;
mod pinned;
mod pool;
mod query;
mod registered;
mod stream_ordered;

pub use self::device::DeviceMemory;
pub use self::ipc::{ImportedMemory, IpcHandle};
pub use self::pinned::{PinnedFlags, PinnedMemory};
pub use self::pool::{MemoryPool, PoolReuse, PoolUsage};
pub use self::query::{AddressRange, MemoryKind, PointerDetails, PointerInfo};
pub use self::registered::{RegisterFlags, RegisteredMemory};
pub use self::stream_ordered::{PoolPointer, StreamMemory};
pub use crate::address::DevicePtr;
pub use crate::element::Element;
