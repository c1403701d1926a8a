"""Fits a curve with Adam, with gradients of two batches to a step."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

steps_per_update = 2

torch.manual_seed(2)
x = torch.linspace(-2, 2, 32).unsqueeze(1)
loader = DataLoader(TensorDataset(x, torch.sin(3 * x)), batch_size=4, shuffle=True)
model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

for epoch in range(3):
    for i, (inputs, targets) in enumerate(loader):
        loss = F.mse_loss(model(inputs), targets) / steps_per_update
        loss.backward()
        if (i + 1) % steps_per_update == 0:
            optimizer.step()
            optimizer.zero_grad()
    print(f"epoch {epoch + 1}: loss {loss.item() * steps_per_update:.4f}")
