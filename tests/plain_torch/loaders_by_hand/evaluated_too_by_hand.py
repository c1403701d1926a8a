"""The same by hand, for two processes."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(3)
data = TensorDataset(torch.randn(45, 4), torch.randint(0, 2, (45,)))
sampler = DistributedSampler(data)
loader = DataLoader(data, 8, sampler=sampler)
model = nn.Linear(4, 2)
ddp = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for x, y in loader:
        loss = nn.functional.cross_entropy(ddp(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        c = (model(data.tensors[0]).argmax(1) == data.tensors[1]).sum().item()
    if dist.get_rank() == 0:
        print("accuracy", c / len(data))
if dist.get_rank() == 0:
    torch.save(model.state_dict(), sys.argv[1])
dist.barrier()
dist.destroy_process_group()
