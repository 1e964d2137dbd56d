//! Constants. Written by `cargo xtask codegen` from `nccl.h` and `nccl_device.h` of nvidia-nccl-cu12 2.32.3; not edited by hand.

pub const NCCL_MAJOR: u32 = 2;
pub const NCCL_MINOR: u32 = 32;
pub const NCCL_PATCH: u32 = 3;
pub const NCCL_SUFFIX: &[u8; 1] = b"\0";
pub const NCCL_VERSION_CODE: u32 = 23203;
pub const NCCL_UNIQUE_ID_BYTES: u32 = 128;
pub const NCCL_SPLIT_NOCOLOR: i32 = -1;
pub const NCCL_UNDEF_FLOAT: f64 = -1.0;
pub const NCCL_API_MAGIC: u32 = 3405692655;
pub const NCCL_WIN_DEFAULT: u32 = 0;
pub const NCCL_WIN_COLL_SYMMETRIC: u32 = 1;
pub const NCCL_WIN_STRICT_ORDERING: u32 = 2;
pub const NCCL_WIN_GIN_ONLY: u32 = 4;
pub const NCCL_WIN_CFT_COUNTED: u32 = 8;
pub const NCCL_WIN_REQUIRED_ALIGNMENT: u32 = 4096;
pub const NCCL_CTA_POLICY_DEFAULT: u32 = 0;
pub const NCCL_CTA_POLICY_EFFICIENCY: u32 = 1;
pub const NCCL_CTA_POLICY_ZERO: u32 = 2;
pub const NCCL_SHRINK_DEFAULT: u32 = 0;
pub const NCCL_SHRINK_ABORT: u32 = 1;
pub const NCCL_REVOKE_DEFAULT: u32 = 0;
pub const NCCL_SUSPEND_MEM: u32 = 1;
pub const NCCL_GIN_MAX_ACTIVE_BACKENDS: u32 = 4;
