# torch.distributed's part of `cargo xtask bench call`: python3 call_bench.py RANKS in-turn
#
# A process for each rank; rank 0 starts the others. A round begins when a line comes in, which rank 0 hands on to them,
# and ends with an empty line. Between rounds everybody waits for a line, and nothing runs on the GPUs. Rank 0 prints a
# line for each case: case, contender, ns a call, with tabs between.

import os
import subprocess
import sys
import tempfile
import time
from datetime import timedelta

import torch
import torch.distributed as dist

CALLS, BURST, GRAPH = 2000, 20, 50


def timed(work):
    begun = time.perf_counter_ns()
    work()
    return time.perf_counter_ns() - begun


def cases():
    values = torch.zeros(2, device="cuda")

    def calls(count):
        for _ in range(count):
            dist.all_reduce(values)

    calls(50)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        calls(GRAPH)

    def loop():
        return timed(lambda: calls(CALLS))

    def bursts():
        total = 0
        for _ in range(CALLS // BURST):
            total += timed(lambda: calls(BURST))
            torch.cuda.synchronize()
        return total

    def graphs():
        def replays():
            for _ in range(CALLS // GRAPH):
                graph.replay()
            torch.cuda.synchronize()

        return timed(replays)

    return {"loop of 2000": loop, "bursts of 20": bursts, "graphs of 50": graphs}


def serve(rank, size, store, others):
    torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl",
        store=dist.FileStore(store, size),
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=60),
        device_id=torch.device("cuda", rank),
    )
    measured = cases()
    for line in sys.stdin:
        for other in others:
            other.stdin.write(line)
            other.stdin.flush()
        for case, measure in measured.items():
            # All begin together.
            dist.barrier()
            torch.cuda.synchronize()
            ns = measure() / CALLS
            torch.cuda.synchronize()
            if rank == 0:
                print(f"{case}\ttorch.distributed\t{ns:.1f}")
        if rank == 0:
            print(flush=True)


def main():
    size, what = int(sys.argv[1]), sys.argv[2]
    if what != "in-turn":
        serve(int(what), size, sys.argv[3], [])
    else:
        with tempfile.TemporaryDirectory() as folder:
            store = os.path.join(folder, "store")
            command = [sys.executable, __file__, str(size)]
            start = lambda rank: subprocess.Popen(
                [*command, str(rank), store], stdin=subprocess.PIPE, stdout=sys.stderr, text=True
            )
            serve(0, size, store, [start(rank) for rank in range(1, size)])
    # There is no more to come. A group that others have left already could not be destroyed.
    sys.stdout.flush()
    os._exit(0)


main()
