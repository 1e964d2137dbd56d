//! Structures, unions, handles. Written by `cargo xtask codegen` from `nccl.h` and `nccl_device.h` of nvidia-nccl-cu12 2.32.3; not edited by hand.

use super::enums::*;
use core::ffi::*;
use dynload::zeroed;

pub use crate::device::{ncclDevComm, ncclDevComm_t, ncclWindow_vidmem};
#[repr(C)]
#[derive(Debug)]
pub struct CUstream_st {
    _unused: [u8; 0],
}
pub type cudaStream_t = *mut CUstream_st;
#[repr(C)]
#[derive(Debug)]
pub struct CUevent_st {
    _unused: [u8; 0],
}
pub type cudaEvent_t = *mut CUevent_st;
#[repr(C)]
#[derive(Debug)]
pub struct ncclComm {
    _unused: [u8; 0],
}
pub type ncclComm_t = *mut ncclComm;
pub type ncclWindow_t = *mut ncclWindow_vidmem;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ncclUniqueId {
    pub internal: [c_char; 128usize],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ncclConfig_v23100 {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub blocking: c_int,
    pub cgaClusterSize: c_int,
    pub minCTAs: c_int,
    pub maxCTAs: c_int,
    pub netName: *const c_char,
    pub splitShare: c_int,
    pub trafficClass: c_int,
    pub commName: *const c_char,
    pub collnetEnable: c_int,
    pub CTAPolicy: c_int,
    pub shrinkShare: c_int,
    pub nvlsCTAs: c_int,
    pub nChannelsPerNetPeer: c_int,
    pub nvlinkCentricSched: c_int,
    pub graphUsageMode: c_int,
    pub numRmaCtx: c_int,
    pub maxP2pPeers: c_int,
    pub graphStreamOrdering: c_int,
    pub launchOrderImplicit: c_int,
    pub numRmaSig: c_int,
    pub rmaEagerInit: c_int,
    pub hostCftMode: c_int,
    pub nvlsHostMode: c_int,
}
pub type ncclConfig_t = ncclConfig_v23100;
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ncclConfigExt {
    pub next: *mut ncclConfigExt,
    pub key: ncclConfigExt__bindgen_ty_1,
    pub val: ncclConfigExt__bindgen_ty_2,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ncclConfigExt__bindgen_ty_1 {
    pub vendorId: c_int,
    pub optionId: c_int,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union ncclConfigExt__bindgen_ty_2 {
    pub i: c_int,
    pub s: *const c_char,
    pub raw: *mut c_void,
}
impl ::core::fmt::Debug for ncclConfigExt__bindgen_ty_2 {
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        write!(f, "ncclConfigExt__bindgen_ty_2 {{ union }}")
    }
}
impl ::core::fmt::Debug for ncclConfigExt {
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        write!(f, "ncclConfigExt {{ next: {:?}, key: {:?}, val: {:?} }}", self.next, self.key, self.val,)
    }
}
pub type ncclConfigExt_t = ncclConfigExt;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ncclCollConfig_v23200 {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub ext: *mut ncclConfigExt_t,
    pub minCTAs: c_int,
    pub maxCTAs: c_int,
    pub nvlsCTAs: c_int,
    pub cgaClusterSize: c_int,
    pub algSelection: *const c_char,
    pub forceAlgSelection: c_int,
    pub CTAPolicy: c_int,
    pub userProfilerTag: u64,
    pub launchCompletionEvent: cudaEvent_t,
}
pub type ncclCollConfig_t = ncclCollConfig_v23200;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ncclSimInfo_v22200 {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub estimatedTime: f32,
}
pub type ncclSimInfo_t = ncclSimInfo_v22200;
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ncclWaitSignalDesc_t {
    pub opCnt: c_int,
    pub peer: c_int,
    pub sigIdx: c_int,
    pub ctx: c_int,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ncclEncryptionConfig_v23200 {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub mode: c_int,
    pub psk: *const c_char,
}
pub type ncclEncryptionConfig_t = ncclEncryptionConfig_v23200;
#[repr(C)]
#[derive(Debug)]
pub struct ncclParamHandle {
    _unused: [u8; 0],
}
pub type ncclParamHandle_t = *mut ncclParamHandle;
pub type ncclTeam_t = ncclTeam;
pub type ncclWindow_vidmem_t = ncclWindow_vidmem;
pub type ncclMultimemHandle_t = ncclMultimemHandle;
pub type ncclDevResourceHandle = u32;
pub type ncclDevResourceHandle_t = ncclDevResourceHandle;
pub type ncclGinSignal_t = u32;
pub type ncclGinCounter_t = u32;
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ncclGinRequest_t {
    pub opaque: [u64; 2usize],
}
pub type ncclLsaBarrierHandle_t = ncclLsaBarrierHandle;
pub type ncclGinBarrierHandle_t = ncclGinBarrierHandle;
pub type ncclCftBarrierHandle_t = ncclCftBarrierHandle;
pub type ncclLLA2AHandle_t = ncclLLA2AHandle;
pub type ncclCftLeId = u32;
pub type ncclCftLeId_t = ncclCftLeId;
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ncclTeam {
    pub nRanks: c_int,
    pub rank: c_int,
    pub stride: c_int,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ncclMultimemHandle {
    pub mcBasePtr: *mut c_void,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ncclLLA2AHandle {
    pub bufHandle: ncclDevResourceHandle_t,
    pub nSlots: u32,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ncclLsaBarrierHandle {
    pub bufHandle: ncclDevResourceHandle_t,
    pub nBarriers: c_int,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ncclGinBarrierHandle {
    pub signal0: ncclGinSignal_t,
    pub unused: ncclDevResourceHandle_t,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ncclCftBarrierHandle {
    pub bufHandle: ncclDevResourceHandle_t,
    pub nBarriers: c_int,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ncclDevResourceRequirements {
    pub next: *mut ncclDevResourceRequirements,
    pub bufferSize: usize,
    pub bufferAlign: usize,
    pub outBufferHandle: *mut ncclDevResourceHandle_t,
    pub ginSignalCount: c_int,
    pub ginCounterCount: c_int,
    pub outGinSignalStart: *mut ncclGinSignal_t,
    pub outGinCounterStart: *mut ncclGinCounter_t,
}
pub type ncclDevResourceRequirements_t = ncclDevResourceRequirements;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ncclTeamRequirements {
    pub next: *mut ncclTeamRequirements,
    pub team: ncclTeam_t,
    pub multimem: bool,
    pub outMultimemHandle: *mut ncclMultimemHandle_t,
}
pub type ncclTeamRequirements_t = ncclTeamRequirements;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ncclDevCommRequirements {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub resourceRequirementsList: *mut ncclDevResourceRequirements_t,
    pub teamRequirementsList: *mut ncclTeamRequirements_t,
    pub lsaMultimem: bool,
    pub barrierCount: c_int,
    pub lsaBarrierCount: c_int,
    pub railGinBarrierCount: c_int,
    pub lsaLLA2ABlockCount: c_int,
    pub lsaLLA2ASlotCount: c_int,
    pub ginForceEnable: bool,
    pub ginContextCount: c_int,
    pub ginSignalCount: c_int,
    pub ginCounterCount: c_int,
    pub ginConnectionType: ncclGinConnectionType_t,
    pub ginExclusiveContexts: bool,
    pub ginQueueDepth: c_int,
    pub ginTrafficClass: c_int,
    pub worldGinBarrierCount: c_int,
    pub ginStrongSignalsRequired: bool,
    pub ginVaSignalsRequired: bool,
    pub ginCustomStride: c_int,
    pub ginType: ncclGinType_t,
    pub useRuntimeVersion: bool,
    pub cftCaps: c_int,
    pub cftBarrierCount: c_int,
}
pub type ncclDevCommRequirements_t = ncclDevCommRequirements;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ncclCommProperties {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub rank: c_int,
    pub nRanks: c_int,
    pub cudaDev: c_int,
    pub nvmlDev: c_int,
    pub deviceApiSupport: bool,
    pub multimemSupport: bool,
    pub ginType: ncclGinType_t,
    pub nLsaTeams: c_int,
    pub hostRmaSupport: bool,
    pub railedGinType: ncclGinType_t,
    pub commHash: u64,
    pub ginMinStride: c_int,
    pub ginConnectionType: ncclGinConnectionType_t,
    pub ginSupport: [bool; 64usize],
    pub devCommRuntimeVersionSize: usize,
    pub cftSupport: bool,
    pub cftMulticastSupport: bool,
    pub cftCountedSupport: bool,
}
pub type ncclCommProperties_t = ncclCommProperties;

zeroed! {
    ncclUniqueId,
    ncclConfigExt__bindgen_ty_2,
    ncclConfigExt,
    ncclMultimemHandle,
    ncclDevResourceRequirements,
    ncclTeamRequirements,
}
