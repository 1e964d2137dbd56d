//! What a release of the driver may or may not have. Whether a device supports it is another question, for
//! `cuDeviceGetAttribute`.

use crate::Version;
use crate::dynamic::requirement::Requirement;

bitflags::bitflags! {
    /// A part of the driver's interface that depends on the release.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct Feature: u32 {
        /// Physical memory, reserved addresses, and mappings of one to the other (10.2).
        const VIRTUAL_MEMORY = 1 << 0;
        /// Physical memory exported and imported as file descriptors (10.2).
        const FILE_DESCRIPTOR_HANDLES = 1 << 1;
        /// Physical memory exported and imported as fabric handles (12.3).
        const FABRIC_HANDLES = 1 << 2;
        /// Memory and events of other processes by IPC handles (11.0 in this revision).
        const IPC = 1 << 3;
        /// Writing and awaiting a word of memory in stream order (11.7 in this revision).
        const STREAM_MEMORY_OPERATIONS = 1 << 4;
        /// Capturing streams into graphs, and launching these (11.4 in this revision).
        const CAPTURE = 1 << 5;
        /// Allocation in stream order (11.2).
        const STREAM_ORDERED_ALLOCATION = 1 << 6;
        /// Access to another device's memory (4.0).
        const PEER_ACCESS = 1 << 7;
        /// Multicast objects (12.1).
        const MULTICAST = 1 << 8;
        /// The address range that a handle of memory can be exported from, as for DMA buffers (11.7).
        const DMA_BUFFER_EXPORT = 1 << 9;
        /// Launches with attributes: clusters, programmatic serialisation (11.8).
        const LAUNCH_ATTRIBUTES = 1 << 10;
    }
}

const fn needs(feature: Feature, functions: &'static [&'static str]) -> Requirement {
    Requirement { feature, functions, since: None, known_bad: &[] }
}

/// What each feature takes.
pub(crate) static REQUIREMENTS: &[Requirement] = &[
    needs(
        Feature::VIRTUAL_MEMORY,
        &[
            "cuMemCreate",
            "cuMemRelease",
            "cuMemAddressReserve",
            "cuMemAddressFree",
            "cuMemMap",
            "cuMemUnmap",
            "cuMemSetAccess",
            "cuMemGetAllocationGranularity",
        ],
    ),
    needs(
        Feature::FILE_DESCRIPTOR_HANDLES,
        &["cuMemCreate", "cuMemExportToShareableHandle", "cuMemImportFromShareableHandle"],
    ),
    Requirement {
        feature: Feature::FABRIC_HANDLES,
        functions: &["cuMemCreate", "cuMemExportToShareableHandle", "cuMemImportFromShareableHandle"],
        // CU_MEM_HANDLE_TYPE_FABRIC, a value and no function, came with 12.3.
        since: Some(Version::new(12, 3)),
        known_bad: &[],
    },
    needs(
        Feature::IPC,
        &[
            "cuIpcGetMemHandle",
            "cuIpcOpenMemHandle_v2",
            "cuIpcCloseMemHandle",
            "cuIpcGetEventHandle",
            "cuIpcOpenEventHandle",
        ],
    ),
    needs(
        Feature::STREAM_MEMORY_OPERATIONS,
        &[
            "cuStreamWriteValue32_v2",
            "cuStreamWaitValue32_v2",
            "cuStreamWriteValue64_v2",
            "cuStreamWaitValue64_v2",
            "cuStreamBatchMemOp_v2",
        ],
    ),
    needs(
        Feature::CAPTURE,
        &[
            "cuStreamBeginCapture_v2",
            "cuStreamEndCapture",
            "cuStreamIsCapturing",
            "cuGraphInstantiateWithFlags",
            "cuGraphLaunch",
        ],
    ),
    needs(Feature::STREAM_ORDERED_ALLOCATION, &["cuMemAllocAsync", "cuMemFreeAsync", "cuMemPoolCreate"]),
    needs(Feature::PEER_ACCESS, &["cuDeviceCanAccessPeer", "cuCtxEnablePeerAccess"]),
    needs(
        Feature::MULTICAST,
        &["cuMulticastCreate", "cuMulticastAddDevice", "cuMulticastBindMem", "cuMulticastUnbind"],
    ),
    needs(Feature::DMA_BUFFER_EXPORT, &["cuMemGetHandleForAddressRange"]),
    Requirement {
        feature: Feature::LAUNCH_ATTRIBUTES,
        functions: &["cuLaunchKernelEx"],
        // Drivers resolve the function from 11.6 on; no header before 11.8 has it or its attributes.
        since: Some(Version::new(11, 8)),
        known_bad: &[],
    },
];
