//! Host memory that several processes of the host can share.

use std::{
    os::fd::{BorrowedFd, OwnedFd},
    ptr::NonNull,
};

use bootstrap::{error_text, link::SharedMemory};
use cuda_driver::{
    Context, DevicePtr,
    memory::{RegisterFlags, RegisteredMemory},
};

/// Host memory that the devices of this process can access. Other processes of the host can open it.
#[derive(Debug)]
pub struct HostMemory {
    device: DevicePtr,
    /// Declared before `memory`, so that the registration is dropped before the memory is unmapped.
    _registration: RegisteredMemory<'static>,
    memory: SharedMemory,
    /// The descriptor by which other processes open the memory. `None` for memory that another process has created.
    descriptor: Option<OwnedFd>,
}

impl HostMemory {
    /// Creates memory of `bytes` zero bytes.
    ///
    /// # Errors
    /// The reason why the memory cannot be created, or why the driver cannot register it.
    pub fn create(context: &Context, bytes: usize) -> Result<Self, String> {
        let created = SharedMemory::create(bytes);
        let (descriptor, memory) = created.map_err(|error| format!("shared host memory: {error}"))?;
        Self::register(context, memory, Some(descriptor)).map_err(|error| error_text(&error))
    }

    /// Opens the memory of another process by its file descriptor `memory`.
    pub(crate) fn open(context: &Context, memory: BorrowedFd<'_>, bytes: usize) -> Result<Self, String> {
        let memory = SharedMemory::open(memory, bytes)?;
        Self::register(context, memory, None).map_err(|error| error_text(&error))
    }

    fn register(
        context: &Context,
        memory: SharedMemory,
        descriptor: Option<OwnedFd>,
    ) -> cuda_driver::Result<Self> {
        let flags = RegisterFlags::PORTABLE | RegisterFlags::DEVICE_MAPPED;
        // SAFETY: `memory` stays mapped until it is dropped, which is after the drop of the registration. No other code
        // unmaps it. Its bytes are initialized, by zeros or by another process.
        let registration =
            unsafe { RegisteredMemory::from_raw(context, memory.start(), memory.bytes(), flags) }?;
        Ok(Self { device: registration.device_ptr()?, _registration: registration, memory, descriptor })
    }

    pub(crate) fn descriptor(&self) -> Result<OwnedFd, String> {
        let descriptor = self.descriptor.as_ref().ok_or("the host memory belongs to another process")?;
        descriptor.try_clone().map_err(|error| error.to_string())
    }

    /// The address at which devices access the memory.
    pub fn ptr(&self) -> DevicePtr {
        self.device
    }

    /// The address at which host threads access the memory. Other processes may write to it at any time, so access it
    /// by atomics only.
    pub fn start(&self) -> NonNull<u8> {
        self.memory.start()
    }

    /// The length of the memory in bytes.
    pub fn bytes(&self) -> usize {
        self.memory.bytes()
    }
}
