"""Trains a classifier until its validation loss no longer falls, and keeps the best checkpoint and a log."""

import csv
import os

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


def make_data(count):
    x = torch.randn(count, 6)
    return TensorDataset(x, (x[:, 0] * x[:, 1] > 0).long())


def train(model, loader, optimizer):
    model.train()
    total = correct = 0
    for x, y in loader:
        optimizer.zero_grad()
        output = model(x)
        loss = F.cross_entropy(output, y)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(y)
        correct += (output.argmax(1) == y).sum().item()
    return total / len(loader.dataset), correct / len(loader.dataset)


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    total = correct = 0
    for x, y in loader:
        output = model(x)
        total += F.cross_entropy(output, y, reduction="sum").item()
        correct += (output.argmax(1) == y).sum().item()
    return total / len(loader.dataset), correct / len(loader.dataset)


def main():
    torch.manual_seed(5)
    train_set, val_set = random_split(make_data(64), [48, 16])
    train_loader = DataLoader(train_set, batch_size=4, shuffle=True)
    val_loader = DataLoader(val_set, batch_size=4)
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
    os.makedirs("out", exist_ok=True)
    with open("out/log.csv", "w", newline="") as file:
        csv.writer(file).writerow(["epoch", "train", "val"])

    best, bad = float("inf"), 0
    for epoch in range(8):
        train_loss, train_accuracy = train(model, train_loader, optimizer)
        val_loss, val_accuracy = evaluate(model, val_loader)
        scheduler.step(val_loss)
        print(
            f"epoch {epoch + 1}: train {train_loss:.4f} ({train_accuracy:.3f}), val {val_loss:.4f} ({val_accuracy:.3f})"
        )
        with open("out/log.csv", "a", newline="") as file:
            csv.writer(file).writerow([epoch + 1, train_loss, val_loss])
        if val_loss < best:
            best, bad = val_loss, 0
            torch.save({"model": model.state_dict(), "epoch": epoch, "best": best}, "out/best.pt")
        else:
            bad += 1
            if bad >= 2:
                print("stopped early")
                break
    model.load_state_dict(torch.load("out/best.pt")["model"])
    print(f"best: {evaluate(model, val_loader)[0]:.4f}")


if __name__ == "__main__":
    main()
