//! Sizes and offsets. Written by `cargo xtask codegen` from `nccl.h` and `nccl_device.h` of nvidia-nccl-cu12 2.32.3; not edited by hand.

use super::types::*;

#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ncclUniqueId"][::core::mem::size_of::<ncclUniqueId>() - 128usize];
    ["Alignment of ncclUniqueId"][::core::mem::align_of::<ncclUniqueId>() - 1usize];
    ["Offset of field: ncclUniqueId::internal"][::core::mem::offset_of!(ncclUniqueId, internal) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ncclConfig_v23100"][::core::mem::size_of::<ncclConfig_v23100>() - 120usize];
    ["Alignment of ncclConfig_v23100"][::core::mem::align_of::<ncclConfig_v23100>() - 8usize];
    ["Offset of field: ncclConfig_v23100::size"][::core::mem::offset_of!(ncclConfig_v23100, size) - 0usize];
    ["Offset of field: ncclConfig_v23100::magic"][::core::mem::offset_of!(ncclConfig_v23100, magic) - 8usize];
    ["Offset of field: ncclConfig_v23100::version"]
        [::core::mem::offset_of!(ncclConfig_v23100, version) - 12usize];
    ["Offset of field: ncclConfig_v23100::blocking"]
        [::core::mem::offset_of!(ncclConfig_v23100, blocking) - 16usize];
    ["Offset of field: ncclConfig_v23100::cgaClusterSize"]
        [::core::mem::offset_of!(ncclConfig_v23100, cgaClusterSize) - 20usize];
    ["Offset of field: ncclConfig_v23100::minCTAs"]
        [::core::mem::offset_of!(ncclConfig_v23100, minCTAs) - 24usize];
    ["Offset of field: ncclConfig_v23100::maxCTAs"]
        [::core::mem::offset_of!(ncclConfig_v23100, maxCTAs) - 28usize];
    ["Offset of field: ncclConfig_v23100::netName"]
        [::core::mem::offset_of!(ncclConfig_v23100, netName) - 32usize];
    ["Offset of field: ncclConfig_v23100::splitShare"]
        [::core::mem::offset_of!(ncclConfig_v23100, splitShare) - 40usize];
    ["Offset of field: ncclConfig_v23100::trafficClass"]
        [::core::mem::offset_of!(ncclConfig_v23100, trafficClass) - 44usize];
    ["Offset of field: ncclConfig_v23100::commName"]
        [::core::mem::offset_of!(ncclConfig_v23100, commName) - 48usize];
    ["Offset of field: ncclConfig_v23100::collnetEnable"]
        [::core::mem::offset_of!(ncclConfig_v23100, collnetEnable) - 56usize];
    ["Offset of field: ncclConfig_v23100::CTAPolicy"]
        [::core::mem::offset_of!(ncclConfig_v23100, CTAPolicy) - 60usize];
    ["Offset of field: ncclConfig_v23100::shrinkShare"]
        [::core::mem::offset_of!(ncclConfig_v23100, shrinkShare) - 64usize];
    ["Offset of field: ncclConfig_v23100::nvlsCTAs"]
        [::core::mem::offset_of!(ncclConfig_v23100, nvlsCTAs) - 68usize];
    ["Offset of field: ncclConfig_v23100::nChannelsPerNetPeer"]
        [::core::mem::offset_of!(ncclConfig_v23100, nChannelsPerNetPeer) - 72usize];
    ["Offset of field: ncclConfig_v23100::nvlinkCentricSched"]
        [::core::mem::offset_of!(ncclConfig_v23100, nvlinkCentricSched) - 76usize];
    ["Offset of field: ncclConfig_v23100::graphUsageMode"]
        [::core::mem::offset_of!(ncclConfig_v23100, graphUsageMode) - 80usize];
    ["Offset of field: ncclConfig_v23100::numRmaCtx"]
        [::core::mem::offset_of!(ncclConfig_v23100, numRmaCtx) - 84usize];
    ["Offset of field: ncclConfig_v23100::maxP2pPeers"]
        [::core::mem::offset_of!(ncclConfig_v23100, maxP2pPeers) - 88usize];
    ["Offset of field: ncclConfig_v23100::graphStreamOrdering"]
        [::core::mem::offset_of!(ncclConfig_v23100, graphStreamOrdering) - 92usize];
    ["Offset of field: ncclConfig_v23100::launchOrderImplicit"]
        [::core::mem::offset_of!(ncclConfig_v23100, launchOrderImplicit) - 96usize];
    ["Offset of field: ncclConfig_v23100::numRmaSig"]
        [::core::mem::offset_of!(ncclConfig_v23100, numRmaSig) - 100usize];
    ["Offset of field: ncclConfig_v23100::rmaEagerInit"]
        [::core::mem::offset_of!(ncclConfig_v23100, rmaEagerInit) - 104usize];
    ["Offset of field: ncclConfig_v23100::hostCftMode"]
        [::core::mem::offset_of!(ncclConfig_v23100, hostCftMode) - 108usize];
    ["Offset of field: ncclConfig_v23100::nvlsHostMode"]
        [::core::mem::offset_of!(ncclConfig_v23100, nvlsHostMode) - 112usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ncclConfigExt__bindgen_ty_1"][::core::mem::size_of::<ncclConfigExt__bindgen_ty_1>() - 8usize];
    ["Alignment of ncclConfigExt__bindgen_ty_1"]
        [::core::mem::align_of::<ncclConfigExt__bindgen_ty_1>() - 4usize];
    ["Offset of field: ncclConfigExt__bindgen_ty_1::vendorId"]
        [::core::mem::offset_of!(ncclConfigExt__bindgen_ty_1, vendorId) - 0usize];
    ["Offset of field: ncclConfigExt__bindgen_ty_1::optionId"]
        [::core::mem::offset_of!(ncclConfigExt__bindgen_ty_1, optionId) - 4usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ncclConfigExt__bindgen_ty_2"][::core::mem::size_of::<ncclConfigExt__bindgen_ty_2>() - 8usize];
    ["Alignment of ncclConfigExt__bindgen_ty_2"]
        [::core::mem::align_of::<ncclConfigExt__bindgen_ty_2>() - 8usize];
    ["Offset of field: ncclConfigExt__bindgen_ty_2::i"]
        [::core::mem::offset_of!(ncclConfigExt__bindgen_ty_2, i) - 0usize];
    ["Offset of field: ncclConfigExt__bindgen_ty_2::s"]
        [::core::mem::offset_of!(ncclConfigExt__bindgen_ty_2, s) - 0usize];
    ["Offset of field: ncclConfigExt__bindgen_ty_2::raw"]
        [::core::mem::offset_of!(ncclConfigExt__bindgen_ty_2, raw) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ncclConfigExt"][::core::mem::size_of::<ncclConfigExt>() - 24usize];
    ["Alignment of ncclConfigExt"][::core::mem::align_of::<ncclConfigExt>() - 8usize];
    ["Offset of field: ncclConfigExt::next"][::core::mem::offset_of!(ncclConfigExt, next) - 0usize];
    ["Offset of field: ncclConfigExt::key"][::core::mem::offset_of!(ncclConfigExt, key) - 8usize];
    ["Offset of field: ncclConfigExt::val"][::core::mem::offset_of!(ncclConfigExt, val) - 16usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ncclCollConfig_v23200"][::core::mem::size_of::<ncclCollConfig_v23200>() - 72usize];
    ["Alignment of ncclCollConfig_v23200"][::core::mem::align_of::<ncclCollConfig_v23200>() - 8usize];
    ["Offset of field: ncclCollConfig_v23200::size"]
        [::core::mem::offset_of!(ncclCollConfig_v23200, size) - 0usize];
    ["Offset of field: ncclCollConfig_v23200::magic"]
        [::core::mem::offset_of!(ncclCollConfig_v23200, magic) - 8usize];
    ["Offset of field: ncclCollConfig_v23200::version"]
        [::core::mem::offset_of!(ncclCollConfig_v23200, version) - 12usize];
    ["Offset of field: ncclCollConfig_v23200::ext"]
        [::core::mem::offset_of!(ncclCollConfig_v23200, ext) - 16usize];
    ["Offset of field: ncclCollConfig_v23200::minCTAs"]
        [::core::mem::offset_of!(ncclCollConfig_v23200, minCTAs) - 24usize];
    ["Offset of field: ncclCollConfig_v23200::maxCTAs"]
        [::core::mem::offset_of!(ncclCollConfig_v23200, maxCTAs) - 28usize];
    ["Offset of field: ncclCollConfig_v23200::nvlsCTAs"]
        [::core::mem::offset_of!(ncclCollConfig_v23200, nvlsCTAs) - 32usize];
    ["Offset of field: ncclCollConfig_v23200::cgaClusterSize"]
        [::core::mem::offset_of!(ncclCollConfig_v23200, cgaClusterSize) - 36usize];
    ["Offset of field: ncclCollConfig_v23200::algSelection"]
        [::core::mem::offset_of!(ncclCollConfig_v23200, algSelection) - 40usize];
    ["Offset of field: ncclCollConfig_v23200::forceAlgSelection"]
        [::core::mem::offset_of!(ncclCollConfig_v23200, forceAlgSelection) - 48usize];
    ["Offset of field: ncclCollConfig_v23200::CTAPolicy"]
        [::core::mem::offset_of!(ncclCollConfig_v23200, CTAPolicy) - 52usize];
    ["Offset of field: ncclCollConfig_v23200::userProfilerTag"]
        [::core::mem::offset_of!(ncclCollConfig_v23200, userProfilerTag) - 56usize];
    ["Offset of field: ncclCollConfig_v23200::launchCompletionEvent"]
        [::core::mem::offset_of!(ncclCollConfig_v23200, launchCompletionEvent) - 64usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ncclSimInfo_v22200"][::core::mem::size_of::<ncclSimInfo_v22200>() - 24usize];
    ["Alignment of ncclSimInfo_v22200"][::core::mem::align_of::<ncclSimInfo_v22200>() - 8usize];
    ["Offset of field: ncclSimInfo_v22200::size"][::core::mem::offset_of!(ncclSimInfo_v22200, size) - 0usize];
    ["Offset of field: ncclSimInfo_v22200::magic"]
        [::core::mem::offset_of!(ncclSimInfo_v22200, magic) - 8usize];
    ["Offset of field: ncclSimInfo_v22200::version"]
        [::core::mem::offset_of!(ncclSimInfo_v22200, version) - 12usize];
    ["Offset of field: ncclSimInfo_v22200::estimatedTime"]
        [::core::mem::offset_of!(ncclSimInfo_v22200, estimatedTime) - 16usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ncclWaitSignalDesc_t"][::core::mem::size_of::<ncclWaitSignalDesc_t>() - 16usize];
    ["Alignment of ncclWaitSignalDesc_t"][::core::mem::align_of::<ncclWaitSignalDesc_t>() - 4usize];
    ["Offset of field: ncclWaitSignalDesc_t::opCnt"]
        [::core::mem::offset_of!(ncclWaitSignalDesc_t, opCnt) - 0usize];
    ["Offset of field: ncclWaitSignalDesc_t::peer"]
        [::core::mem::offset_of!(ncclWaitSignalDesc_t, peer) - 4usize];
    ["Offset of field: ncclWaitSignalDesc_t::sigIdx"]
        [::core::mem::offset_of!(ncclWaitSignalDesc_t, sigIdx) - 8usize];
    ["Offset of field: ncclWaitSignalDesc_t::ctx"]
        [::core::mem::offset_of!(ncclWaitSignalDesc_t, ctx) - 12usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ncclEncryptionConfig_v23200"][::core::mem::size_of::<ncclEncryptionConfig_v23200>() - 32usize];
    ["Alignment of ncclEncryptionConfig_v23200"]
        [::core::mem::align_of::<ncclEncryptionConfig_v23200>() - 8usize];
    ["Offset of field: ncclEncryptionConfig_v23200::size"]
        [::core::mem::offset_of!(ncclEncryptionConfig_v23200, size) - 0usize];
    ["Offset of field: ncclEncryptionConfig_v23200::magic"]
        [::core::mem::offset_of!(ncclEncryptionConfig_v23200, magic) - 8usize];
    ["Offset of field: ncclEncryptionConfig_v23200::version"]
        [::core::mem::offset_of!(ncclEncryptionConfig_v23200, version) - 12usize];
    ["Offset of field: ncclEncryptionConfig_v23200::mode"]
        [::core::mem::offset_of!(ncclEncryptionConfig_v23200, mode) - 16usize];
    ["Offset of field: ncclEncryptionConfig_v23200::psk"]
        [::core::mem::offset_of!(ncclEncryptionConfig_v23200, psk) - 24usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ncclGinRequest_t"][::core::mem::size_of::<ncclGinRequest_t>() - 16usize];
    ["Alignment of ncclGinRequest_t"][::core::mem::align_of::<ncclGinRequest_t>() - 8usize];
    ["Offset of field: ncclGinRequest_t::opaque"][::core::mem::offset_of!(ncclGinRequest_t, opaque) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ncclTeam"][::core::mem::size_of::<ncclTeam>() - 12usize];
    ["Alignment of ncclTeam"][::core::mem::align_of::<ncclTeam>() - 4usize];
    ["Offset of field: ncclTeam::nRanks"][::core::mem::offset_of!(ncclTeam, nRanks) - 0usize];
    ["Offset of field: ncclTeam::rank"][::core::mem::offset_of!(ncclTeam, rank) - 4usize];
    ["Offset of field: ncclTeam::stride"][::core::mem::offset_of!(ncclTeam, stride) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ncclMultimemHandle"][::core::mem::size_of::<ncclMultimemHandle>() - 8usize];
    ["Alignment of ncclMultimemHandle"][::core::mem::align_of::<ncclMultimemHandle>() - 8usize];
    ["Offset of field: ncclMultimemHandle::mcBasePtr"]
        [::core::mem::offset_of!(ncclMultimemHandle, mcBasePtr) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ncclLLA2AHandle"][::core::mem::size_of::<ncclLLA2AHandle>() - 8usize];
    ["Alignment of ncclLLA2AHandle"][::core::mem::align_of::<ncclLLA2AHandle>() - 4usize];
    ["Offset of field: ncclLLA2AHandle::bufHandle"]
        [::core::mem::offset_of!(ncclLLA2AHandle, bufHandle) - 0usize];
    ["Offset of field: ncclLLA2AHandle::nSlots"][::core::mem::offset_of!(ncclLLA2AHandle, nSlots) - 4usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ncclLsaBarrierHandle"][::core::mem::size_of::<ncclLsaBarrierHandle>() - 8usize];
    ["Alignment of ncclLsaBarrierHandle"][::core::mem::align_of::<ncclLsaBarrierHandle>() - 4usize];
    ["Offset of field: ncclLsaBarrierHandle::bufHandle"]
        [::core::mem::offset_of!(ncclLsaBarrierHandle, bufHandle) - 0usize];
    ["Offset of field: ncclLsaBarrierHandle::nBarriers"]
        [::core::mem::offset_of!(ncclLsaBarrierHandle, nBarriers) - 4usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ncclGinBarrierHandle"][::core::mem::size_of::<ncclGinBarrierHandle>() - 8usize];
    ["Alignment of ncclGinBarrierHandle"][::core::mem::align_of::<ncclGinBarrierHandle>() - 4usize];
    ["Offset of field: ncclGinBarrierHandle::signal0"]
        [::core::mem::offset_of!(ncclGinBarrierHandle, signal0) - 0usize];
    ["Offset of field: ncclGinBarrierHandle::unused"]
        [::core::mem::offset_of!(ncclGinBarrierHandle, unused) - 4usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ncclCftBarrierHandle"][::core::mem::size_of::<ncclCftBarrierHandle>() - 8usize];
    ["Alignment of ncclCftBarrierHandle"][::core::mem::align_of::<ncclCftBarrierHandle>() - 4usize];
    ["Offset of field: ncclCftBarrierHandle::bufHandle"]
        [::core::mem::offset_of!(ncclCftBarrierHandle, bufHandle) - 0usize];
    ["Offset of field: ncclCftBarrierHandle::nBarriers"]
        [::core::mem::offset_of!(ncclCftBarrierHandle, nBarriers) - 4usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ncclDevResourceRequirements"][::core::mem::size_of::<ncclDevResourceRequirements>() - 56usize];
    ["Alignment of ncclDevResourceRequirements"]
        [::core::mem::align_of::<ncclDevResourceRequirements>() - 8usize];
    ["Offset of field: ncclDevResourceRequirements::next"]
        [::core::mem::offset_of!(ncclDevResourceRequirements, next) - 0usize];
    ["Offset of field: ncclDevResourceRequirements::bufferSize"]
        [::core::mem::offset_of!(ncclDevResourceRequirements, bufferSize) - 8usize];
    ["Offset of field: ncclDevResourceRequirements::bufferAlign"]
        [::core::mem::offset_of!(ncclDevResourceRequirements, bufferAlign) - 16usize];
    ["Offset of field: ncclDevResourceRequirements::outBufferHandle"]
        [::core::mem::offset_of!(ncclDevResourceRequirements, outBufferHandle) - 24usize];
    ["Offset of field: ncclDevResourceRequirements::ginSignalCount"]
        [::core::mem::offset_of!(ncclDevResourceRequirements, ginSignalCount) - 32usize];
    ["Offset of field: ncclDevResourceRequirements::ginCounterCount"]
        [::core::mem::offset_of!(ncclDevResourceRequirements, ginCounterCount) - 36usize];
    ["Offset of field: ncclDevResourceRequirements::outGinSignalStart"]
        [::core::mem::offset_of!(ncclDevResourceRequirements, outGinSignalStart) - 40usize];
    ["Offset of field: ncclDevResourceRequirements::outGinCounterStart"]
        [::core::mem::offset_of!(ncclDevResourceRequirements, outGinCounterStart) - 48usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ncclTeamRequirements"][::core::mem::size_of::<ncclTeamRequirements>() - 32usize];
    ["Alignment of ncclTeamRequirements"][::core::mem::align_of::<ncclTeamRequirements>() - 8usize];
    ["Offset of field: ncclTeamRequirements::next"]
        [::core::mem::offset_of!(ncclTeamRequirements, next) - 0usize];
    ["Offset of field: ncclTeamRequirements::team"]
        [::core::mem::offset_of!(ncclTeamRequirements, team) - 8usize];
    ["Offset of field: ncclTeamRequirements::multimem"]
        [::core::mem::offset_of!(ncclTeamRequirements, multimem) - 20usize];
    ["Offset of field: ncclTeamRequirements::outMultimemHandle"]
        [::core::mem::offset_of!(ncclTeamRequirements, outMultimemHandle) - 24usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ncclDevCommRequirements"][::core::mem::size_of::<ncclDevCommRequirements>() - 120usize];
    ["Alignment of ncclDevCommRequirements"][::core::mem::align_of::<ncclDevCommRequirements>() - 8usize];
    ["Offset of field: ncclDevCommRequirements::size"]
        [::core::mem::offset_of!(ncclDevCommRequirements, size) - 0usize];
    ["Offset of field: ncclDevCommRequirements::magic"]
        [::core::mem::offset_of!(ncclDevCommRequirements, magic) - 8usize];
    ["Offset of field: ncclDevCommRequirements::version"]
        [::core::mem::offset_of!(ncclDevCommRequirements, version) - 12usize];
    ["Offset of field: ncclDevCommRequirements::resourceRequirementsList"]
        [::core::mem::offset_of!(ncclDevCommRequirements, resourceRequirementsList) - 16usize];
    ["Offset of field: ncclDevCommRequirements::teamRequirementsList"]
        [::core::mem::offset_of!(ncclDevCommRequirements, teamRequirementsList) - 24usize];
    ["Offset of field: ncclDevCommRequirements::lsaMultimem"]
        [::core::mem::offset_of!(ncclDevCommRequirements, lsaMultimem) - 32usize];
    ["Offset of field: ncclDevCommRequirements::barrierCount"]
        [::core::mem::offset_of!(ncclDevCommRequirements, barrierCount) - 36usize];
    ["Offset of field: ncclDevCommRequirements::lsaBarrierCount"]
        [::core::mem::offset_of!(ncclDevCommRequirements, lsaBarrierCount) - 40usize];
    ["Offset of field: ncclDevCommRequirements::railGinBarrierCount"]
        [::core::mem::offset_of!(ncclDevCommRequirements, railGinBarrierCount) - 44usize];
    ["Offset of field: ncclDevCommRequirements::lsaLLA2ABlockCount"]
        [::core::mem::offset_of!(ncclDevCommRequirements, lsaLLA2ABlockCount) - 48usize];
    ["Offset of field: ncclDevCommRequirements::lsaLLA2ASlotCount"]
        [::core::mem::offset_of!(ncclDevCommRequirements, lsaLLA2ASlotCount) - 52usize];
    ["Offset of field: ncclDevCommRequirements::ginForceEnable"]
        [::core::mem::offset_of!(ncclDevCommRequirements, ginForceEnable) - 56usize];
    ["Offset of field: ncclDevCommRequirements::ginContextCount"]
        [::core::mem::offset_of!(ncclDevCommRequirements, ginContextCount) - 60usize];
    ["Offset of field: ncclDevCommRequirements::ginSignalCount"]
        [::core::mem::offset_of!(ncclDevCommRequirements, ginSignalCount) - 64usize];
    ["Offset of field: ncclDevCommRequirements::ginCounterCount"]
        [::core::mem::offset_of!(ncclDevCommRequirements, ginCounterCount) - 68usize];
    ["Offset of field: ncclDevCommRequirements::ginConnectionType"]
        [::core::mem::offset_of!(ncclDevCommRequirements, ginConnectionType) - 72usize];
    ["Offset of field: ncclDevCommRequirements::ginExclusiveContexts"]
        [::core::mem::offset_of!(ncclDevCommRequirements, ginExclusiveContexts) - 76usize];
    ["Offset of field: ncclDevCommRequirements::ginQueueDepth"]
        [::core::mem::offset_of!(ncclDevCommRequirements, ginQueueDepth) - 80usize];
    ["Offset of field: ncclDevCommRequirements::ginTrafficClass"]
        [::core::mem::offset_of!(ncclDevCommRequirements, ginTrafficClass) - 84usize];
    ["Offset of field: ncclDevCommRequirements::worldGinBarrierCount"]
        [::core::mem::offset_of!(ncclDevCommRequirements, worldGinBarrierCount) - 88usize];
    ["Offset of field: ncclDevCommRequirements::ginStrongSignalsRequired"]
        [::core::mem::offset_of!(ncclDevCommRequirements, ginStrongSignalsRequired) - 92usize];
    ["Offset of field: ncclDevCommRequirements::ginVaSignalsRequired"]
        [::core::mem::offset_of!(ncclDevCommRequirements, ginVaSignalsRequired) - 93usize];
    ["Offset of field: ncclDevCommRequirements::ginCustomStride"]
        [::core::mem::offset_of!(ncclDevCommRequirements, ginCustomStride) - 96usize];
    ["Offset of field: ncclDevCommRequirements::ginType"]
        [::core::mem::offset_of!(ncclDevCommRequirements, ginType) - 100usize];
    ["Offset of field: ncclDevCommRequirements::useRuntimeVersion"]
        [::core::mem::offset_of!(ncclDevCommRequirements, useRuntimeVersion) - 104usize];
    ["Offset of field: ncclDevCommRequirements::cftCaps"]
        [::core::mem::offset_of!(ncclDevCommRequirements, cftCaps) - 108usize];
    ["Offset of field: ncclDevCommRequirements::cftBarrierCount"]
        [::core::mem::offset_of!(ncclDevCommRequirements, cftBarrierCount) - 112usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ncclCommProperties"][::core::mem::size_of::<ncclCommProperties>() - 152usize];
    ["Alignment of ncclCommProperties"][::core::mem::align_of::<ncclCommProperties>() - 8usize];
    ["Offset of field: ncclCommProperties::size"][::core::mem::offset_of!(ncclCommProperties, size) - 0usize];
    ["Offset of field: ncclCommProperties::magic"]
        [::core::mem::offset_of!(ncclCommProperties, magic) - 8usize];
    ["Offset of field: ncclCommProperties::version"]
        [::core::mem::offset_of!(ncclCommProperties, version) - 12usize];
    ["Offset of field: ncclCommProperties::rank"]
        [::core::mem::offset_of!(ncclCommProperties, rank) - 16usize];
    ["Offset of field: ncclCommProperties::nRanks"]
        [::core::mem::offset_of!(ncclCommProperties, nRanks) - 20usize];
    ["Offset of field: ncclCommProperties::cudaDev"]
        [::core::mem::offset_of!(ncclCommProperties, cudaDev) - 24usize];
    ["Offset of field: ncclCommProperties::nvmlDev"]
        [::core::mem::offset_of!(ncclCommProperties, nvmlDev) - 28usize];
    ["Offset of field: ncclCommProperties::deviceApiSupport"]
        [::core::mem::offset_of!(ncclCommProperties, deviceApiSupport) - 32usize];
    ["Offset of field: ncclCommProperties::multimemSupport"]
        [::core::mem::offset_of!(ncclCommProperties, multimemSupport) - 33usize];
    ["Offset of field: ncclCommProperties::ginType"]
        [::core::mem::offset_of!(ncclCommProperties, ginType) - 36usize];
    ["Offset of field: ncclCommProperties::nLsaTeams"]
        [::core::mem::offset_of!(ncclCommProperties, nLsaTeams) - 40usize];
    ["Offset of field: ncclCommProperties::hostRmaSupport"]
        [::core::mem::offset_of!(ncclCommProperties, hostRmaSupport) - 44usize];
    ["Offset of field: ncclCommProperties::railedGinType"]
        [::core::mem::offset_of!(ncclCommProperties, railedGinType) - 48usize];
    ["Offset of field: ncclCommProperties::commHash"]
        [::core::mem::offset_of!(ncclCommProperties, commHash) - 56usize];
    ["Offset of field: ncclCommProperties::ginMinStride"]
        [::core::mem::offset_of!(ncclCommProperties, ginMinStride) - 64usize];
    ["Offset of field: ncclCommProperties::ginConnectionType"]
        [::core::mem::offset_of!(ncclCommProperties, ginConnectionType) - 68usize];
    ["Offset of field: ncclCommProperties::ginSupport"]
        [::core::mem::offset_of!(ncclCommProperties, ginSupport) - 72usize];
    ["Offset of field: ncclCommProperties::devCommRuntimeVersionSize"]
        [::core::mem::offset_of!(ncclCommProperties, devCommRuntimeVersionSize) - 136usize];
    ["Offset of field: ncclCommProperties::cftSupport"]
        [::core::mem::offset_of!(ncclCommProperties, cftSupport) - 144usize];
    ["Offset of field: ncclCommProperties::cftMulticastSupport"]
        [::core::mem::offset_of!(ncclCommProperties, cftMulticastSupport) - 145usize];
    ["Offset of field: ncclCommProperties::cftCountedSupport"]
        [::core::mem::offset_of!(ncclCommProperties, cftCountedSupport) - 146usize];
};
