// Vectors of 16 bytes, at any address, and the shares of the blocks of a kernel.
#pragma once

#include "ranks.cuh"

enum : u32 { VEC16_BYTES = 16 };

struct alignas(VEC16_BYTES) Vec16 {
    u32 words[4];
};

// The ranks' buffers, copied to shared memory for all threads of a block.
struct Bases {
    u64 of[MOST_RANKS];
};

// Begins a kernel of all ranks: fills `bases`, and synchronizes with this block of every rank. False: the block ends.
__device__ __forceinline__ bool enter(const Ranks &ranks, u32 kernel, Bases &bases) {
#pragma unroll 1
    for (u32 rank = threadIdx.x; rank < ranks.world; rank += blockDim.x) bases.of[rank] = ranks.buffers[rank];
    if (__syncthreads_or(gave_up(ranks))) return false;
    return meet(ranks, kernel);
}

// This block's share of `count` items: from `first` to `end`, exclusive. The same on all ranks for the same count.
struct Share {
    u64 first;
    u64 end;
};

__device__ __forceinline__ Share share_of(u64 count, u32 part, u32 parts) {
    return {count * part / parts, count * (part + 1) / parts};
}

// The widest access, at most a vector, to which all addresses in `bits` (or-ed together) are aligned.
__device__ __forceinline__ u32 width_of(u64 bits) {
    const u32 lowest = (u32)(bits & (~bits + 1)) & (VEC16_BYTES - 1);
    return lowest == 0 ? VEC16_BYTES : lowest;
}

template <typename T>
__device__ __forceinline__ void load_by(Vec16 &vec, u64 from, u32 bytes) {
    T parts[VEC16_BYTES / sizeof(T)];
#pragma unroll
    for (u32 i = 0; i < VEC16_BYTES / sizeof(T); ++i) parts[i] = i * sizeof(T) < bytes ? ((const T *)from)[i] : T(0);
    memcpy(&vec, parts, VEC16_BYTES);
}

template <typename T>
__device__ __forceinline__ void store_by(const Vec16 &vec, u64 to, u32 bytes) {
    T parts[VEC16_BYTES / sizeof(T)];
    memcpy(parts, &vec, VEC16_BYTES);
#pragma unroll
    for (u32 i = 0; i < VEC16_BYTES / sizeof(T); ++i) {
        if (i * sizeof(T) < bytes) ((T *)to)[i] = parts[i];
    }
}

// Loads the bytes at `from`; the rest of the vector is zero. The address is a multiple of `width`. If the length is
// not, the bytes are loaded one by one.
__device__ __noinline__ Vec16 load_some(u64 from, u32 bytes, u32 width) {
    Vec16 vec;
    if (bytes % width != 0) width = 1;
    switch (width) {
        case 16:
        case 8: load_by<u64>(vec, from, bytes); break;
        case 4: load_by<u32>(vec, from, bytes); break;
        case 2: load_by<u16>(vec, from, bytes); break;
        default: load_by<u8>(vec, from, bytes); break;
    }
    return vec;
}

__device__ __noinline__ void store_some(const Vec16 &vec, u64 to, u32 bytes, u32 width) {
    if (bytes % width != 0) width = 1;
    switch (width) {
        case 16:
        case 8: store_by<u64>(vec, to, bytes); break;
        case 4: store_by<u32>(vec, to, bytes); break;
        case 2: store_by<u16>(vec, to, bytes); break;
        default: store_by<u8>(vec, to, bytes); break;
    }
}

__device__ __forceinline__ Vec16 load_whole(u64 from) {
    const uint4 four = *(const uint4 *)from;
    return {{four.x, four.y, four.z, four.w}};
}

__device__ __forceinline__ void store_whole(const Vec16 &vec, u64 to) {
    *(uint4 *)to = make_uint4(vec.words[0], vec.words[1], vec.words[2], vec.words[3]);
}

__device__ __forceinline__ void store(const Vec16 &vec, u64 to, u32 bytes, u32 width) {
    if (width == VEC16_BYTES && bytes == VEC16_BYTES) {
        store_whole(vec, to);
    } else {
        store_some(vec, to, bytes, width);
    }
}
