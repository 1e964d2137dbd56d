//! Safe CUDA driver API: devices, streams, events, graphs, virtual memory, shareable handles
