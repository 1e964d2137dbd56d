//! Raw CUDA driver API, loaded at run time
