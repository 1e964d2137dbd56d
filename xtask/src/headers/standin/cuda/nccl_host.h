/* All of a release that a host program calls, as C++; as C no more than nccl.h, for the device headers of some
   releases are no C. */
#ifndef NCCL_HOST_H
#define NCCL_HOST_H
#include <nccl.h>
#ifdef __cplusplus
#if __has_include(<nccl_device/host.h>)
#include <nccl_device/host.h>
#elif __has_include(<nccl_device/core.h>)
#include <nccl_device/impl/comm__types.h>
#endif
#endif
#endif
