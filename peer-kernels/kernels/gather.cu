// Moves bytes from every rank: all-gather and all-to-all.
#include "vec16.cuh"

struct Gather {
    u64 input;   // where, in rank 0's buffer, its bytes begin
    u64 stride;  // how much further they do in each next rank's
    u64 output;  // an address, or (`own`) an offset in this rank's buffer
    u64 bytes;   // from each rank
    u32 own;
    u32 kernel;
};

// output[rank * bytes ..] = the rank's bytes. Nothing is moved if source and destination are equal.
extern "C" __global__ void __launch_bounds__(512, 2) symm_gather(Ranks ranks, Gather gather) {
    __shared__ Bases bases;
    if (!enter(ranks, gather.kernel, bases)) return;
    const u64 output = gather.output + (gather.own ? bases.of[ranks.rank] : 0);
    const Share share = share_of((gather.bytes + VEC16_BYTES - 1) / VEC16_BYTES, blockIdx.x, gridDim.x);
    // Each rank begins with another peer, so that they do not all read from one.
#pragma unroll 1
    for (u32 step = 0; step < ranks.world; ++step) {
        const u32 peer = (ranks.rank + step) % ranks.world;
        const u64 from = bases.of[peer] + gather.input + gather.stride * peer;
        const u64 to = output + gather.bytes * peer;
        if (from == to) continue;
        const u32 width = width_of(from | to);
#pragma unroll 1
        for (u64 vec = share.first + threadIdx.x; vec < share.end; vec += blockDim.x) {
            const u64 at = vec * VEC16_BYTES;
            if (width == VEC16_BYTES && at + VEC16_BYTES <= gather.bytes) {
                store_whole(load_whole(from + at), to + at);
            } else {
                const u32 bytes = (u32)min((u64)VEC16_BYTES, gather.bytes - at);
                store_some(load_some(from + at, bytes, width), to + at, bytes, width);
            }
        }
    }
    meet(ranks, gather.kernel);
}
