// Moves bytes from every rank: all-gather and all-to-all.
#include "packs.cuh"

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
    const Share share = share_of((gather.bytes + PACK - 1) / PACK, blockIdx.x, gridDim.x);
    // Each rank begins with another peer, so that they do not all read from one.
#pragma unroll 1
    for (u32 turn = 0; turn < ranks.world; ++turn) {
        const u32 peer = (ranks.rank + turn) % ranks.world;
        const u64 from = bases.of[peer] + gather.input + gather.stride * peer;
        const u64 to = output + gather.bytes * peer;
        if (from == to) continue;
        const u32 width = width_of(from | to);
#pragma unroll 1
        for (u64 pack = share.first + threadIdx.x; pack < share.end; pack += blockDim.x) {
            const u64 at = pack * PACK;
            if (width == PACK && at + PACK <= gather.bytes) {
                store_whole(load_whole(from + at), to + at);
            } else {
                const u32 bytes = (u32)min((u64)PACK, gather.bytes - at);
                store_some(load_some(from + at, bytes, width), to + at, bytes, width);
            }
        }
    }
    meet(ranks, gather.kernel);
}
