"""A rank of hardware_torch.rs: what it does here, it does there. "where" prints PyTorch's release and the NCCL it loads;
"eager" and "lazy" say when it connects."""

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

ELEMENTS = 1 << 16

how = sys.argv[1]
if how == "where":
    assert torch.cuda.device_count() >= 2, f"torch {torch.__version__} sees {torch.cuda.device_count()} GPU(s), not 2"
    maps = open("/proc/self/maps").read().split()
    print(torch.__version__, next(path for path in maps if "/libnccl.so" in path))
    sys.exit()

device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
bound = {"device_id": device} if how == "eager" else {}
dist.init_process_group("nccl", timeout=timedelta(seconds=60), **bound)
rank, ranks = dist.get_rank(), dist.get_world_size()


def full(value, shares=1):
    return torch.full((ELEMENTS * shares,), float(value), device=device)


def check(tensor, expected):
    found = tensor.view(len(expected), ELEMENTS).cpu()
    for share, value in zip(found, expected):
        assert bool((share == float(value)).all()), (share, value)


one, each = full(rank), full(rank, ranks)
dist.all_reduce(one)
check(one, [sum(range(ranks))])

one.fill_(rank)
dist.all_gather_into_tensor(each, one)
check(each, range(ranks))

dist.reduce_scatter_tensor(one, each)
check(one, [rank * ranks])

for root in range(ranks):
    one.fill_(rank)
    dist.broadcast(one, root)
    check(one, [root])

other = full(-1)
one.fill_(rank)
ops = [dist.P2POp(dist.isend, one, 1 - rank), dist.P2POp(dist.irecv, other, 1 - rank)]
for work in dist.batch_isend_irecv(ops):
    work.wait()
check(other, [1 - rank])

print(f"rank {rank}, of Python ({how}): all is right", flush=True)
dist.destroy_process_group()
