"""Trains with dropout on noisy samples of a random split, with a rate that falls at each step, and evaluates."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, random_split


class Noisy(Dataset):
    def __init__(self):
        self.points = torch.randn(80, 4)

    def __len__(self):
        return len(self.points)

    def __getitem__(self, index):
        point = self.points[index]
        return point + 0.01 * torch.randn(4), point.sum(0, keepdim=True)


torch.manual_seed(4)
EPOCHS = 3
training, validation = random_split(Noisy(), [64, 16])
train_loader = DataLoader(training, batch_size=4, shuffle=True)
val_loader = DataLoader(validation, batch_size=4)
model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
total = EPOCHS * len(train_loader)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / (total + 1))

for epoch in range(EPOCHS):
    model.train()
    for x, y in train_loader:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        schedule.step()
    model.eval()
    error = 0.0
    with torch.no_grad():
        for x, y in val_loader:
            error += F.mse_loss(model(x), y, reduction="sum").item()
    print(f"epoch {epoch + 1}: error {error / len(validation):.4f}")
