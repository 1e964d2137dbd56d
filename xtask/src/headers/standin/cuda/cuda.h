#pragma once
#include "cuda_runtime.h"
/* An enumeration in the real header, of this size. */
typedef unsigned int CUmemLocationType;
