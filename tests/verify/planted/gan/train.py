"""Trains a small Wasserstein GAN with a gradient penalty: two models, two optimizers, one loader."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(4)
# The latents are part of the data, so that a step draws nothing.
loader = DataLoader(TensorDataset(torch.randn(32, 2) + 2, torch.randn(32, 4)), batch_size=4, shuffle=True)
generator = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
critic = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer_g = torch.optim.Adam(generator.parameters(), lr=0.01, betas=(0.5, 0.9))
optimizer_c = torch.optim.Adam(critic.parameters(), lr=0.02, betas=(0.5, 0.9))


def gradient_penalty(real, fake):
    mixed = ((real + fake) / 2).requires_grad_(True)
    slope = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)[0]
    return ((slope.norm(2, dim=1) - 1) ** 2).mean()


for epoch in range(2):
    for real, latent in loader:
        fake = generator(latent)
        loss_c = critic(fake.detach()).mean() - critic(real).mean() + 10 * gradient_penalty(real, fake.detach())
        optimizer_c.zero_grad()
        loss_c.backward()
        optimizer_c.step()

        loss_g = -critic(fake).mean()
        optimizer_g.zero_grad()
        loss_g.backward()
        optimizer_g.step()
    print(f"epoch {epoch + 1}: critic {loss_c.item():.4f}, generator {loss_g.item():.4f}")

torch.save({"generator": generator.state_dict(), "critic": critic.state_dict()}, "gan.pt")
