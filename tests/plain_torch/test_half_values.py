"""What leaves a region of autocast in half, and who gets it in float32."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from amp_rules import migrate
from amp_rules.plan.options import Options

sys.path.insert(0, str(Path(__file__).parents[1] / "rules"))

from migrating import write

SCRIPT = """import numpy as np
import torch
from torch import nn


class Coder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(4, 2)
        self.decoder = nn.Sequential(nn.Linear(2, 4), nn.Sigmoid())

    def forward(self, x):
        code = self.encoder(x)
        return code, self.decoder(code)


def accuracy(output, target):
    return (output.argmax(1) == target).float().mean()


def spread(output):
    centred = output - output.mean()
    return centred.pow(2).mean()


coder = Coder()
net = nn.Linear(4, 3)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD([*coder.parameters(), *net.parameters()], lr=0.1)
x, y = torch.randn(8, 4), torch.randint(0, 3, (8,))
kept = []

for _ in range(2):
    optimizer.zero_grad()
    loss = criterion(net(x), y) + nn.functional.mse_loss(coder(x)[1], x)
    loss.backward()
    optimizer.step()

with torch.no_grad():
    output = net(x)
    _, decoded = coder(x)
    {use}
"""


def migrated(tmp_path: Path, use: str) -> str:
    script = write(tmp_path, {"train.py": SCRIPT.replace("{use}", use).encode()})
    report = migrate(script, Options(target="torch"))
    assert report.precision == "migrated", report.refusals
    return report.changes[0].after


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        ("np.save('a.npy', output.numpy())", "output.float().numpy()"),
        ("np.save('a.npy', decoded.data[:, 0].numpy())", "decoded.data[:, 0].float().numpy()"),
        ("torch.save(decoded.cpu(), 'a.pt')", "torch.save(decoded.cpu().float(), 'a.pt')"),
        ("kept.append(output)", "kept.append(output.float())"),
        ("kept.append(output); np.save('a.npy', kept[0].numpy())", "kept.append(output.float())"),
        ("print(spread(output))", "spread(output.float())"),
        ("print(output.softmax(1)[0, 0].item())", "output.float().softmax(1)"),
    ],
)
def test_what_can_tell_gets_float32(tmp_path: Path, use: str, expected: str) -> None:
    text = migrated(tmp_path, use)
    assert expected in text
    assert text.count(".float()") == SCRIPT.count(".float()") + 1


@pytest.mark.parametrize(
    "use",
    [
        "print(output.argmax(1))",
        "print(accuracy(output, y))",
        "_, predicted = torch.max(output.data, 1)",
        "print(output.size(), output[0, 0].item(), (output > 0).sum())",
        "labels = output.argmax(1).numpy()",
        "print('%.3f' % output.mean().item())",
    ],
)
def test_what_cannot_tell_gets_the_half_values(tmp_path: Path, use: str) -> None:
    assert migrated(tmp_path, use).count(".float()") == SCRIPT.count(".float()")


def test_a_program_of_float64_is_left_as_it_is(tmp_path: Path) -> None:
    text = migrated(tmp_path, "torch.save(decoded, 'a.pt')\n    weights = torch.ones(3, dtype=torch.float64)")
    assert "torch.save(decoded, 'a.pt')" in text


def test_a_region_goes_on_to_the_loss_over_what_prepares_it(tmp_path: Path) -> None:
    use = """flat = output.view(-1, 3)
    if len(flat) == 0:
        raise ValueError("empty")
    target = y.view(-1)
    print("validation")
    val_loss = criterion(flat, target)"""
    plain = migrated(tmp_path, use.replace('    print("validation")\n', ""))
    assert "        val_loss = criterion(flat, target)" in plain
    printing = migrated(tmp_path, use)
    assert "\n    val_loss = criterion(flat.float(), target)" in printing


LAYERS = """import numpy as np
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x):
        layers = [x]
        x = self.first(x)
        layers.append(x)
        rows = []
        for row in range(x.size(0)):
            rows.append(self.second(x[row]))
        return torch.stack(rows), layers


def keep(one, other):
    for place, (name, _) in enumerate(zip("ab", one)):
        np.savez(name, one[place].data.numpy(), other[place].data.numpy())


nets = [Net(), Net()]
optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in nets]
x, y = torch.randn(8, 4), torch.randn(8, 1)
for _ in range(2):
    found = []
    for net, optimizer in zip(nets, optimizers):
        output, layers = net(x)
        found.append(layers)
        loss = nn.functional.mse_loss(output, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    keep(*found)
    np.save("last.npy", output.data.numpy())
    largest = output.argmax(0)
    np.save("largest.npy", largest.numpy())
outputs = [net(x)[0] for net in nets]
np.save("y.npy", outputs[0].data.numpy())
np.save("x.npy", x.numpy())
"""


def test_items_of_containers_are_float32_before_numpy_gets_them(tmp_path: Path) -> None:
    script = write(tmp_path, {"train.py": LAYERS.encode()})
    report = migrate(script, Options(target="torch"))
    assert report.precision == "migrated", report.refusals
    text = report.changes[0].after
    assert "np.savez(name, one[place].data.float().numpy(), other[place].data.float().numpy())" in text
    assert 'np.save("y.npy", outputs[0].data.float().numpy())' in text
    assert 'np.save("last.npy", output.data.float().numpy())' in text
    assert 'np.save("x.npy", x.numpy())' in text and 'np.save("largest.npy", largest.numpy())' in text
