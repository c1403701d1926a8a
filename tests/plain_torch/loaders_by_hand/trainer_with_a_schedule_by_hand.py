"""The same by hand, for two processes."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(2)
data = TensorDataset(torch.randn(46, 5), torch.randint(0, 2, (46,)))
torch.randn(8, 5)
torch.randint(0, 2, (8,))
sampler = DistributedSampler(data)
loader = DataLoader(data, 4, sampler=sampler, drop_last=True)
model = nn.Linear(5, 2)
ddp = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=3 * len(loader))
for epoch in range(3):
    sampler.set_epoch(epoch)
    for x, y in loader:
        loss = nn.functional.cross_entropy(ddp(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
if dist.get_rank() == 0:
    torch.save(model.state_dict(), sys.argv[1])
dist.barrier()
dist.destroy_process_group()
