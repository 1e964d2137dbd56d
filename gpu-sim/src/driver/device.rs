//! Devices and their attributes. Modelled after an H200, without multicast, and with fabric handles only if the world
//! supports them.

use std::ffi::{c_char, c_int};

use cuda_driver_sys::{CUdevice, CUdevice_P2PAttribute, CUdevice_attribute, CUresult, CUuuid};

use super::edge::{put_text, text};
use crate::abi::{DriverError, DriverResult};
use crate::device::Device;

/// Blocks of a grid along each axis.
pub(super) const MAX_GRID: [u32; 3] = [i32::MAX as u32, 65535, 65535];

abi! {
    call fn cuDeviceGetCount(machine, count: *mut c_int) {
        put!(count, machine.devices.len() as c_int)?;
    }

    call fn cuDeviceGet(machine, out: *mut CUdevice, ordinal: c_int) {
        machine.device(ordinal)?;
        put!(out, ordinal)?;
    }

    call fn cuDeviceGetName(machine, out: *mut c_char, len: c_int, device: CUdevice) {
        machine.device(device)?;
        put_text(out, len, "Embedded GPU")?;
    }

    call fn cuDeviceGetUuid_v2(machine, out: *mut CUuuid, device: CUdevice) {
        put!(out, CUuuid { bytes: uuid(machine.device(device)?).map(|b| b as c_char) })?;
    }

    call fn cuDeviceTotalMem_v2(machine, out: *mut usize, device: CUdevice) {
        put!(out, machine.device(device)?.arena.capacity() as usize)?;
    }

    call fn cuDeviceComputeCapability(machine, major: *mut c_int, minor: *mut c_int, device: CUdevice) {
        machine.device(device)?;
        put!(major, 9)?;
        put!(minor, 0)?;
    }

    call fn cuDeviceGetAttribute(machine, out: *mut c_int, attribute: CUdevice_attribute, device: CUdevice) {
        let value = match attribute {
            CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED if machine.fabric => 1,
            other => value_of(other, machine.device(device)?)?,
        };
        put!(out, value)?;
    }

    call fn cuDeviceGetPCIBusId(machine, out: *mut c_char, len: c_int, device: CUdevice) {
        put_text(out, len, &bus_id(machine.device(device)?))?;
    }

    call fn cuDeviceGetByPCIBusId(machine, out: *mut CUdevice, id: *const c_char) {
        let id = text(id)?;
        let device = machine.devices.iter().find(|d| bus_id(d).eq_ignore_ascii_case(&id));
        let device = device.ok_or_else(|| DriverError::new(CUresult::CUDA_ERROR_INVALID_DEVICE, format!("no device at {id}")))?;
        put!(out, device.ordinal as CUdevice)?;
    }

    call fn cuDeviceCanAccessPeer(machine, out: *mut c_int, device: CUdevice, peer: CUdevice) {
        machine.device(device)?;
        machine.device(peer)?;
        put!(out, c_int::from(device != peer))?;
    }

    call fn cuDeviceGetP2PAttribute(
        machine, out: *mut c_int, attribute: CUdevice_P2PAttribute, device: CUdevice, peer: CUdevice,
    ) {
        machine.device(device)?;
        machine.device(peer)?;
        if device == peer {
            return Err(DriverError::new(CUresult::CUDA_ERROR_INVALID_DEVICE, "a device is not its own peer"));
        }
        put!(out, match attribute {
            CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK => 0,
            CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED
            | CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED => 1,
            CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED => 0,
            other => return Err(DriverError::invalid(format!("peer attribute {other:?} is not modelled"))),
        })?;
    }
}

/// The same on every rank of a machine, different for each device.
fn uuid(device: &Device) -> [u8; 16] {
    let mut uuid = *b"gpu-sim device 0";
    uuid[15] = device.ordinal as u8;
    uuid
}

fn bus_id(device: &Device) -> String {
    format!("0000:{:02x}:00.0", device.ordinal + 1)
}

fn value_of(attribute: CUdevice_attribute, device: &Device) -> DriverResult<c_int> {
    use CUdevice_attribute as A;
    Ok(match attribute {
        A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR => 9,
        A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR => 0,
        A::CU_DEVICE_ATTRIBUTE_WARP_SIZE => 32,
        A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT => 132,
        A::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK
        | A::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X
        | A::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y => 1024,
        A::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z => 64,
        A::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X => MAX_GRID[0] as c_int,
        A::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y => MAX_GRID[1] as c_int,
        A::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z => MAX_GRID[2] as c_int,
        A::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR => 2048,
        A::CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR => 32,
        A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK => 48 << 10,
        A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN => 227 << 10,
        A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR => 228 << 10,
        A::CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK => 1 << 10,
        A::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK
        | A::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR => 65536,
        A::CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY => 64 << 10,
        A::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE => 60 << 20,
        A::CU_DEVICE_ATTRIBUTE_CLOCK_RATE => 1_980_000,
        A::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE => 3_201_000,
        A::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH => 6144,
        A::CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT => 512,
        A::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT => 3,
        A::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID => device.ordinal as c_int + 1,
        A::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING
        | A::CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY
        | A::CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS
        | A::CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH
        | A::CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH
        | A::CU_DEVICE_ATTRIBUTE_ECC_ENABLED
        | A::CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED
        | A::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
        | A::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
        | A::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED
        | A::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
        | A::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED
        | A::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS
        | A::CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR => 1,
        A::CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED
        | A::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID
        | A::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID
        | A::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE
        | A::CU_DEVICE_ATTRIBUTE_INTEGRATED
        | A::CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT
        | A::CU_DEVICE_ATTRIBUTE_TCC_DRIVER
        | A::CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD
        | A::CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD_GROUP_ID
        | A::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY
        | A::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS
        | A::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS
        | A::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES
        | A::CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST
        | A::CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED
        | A::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED
        | A::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED
        | A::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED
        | A::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED
        | A::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_WIN32_HANDLE_SUPPORTED
        | A::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_WIN32_KMT_HANDLE_SUPPORTED
        | A::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED
        | A::CU_DEVICE_ATTRIBUTE_GENERIC_COMPRESSION_SUPPORTED
        | A::CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED
        | A::CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES
        | A::CU_DEVICE_ATTRIBUTE_NUMA_ID => 0,
        other => {
            return Err(DriverError::invalid(format!("device attribute {other:?} is not modelled")));
        }
    })
}
