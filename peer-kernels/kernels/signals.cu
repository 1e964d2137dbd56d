// Signals between ranks, with one block each.
#include "ranks.cuh"

// All ranks synchronize, with one thread for each peer.
extern "C" __global__ void symm_barrier(Ranks ranks, u32 channel) {
    const u64 pad = pad_of_peer(ranks);
    if (!gave_up(ranks)) meet_peer(ranks, KERNEL_BARRIER, pad, channel);
}

extern "C" __global__ void symm_put_signal(Ranks ranks, u32 to, u32 channel) {
    if (threadIdx.x != 0) return;
    const u64 pad = ranks.pads[to];
    if (!gave_up(ranks)) put(ranks, KERNEL_PUT_SIGNAL, pad, to, channel);
}

extern "C" __global__ void symm_wait_signal(Ranks ranks, u32 from, u32 channel) {
    if (threadIdx.x == 0 && !gave_up(ranks)) wait(ranks, KERNEL_WAIT_SIGNAL, from, channel);
}
