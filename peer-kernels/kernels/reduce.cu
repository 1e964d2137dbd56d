// Combines the inputs of all ranks: all-reduce and reduce-scatter of one element type.
//
// Every element is combined in ascending order of the ranks, on any rank. So all ranks get the same bits.
#include "elements.cuh"

struct Reduce {
    u64 input;   // where it begins in every rank's buffer
    u64 output;  // an address; but for the first `target` an offset in buffers
    u64 bytes;
    u32 target;  // TARGET_…
    u32 kernel;
};

// Number of ranks whose vectors are requested before the first vector is used.
enum : u32 { AHEAD = 4 };

// Combines one vector of each rank.
template <typename Operation>
__device__ __forceinline__ Vec16 combined(const Ranks &ranks, const Bases &bases, u64 at, u32 bytes, u32 width) {
    Lanes sum;
    if (width == VEC16_BYTES && bytes == VEC16_BYTES) {
#pragma unroll 1
        for (u32 first = 0; first < ranks.world; first += AHEAD) {
            Vec16 vecs[AHEAD];
#pragma unroll
            for (u32 i = 0; i < AHEAD; ++i) {
                if (first + i < ranks.world) vecs[i] = load_whole(bases.of[first + i] + at);
            }
#pragma unroll
            for (u32 i = 0; i < AHEAD; ++i) {
                if (first + i >= ranks.world) break;
                const Lanes next = unpack(vecs[i]);
#pragma unroll
                for (u32 lane = 0; lane < LANES; ++lane) {
                    sum.of[lane] = first + i == 0 ? next.of[lane] : Operation::combine(sum.of[lane], next.of[lane]);
                }
            }
        }
    } else {
        sum = unpack(load_some(bases.of[0] + at, bytes, width));
#pragma unroll 1
        for (u32 rank = 1; rank < ranks.world; ++rank) {
            const Lanes next = unpack(load_some(bases.of[rank] + at, bytes, width));
#pragma unroll
            for (u32 lane = 0; lane < LANES; ++lane) sum.of[lane] = Operation::combine(sum.of[lane], next.of[lane]);
        }
    }
#pragma unroll
    for (u32 lane = 0; lane < LANES; ++lane) sum.of[lane] = Operation::finish(sum.of[lane], ranks.world);
    return pack(sum);
}

template <typename Operation>
__device__ __forceinline__ void reduce(const Ranks &ranks, const Reduce &what) {
    __shared__ Bases bases;
    if (!enter(ranks, what.kernel, bases)) return;
    const bool everywhere = what.target == TARGET_EVERYWHERE;
    const u64 output = what.output + (what.target == TARGET_ADDRESS ? 0 : bases.of[ranks.rank]);
    u64 addresses = output | VEC16_BYTES;
#pragma unroll 1
    for (u32 rank = 0; rank < ranks.world; ++rank) {
        addresses |= (bases.of[rank] + what.input) | (everywhere ? bases.of[rank] + what.output : 0);
    }
    const u32 width = width_of(addresses);
    Share share = {0, (what.bytes + VEC16_BYTES - 1) / VEC16_BYTES};
    // A rank that writes to all ranks combines only its slice.
    if (everywhere) share = share_of(share.end, ranks.rank, ranks.world);
    const Share part = share_of(share.end - share.first, blockIdx.x, gridDim.x);
    const u64 end = share.first + part.end;
#pragma unroll 1
    for (u64 row = share.first + part.first; row < end; row += blockDim.x) {
        const u64 at = (row + threadIdx.x) * VEC16_BYTES;
        Vec16 vec;
        u32 bytes = 0;
        if (row + threadIdx.x < end) {
            bytes = (u32)min((u64)VEC16_BYTES, what.bytes - at);
            vec = combined<Operation>(ranks, bases, what.input + at, bytes, width);
        }
        // Peers still read the input, so it is overwritten only after all have read it.
        if (what.target == TARGET_ONTO_INPUT && !meet(ranks, what.kernel)) return;
        if (bytes == 0) continue;
        if (!everywhere) {
            store(vec, output + at, bytes, width);
            continue;
        }
#pragma unroll 1
        for (u32 step = 0; step < ranks.world; ++step) {
            const u32 peer = (ranks.rank + step) % ranks.world;
            store(vec, bases.of[peer] + what.output + at, bytes, width);
        }
    }
    meet(ranks, what.kernel);
}

#define JOIN(ELEMENT_, NAME) symm_reduce_##ELEMENT_##_##NAME
#define NAME_OF(ELEMENT_, NAME) JOIN(ELEMENT_, NAME)
#define KERNEL(NAME, OPERATION)                                                                                \
    extern "C" __global__ void __launch_bounds__(512, 2) NAME_OF(ELEMENT, NAME)(Ranks ranks, Reduce what) {    \
        reduce<OPERATION>(ranks, what);                                                                        \
    }

KERNEL(sum, Sum)
KERNEL(prod, Product)
KERNEL(max, Largest)
KERNEL(min, Smallest)
KERNEL(avg, Average)
