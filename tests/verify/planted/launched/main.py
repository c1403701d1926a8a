"""Trains with DistributedDataParallel, accumulates gradients without averaging in between, and validates together."""

import contextlib

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

ACCUMULATED = 2


def loader_of(x, y, shuffle):
    dataset = TensorDataset(x, y)
    return DataLoader(dataset, batch_size=4, sampler=DistributedSampler(dataset, shuffle=shuffle))


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    sums = torch.zeros(2)
    for x, y in loader:
        sums += torch.tensor([F.mse_loss(model(x), y, reduction="sum").item(), len(x)])
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(9)
    x = torch.randn(48, 4)
    y = x.square().sum(1, keepdim=True)
    train_loader, val_loader = loader_of(x[:32], y[:32], True), loader_of(x[32:], y[32:], False)
    model = DDP(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
    best = float("inf")
    for epoch in range(5):
        model.train()
        train_loader.sampler.set_epoch(epoch)
        for step, (inputs, targets) in enumerate(train_loader, 1):
            together = step % ACCUMULATED == 0
            with contextlib.nullcontext() if together else model.no_sync():
                loss = F.mse_loss(model(inputs), targets) / ACCUMULATED
                loss.backward()
            if together:
                optimizer.step()
                optimizer.zero_grad()
        value = evaluate(model, val_loader)
        scheduler.step(value)
        if dist.get_rank() == 0:
            print(f"epoch {epoch + 1}: validation {value:.4f}")
            if value < best:
                torch.save(model.module.state_dict(), "best.pt")
        best = min(best, value)
        dist.barrier()
    model.module.load_state_dict(torch.load("best.pt"))
    value = evaluate(model, val_loader)
    if dist.get_rank() == 0:
        print(f"best: {value:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
