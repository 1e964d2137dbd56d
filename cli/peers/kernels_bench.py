# torch.distributed's part of `lockstep bench kernels`: python3 kernels_bench.py RANKS BYTES[,BYTES]... in-turn
#
# A process for each rank; rank 0 starts the others. A round begins when a line comes in, which rank 0 hands on to them,
# and ends with an empty line. Round number i measures buffers of the i-th length of the list. Between rounds every rank
# waits for a line, and nothing runs on the GPUs. Rank 0 prints lines with tabs between: collective, length and way of
# launching; contender; ns a call. For a case that fails it prints "left out", contender and length, and the reason.

import os
import subprocess
import sys
import tempfile
from datetime import timedelta

# Peer mappings alone: no multicast objects.
os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
os.environ["NCCL_NVLS_ENABLE"] = "0"

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

ELEMENT = 2
# The inputs repeat after so many elements, as in the other program.
PERIOD = 13


def repetitions(length):
    """Calls of a graph, and launches of it. As in `rank.rs` of the other program."""
    if length < 1 << 16:
        return 100, 10
    return (50, 4) if length < 1 << 24 else (10, 2)


class Bench:
    def __init__(self, rank, size, largest):
        self.name = dist.group.WORLD.group_name
        self.rank, self.size = rank, size
        self.memory = symm_mem.empty(largest // ELEMENT, dtype=torch.bfloat16, device="cuda")
        self.handle = symm_mem.rendezvous(self.memory, self.name)
        indices = torch.arange(largest // ELEMENT, device="cuda") % PERIOD
        self.input = (indices + rank).to(torch.bfloat16)
        self.sum = (indices * size + sum(range(size))).to(torch.bfloat16)

    def contenders(self):
        one_shot, two_shot = torch.ops.symm_mem.one_shot_all_reduce, torch.ops.symm_mem.two_shot_all_reduce_
        return {
            "torch one-shot": lambda values: one_shot(values, "sum", self.name),
            # In place.
            "torch two-shot": lambda values: two_shot(values, "sum", self.name),
        }

    def captured(self, call, count):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(count):
                result = call()
        return graph, result

    def check(self, values, run):
        """Runs one call, which returns the result, and checks it."""
        values.copy_(self.input[: len(values)])
        torch.cuda.synchronize()
        dist.barrier()
        result = run()
        torch.cuda.synchronize()
        # Not an assertion of one rank: all ranks must leave out the same cases.
        is_right = torch.tensor([int(torch.equal(result, self.sum[: len(values)]))], device="cuda")
        dist.all_reduce(is_right, dist.ReduceOp.MIN)
        if not is_right.item():
            raise SystemExit(f"wrong result of {len(values)} elements")

    def time(self, calls, enqueue):
        """µs a call on the slowest rank."""
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        self.handle.barrier(channel=0)
        begin.record()
        enqueue()
        end.record()
        torch.cuda.synchronize()
        us = torch.tensor([begin.elapsed_time(end) * 1e3 / calls], dtype=torch.float64, device="cuda")
        dist.all_reduce(us, dist.ReduceOp.MAX)
        return us.item()

    def case(self, contender, length, is_first):
        """µs a call: eagerly, and from a graph."""
        values = self.memory[: length // ELEMENT]
        call = lambda: contender(values)
        if is_first:
            self.check(values, call)
            graph, result = self.captured(call, 1)

            def replay():
                graph.replay()
                return result

            self.check(values, replay)
        # Sums of zeros stay zero, also in place.
        values.zero_()
        calls, launches = repetitions(length)
        torch.cuda.synchronize()
        dist.barrier()

        def eagerly():
            for _ in range(calls * launches):
                call()

        def replays():
            for _ in range(launches):
                graph.replay()

        call()
        eager = self.time(calls * launches, eagerly)
        graph, _ = self.captured(call, calls)
        # The first launch loads the graph, so it is not timed.
        graph.replay()
        return eager, self.time(calls * launches, replays)


def serve(rank, size, rounds, store, others):
    torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl",
        store=dist.FileStore(store, size),
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=60),
        device_id=torch.device("cuda", rank),
    )
    bench = Bench(rank, size, max(rounds))
    # The contenders that have failed with a length. They fail on all ranks, because they refuse the arguments.
    failed = set()
    for number, line in enumerate(sys.stdin):
        for other in others:
            other.stdin.write(line)
            other.stdin.flush()
        length = rounds[number] if number < len(rounds) else None
        if length is None:
            break
        is_first = number == 0 or rounds[number - 1] != length
        contenders = list(bench.contenders().items())
        # The order changes, because each contender finds the state that the one before it left.
        for name, contender in contenders[number % 2 :] + contenders[: number % 2]:
            if (name, length) in failed:
                continue
            try:
                times = bench.case(contender, length, is_first)
            except RuntimeError as error:
                failed.add((name, length))
                why = " ".join(str(error).split("\n")[0].split())
                lines = [f"left out\t{name}|{length}\t{type(error).__name__}: {why}"]
            else:
                ways = zip(("eager", "graph"), times)
                lines = [f"all-reduce|{length}|{way}\t{name}\t{us * 1e3:.1f}" for way, us in ways]
            if rank == 0:
                print("\n".join(lines))
        if rank == 0:
            print(flush=True)


def main():
    size, lengths, what = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    rounds = [int(length) for length in lengths.split(",")]
    if what != "in-turn":
        serve(int(what), size, rounds, sys.argv[4], [])
    else:
        with tempfile.TemporaryDirectory() as folder:
            store = os.path.join(folder, "store")
            command = [sys.executable, __file__, str(size), lengths]
            start = lambda rank: subprocess.Popen(
                [*command, str(rank), store], stdin=subprocess.PIPE, stdout=sys.stderr, text=True
            )
            serve(0, size, rounds, store, [start(rank) for rank in range(1, size)])
    # There is no more to come. A group that others have left already could not be destroyed.
    sys.stdout.flush()
    os._exit(0)


main()
