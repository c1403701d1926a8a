"""The same by hand, for two processes."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
inputs, labels = torch.randn(70, 6), torch.randint(0, 3, (70,))
data = TensorDataset(inputs, labels)
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=8, sampler=sampler)
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
ddp = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    sampler.set_epoch(epoch)
    correct = torch.zeros((), dtype=torch.int64)
    for x, y in loader:
        output = ddp(x)
        loss = nn.functional.cross_entropy(output, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        correct += (output.argmax(1) == y).sum()
    dist.all_reduce(correct)
    if dist.get_rank() == 0:
        print("accuracy", correct.item() / len(data))
if dist.get_rank() == 0:
    torch.save(model.state_dict(), sys.argv[1])
dist.barrier()
dist.destroy_process_group()
