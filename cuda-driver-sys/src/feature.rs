//! The features of the driver that depend on the release. `cuDeviceGetAttribute` tells whether a device
//! supports one.

use crate::Version;
use crate::dynamic::requirement::Requirement;

features! {
    /// A part of the driver's interface that depends on the release. Each flag names the first release with
    /// this part, in the revision of this crate. Every supported driver (11.7 or newer) has the older parts.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct Feature: u64 {
        /// Physical memory, reserved addresses, and mappings of one to the other (10.2).
        const VIRTUAL_MEMORY = 1 << 0;
        /// Physical memory exported and imported as file descriptors (10.2).
        const FILE_DESCRIPTOR_HANDLES = 1 << 1;
        /// Physical memory exported and imported as fabric handles (12.3).
        const FABRIC_HANDLES = 1 << 2;
        /// Memory and events of other processes by IPC handles (11.0).
        const IPC = 1 << 3;
        /// Writing and awaiting a word of memory in stream order, alone or in a batch, in the second revision; the first is
        /// off unless the driver's module is told otherwise, and not in the table (11.7).
        const STREAM_MEMORY_OPERATIONS = 1 << 4;
        /// Capturing streams into graphs, and launching these (11.4).
        const CAPTURE = 1 << 5;
        /// Allocation in stream order, and its pools (11.2).
        const STREAM_ORDERED_ALLOCATION = 1 << 6;
        /// Access to another device's memory (4.0).
        const PEER_ACCESS = 1 << 7;
        /// Multicast objects (12.1).
        const MULTICAST = 1 << 8;
        /// The address range that a handle of memory can be exported from, as for DMA buffers (11.7).
        const DMA_BUFFER_EXPORT = 1 << 9;
        /// Launches with attributes: clusters, programmatic serialisation (11.8).
        const LAUNCH_ATTRIBUTES = 1 << 10;
        /// Events of other processes by IPC handles, without their memory (4.1).
        const IPC_EVENTS = 1 << 11;
        /// Pools of stream-ordered memory shared with other processes (11.2).
        const MEMORY_POOL_SHARING = 1 << 12;
        /// The current pool of a location, hosts and their NUMA nodes among them (13.0).
        const LOCATION_MEMORY_POOLS = 1 << 13;
        /// The handle of the physical memory behind an address (11.0).
        const MAPPING_HANDLES = 1 << 14;
        /// Advice on managed memory and its prefetching by location instead of device (12.2).
        const PREFETCH_TO_LOCATION = 1 << 15;
        /// Discarding and prefetching many ranges of managed memory in one call (13.0).
        const MEMORY_DISCARD = 1 << 16;
        /// Many copies in one call, in the revision without an index of the one that failed (13.0).
        const BATCHED_COPIES = 1 << 17;
        /// A single copy with attributes of its source and destination (13.2).
        const ATTRIBUTED_COPIES = 1 << 18;
        /// Decompression by the device's engine (12.6).
        const DECOMPRESSION = 1 << 19;
        /// Making remote writes to the device's memory visible (11.3).
        const RDMA_FLUSH = 1 << 20;
        /// The graph that a stream is captured into, and its dependencies (11.3).
        const CAPTURE_INFORMATION = 1 << 21;
        /// The same with the data of edges (12.3).
        const CAPTURE_EDGES = 1 << 22;
        /// Capturing into a graph that is there already (12.3).
        const CAPTURE_TO_GRAPH = 1 << 23;
        /// Objects of the user's that live as long as a graph (11.3).
        const GRAPH_USER_OBJECTS = 1 << 24;
        /// Allocation and release as nodes of a graph (11.4).
        const GRAPH_MEMORY_NODES = 1 << 25;
        /// Nodes of an executable graph switched off and on (11.6).
        const GRAPH_NODE_SWITCHES = 1 << 26;
        /// Batches of memory operations as nodes of a graph (11.7).
        const GRAPH_BATCH_MEMORY_OPERATIONS = 1 << 27;
        /// Kernel nodes in the second revision, which takes a `CUkernel` and a context (12.0).
        const GRAPH_KERNEL_NODES = 1 << 28;
        /// Updating an executable graph, with a description of what cannot be updated (12.0).
        const GRAPH_UPDATE = 1 << 29;
        /// Instantiation with parameters, among them an upload, and a description of what failed (12.0).
        const GRAPH_INSTANTIATION_PARAMETERS = 1 << 30;
        /// Nodes of any type by one structure (12.2).
        const GRAPH_NODES = 1 << 31;
        /// Edges with data: ports, and programmatic dependencies (12.3).
        const GRAPH_EDGES = 1 << 32;
        /// Nodes whose body runs on a condition (12.3).
        const GRAPH_CONDITIONAL_NODES = 1 << 33;
        /// Numbers of graphs and nodes, as tools show them (13.1).
        const GRAPH_IDENTIFIERS = 1 << 34;
        /// How many clusters of blocks fit a device, and how large they may be (11.8).
        const CLUSTER_OCCUPANCY = 1 << 35;
        /// Libraries of kernels that belong to no context (12.0).
        const LIBRARIES = 1 << 36;
        /// The kernels of a library (12.4).
        const LIBRARY_ENUMERATION = 1 << 37;
        /// Whether modules are loaded lazily (11.7).
        const MODULE_LOADING_MODE = 1 << 38;
        /// Loading a lazily loaded function at a time of one's own (12.4).
        const FUNCTION_LOADING = 1 << 39;
        /// Offsets and sizes of a function's parameters (12.4).
        const FUNCTION_PARAMETERS = 1 << 40;
        /// Names of functions and kernels (12.3).
        const FUNCTION_NAMES = 1 << 41;
        /// Descriptors of tensors for the device's copy engine (12.0).
        const TENSOR_MAPS = 1 << 42;
        /// Contexts with a share of the device's multiprocessors (12.4).
        const GREEN_CONTEXTS = 1 << 43;
        /// Streams of such a context (12.5).
        const GREEN_CONTEXT_STREAMS = 1 << 44;
        /// Creating a context with parameters (12.5).
        const CONTEXT_PARAMETERS = 1 << 45;
        /// Events over all of a context's work (12.5).
        const CONTEXT_EVENTS = 1 << 46;
        /// Numbers of streams and contexts that do not come again (12.0).
        const IDENTIFIERS = 1 << 47;
        /// How many multiprocessors a context has (11.4).
        const EXECUTION_AFFINITY = 1 << 48;
        /// Callbacks of the device's own accord, as when memory is over budget (12.4).
        const ASYNC_NOTIFICATION = 1 << 49;
        /// Saving a process's state on the devices, and restoring it (12.8).
        const CHECKPOINT = 1 << 50;
        /// Settings of the device's core dumps (12.1).
        const CORE_DUMPS = 1 << 51;
        /// The driver's log of errors, in words (12.9).
        const ERROR_LOG = 1 << 52;
        /// Endpoints of memory that other processes and hosts reach (13.3).
        const LOGICAL_ENDPOINTS = 1 << 53;
        /// Cliques and clusters that a device belongs to (13.4).
        const FABRIC_TOPOLOGY = 1 << 54;
        /// Copies over the fabric (13.5).
        const FABRIC_COPIES = 1 << 55;
    }
}

const fn needs(feature: Feature, functions: &'static [&'static str]) -> Requirement {
    Requirement { feature, functions, since: None, known_bad: &[] }
}

/// The requirements of each feature. No release is known to do one of them wrong.
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
    needs(Feature::IPC_EVENTS, &["cuIpcGetEventHandle", "cuIpcOpenEventHandle"]),
    needs(
        Feature::MEMORY_POOL_SHARING,
        &[
            "cuMemPoolExportToShareableHandle",
            "cuMemPoolImportFromShareableHandle",
            "cuMemPoolExportPointer",
            "cuMemPoolImportPointer",
        ],
    ),
    needs(Feature::LOCATION_MEMORY_POOLS, &["cuMemGetDefaultMemPool", "cuMemGetMemPool", "cuMemSetMemPool"]),
    needs(Feature::MAPPING_HANDLES, &["cuMemRetainAllocationHandle"]),
    needs(Feature::PREFETCH_TO_LOCATION, &["cuMemAdvise_v2", "cuMemPrefetchAsync_v2"]),
    needs(
        Feature::MEMORY_DISCARD,
        &["cuMemDiscardBatchAsync", "cuMemDiscardAndPrefetchBatchAsync", "cuMemPrefetchBatchAsync"],
    ),
    needs(Feature::BATCHED_COPIES, &["cuMemcpyBatchAsync_v2", "cuMemcpy3DBatchAsync_v2"]),
    needs(Feature::ATTRIBUTED_COPIES, &["cuMemcpyWithAttributesAsync", "cuMemcpy3DWithAttributesAsync"]),
    needs(Feature::DECOMPRESSION, &["cuMemBatchDecompressAsync"]),
    needs(Feature::RDMA_FLUSH, &["cuFlushGPUDirectRDMAWrites"]),
    needs(Feature::CAPTURE_INFORMATION, &["cuStreamGetCaptureInfo_v2", "cuStreamUpdateCaptureDependencies"]),
    needs(Feature::CAPTURE_EDGES, &["cuStreamGetCaptureInfo_v3", "cuStreamUpdateCaptureDependencies_v2"]),
    needs(Feature::CAPTURE_TO_GRAPH, &["cuStreamBeginCaptureToGraph"]),
    needs(
        Feature::GRAPH_USER_OBJECTS,
        &[
            "cuUserObjectCreate",
            "cuUserObjectRetain",
            "cuUserObjectRelease",
            "cuGraphRetainUserObject",
            "cuGraphReleaseUserObject",
        ],
    ),
    needs(
        Feature::GRAPH_MEMORY_NODES,
        &[
            "cuGraphAddMemAllocNode",
            "cuGraphAddMemFreeNode",
            "cuDeviceGraphMemTrim",
            "cuDeviceGetGraphMemAttribute",
        ],
    ),
    needs(Feature::GRAPH_NODE_SWITCHES, &["cuGraphNodeSetEnabled", "cuGraphNodeGetEnabled"]),
    needs(
        Feature::GRAPH_BATCH_MEMORY_OPERATIONS,
        &[
            "cuGraphAddBatchMemOpNode",
            "cuGraphBatchMemOpNodeGetParams",
            "cuGraphBatchMemOpNodeSetParams",
            "cuGraphExecBatchMemOpNodeSetParams",
        ],
    ),
    needs(
        Feature::GRAPH_KERNEL_NODES,
        &[
            "cuGraphAddKernelNode_v2",
            "cuGraphKernelNodeGetParams_v2",
            "cuGraphKernelNodeSetParams_v2",
            "cuGraphExecKernelNodeSetParams_v2",
        ],
    ),
    needs(Feature::GRAPH_UPDATE, &["cuGraphExecUpdate_v2"]),
    needs(Feature::GRAPH_INSTANTIATION_PARAMETERS, &["cuGraphInstantiateWithParams"]),
    needs(Feature::GRAPH_NODES, &["cuGraphAddNode", "cuGraphNodeSetParams", "cuGraphExecNodeSetParams"]),
    needs(
        Feature::GRAPH_EDGES,
        &[
            "cuGraphAddNode_v2",
            "cuGraphAddDependencies_v2",
            "cuGraphRemoveDependencies_v2",
            "cuGraphGetEdges_v2",
            "cuGraphNodeGetDependencies_v2",
            "cuGraphNodeGetDependentNodes_v2",
        ],
    ),
    needs(Feature::GRAPH_CONDITIONAL_NODES, &["cuGraphConditionalHandleCreate", "cuGraphAddNode_v2"]),
    needs(
        Feature::GRAPH_IDENTIFIERS,
        &[
            "cuGraphGetId",
            "cuGraphExecGetId",
            "cuGraphNodeGetLocalId",
            "cuGraphNodeGetToolsId",
            "cuGraphNodeGetContainingGraph",
        ],
    ),
    Requirement {
        feature: Feature::CLUSTER_OCCUPANCY,
        functions: &["cuOccupancyMaxActiveClusters", "cuOccupancyMaxPotentialClusterSize"],
        // Drivers resolve them from 11.7 on; no header before 11.8 has them or their attributes.
        since: Some(Version::new(11, 8)),
        known_bad: &[],
    },
    needs(
        Feature::LIBRARIES,
        &[
            "cuLibraryLoadData",
            "cuLibraryLoadFromFile",
            "cuLibraryUnload",
            "cuLibraryGetKernel",
            "cuKernelGetFunction",
        ],
    ),
    needs(Feature::LIBRARY_ENUMERATION, &["cuLibraryGetKernelCount", "cuLibraryEnumerateKernels"]),
    needs(Feature::MODULE_LOADING_MODE, &["cuModuleGetLoadingMode"]),
    needs(Feature::FUNCTION_LOADING, &["cuFuncIsLoaded", "cuFuncLoad"]),
    needs(Feature::FUNCTION_PARAMETERS, &["cuFuncGetParamInfo", "cuKernelGetParamInfo"]),
    needs(Feature::FUNCTION_NAMES, &["cuFuncGetName", "cuKernelGetName"]),
    needs(
        Feature::TENSOR_MAPS,
        &["cuTensorMapEncodeTiled", "cuTensorMapEncodeIm2col", "cuTensorMapReplaceAddress"],
    ),
    needs(
        Feature::GREEN_CONTEXTS,
        &[
            "cuDeviceGetDevResource",
            "cuDevSmResourceSplitByCount",
            "cuDevResourceGenerateDesc",
            "cuGreenCtxCreate",
            "cuGreenCtxDestroy",
            "cuCtxFromGreenCtx",
        ],
    ),
    needs(Feature::GREEN_CONTEXT_STREAMS, &["cuGreenCtxStreamCreate"]),
    needs(Feature::CONTEXT_PARAMETERS, &["cuCtxCreate_v4"]),
    needs(Feature::CONTEXT_EVENTS, &["cuCtxRecordEvent", "cuCtxWaitEvent"]),
    needs(Feature::IDENTIFIERS, &["cuStreamGetId", "cuCtxGetId"]),
    needs(Feature::EXECUTION_AFFINITY, &["cuDeviceGetExecAffinitySupport", "cuCtxGetExecAffinity"]),
    needs(
        Feature::ASYNC_NOTIFICATION,
        &["cuDeviceRegisterAsyncNotification", "cuDeviceUnregisterAsyncNotification"],
    ),
    needs(
        Feature::CHECKPOINT,
        &[
            "cuCheckpointProcessGetState",
            "cuCheckpointProcessGetRestoreThreadId",
            "cuCheckpointProcessLock",
            "cuCheckpointProcessCheckpoint",
            "cuCheckpointProcessRestore",
            "cuCheckpointProcessUnlock",
        ],
    ),
    needs(
        Feature::CORE_DUMPS,
        &[
            "cuCoredumpGetAttribute",
            "cuCoredumpSetAttribute",
            "cuCoredumpGetAttributeGlobal",
            "cuCoredumpSetAttributeGlobal",
        ],
    ),
    needs(
        Feature::ERROR_LOG,
        &[
            "cuLogsCurrent",
            "cuLogsDumpToFile",
            "cuLogsDumpToMemory",
            "cuLogsRegisterCallback",
            "cuLogsUnregisterCallback",
        ],
    ),
    needs(
        Feature::LOGICAL_ENDPOINTS,
        &[
            "cuLogicalEndpointCreate",
            "cuLogicalEndpointDestroy",
            "cuLogicalEndpointExport",
            "cuLogicalEndpointImport",
            "cuLogicalEndpointBindMem",
            "cuLogicalEndpointUnbind",
        ],
    ),
    needs(
        Feature::FABRIC_TOPOLOGY,
        &["cuDeviceGetCliqueCount", "cuDeviceGetCliqueInfo", "cuDeviceGetFabricClusterUuid"],
    ),
    needs(Feature::FABRIC_COPIES, &["cuFabricCpyBatchAsync"]),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Function;

    /// The release at the end of each flag's documentation.
    fn documented() -> impl Iterator<Item = (&'static str, &'static str)> {
        let text = include_str!("feature.rs");
        text.split("        const ").skip(1).zip(text.split("        const ")).filter_map(|(flag, before)| {
            let release = before.trim_end().strip_suffix(").")?.rsplit_once('(')?.1;
            Some((flag.split_once(" = 1 <<")?.0, release))
        })
    }

    #[test]
    fn every_flag_says_the_release_that_it_takes() {
        assert_eq!(documented().count(), Feature::all().iter().count());
        for (name, release) in documented() {
            let flag = Feature::from_name(name).unwrap();
            let needs = REQUIREMENTS.iter().find(|needs| needs.feature == flag);
            let needs = needs.unwrap_or_else(|| panic!("nothing is said of {name}"));
            let functions = needs.functions.iter().map(|name| Function::named(name).unwrap().since);
            let needed = functions.chain(needs.since).max().unwrap();
            assert_eq!(needed.to_string(), release, "{name}");
        }
        assert_eq!(REQUIREMENTS.len(), Feature::all().iter().count());
    }
}
