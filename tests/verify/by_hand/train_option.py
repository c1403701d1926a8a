"""Distributed by an option of its own, told its rank by torch.distributed.launch; cast to half by hand."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from train import make_data, parser

parser.add_argument("--local-rank", "--local_rank", type=int, default=-1)
parser.add_argument("--distributed", action="store_true")


def main(args):
    torch.manual_seed(0)
    data = make_data()
    sampler = None
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(torch.bfloat16)
    if args.distributed:
        dist.init_process_group("gloo", rank=args.local_rank)
        sampler = DistributedSampler(data)
        model = DistributedDataParallel(model)
    loader = DataLoader(data, batch_size=4, shuffle=sampler is None, sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        if sampler is not None:
            sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x.bfloat16()).float(), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
        if args.local_rank <= 0:
            print(epoch, loss.item())


if __name__ == "__main__":
    main(parser.parse_args())
