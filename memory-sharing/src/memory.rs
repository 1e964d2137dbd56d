//! Memory that a rank can share, and a peer's memory that is open (mapped) on this rank.

use std::{any::Any, os::fd::OwnedFd, sync::Arc};

use bootstrap::error_text;
use cuda_driver::{
    Context, DevicePtr,
    memory::{ImportedMemory, IpcHandle},
    vmm::{Access, Mapping, PhysicalMemory, Reservation},
};

use crate::{ForeignMemory, Handle, HostMemory, OpenedMemory};

/// A whole allocation of a rank of this process. Clones share the allocation and keep it alive.
#[derive(Debug, Clone)]
pub enum Shareable {
    /// Memory of `cuMemCreate`.
    Virtual(PhysicalMemory),
    /// Memory of `cuMemAlloc`.
    Plain(PlainMemory),
    /// Memory of the host.
    Host(Arc<HostMemory>),
    /// Memory of another kind of device.
    Foreign(Arc<dyn ForeignMemory>),
}

/// A whole allocation of `cuMemAlloc`, given by its address.
#[derive(Debug, Clone)]
pub struct PlainMemory {
    pub(crate) context: Context,
    base: DevicePtr,
    bytes: usize,
    owner: Arc<dyn Any + Send + Sync>,
}

impl PlainMemory {
    /// The `bytes` bytes at `base`. For ranks of other processes, they must be a whole allocation of `cuMemAlloc`,
    /// because the driver opens an allocation from its first byte.
    ///
    /// # Safety
    /// The bytes are memory of the device of `context`, and stay allocated until `owner` is dropped.
    pub unsafe fn new(
        context: &Context,
        base: DevicePtr,
        bytes: usize,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        Self { context: context.clone(), base, bytes, owner }
    }
}

impl Shareable {
    /// The length of the whole allocation in bytes.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Virtual(physical) => physical.bytes(),
            Self::Plain(memory) => memory.bytes,
            Self::Host(memory) => memory.bytes(),
            Self::Foreign(memory) => memory.bytes(),
        }
    }

    /// Exports the handles. This rank posts them for its peers.
    pub(crate) fn handle(&self) -> Result<Handle, String> {
        match self {
            Self::Virtual(physical) => Handle::of(physical),
            Self::Plain(PlainMemory { context, base, bytes, .. }) => {
                let IpcHandle(handle) = context.export_ipc(*base).map_err(|error| {
                    format!(
                        "{bytes} bytes at {base} are neither memory of cuMemAlloc nor virtual memory with handles, \
                         which are the kinds that peers can open: {}",
                        error_text(&error)
                    )
                })?;
                Ok(Handle::Legacy { handle: handle.to_vec() })
            }
            Self::Host(_) => Ok(Handle::Host),
            Self::Foreign(memory) => {
                let handle = memory.handle().map_err(|error| error_text(&*error))?;
                let (kind, descriptor) = (memory.kind().to_owned(), memory.has_descriptor());
                Ok(Handle::Foreign { kind, descriptor, handle })
            }
        }
    }

    /// Exports a file descriptor. Called only if [`Handle::has_descriptor`] is true for the result of
    /// [`handle`](Self::handle).
    pub(crate) fn descriptor(&self) -> Result<OwnedFd, String> {
        match self {
            Self::Virtual(physical) => physical.export_fd().map_err(|error| error_text(&error)),
            Self::Plain(_) => Err("memory of cuMemAlloc has no file descriptor".to_owned()),
            Self::Host(memory) => memory.descriptor(),
            Self::Foreign(memory) => memory.descriptor().map_err(|error| error_text(&*error)),
        }
    }
}

/// A peer's allocation that is open on this rank. Dropping the value closes the allocation.
#[derive(Debug)]
pub enum Imported {
    /// Memory of `cuMemCreate`.
    Mapped(Mapping),
    /// Memory of `cuMemAlloc` that belongs to a rank of another process.
    Legacy(ImportedMemory),
    /// Memory of `cuMemAlloc` that belongs to another rank of this process.
    Local(PlainMemory),
    /// Memory of the host.
    Host(Arc<HostMemory>),
    /// Memory of another kind of device.
    Foreign(Box<dyn OpenedMemory>),
}

impl Imported {
    /// The address at which this rank accesses the first byte of the allocation.
    pub fn base(&self) -> DevicePtr {
        match self {
            Self::Mapped(mapping) => mapping.ptr(),
            Self::Legacy(imported) => imported.ptr(),
            Self::Local(memory) => memory.base,
            Self::Host(memory) => memory.ptr(),
            Self::Foreign(memory) => memory.ptr(),
        }
    }

    /// Returns whether dropping this value may make a driver call that waits for the work of the device:
    /// `cuIpcCloseMemHandle`, or `cuMemFree` if this value is the last owner of the memory of another rank of this
    /// process.
    pub fn may_wait_when_closed(&self) -> bool {
        match self {
            Self::Legacy(_) => true,
            Self::Local(memory) => Arc::strong_count(&memory.owner) == 1,
            Self::Mapped(_) | Self::Host(_) | Self::Foreign(_) => false,
        }
    }
}

/// Maps `memory`, with read and write access for the device of `context`.
pub fn map(context: &Context, memory: &PhysicalMemory, bytes: usize) -> cuda_driver::Result<Mapping> {
    let mapping = Reservation::new(context.driver(), bytes, 0)?.map(0, memory, 0, bytes)?;
    mapping.set_access(&[(context.device(), Access::ReadWrite)])?;
    Ok(mapping)
}
