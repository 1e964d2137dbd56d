#!/usr/bin/env bash
# Examines a GPU host, and runs the demo, the tests and the benchmarks of this folder there; needs no Rust.
#   ./run.sh [all|unpack|doctor|demo|tests|examples|torch|sanitize|benches|replay|owners|peers] [RANKS]
#   ./run.sh newer LIBRARY
# The programs are extracted beside it first: lockstep, tests/, examples/.
# Benchmarks run beside the peers' programs where those can be built (g++, nvcc, torch).
# PYTHON names a Python that has torch (default: python3).
# newer runs the tests that use NCCL with another one, which compares the ranks' buffers (2.29.7 and later).
# RUST_TEST_THREADS is the number of tests of a binary that run at a time (default: one per core, at most 6).
# NCCL_SYS_LIBRARY and CUDA_DRIVER_SYS_LIBRARY name libraries other than the ones the loader finds.
set -u
# By default a test binary runs as many tests at a time as the host has cores. All tests share the GPUs, so with many
# cores they take longer: on two H200, the hardware tests of symm-mem took more than 230 s with 32 threads, and 141 s
# with 6.
cores=$(nproc)
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((cores < 6 ? cores : 6))}
what=${1:-all}
ranks=${2:-}
[ "$what" != newer ] || library=$(realpath -e "${2:?newer needs the library}") || exit
cd "$(dirname "$0")"
failed=0
[ -e tests ] || ./lab unpack bundle.tar.zst . || exit

# Builds a peer's program and runs it, or says why not: peer NAME WHY BUILD... -- RUN...; WHY is empty if nothing is
# missing.
peer() {
    local name=$1 why=$2 build=()
    shift 2
    while [ "$1" != -- ]; do build+=("$1"); shift; done
    shift
    echo "== peers/$name"
    if [ -z "$why" ] && ! "${build[@]}"; then why="it does not build here"; fi
    if [ -z "$why" ] && ! "$@"; then why="it does not run here"; fi
    [ -z "$why" ] || echo "skipped: $why"
}

# Replays every trace through our allocator, and through PyTorch's with and without expandable segments:
# replays PROGRAM.
replays() {
    local trace policy
    for trace in traces/*.trace.gz; do
        for policy in remap fixed; do
            ./lockstep replay "$trace" --policy "$policy" --backend cuda --json || return
        done
        zcat "$trace" | "$1" "$trace" || return
        zcat "$trace" | PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True "$1" "$trace" || return
    done
}

peers() {
    local out torch why nccl cuda=${CUDA_HOME:-/usr/local/cuda}
    out=$(mktemp -d)
    PATH=$PATH:$cuda/bin
    torch=$(python3 -c 'import importlib.util as u; print(u.find_spec("torch").submodule_search_locations[0])' 2>/dev/null)

    why=
    [ -e "$cuda/include/cuda_runtime.h" ] || why="no CUDA toolkit in $cuda (CUDA_HOME names another)"
    [ -n "$torch" ] || why="python3 has no torch"
    command -v g++ >/dev/null || why="no g++"
    peer replay_torch.cpp "$why" \
        g++ -O2 -std=c++20 peers/replay_torch.cpp -o "$out/replay_torch" \
        "-I$torch/include" "-I$cuda/include" "-L$torch/lib" "-L$cuda/lib64" -Wl,--no-as-needed -ltorch_cuda -ltorch_cpu \
        -lc10_cuda -lc10 -lcudart "-Wl,-rpath,$torch/lib:$cuda/lib64" \
        -- replays "$out/replay_torch"

    # With the same NCCL as our programs.
    why=
    nccl=${NCCL_SYS_LIBRARY:+$(dirname "$NCCL_SYS_LIBRARY")}
    command -v nvcc >/dev/null || why="no nvcc"
    peer window_group.cu "$why" \
        nvcc -O2 -std=c++17 peers/window_group.cu -o "$out/window_group" -lnccl \
        -- env "LD_LIBRARY_PATH=${nccl:+$nccl:}${LD_LIBRARY_PATH:-}" "$out/window_group" "${ranks:-2}"
    rm -r "$out"
}

# Runs ranks in Rust under torchrun: alone, and with a rank in Python, which is the first or the last one.
under_torchrun() {
    local python=${PYTHON:-python3} nccl lead examples=examples/process-group
    echo "== torchrun"
    nccl=$("$python" -c 'import torch
assert torch.cuda.device_count() > 1, "torch sees less than 2 GPUs"
print(next(path for path in open("/proc/self/maps").read().split() if "/libnccl.so" in path))' 2>&1) || {
        echo "skipped: ${nccl##*$'\n'}"
        return
    }
    nccl=${nccl##*$'\n'}
    torchrun() { NCCL_SYS_LIBRARY=$nccl "$python" -m torch.distributed.run --no-python --nproc-per-node "$@"; }
    torchrun "${ranks:-2}" $examples/all_reduce || failed=1
    for lead in 0 1; do
        torchrun 2 sh -c "if [ \$RANK = $lead ]; then exec $python $examples/torch_all_reduce.py
            else exec $examples/torch_all_reduce; fi" || failed=1
    done
}

complaint='symmetric registration check failed'

# Runs the tests that use NCCL with a library that compares the places of the ranks' buffers in their windows, and
# reports buffers at different places.
newer() {
    local test output
    for test in tests/symm-mem-end_to_end tests/process-group-end_to_end; do
        # Skipped: a test with different places on purpose, one that uses torch's library, and the kernels, which use no
        # NCCL. To compare, a rank waits for all others inside the call, so tests in which a rank does not join a call
        # run without the comparison, below.
        with_newer NCCL_CHECK_MODE=DEBUG_GLOBAL "$test" hardware --skip disagree --skip torch --skip kernels:: --skip absent::
    done
    with_newer NCCL_CHECK_MODE= tests/process-group-end_to_end hardware::absent::
    # The library must report the buffers of this test, whose places differ.
    output=$(on_newer tests/symm-mem-end_to_end hardware_disagreement)
    if ! grep -E "^skipped: |$complaint" <<<"$output"; then
        failed=1
        echo "$library does not say where buffers differ:"
        echo "$output"
    fi
}

# Runs tests that must pass without a report of the library: with_newer CHECK-MODE TEST ARGUMENT...
with_newer() {
    local output
    echo "== $2 $3 with $library, $1"
    if output=$(on_newer "$@") && ! grep -q "$complaint" <<<"$output"; then
        grep -E '^(skipped: |NCCL [0-9]|test result: )' <<<"$output"
    else
        failed=1
        echo "$output"
    fi
}

# Runs a test with the library, for at most 300 s, and prints its output even if it hangs.
on_newer() {
    timeout 300 env CUDA_DEVICE_MAX_CONNECTIONS=32 "NCCL_SYS_LIBRARY=$library" NCCL_DEBUG=WARN "$@" --show-output 2>&1
}

# Runs cuda-driver's tests on the host's driver, and symm-mem's commits and kernels, under compute-sanitizer. It looks for
# accesses that no status code reports: out of bounds, after a free, to memory that was never written. Failing calls are
# not reported, because the tests make some calls fail on purpose (a handle opened by its own process, fabric handles
# without a fabric) and check every status code.
sanitize() {
    local tool cuda=${CUDA_HOME:-/usr/local/cuda}
    tool=$(PATH=$PATH:$cuda/bin:$cuda/compute-sanitizer command -v compute-sanitizer)
    echo "== compute-sanitizer"
    if [ -z "$tool" ]; then
        echo "skipped: no compute-sanitizer in PATH or $cuda (CUDA_HOME names another toolkit)"
        return
    fi
    sanitized memcheck tests/cuda-driver-end_to_end hardware
    # initcheck does not see the writes of another process.
    sanitized initcheck tests/cuda-driver-end_to_end hardware --skip shares_with_another_process
    # One process for each rank, as below.
    sanitized memcheck tests/symm-mem-end_to_end hardware_processes_commit
    sanitized_ranks memcheck
    sanitized_ranks racecheck
}

# Runs symm-mem's kernels under a tool, each rank in a process of its own: the tool lets one kernel of a process run at a
# time, and these kernels wait for each other. On one GPU, the two processes run in turns: sanitized_ranks CHECK
sanitized_ranks() {
    local output shared=()
    [ "$(nvidia-smi -L | wc -l)" -ge 2 ] || shared=(--one-gpu)
    if output=$(./lockstep launch -n 2 -- "$tool" --tool "$1" --error-exitcode 1 --report-api-errors no \
        examples/symm-mem/collectives "${shared[@]}" 2>&1); then
        grep -E '(========= (ERROR|RACECHECK) SUMMARY|were right)' <<<"$output" | sed "s|^|collectives ${shared[*]}, $1: |"
    else
        failed=1
        echo "collectives ${shared[*]}, $1:"
        echo "$output"
    fi
}

# Runs a test binary under a tool: sanitized CHECK BINARY FILTER...
sanitized() {
    local output check=$1
    shift
    if output=$(CUDA_DEVICE_MAX_CONNECTIONS=32 "$tool" --tool "$check" --error-exitcode 1 --report-api-errors no --target-processes all \
        "$@" --test-threads 1 --show-output 2>&1); then
        grep -E '^(skipped: |========= (ERROR|RACECHECK) SUMMARY|test result: )' <<<"$output" | sed "s|^|$1, $check: |"
    else
        failed=1
        echo "$1, $check:"
        echo "$output"
    fi
}

if [ "$what" = all ] || [ "$what" = doctor ]; then
    ./lockstep doctor || failed=1
fi
if [ "$what" = all ] || [ "$what" = demo ]; then
    ./lockstep demo --backend cuda ${ranks:+--ranks "$ranks"} --json || failed=1
fi
if [ "$what" = all ] || [ "$what" = tests ]; then
    for test in tests/*; do
        echo "== $test"
        # Prints all output if a test failed; otherwise the skipped tests and the counts. Each rank on a shared GPU needs
        # a hardware queue of its own. Otherwise its kernel is queued behind a kernel that waits for it.
        if output=$(CUDA_DEVICE_MAX_CONNECTIONS=32 "$test" --show-output 2>&1); then
            grep -E '^(skipped: |test result: .* 0 filtered out)' <<<"$output"
        else
            failed=1
            echo "$output"
        fi
    done
fi
if [ "$what" = all ] || [ "$what" = examples ]; then
    examples=examples/symm-mem
    echo "== $examples/symmetric_memory"
    ./lockstep launch -n 2 -- $examples/symmetric_memory || failed=1
    echo "== $examples/user_kernel"
    ./lockstep launch -n "${ranks:-2}" -- $examples/user_kernel || failed=1
    echo "== $examples/collectives"
    ./lockstep launch -n "${ranks:-2}" -- $examples/collectives || failed=1
    echo "== $examples/misordered_windows"
    $examples/misordered_windows "${ranks:-2}" || failed=1
fi
if [ "$what" = all ] || [ "$what" = torch ]; then
    under_torchrun
fi
if [ "$what" = all ] || [ "$what" = sanitize ]; then
    sanitize
fi
if [ "$what" = newer ]; then
    newer
fi
if [ "$what" = all ] || [ "$what" = replay ]; then
    for policy in remap fixed; do
        ./lockstep replay traces/*.trace.gz --policy "$policy" --backend cuda --check || failed=1
    done
fi
if [ "$what" = all ] || [ "$what" = owners ]; then
    echo "== examples/caching-alloc/device_owners"
    ./examples/caching-alloc/device_owners 300 || failed=1
fi
if [ "$what" = all ] || [ "$what" = benches ]; then
    # Beside PyTorch's, where that is installed.
    echo "== bench alloc"
    ./lockstep bench alloc || failed=1
    echo "== bench call"
    ./lockstep bench call ${ranks:+--ranks "$ranks"} || failed=1
    echo "== bench pool"
    ./lockstep bench pool ${ranks:+--ranks "$ranks"} || failed=1
    echo "== bench symm"
    ./lockstep bench symm ${ranks:+--ranks "$ranks"} || failed=1
    echo "== bench p2p"
    ./lockstep bench p2p ${ranks:+--ranks "$ranks"} || failed=1
    echo "== bench kernels"
    CUDA_DEVICE_MAX_CONNECTIONS=32 ./lockstep bench kernels ${ranks:+--ranks "$ranks"} || failed=1
    echo "== bench program collectives"
    ./lockstep bench program collectives ${ranks:+"$ranks"} || failed=1
fi
if [ "$what" = all ] || [ "$what" = benches ] || [ "$what" = peers ]; then
    peers
fi
exit $failed
