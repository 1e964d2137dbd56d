// Packs of 16 bytes, at any address, and the shares of a kernel's blocks.
#pragma once

#include "ranks.cuh"

enum : u32 { PACK = 16 };

struct alignas(PACK) Pack {
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

// The widest access, at most a pack, to which all addresses in `bits` (or-ed together) are aligned.
__device__ __forceinline__ u32 width_of(u64 bits) {
    const u32 lowest = (u32)(bits & (~bits + 1)) & (PACK - 1);
    return lowest == 0 ? PACK : lowest;
}

template <typename T>
__device__ __forceinline__ void load_by(Pack &pack, u64 from, u32 bytes) {
    T parts[PACK / sizeof(T)];
#pragma unroll
    for (u32 i = 0; i < PACK / sizeof(T); ++i) parts[i] = i * sizeof(T) < bytes ? ((const T *)from)[i] : T(0);
    memcpy(&pack, parts, PACK);
}

template <typename T>
__device__ __forceinline__ void store_by(const Pack &pack, u64 to, u32 bytes) {
    T parts[PACK / sizeof(T)];
    memcpy(parts, &pack, PACK);
#pragma unroll
    for (u32 i = 0; i < PACK / sizeof(T); ++i) {
        if (i * sizeof(T) < bytes) ((T *)to)[i] = parts[i];
    }
}

// Loads the bytes at `from`; the rest of the pack is zero. The address is a multiple of `width`. If the length is
// not, the bytes are loaded one by one.
__device__ __noinline__ Pack load_some(u64 from, u32 bytes, u32 width) {
    Pack pack;
    if (bytes % width != 0) width = 1;
    switch (width) {
        case 16:
        case 8: load_by<u64>(pack, from, bytes); break;
        case 4: load_by<u32>(pack, from, bytes); break;
        case 2: load_by<u16>(pack, from, bytes); break;
        default: load_by<u8>(pack, from, bytes); break;
    }
    return pack;
}

__device__ __noinline__ void store_some(const Pack &pack, u64 to, u32 bytes, u32 width) {
    if (bytes % width != 0) width = 1;
    switch (width) {
        case 16:
        case 8: store_by<u64>(pack, to, bytes); break;
        case 4: store_by<u32>(pack, to, bytes); break;
        case 2: store_by<u16>(pack, to, bytes); break;
        default: store_by<u8>(pack, to, bytes); break;
    }
}

__device__ __forceinline__ Pack load_whole(u64 from) {
    const uint4 four = *(const uint4 *)from;
    return {{four.x, four.y, four.z, four.w}};
}

__device__ __forceinline__ void store_whole(const Pack &pack, u64 to) {
    *(uint4 *)to = make_uint4(pack.words[0], pack.words[1], pack.words[2], pack.words[3]);
}

__device__ __forceinline__ void store(const Pack &pack, u64 to, u32 bytes, u32 width) {
    if (width == PACK && bytes == PACK) {
        store_whole(pack, to);
    } else {
        store_some(pack, to, bytes, width);
    }
}
