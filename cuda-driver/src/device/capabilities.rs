//! Capabilities and properties of a device, which programs check before they choose an implementation.

use bitflags::bitflags;
use cuda_driver_sys::{CUdevice_attribute as A, CUresult};

use super::Device;
use crate::handle_types::HandleTypes;
use crate::{Error, Result};

bitflags! {
    /// Capabilities of a device, which also depend on its driver and its host.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Capabilities: u32 {
        /// The host and the devices share one address space.
        const UNIFIED_ADDRESSING = 1 << 0;
        /// The device supports the virtual memory calls of [`vmm`](crate::vmm).
        const VIRTUAL_MEMORY = 1 << 1;
        /// Physical memory can be exported as file descriptors.
        const FILE_DESCRIPTOR_HANDLES = 1 << 2;
        /// The device supports exporting physical memory as fabric handles. The process also needs an IMEX channel that
        /// it may open. [`HandleTypes::granted`](crate::vmm::HandleTypes::granted) tests both conditions.
        const FABRIC_HANDLES = 1 << 3;
        /// Other devices of the host, such as network adapters, can access the device's memory (GPUDirect RDMA).
        const RDMA = 1 << 4;
        /// GPUDirect RDMA can also access memory of [`vmm`](crate::vmm).
        const RDMA_OF_VIRTUAL_MEMORY = 1 << 5;
        /// Device memory can be exported as DMA-BUF file descriptors.
        const DMA_BUFFERS = 1 << 6;
        /// The device supports stream-ordered memory and its [pools](crate::memory::MemoryPool).
        const MEMORY_POOLS = 1 << 7;
        /// Stream memory operations can use 64-bit words.
        const STREAM_WORDS_64 = 1 << 8;
        /// Stream memory operations can wait with [`WaitCondition::NotOr`](crate::WaitCondition::NotOr).
        const STREAM_WAIT_NOT_OR = 1 << 9;
        /// Events can be shared with other processes.
        const IPC_EVENTS = 1 << 10;
        /// Existing host memory can be pinned by [registering](crate::memory::RegisteredMemory) it.
        const HOST_REGISTER = 1 << 11;
        /// Registered memory has the same address for the host and the device.
        const HOST_POINTER_OF_REGISTERED = 1 << 12;
        /// The device supports managed memory, which the driver moves between host and device.
        const MANAGED_MEMORY = 1 << 13;
        /// The device supports cooperative launches: kernels whose blocks can wait for each other.
        const COOPERATIVE_LAUNCH = 1 << 14;
        /// The device can run several kernels at the same time.
        const CONCURRENT_KERNELS = 1 << 15;
        /// Streams can have priorities.
        const STREAM_PRIORITIES = 1 << 16;
        /// The device supports [multicast](crate::vmm::multicast) objects.
        const MULTICAST = 1 << 17;
    }
}

/// The device attribute behind each capability.
const ATTRIBUTES: &[(Capabilities, A)] = &[
    (Capabilities::UNIFIED_ADDRESSING, A::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING),
    (Capabilities::VIRTUAL_MEMORY, A::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED),
    (
        Capabilities::FILE_DESCRIPTOR_HANDLES,
        A::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
    ),
    (Capabilities::FABRIC_HANDLES, A::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED),
    (Capabilities::RDMA, A::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED),
    (Capabilities::RDMA_OF_VIRTUAL_MEMORY, A::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED),
    (Capabilities::DMA_BUFFERS, A::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED),
    (Capabilities::MEMORY_POOLS, A::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED),
    (Capabilities::STREAM_WORDS_64, A::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS),
    (Capabilities::STREAM_WAIT_NOT_OR, A::CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR),
    (Capabilities::IPC_EVENTS, A::CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED),
    (Capabilities::HOST_REGISTER, A::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED),
    (
        Capabilities::HOST_POINTER_OF_REGISTERED,
        A::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM,
    ),
    (Capabilities::MANAGED_MEMORY, A::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY),
    (Capabilities::COOPERATIVE_LAUNCH, A::CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH),
    (Capabilities::CONCURRENT_KERNELS, A::CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS),
    (Capabilities::STREAM_PRIORITIES, A::CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED),
    (Capabilities::MULTICAST, A::CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED),
];

impl Device {
    /// Returns all capabilities of the device. A capability whose attribute the driver does not know counts as missing.
    ///
    /// # Errors
    /// As [`Device::attribute`], except that an unknown attribute is not an error.
    pub fn capabilities(&self) -> Result<Capabilities> {
        self.among(Capabilities::all())
    }

    /// Returns true if the device has all of the `wanted` capabilities.
    ///
    /// # Errors
    /// As [`Device::capabilities`].
    pub fn can(&self, wanted: Capabilities) -> Result<bool> {
        Ok(self.among(wanted)? == wanted)
    }

    fn among(&self, wanted: Capabilities) -> Result<Capabilities> {
        let mut found = Capabilities::empty();
        for (capability, attribute) in ATTRIBUTES {
            if wanted.contains(*capability) && self.attribute_or_zero(*attribute)? != 0 {
                found |= *capability;
            }
        }
        Ok(found)
    }

    /// Returns an attribute; 0 if the driver does not know it.
    fn attribute_or_zero(&self, attribute: A) -> Result<i32> {
        match self.attribute(attribute) {
            Err(Error::Driver(error)) if error.code == CUresult::CUDA_ERROR_INVALID_VALUE => Ok(0),
            other => other,
        }
    }

    /// Returns the compute capability, as major and minor number. That of an H200 is (9, 0).
    ///
    /// # Errors
    /// As [`Device::attribute`].
    #[doc(alias = "cuDeviceComputeCapability")]
    pub fn compute_capability(&self) -> Result<(u32, u32)> {
        let major = self.attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = self.attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        Ok((count(major), count(minor)))
    }

    /// Returns the number of multiprocessors of the device.
    ///
    /// # Errors
    /// As [`Device::attribute`].
    pub fn multiprocessors(&self) -> Result<u32> {
        self.attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT).map(count)
    }

    /// Returns the largest number of threads in a block.
    ///
    /// # Errors
    /// As [`Device::attribute`].
    pub fn max_threads_per_block(&self) -> Result<u32> {
        self.attribute(A::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK).map(count)
    }

    /// Returns the handle types by which [pools](crate::memory::MemoryPool) of the device's memory can be shared with
    /// other processes. The result is empty if pools cannot be shared, or if the driver does not know the attribute.
    ///
    /// # Errors
    /// As [`Device::capabilities`].
    pub fn pool_handle_types(&self) -> Result<HandleTypes> {
        let types = self.attribute_or_zero(A::CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES)?;
        Ok(HandleTypes::from_bits_retain(count(types)))
    }
}

/// Converts a count or a set of flags. The driver reports it as a signed number, but it is never negative.
fn count(value: i32) -> u32 {
    u32::try_from(value).unwrap_or(0)
}
