// Replays a recorded trace (text form, on standard input) with PyTorch's allocator and with cudaMallocAsync: ns per
// operation and peak reserved, beside `xtask replay --backend cuda`, by the same rules: only the allocator's calls are
// timed; an `a` or an `r` is an operation; a use by another stream stands behind a gate until the trace's `f`.
// The allocator's settings come from the environment, as PyTorch reads them.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

namespace A = c10::cuda::CUDACachingAllocator;
using Clock = std::chrono::steady_clock;

constexpr int ROUNDS = 5;

#define CHECK(call)                                                                                     \
    do {                                                                                                \
        cudaError_t code = (call);                                                                      \
        if (code != cudaSuccess) {                                                                      \
            fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(code));                               \
            exit(1);                                                                                    \
        }                                                                                               \
    } while (0)

struct Call {
    enum { ALLOCATE, FREE, FREE_IN_USE, END_USE } what;
    uint32_t block;
    size_t bytes;
    uint32_t stream;
};

struct Program {
    std::vector<Call> calls;
    uint32_t blocks = 0, streams = 0;
    size_t operations = 0, peak_active = 0;
};

static Program read() {
    Program program;
    std::unordered_map<uint64_t, std::pair<uint32_t, size_t>> live;
    size_t active = 0;
    char code;
    unsigned long long address, bytes;
    unsigned stream;
    while (scanf(" %c %llx %llu %u", &code, &address, &bytes, &stream) == 4) {
        if (code == 'a') {
            size_t rounded = (bytes + 511) / 512 * 512;
            live[address] = {program.blocks, rounded};
            program.peak_active = std::max(program.peak_active, active += rounded);
            program.calls.push_back({Call::ALLOCATE, program.blocks++, std::max<size_t>(bytes, 1), stream});
            program.streams = std::max(program.streams, stream + 1);
            program.operations++;
        } else if (code == 'r') {
            program.calls.push_back({Call::FREE_IN_USE, live.at(address).first, 0, 0});
            program.operations++;
        } else if (code == 'f') {
            auto [block, rounded] = live.at(address);
            live.erase(address);
            active -= rounded;
            Call &last = program.calls.back();
            if (last.what == Call::FREE_IN_USE && last.block == block) last.what = Call::FREE;
            else program.calls.push_back({Call::END_USE, block, 0, 0});
        }
    }
    return program;
}

// A stream for one use at a time.
struct Gate {
    c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool(false, 0);
    std::atomic<bool> open{true};
};

static void wait_for(void *open) {
    while (!static_cast<std::atomic<bool> *>(open)->load()) std::this_thread::yield();
}

struct Torch {
    std::vector<c10::cuda::CUDAStream> streams;
    const char *name = "torch";
    void *allocate(size_t bytes, cudaStream_t stream) { return A::raw_alloc_with_stream(bytes, stream); }
    void free(void *block, cudaStream_t) { A::raw_delete(block); }
    void free_in_use(void *block, const c10::cuda::CUDAStream &user) {
        c10::DataPtr owned(block, block, A::get()->raw_deleter(), c10::Device(c10::DeviceType::CUDA, 0));
        A::recordStream(owned, user);
    }
    void reset() {
        A::emptyCache();
        A::resetPeakStats(0);
    }
    size_t peak_reserved() { return A::getDeviceStats(0).reserved_bytes[0].peak; }
};

struct Async {
    cudaMemPool_t pool;
    const char *name = "cudaMallocAsync";
    Async() {
        CHECK(cudaDeviceGetDefaultMemPool(&pool, 0));
        uint64_t all = UINT64_MAX;
        CHECK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all));
    }
    void *allocate(size_t bytes, cudaStream_t stream) {
        void *block;
        CHECK(cudaMallocAsync(&block, bytes, stream));
        return block;
    }
    void free(void *block, cudaStream_t stream) { CHECK(cudaFreeAsync(block, stream)); }
    void free_in_use(void *block, const c10::cuda::CUDAStream &user) { CHECK(cudaFreeAsync(block, user.stream())); }
    void reset() {
        CHECK(cudaMemPoolTrimTo(pool, 0));
        uint64_t none = 0;
        CHECK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReservedMemHigh, &none));
    }
    size_t peak_reserved() {
        uint64_t peak;
        CHECK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemHigh, &peak));
        return peak;
    }
};

template <class Allocator>
static void replay(const Program &program, const char *trace, const char *settings, Allocator allocator) {
    std::vector<c10::cuda::CUDAStream> streams;
    for (uint32_t i = 0; i < program.streams; i++) streams.push_back(c10::cuda::getStreamFromPool(false, 0));
    std::vector<std::unique_ptr<Gate>> gates;
    std::vector<std::pair<void *, uint32_t>> blocks(program.blocks);
    std::unordered_map<uint32_t, Gate *> uses;
    double best = 1e300;
    for (int round = 0; round < ROUNDS; round++) {
        allocator.reset();
        Clock::duration time{};
        auto timed = [&](auto call) {
            auto start = Clock::now();
            call();
            time += Clock::now() - start;
        };
        for (const Call &call : program.calls) {
            auto &[block, stream] = blocks[call.block];
            if (call.what == Call::ALLOCATE) {
                stream = call.stream;
                timed([&] { block = allocator.allocate(call.bytes, streams[stream].stream()); });
            } else if (call.what == Call::FREE) {
                timed([&] { allocator.free(block, streams[stream].stream()); });
                block = nullptr;
            } else if (call.what == Call::FREE_IN_USE) {
                auto idle = std::find_if(gates.begin(), gates.end(), [&](auto &gate) {
                    return std::none_of(uses.begin(), uses.end(), [&](auto &use) { return use.second == gate.get(); });
                });
                if (idle == gates.end()) idle = gates.insert(gates.end(), std::make_unique<Gate>());
                Gate *gate = idle->get();
                gate->open = false;
                uses[call.block] = gate;
                cudaEvent_t event;
                CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
                CHECK(cudaEventRecord(event, streams[stream].stream()));
                CHECK(cudaStreamWaitEvent(gate->stream.stream(), event));
                CHECK(cudaEventDestroy(event));
                CHECK(cudaLaunchHostFunc(gate->stream.stream(), wait_for, &gate->open));
                timed([&] { allocator.free_in_use(block, gate->stream); });
                block = nullptr;
            } else {
                Gate *gate = uses.at(call.block);
                uses.erase(call.block);
                gate->open = true;
                CHECK(cudaStreamSynchronize(gate->stream.stream()));
            }
        }
        for (auto &gate : gates) gate->open = true;
        uses.clear();
        CHECK(cudaDeviceSynchronize());
        for (auto &[block, stream] : blocks) {
            if (block) allocator.free(block, streams[stream].stream());
            block = nullptr;
        }
        CHECK(cudaDeviceSynchronize());
        best = std::min(best, std::chrono::duration<double, std::nano>(time).count() / program.operations);
    }
    size_t peak = allocator.peak_reserved();
    printf("%s %s%s%s: %.1f ns per operation, peak reserved %zu of peak active %zu: %.4f\n", trace, allocator.name,
        *settings ? " " : "", settings, best, peak, program.peak_active, double(peak) / program.peak_active);
}

int main(int argc, char **argv) {
    const char *trace = argc > 1 ? argv[1] : "trace", *settings = getenv("PYTORCH_CUDA_ALLOC_CONF");
    Program program = read();
    int devices;
    CHECK(cudaGetDeviceCount(&devices));
    CHECK(cudaSetDevice(0));
    A::init(devices);
    replay(program, trace, settings ? settings : "", Torch{});
    if (!settings) {
        A::emptyCache();
        replay(program, trace, "", Async{});
    }
}
