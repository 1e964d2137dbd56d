#!/usr/bin/env bash
# Runs the demo, the tests and the benchmarks of this folder on a GPU host; needs no Rust.
#   ./run.sh [all|demo|tests|benches] [RANKS]
# NCCL_SYS_LIBRARY and CUDA_DRIVER_SYS_LIBRARY name libraries other than the ones the loader finds.
set -u
cd "$(dirname "$0")"
what=${1:-all}
ranks=${2:-}
failed=0

if [ "$what" = all ] || [ "$what" = demo ]; then
    ./xtask demo --backend cuda ${ranks:+--ranks "$ranks"} --json || failed=1
fi
if [ "$what" = all ] || [ "$what" = tests ]; then
    for test in tests/*; do
        echo "== $test"
        "$test" --quiet || failed=1
    done
fi
if [ "$what" = all ] || [ "$what" = benches ]; then
    for bench in benches/*; do
        echo "== $bench"
        "$bench" || failed=1
    done
fi
exit $failed
