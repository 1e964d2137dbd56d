//! An embedded GPU: the CUDA driver and NCCL C ABIs over host memory
