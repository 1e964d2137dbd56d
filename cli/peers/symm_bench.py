# torch.distributed's part of `cargo xtask bench symm`: python3 symm_bench.py RANKS in-turn
#
# A process for each rank; rank 0 starts the others. A round begins when a line comes in, which rank 0 hands on to them,
# and ends with an empty line. Between rounds everybody waits for a line, and nothing runs on the GPUs. Rank 0 prints a
# line for each case: case, contender, ns an operation, with tabs between.

import os
import subprocess
import sys
import tempfile
import time
from datetime import timedelta

# Peer mappings alone: no multicast objects.
os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
os.environ["NCCL_NVLS_ENABLE"] = "0"

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

OPERATIONS, LAUNCHES = 50, 10

kept = []


def graph(operation):
    operation()
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        for _ in range(OPERATIONS):
            operation()
    return captured


def replays(captured):
    """ns an operation of a graph."""
    # Whoever comes first waits for the others in the first launch.
    captured.replay()
    dist.barrier()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(LAUNCHES):
        captured.replay()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1e6 / (LAUNCHES * OPERATIONS)


def cases(rank, size):
    name = dist.group.WORLD.group_name
    # Its memory is there as long as the tensor.
    tensor = symm_mem.empty(1024, dtype=torch.float32, device="cuda")
    small = symm_mem.rendezvous(tensor, name)

    def rendezvous():
        memory = symm_mem.empty(64 << 20, dtype=torch.uint8, device="cuda")
        dist.barrier()
        torch.cuda.synchronize()
        begun = time.perf_counter_ns()
        symm_mem.rendezvous(memory, name)
        return time.perf_counter_ns() - begun

    def exchange():
        peer = 1 - rank
        if rank == 0:
            small.put_signal(dst_rank=peer, channel=1)
        small.wait_signal(src_rank=peer, channel=1)
        if rank == 1:
            small.put_signal(dst_rank=peer, channel=1)

    barriers = graph(lambda: small.barrier(channel=0))
    signals = graph(exchange) if rank < 2 else None

    def signal():
        if signals is None:
            return dist.barrier()
        # A signal there and one back.
        return replays(signals) / 2

    kept.append(tensor)
    return {
        "rendezvous of 64 MiB": rendezvous,
        "barrier": lambda: replays(barriers),
        "signal, put to wait": signal,
    }


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
    measured = cases(rank, size)
    for line in sys.stdin:
        for other in others:
            other.stdin.write(line)
            other.stdin.flush()
        for case, measure in measured.items():
            ns = measure()
            torch.cuda.synchronize()
            if rank == 0:
                print(f"{case}\ttorch\t{ns:.1f}")
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
