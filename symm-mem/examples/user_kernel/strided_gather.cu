// A program's own kernel over all ranks' memory. Every rank takes each `world`-th element of every rank's buffer,
// beginning with the `rank`-th, and appends the elements of each rank to those of the previous one. It needs only the
// two device arrays of a rendezvous: the ranks' buffers, and their signal pads.
typedef unsigned int u32;
typedef unsigned long long u64;

struct Gather {
    const u64 *buffers;  // the ranks' allocations, as this device sees them
    const u64 *pads;     // their signal pads
    float *output;       // of this rank: world * count elements
    u32 *late;           // 1 once somebody has not come in time
    u64 offset;          // where in an allocation the buffer begins
    u64 count;           // elements from each rank
    u64 deadline_ns;
    u32 rank;
    u32 world;
};

__device__ u64 now() {
    u64 ns;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns)::"memory");
    return ns;
}

// A signal is a word of a pad: 1 from the source's put to the owner's take, else 0.
__device__ u32 *word(const Gather &gather, u32 owner, u32 channel, u32 source) {
    return (u32 *)gather.pads[owner] + gather.world * channel + source;
}

__device__ bool put(u32 *word) {
    u32 found;
    asm volatile("atom.release.sys.cas.b32 %0, [%1], 0, 1;" : "=r"(found) : "l"(word) : "memory");
    return found == 0;
}

__device__ bool take(u32 *word) {
    u32 found;
    asm volatile("atom.acquire.sys.cas.b32 %0, [%1], 1, 0;" : "=r"(found) : "l"(word) : "memory");
    return found == 1;
}

// Synchronizes this block of every rank on its own channel, with one thread for each peer. False: not before the
// deadline.
__device__ bool meet(const Gather &gather) {
    const u32 peer = threadIdx.x;
    bool met = true;
    if (peer < gather.world && peer != gather.rank) {
        const u64 began = now();
        u32 *const there = word(gather, peer, blockIdx.x, gather.rank), *const here = word(gather, gather.rank, blockIdx.x, peer);
        while ((met = put(there)) == false && now() - began < gather.deadline_ns) {}
        if (met) while ((met = take(here)) == false && now() - began < gather.deadline_ns) {}
    }
    return __syncthreads_and(met);
}

extern "C" __global__ void strided_gather(Gather gather) {
    // After this, the earlier writes of all ranks are visible.
    if (!meet(gather)) {
        if (threadIdx.x == 0) *gather.late = 1;
        return;
    }
    const u64 step = (u64)gridDim.x * blockDim.x;
    for (u32 peer = 0; peer < gather.world; ++peer) {
        const float *const input = (const float *)(gather.buffers[peer] + gather.offset) + gather.rank;
        float *const output = gather.output + peer * gather.count;
        for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < gather.count; i += step) output[i] = input[i * gather.world];
    }
}
