"""The same by hand, for two processes."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(5)
data = TensorDataset(torch.randn(37, 4), torch.randn(37, 1))
sampler = DistributedSampler(data)
loader = DataLoader(data, 4, sampler=sampler)
model = nn.Linear(4, 1)
ddp = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
step, epoch = 0, 0
while step < 20:
    epoch += 1
    sampler.set_epoch(epoch)
    for x, y in loader:
        if step == 20:
            break
        loss = nn.functional.mse_loss(ddp(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
if dist.get_rank() == 0:
    torch.save(model.state_dict(), sys.argv[1])
dist.barrier()
dist.destroy_process_group()
