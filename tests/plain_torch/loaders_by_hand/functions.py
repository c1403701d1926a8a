"""A function for an epoch, and one that evaluates."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train(args, model, train_loader, optimizer, epoch):
    model.train()
    for index, (x, y) in enumerate(train_loader):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())


def evaluate(model, loader):
    model.eval()
    total = 0.0
    with torch.no_grad():
        for x, y in loader:
            total += nn.functional.mse_loss(model(x), y, reduction="sum").item()
    print("evaluation", total / len(loader.dataset))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--workers", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(1)
    data = TensorDataset(torch.randn(51, 4), torch.randn(51, 1))
    kwargs = {"num_workers": args.workers, "pin_memory": False} if args.workers else {}
    train_loader = DataLoader(data, batch_size=5, shuffle=True, **kwargs)
    test_loader = DataLoader(TensorDataset(torch.randn(20, 4), torch.randn(20, 1)), batch_size=6)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(1, 4):
        train(args, model, train_loader, optimizer, epoch)
        evaluate(model, test_loader)
    torch.save(model.state_dict(), args.out)


if __name__ == "__main__":
    main()
