"""Starts its processes itself, as many as it is told; bfloat16, so there is no loss scale."""

import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from train import make_data, parser

parser.add_argument("--world-size", type=int, default=1)


def main(rank, args):
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(args.port)}
    dist.init_process_group("gloo", rank=rank, world_size=args.world_size)
    torch.manual_seed(0)
    data = make_data()
    sampler = DistributedSampler(data, args.world_size, rank)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
        if rank == 0:
            print(epoch, loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    args = parser.parse_args()
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        args.port = listener.getsockname()[1]
    mp.spawn(main, args=(args,), nprocs=args.world_size)
