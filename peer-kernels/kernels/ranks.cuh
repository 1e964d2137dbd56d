// The parameters of every kernel, and synchronization between the blocks of several ranks.
//
// A signal is a word of 32 bits in the pad of its receiver: 1 from put to wait, else 0. A put is a compare-and-swap
// with release, a wait one with acquire, both at system scope. The putting thread may have synchronized with others
// before (__syncthreads is cumulative). The writes of all of these are visible to the waiting thread, and to the
// threads that synchronize with it afterwards.
//
// The defines USER_CHANNELS, KERNEL_CHANNELS, LINE and MOST_RANKS, and the numbers of kernels (KERNEL_…) and of
// awaited events (WAITS_…), come from the Rust side, which reads and writes the same memory.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// The first failure: in host memory, which the host reads while kernels run.
struct Fault {
    u32 written;  // 0: nothing; 1: all of it
    u32 kernel;
    u32 waits;
    u32 peer;
    u32 channel;
    u32 reserved;
    u64 waited_ns;
};

struct Ranks {
    const u64 *buffers;
    const u64 *pads;
    u64 pad;  // pads[rank]: at hand without a look into the array
    Fault *fault;
    u32 rank;
    u32 world;
    u64 deadline_ns;
};

__device__ __forceinline__ u64 now() {
    u64 ns;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns)::"memory");
    return ns;
}

// Address of a word of a pad.
__device__ __forceinline__ u32 *slot(const Ranks &ranks, u64 pad, u32 channel, u32 source) {
    return (u32 *)pad + (u64)ranks.world * channel + source;
}

// Address of a flag in the rank's own pad: a kernel of this rank has given up. From then on no kernel signals for
// this rank, so that a late signal is not taken for a later one. The kernel that sets the flag writes the record. The
// flag lies in device memory: there it is faster to read, and atomics are guaranteed, unlike in host memory.
__device__ __forceinline__ u32 *gave_up_word(const Ranks &ranks) {
    const u64 slots = (u64)ranks.world * (USER_CHANNELS + KERNEL_CHANNELS);
    return (u32 *)(ranks.pad + (slots * 4 + LINE - 1) / LINE * LINE);
}

__device__ __forceinline__ bool gave_up(const Ranks &ranks) {
    u32 word;
    asm volatile("ld.relaxed.sys.u32 %0, [%1];" : "=r"(word) : "l"(gave_up_word(ranks)) : "memory");
    return word != 0;
}

// Gives up for this rank, and writes the record, unless it has given up before. Parameters are passed by value: with
// a reference, every kernel would first spill its parameters to memory.
__device__ __noinline__ void give_up(const Ranks ranks, u32 kernel, u32 waits, u32 peer, u32 channel, u64 waited_ns) {
    u32 found;
    asm volatile("atom.relaxed.sys.cas.b32 %0, [%1], 0, 1;" : "=r"(found) : "l"(gave_up_word(ranks)) : "memory");
    if (found != 0) return;
    volatile Fault *const record = ranks.fault;
    record->kernel = kernel;
    record->waits = waits;
    record->peer = peer;
    record->channel = channel;
    record->waited_ns = waited_ns;
    asm volatile("st.release.sys.u32 [%0], 1;" ::"l"(&ranks.fault->written) : "memory");
}

template <u32 Waits>
__device__ __forceinline__ bool flip(u32 *word) {
    u32 found;
    if (Waits == WAITS_FOR_ROOM) {
        asm volatile("atom.release.sys.cas.b32 %0, [%1], 0, 1;" : "=r"(found) : "l"(word) : "memory");
        return found == 0;
    }
    asm volatile("atom.acquire.sys.cas.b32 %0, [%1], 1, 0;" : "=r"(found) : "l"(word) : "memory");
    return found == 1;
}

// Flips a word of a pad as soon as it can be flipped. False: that was not possible before the deadline, or a kernel
// of this rank has given up meanwhile.
template <u32 Waits>
__device__ __forceinline__ bool await(const Ranks &ranks, u32 kernel, u32 *word, u32 peer, u32 channel) {
    if (flip<Waits>(word)) return true;
    const u64 began = now();
    for (u32 looks = 1;; ++looks) {
        if (flip<Waits>(word)) return true;
        if (looks % 32 != 0) continue;
        if (gave_up(ranks)) return false;
        const u64 waited = now() - began;
        if (waited < ranks.deadline_ns) continue;
        give_up(ranks, kernel, Waits, peer, channel, waited);
        return false;
    }
}

// `pad` is the peer's.
__device__ __forceinline__ bool put(const Ranks &ranks, u32 kernel, u64 pad, u32 peer, u32 channel) {
    return await<WAITS_FOR_ROOM>(ranks, kernel, slot(ranks, pad, channel, ranks.rank), peer, channel);
}

__device__ __forceinline__ bool wait(const Ranks &ranks, u32 kernel, u32 peer, u32 channel) {
    return await<WAITS_FOR_SIGNAL>(ranks, kernel, slot(ranks, ranks.pad, channel, peer), peer, channel);
}

// The pad of the peer with this thread's number, or of any peer. It is loaded before the give-up flag is read first,
// so that the two loads overlap.
__device__ __forceinline__ u64 pad_of_peer(const Ranks &ranks) {
    return ranks.pads[min(threadIdx.x, ranks.world - 1)];
}

// Synchronizes with the peer that has this thread's number, with pad `pad`. Returns true for threads without a peer.
__device__ __forceinline__ bool meet_peer(const Ranks &ranks, u32 kernel, u64 pad, u32 channel) {
    const u32 peer = threadIdx.x;
    if (peer >= ranks.world || peer == ranks.rank) return true;
    return put(ranks, kernel, pad, peer, channel) && wait(ranks, kernel, peer, channel);
}

// Synchronizes with this block of every rank; all threads take part. Earlier writes of those blocks are visible
// afterwards. Returns false, for all threads, if that failed: then the block ends.
__device__ __noinline__ bool meet(const Ranks ranks, u32 kernel) {
    __syncthreads();
    return __syncthreads_and(meet_peer(ranks, kernel, pad_of_peer(ranks), USER_CHANNELS + blockIdx.x)) != 0;
}
