/* The few CUDA runtime names that the NCCL headers use, so that they compile without a CUDA toolkit. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#define CUDART_VERSION 12080
typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
