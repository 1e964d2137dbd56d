"""One rank of a job of both languages, as torch_all_reduce.rs says; with --eager it connects at the start."""

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

ELEMENTS = 1 << 20

device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
eager = {"device_id": device} if "--eager" in sys.argv else {}
dist.init_process_group("nccl", timeout=timedelta(seconds=60), **eager)
rank, ranks = dist.get_rank(), dist.get_world_size()
numbers = torch.full((ELEMENTS,), float(rank), device=device)
dist.all_reduce(numbers)
expected = float(sum(range(ranks)))
assert bool((numbers == expected).all()), f"rank {rank}: the sum of 0 to {ranks - 1} is not {expected}"
print(f"rank {rank} of {ranks}, of Python: the sum is {expected:.0f}", flush=True)
dist.destroy_process_group()
