"""Trains a small network with batch norm on noisy spirals, with clipped gradients."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_spirals(count):
    radius = torch.rand(count)
    arm = torch.randint(0, 3, (count,))
    angle = 4 * radius + 2.1 * arm + 0.2 * torch.randn(count)
    points = torch.stack([radius * angle.sin(), radius * angle.cos(), radius], dim=1)
    return TensorDataset(points, arm)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 32)
        self.norm = nn.BatchNorm1d(32)
        self.second = nn.Linear(32, 3)

    def forward(self, x):
        return self.second(torch.relu(self.norm(self.first(x))))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    args = parser.parse_args()

    torch.manual_seed(1)
    train_loader = DataLoader(make_spirals(24), batch_size=4, shuffle=True)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)

    for epoch in range(args.epochs):
        model.train()
        for x, y in train_loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.2)
            optimizer.step()
        print(f"epoch {epoch + 1}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
