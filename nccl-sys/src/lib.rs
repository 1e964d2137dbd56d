//! Raw NCCL API, loaded at run time
