"""Draws rare samples more often, and lowers its rate when the loss stops falling."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

torch.manual_seed(5)
x = torch.randn(128, 6)
y = (torch.arange(128) < 16).float()
x[:16] += 1
weights = torch.where(y > 0, 7.0, 1.0)
loader = DataLoader(TensorDataset(x, y), batch_size=8, sampler=WeightedRandomSampler(weights, 128))
model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)

for epoch in range(4):
    losses = 0.0
    for points, rare in loader:
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(model(points).squeeze(1), rare)
        loss.backward()
        optimizer.step()
        losses += loss.item()
    schedule.step(losses / len(loader))
    print(f"epoch {epoch + 1}: loss {losses / len(loader):.4f}")
