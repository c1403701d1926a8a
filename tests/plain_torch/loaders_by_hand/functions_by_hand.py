"""The same by hand, for two processes."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(1)
data = TensorDataset(torch.randn(51, 4), torch.randn(51, 1))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=5, sampler=sampler)
xt, yt = torch.randn(20, 4), torch.randn(20, 1)
model = nn.Linear(4, 1)
ddp = DistributedDataParallel(model)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(1, 4):
    sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(ddp(x), y)
        loss.backward()
        optimizer.step()
    total = 0.0
    with torch.no_grad():
        for x, y in zip(xt.split(6), yt.split(6)):
            total += nn.functional.mse_loss(model(x), y, reduction="sum").item()
    if dist.get_rank() == 0:
        print(epoch, loss.item())
        print("evaluation", total / 20)
if dist.get_rank() == 0:
    torch.save(model.state_dict(), sys.argv[1])
dist.barrier()
dist.destroy_process_group()
