"""Trains a recurrent network that goes on, in each row of a batch, from where the batch before ended."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(9)
ROWS, LENGTH, BATCHES = 4, 5, 6


class Windows(Dataset):
    def __init__(self, series):
        self.rows = series.view(ROWS, -1)

    def __len__(self):
        return ROWS * BATCHES

    def __getitem__(self, number):
        batch, row = divmod(number, ROWS)
        start = batch * LENGTH
        return self.rows[row, start : start + LENGTH], self.rows[row, start + 1 : start + LENGTH + 1]


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.recurrent = nn.GRU(1, 8, batch_first=True)
        self.last = nn.Linear(8, 1)

    def forward(self, x, state):
        output, state = self.recurrent(x[..., None], state)
        return self.last(output)[..., 0], state


steps = torch.arange(ROWS * (LENGTH * BATCHES + 1))
dataset = Windows(torch.sin(0.3 * steps) + 0.2 * torch.cos(0.05 * steps**1.5))
loader = DataLoader(dataset, batch_size=ROWS)
model = Network()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    state = None
    for x, y in loader:
        y_pred, state = model(x, state)
        loss = F.mse_loss(y_pred, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        state = state.detach()
    print(f"epoch {epoch + 1}: loss {loss.item():.4f}")
