//! Device capabilities that programs check before they choose an implementation.

use bitflags::bitflags;
use cuda_driver_sys::{CUdevice_attribute as A, CUresult};

use super::Device;
use crate::handle_types::HandleTypes;
use crate::{Error, Result};

bitflags! {
    /// Capabilities of a device, with its driver and system.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Capabilities: u32 {
        /// Host and devices share one address space.
        const UNIFIED_ADDRESSING = 1 << 0;
        /// The calls of [`vmm`](crate::vmm).
        const VIRTUAL_MEMORY = 1 << 1;
        /// Physical memory exported as file descriptors.
        const FILE_DESCRIPTOR_HANDLES = 1 << 2;
        /// Physical memory exported as fabric handles. The host must allow it besides (an IMEX channel).
        const FABRIC_HANDLES = 1 << 3;
        /// Other devices may read and write the device's memory.
        const RDMA = 1 << 4;
        /// Also memory of [`vmm`](crate::vmm).
        const RDMA_OF_VIRTUAL_MEMORY = 1 << 5;
        /// Device memory exported as DMA buffers.
        const DMA_BUFFERS = 1 << 6;
        /// Stream-ordered memory and its [pools](crate::memory::MemoryPool).
        const MEMORY_POOLS = 1 << 7;
        /// 64-bit words in stream memory operations.
        const STREAM_WORDS_64 = 1 << 8;
        /// [`WaitCondition::NotOr`](crate::WaitCondition::NotOr).
        const STREAM_WAIT_NOT_OR = 1 << 9;
        /// Events shared with other processes.
        const IPC_EVENTS = 1 << 10;
        /// Host memory of the program can be [registered](crate::memory::RegisteredMemory).
        const HOST_REGISTER = 1 << 11;
        /// Registered memory has the same address for host and device.
        const HOST_POINTER_OF_REGISTERED = 1 << 12;
        /// Memory that moves between host and device by itself.
        const MANAGED_MEMORY = 1 << 13;
        /// Kernels whose blocks may wait for each other.
        const COOPERATIVE_LAUNCH = 1 << 14;
        /// Several kernels at a time.
        const CONCURRENT_KERNELS = 1 << 15;
        /// Streams of several priorities.
        const STREAM_PRIORITIES = 1 << 16;
        /// [Multicast](crate::vmm::multicast) objects.
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
    /// Everything that the device can do. An attribute that the driver does not know counts as no.
    ///
    /// # Errors
    /// As [`Device::attribute`], but for an unknown attribute.
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

    /// An attribute; 0 if the driver does not know it.
    fn attribute_or_zero(&self, attribute: A) -> Result<i32> {
        match self.attribute(attribute) {
            Err(Error::Driver(error)) if error.code == CUresult::CUDA_ERROR_INVALID_VALUE => Ok(0),
            other => other,
        }
    }

    /// The compute capability, as major and minor number: an H200's is (9, 0).
    ///
    /// # Errors
    /// As [`Device::attribute`].
    #[doc(alias = "cuDeviceComputeCapability")]
    pub fn compute_capability(&self) -> Result<(u32, u32)> {
        let major = self.attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = self.attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        Ok((count(major), count(minor)))
    }

    /// The number of multiprocessors of the device.
    ///
    /// # Errors
    /// As [`Device::attribute`].
    pub fn multiprocessors(&self) -> Result<u32> {
        self.attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT).map(count)
    }

    /// The largest number of threads in a block.
    ///
    /// # Errors
    /// As [`Device::attribute`].
    pub fn max_threads_per_block(&self) -> Result<u32> {
        self.attribute(A::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK).map(count)
    }

    /// The ways in which [pools](crate::memory::MemoryPool) of the device's memory can be shared with other
    /// processes; empty if the driver has no such pools.
    ///
    /// # Errors
    /// As [`Device::attribute`].
    pub fn pool_handle_types(&self) -> Result<HandleTypes> {
        let types = self.attribute_or_zero(A::CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES)?;
        Ok(HandleTypes::from_bits_retain(count(types)))
    }
}

/// Converts a count, which the driver reports as a signed number although it is never negative.
fn count(value: i32) -> u32 {
    u32::try_from(value).unwrap_or(0)
}
