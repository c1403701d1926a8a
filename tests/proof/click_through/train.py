"""Which of the advertisements that people see they click on: a wide and deep model, on data that it makes itself."""

import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Subset, TensorDataset

USERS, ADVERTS, WORDS = 3000, 1500, 2001


class WideAndDeep(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.wide = nn.EmbeddingBag(WORDS, 1, mode="sum", sparse=True)
        self.users = nn.Embedding(USERS, width, sparse=True)
        self.adverts = nn.Embedding(ADVERTS, width, sparse=True)
        self.words = nn.EmbeddingBag(WORDS, width, mode="mean", sparse=True)
        self.hours = nn.Embedding(24, width)
        self.deep = nn.Sequential(nn.Linear(4 * width, 32), nn.ReLU(), nn.Linear(32, 1))
        for table in (self.users, self.adverts, self.words):
            nn.init.normal_(table.weight, std=0.1)
        nn.init.zeros_(self.wide.weight)

    def forward(self, user, advert, hour, words):
        parts = [self.users(user), self.adverts(advert), self.words(words), self.hours(hour)]
        return (self.wide(words) + self.deep(torch.cat(parts, 1))).squeeze(1)


def clicks(count):
    user, advert = torch.randint(USERS, (count,)), torch.randint(ADVERTS, (count,))
    hour, words = torch.randint(24, (count,)), torch.randint(WORDS, (count, 6))
    likes = torch.randn(WORDS)[words].mean(1) + 2 * torch.randn(24)[hour] + torch.randn(ADVERTS)[advert]
    return TensorDataset(user, advert, hour, words, (likes > 0).float())


def evaluate(model, loader):
    model.eval()
    total = 0.0
    with torch.no_grad():
        for user, advert, hour, words, clicked in loader:
            total += F.binary_cross_entropy_with_logits(model(user, advert, hour, words), clicked).item()
    return total / len(loader)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    torch.manual_seed(0)
    data = clicks(2560)
    train_loader = DataLoader(Subset(data, range(2048)), batch_size=args.batch, drop_last=True)
    held_out = DataLoader(Subset(data, range(2048, 2560)), batch_size=64)
    model = WideAndDeep()
    tables = [
        *model.wide.parameters(),
        *model.users.parameters(),
        *model.adverts.parameters(),
        *model.words.parameters(),
    ]
    of_tables = torch.optim.SparseAdam(tables, lr=0.01)
    of_rest = torch.optim.Adam([*model.hours.parameters(), *model.deep.parameters()], lr=0.01)
    for epoch in range(args.epochs):
        model.train()
        for user, advert, hour, words, clicked in train_loader:
            loss = F.binary_cross_entropy_with_logits(model(user, advert, hour, words), clicked)
            of_tables.zero_grad()
            of_rest.zero_grad()
            loss.backward()
            of_tables.step()
            of_rest.step()
        print(epoch, evaluate(model, held_out))
    torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
