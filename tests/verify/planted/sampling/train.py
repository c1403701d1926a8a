"""Trains on a weighted draw of a part of the data, with noise on its samples and a schedule over the steps."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, WeightedRandomSampler


class Noisy(Dataset):
    def __init__(self, count):
        self.x = torch.randn(count, 5)
        self.y = (self.x[:, 0] + torch.randn(count) > 0.6).long()

    def __len__(self):
        return len(self.y)

    def __getitem__(self, index):
        return self.x[index] + 0.3 * torch.randn(5), self.y[index]


epochs = 3
torch.manual_seed(6)
dataset = Noisy(64)
order = torch.randperm(len(dataset)).tolist()
train_set = Subset(dataset, order[:48])
labels = dataset.y[order[:48]]
weights = (1.0 / torch.bincount(labels).float())[labels]
loader = DataLoader(train_set, batch_size=4, sampler=WeightedRandomSampler(weights, len(train_set)))
model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=epochs * len(loader))

for epoch in range(epochs):
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        for parameter in model.parameters():
            parameter.grad += 0.01 * parameter.detach()
        optimizer.step()
        scheduler.step()
    print(f"epoch {epoch + 1}: loss {loss.item():.4f}, lr {scheduler.get_last_lr()[0]:.5f}")
