"""In plain PyTorch, turned off by AMP_OPT_LEVEL=O0, as ``--target torch`` writes it."""

import argparse
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

RANK = int(os.environ.get("RANK", "0"))
LOCAL_RANK = int(os.environ.get("LOCAL_RANK", "0"))
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", "1"))
USE_AMP = os.environ.get("AMP_OPT_LEVEL", "O1") != "O0"
DEVICE_TYPE = "cuda" if torch.cuda.is_available() else "cpu"
AMP_DTYPE = torch.float16 if torch.cuda.is_available() else torch.bfloat16

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--epochs", type=int, default=3)


def make_data():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(48, 4, generator=generator)
    return TensorDataset(x, x.sum(1, keepdim=True).tanh())


def main(args):
    if WORLD_SIZE > 1:
        if torch.cuda.is_available():
            torch.cuda.set_device(LOCAL_RANK)
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    if RANK != 0:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    scaler = torch.amp.GradScaler(DEVICE_TYPE, enabled=USE_AMP and AMP_DTYPE == torch.float16)  # noqa: SIM300
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    train_set = make_data()
    sampler = DistributedSampler(train_set) if WORLD_SIZE > 1 else None
    loader = DataLoader(train_set, batch_size=4, shuffle=sampler is None, sampler=sampler)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(device)
    if WORLD_SIZE > 1:
        model = DistributedDataParallel(model, device_ids=[LOCAL_RANK] if torch.cuda.is_available() else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        if WORLD_SIZE > 1:
            sampler.set_epoch(epoch)
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            with torch.autocast(DEVICE_TYPE, dtype=AMP_DTYPE, enabled=USE_AMP):
                loss = nn.functional.mse_loss(model(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
        print(epoch, loss.item())
    if WORLD_SIZE > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(parser.parse_args())
