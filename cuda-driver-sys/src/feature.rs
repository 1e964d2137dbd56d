//! The features of the driver that depend on the release. A device may lack a feature that the driver has. Query the
//! device with `cuDeviceGetAttribute`.

use dynload::features;

use crate::Table;

features! {
    /// Parts of the driver's interface that depend on the release, one flag for each part. The documentation of a flag
    /// gives, in parentheses, the first release that supports the part. If a function has several revisions, such as
    /// `cuGraphAddNode` and `cuGraphAddNode_v2`, this is the release of the revision that the flag needs.
    /// [`Feature::functions`] lists these revisions. Parts of release 11.7 or older exist in every supported driver.
    pub struct Feature of Table;

    /// Allocating physical memory, reserving ranges of addresses, and mapping the memory there (10.2).
    VIRTUAL_MEMORY: [
        "cuMemCreate", "cuMemRelease", "cuMemAddressReserve", "cuMemAddressFree", "cuMemMap", "cuMemUnmap",
        "cuMemSetAccess", "cuMemGetAllocationGranularity",
    ];
    /// Physical memory exported and imported as file descriptors (10.2).
    FILE_DESCRIPTOR_HANDLES: [
        "cuMemCreate", "cuMemExportToShareableHandle", "cuMemImportFromShareableHandle",
    ];
    /// Physical memory exported and imported as fabric handles (12.3).
    // `since` is needed, because the functions are older than the feature. Release 12.3 added only the enumeration
    // value CU_MEM_HANDLE_TYPE_FABRIC.
    FABRIC_HANDLES: [
        "cuMemCreate", "cuMemExportToShareableHandle", "cuMemImportFromShareableHandle",
    ] since (12, 3, 0);
    /// Sharing memory and events between processes by IPC handles (11.0).
    IPC: [
        "cuIpcGetMemHandle", "cuIpcOpenMemHandle_v2", "cuIpcCloseMemHandle", "cuIpcGetEventHandle",
        "cuIpcOpenEventHandle",
    ];
    /// Writing a 32-bit or 64-bit word of memory in stream order, and making a stream wait until a word meets a
    /// condition (11.7). One call can submit a batch of such operations. The feature needs the second revision of the
    /// functions, which drivers enable by default. The first revision, which drivers disable unless a parameter of
    /// their kernel module enables it, is superseded and not in the table.
    STREAM_MEMORY_OPERATIONS: [
        "cuStreamWriteValue32_v2", "cuStreamWaitValue32_v2", "cuStreamWriteValue64_v2",
        "cuStreamWaitValue64_v2", "cuStreamBatchMemOp_v2",
    ];
    /// Capturing streams into graphs, and launching the graphs (11.4).
    CAPTURE: [
        "cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuStreamIsCapturing", "cuGraphInstantiateWithFlags",
        "cuGraphLaunch",
    ];
    /// Allocation in stream order, and the pools that such memory comes from (11.2).
    STREAM_ORDERED_ALLOCATION: ["cuMemAllocAsync", "cuMemFreeAsync", "cuMemPoolCreate"];
    /// Access to another device's memory (4.0).
    PEER_ACCESS: ["cuDeviceCanAccessPeer", "cuCtxEnablePeerAccess"];
    /// Multicast objects (12.1).
    MULTICAST: ["cuMulticastCreate", "cuMulticastAddDevice", "cuMulticastBindMem", "cuMulticastUnbind"];
    /// Exporting an address range as a handle, such as a DMA-BUF descriptor (11.7).
    DMA_BUFFER_EXPORT: ["cuMemGetHandleForAddressRange"];
    /// Launches with attributes, for example cluster dimensions or programmatic stream serialization (11.8).
    // Drivers resolve the function from 11.6 on, but headers declare it and its attributes only from 11.8 on.
    LAUNCH_ATTRIBUTES: ["cuLaunchKernelEx"] since (11, 8, 0);
    /// Sharing events, but not memory, between processes by IPC handles (4.1).
    IPC_EVENTS: ["cuIpcGetEventHandle", "cuIpcOpenEventHandle"];
    /// Sharing pools of stream-ordered memory with other processes (11.2).
    MEMORY_POOL_SHARING: [
        "cuMemPoolExportToShareableHandle", "cuMemPoolImportFromShareableHandle", "cuMemPoolExportPointer",
        "cuMemPoolImportPointer",
    ];
    /// The default and the current memory pool of a device, the host or a NUMA node (13.0).
    LOCATION_MEMORY_POOLS: ["cuMemGetDefaultMemPool", "cuMemGetMemPool", "cuMemSetMemPool"];
    /// The handle of the physical memory behind an address (11.0).
    MAPPING_HANDLES: ["cuMemRetainAllocationHandle"];
    /// Advice on managed memory, and prefetching it, with a location instead of a device (12.2).
    PREFETCH_TO_LOCATION: ["cuMemAdvise_v2", "cuMemPrefetchAsync_v2"];
    /// Discarding and prefetching many ranges of managed memory in one call (13.0).
    MEMORY_DISCARD: [
        "cuMemDiscardBatchAsync", "cuMemDiscardAndPrefetchBatchAsync", "cuMemPrefetchBatchAsync",
    ];
    /// Many copies in one call, in the revision that does not return the index of a failed copy (13.0).
    BATCHED_COPIES: ["cuMemcpyBatchAsync_v2", "cuMemcpy3DBatchAsync_v2"];
    /// A single copy with attributes of its source and destination (13.2).
    ATTRIBUTED_COPIES: ["cuMemcpyWithAttributesAsync", "cuMemcpy3DWithAttributesAsync"];
    /// Decompression by the device's engine (12.6).
    DECOMPRESSION: ["cuMemBatchDecompressAsync"];
    /// Waiting until other devices' writes to a GPU's memory (GPUDirect RDMA) are visible on that GPU, or on all GPUs
    /// (11.3).
    RDMA_FLUSH: ["cuFlushGPUDirectRDMAWrites"];
    /// Querying the graph that a stream is captured into, and querying and changing the nodes on which the next
    /// captured node depends (11.3).
    CAPTURE_INFORMATION: ["cuStreamGetCaptureInfo_v2", "cuStreamUpdateCaptureDependencies"];
    /// Like `CAPTURE_INFORMATION`, but with edge data for each dependency (12.3).
    CAPTURE_EDGES: ["cuStreamGetCaptureInfo_v3", "cuStreamUpdateCaptureDependencies_v2"];
    /// Capturing into an existing graph (12.3).
    CAPTURE_TO_GRAPH: ["cuStreamBeginCaptureToGraph"];
    /// User objects, which live at least as long as the graphs that hold a reference to them (11.3).
    GRAPH_USER_OBJECTS: [
        "cuUserObjectCreate", "cuUserObjectRetain", "cuUserObjectRelease", "cuGraphRetainUserObject",
        "cuGraphReleaseUserObject",
    ];
    /// Allocating and freeing memory as nodes of a graph (11.4).
    GRAPH_MEMORY_NODES: [
        "cuGraphAddMemAllocNode", "cuGraphAddMemFreeNode", "cuDeviceGraphMemTrim",
        "cuDeviceGetGraphMemAttribute",
    ];
    /// Disabling and enabling nodes of an executable graph (11.6).
    GRAPH_NODE_SWITCHES: ["cuGraphNodeSetEnabled", "cuGraphNodeGetEnabled"];
    /// Batches of memory operations as nodes of a graph (11.7).
    GRAPH_BATCH_MEMORY_OPERATIONS: [
        "cuGraphAddBatchMemOpNode", "cuGraphBatchMemOpNodeGetParams", "cuGraphBatchMemOpNodeSetParams",
        "cuGraphExecBatchMemOpNodeSetParams",
    ];
    /// Kernel nodes in the second revision, which takes a `CUkernel` and a context (12.0).
    GRAPH_KERNEL_NODES: [
        "cuGraphAddKernelNode_v2", "cuGraphKernelNodeGetParams_v2", "cuGraphKernelNodeSetParams_v2",
        "cuGraphExecKernelNodeSetParams_v2",
    ];
    /// Updating an executable graph, in the second revision (12.0), which returns a structure with the reason of a
    /// failure and with the node or edge that caused it.
    GRAPH_UPDATE: ["cuGraphExecUpdate_v2"];
    /// Instantiating a graph with a structure of parameters (12.0). The same call can upload the graph. After a
    /// failure the structure holds the reason and the node that caused it.
    GRAPH_INSTANTIATION_PARAMETERS: ["cuGraphInstantiateWithParams"];
    /// Adding and changing nodes of any type through one structure (12.2).
    GRAPH_NODES: ["cuGraphAddNode", "cuGraphNodeSetParams", "cuGraphExecNodeSetParams"];
    /// Edges with data: ports, and programmatic dependencies (12.3).
    GRAPH_EDGES: [
        "cuGraphAddNode_v2", "cuGraphAddDependencies_v2", "cuGraphRemoveDependencies_v2",
        "cuGraphGetEdges_v2", "cuGraphNodeGetDependencies_v2", "cuGraphNodeGetDependentNodes_v2",
    ];
    /// Conditional nodes, whose body graphs run once, repeatedly or not at all, depending on a value that kernels can
    /// set (12.3).
    GRAPH_CONDITIONAL_NODES: ["cuGraphConditionalHandleCreate", "cuGraphAddNode_v2"];
    /// Identifiers of graphs and nodes, as tools show them (13.1).
    GRAPH_IDENTIFIERS: [
        "cuGraphGetId", "cuGraphExecGetId", "cuGraphNodeGetLocalId", "cuGraphNodeGetToolsId",
        "cuGraphNodeGetContainingGraph",
    ];
    /// The number of clusters of blocks that fit a device, and their largest size (11.8).
    // Drivers resolve the functions from 11.7 on, but headers declare them and their attributes only from 11.8 on.
    CLUSTER_OCCUPANCY: [
        "cuOccupancyMaxActiveClusters", "cuOccupancyMaxPotentialClusterSize",
    ] since (11, 8, 0);
    /// Libraries of kernels that belong to no context (12.0).
    LIBRARIES: [
        "cuLibraryLoadData", "cuLibraryLoadFromFile", "cuLibraryUnload", "cuLibraryGetKernel",
        "cuKernelGetFunction",
    ];
    /// Listing the kernels of a library (12.4).
    LIBRARY_ENUMERATION: ["cuLibraryGetKernelCount", "cuLibraryEnumerateKernels"];
    /// The loading mode of modules, lazy or eager (11.7).
    MODULE_LOADING_MODE: ["cuModuleGetLoadingMode"];
    /// Loading a lazily loaded function at a chosen time (12.4).
    FUNCTION_LOADING: ["cuFuncIsLoaded", "cuFuncLoad"];
    /// Offsets and sizes of a function's parameters (12.4).
    FUNCTION_PARAMETERS: ["cuFuncGetParamInfo", "cuKernelGetParamInfo"];
    /// Names of functions and kernels (12.3).
    FUNCTION_NAMES: ["cuFuncGetName", "cuKernelGetName"];
    /// Descriptors of tensors for the Tensor Memory Accelerator, TMA (12.0).
    TENSOR_MAPS: ["cuTensorMapEncodeTiled", "cuTensorMapEncodeIm2col", "cuTensorMapReplaceAddress"];
    /// Green contexts, which have a share of the device's multiprocessors (12.4).
    GREEN_CONTEXTS: [
        "cuDeviceGetDevResource", "cuDevSmResourceSplitByCount", "cuDevResourceGenerateDesc",
        "cuGreenCtxCreate", "cuGreenCtxDestroy", "cuCtxFromGreenCtx",
    ];
    /// Streams of green contexts (12.5).
    GREEN_CONTEXT_STREAMS: ["cuGreenCtxStreamCreate"];
    /// Creating a context with parameters (12.5).
    CONTEXT_PARAMETERS: ["cuCtxCreate_v4"];
    /// Recording an event after all work of a context, and making all its future work wait for an event (12.5).
    CONTEXT_EVENTS: ["cuCtxRecordEvent", "cuCtxWaitEvent"];
    /// Identifiers of streams and contexts, which a process never reuses (12.0).
    IDENTIFIERS: ["cuStreamGetId", "cuCtxGetId"];
    /// Querying the limit on the multiprocessors that a context uses, and the device's support for such limits
    /// (11.4).
    EXECUTION_AFFINITY: ["cuDeviceGetExecAffinitySupport", "cuCtxGetExecAffinity"];
    /// Callbacks for notifications of a device, for example that a process is over its memory budget (12.4).
    ASYNC_NOTIFICATION: ["cuDeviceRegisterAsyncNotification", "cuDeviceUnregisterAsyncNotification"];
    /// Saving and restoring the state that a process has on its devices (12.8).
    CHECKPOINT: [
        "cuCheckpointProcessGetState", "cuCheckpointProcessGetRestoreThreadId", "cuCheckpointProcessLock",
        "cuCheckpointProcessCheckpoint", "cuCheckpointProcessRestore", "cuCheckpointProcessUnlock",
    ];
    /// Settings of the device's core dumps (12.1).
    CORE_DUMPS: [
        "cuCoredumpGetAttribute", "cuCoredumpSetAttribute", "cuCoredumpGetAttributeGlobal",
        "cuCoredumpSetAttributeGlobal",
    ];
    /// The driver's log of error messages (12.9).
    ERROR_LOG: [
        "cuLogsCurrent", "cuLogsDumpToFile", "cuLogsDumpToMemory", "cuLogsRegisterCallback",
        "cuLogsUnregisterCallback",
    ];
    /// Logical endpoints (13.3). Other processes and hosts can access the memory that is bound to an endpoint.
    LOGICAL_ENDPOINTS: [
        "cuLogicalEndpointCreate", "cuLogicalEndpointDestroy", "cuLogicalEndpointExport",
        "cuLogicalEndpointImport", "cuLogicalEndpointBindMem", "cuLogicalEndpointUnbind",
    ];
    /// Querying the fabric cliques and the fabric cluster that a device belongs to (13.4).
    FABRIC_TOPOLOGY: ["cuDeviceGetCliqueCount", "cuDeviceGetCliqueInfo", "cuDeviceGetFabricClusterUuid"];
    /// Batches of copies over the fabric, whose sources and destinations are addresses or logical endpoints (13.5).
    FABRIC_COPIES: ["cuFabricCpyBatchAsync"];
}
