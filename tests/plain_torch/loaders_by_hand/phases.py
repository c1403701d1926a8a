"""One loop for both, over loaders in a dictionary."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(4)
datasets = {
    "train": TensorDataset(torch.randn(50, 4), torch.randint(0, 3, (50,))),
    "val": TensorDataset(torch.randn(21, 4), torch.randint(0, 3, (21,))),
}
loaders = {phase: DataLoader(datasets[phase], batch_size=8, shuffle=True) for phase in ["train", "val"]}
sizes = {phase: len(datasets[phase]) for phase in ["train", "val"]}
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for phase in ["train", "val"]:
        running, hits = 0.0, 0
        for x, y in loaders[phase]:
            optimizer.zero_grad()
            with torch.set_grad_enabled(phase == "train"):
                output = model(x)
                loss = nn.functional.cross_entropy(output, y)
                if phase == "train":
                    loss.backward()
                    optimizer.step()
            running += loss.item() * x.size(0)
            hits += torch.sum(output.argmax(1) == y)
        print(phase, (hits.double() / sizes[phase]).item())
torch.save(model.state_dict(), sys.argv[1])
