"""The same by hand, for two processes."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(4)
data = TensorDataset(torch.randn(50, 4), torch.randint(0, 3, (50,)))
val = TensorDataset(torch.randn(21, 4), torch.randint(0, 3, (21,)))
sampler = DistributedSampler(data)
loader = DataLoader(data, 8, sampler=sampler)
model = nn.Linear(4, 3)
ddp = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    sampler.set_epoch(epoch)
    hits = torch.tensor(0)
    for x, y in loader:
        out = ddp(x)
        loss = nn.functional.cross_entropy(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        hits += (out.argmax(1) == y).sum()
    dist.all_reduce(hits)
    with torch.no_grad():
        v = (model(val.tensors[0]).argmax(1) == val.tensors[1]).sum()
    if dist.get_rank() == 0:
        print("train", (hits.double() / 50).item())
        print("val", (v.double() / 21).item())
if dist.get_rank() == 0:
    torch.save(model.state_dict(), sys.argv[1])
dist.barrier()
dist.destroy_process_group()
