"""Programs of any size, to see how the work grows with them."""

from __future__ import annotations

from collections.abc import Callable

HEAD = "import torch\nfrom torch import nn\nfrom torch.utils.data import DataLoader, TensorDataset\n\n"
DATA = "DataLoader(TensorDataset(torch.randn(32, 4), torch.randn(32, 4)), batch_size=8, shuffle=True)"
LOOP = """def train{n}(model, loader, optimizer, device="cpu"):
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
NET = """class Net{n}(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(x)


def build{n}(cfg):
    model = Net{n}()
    return model
"""


def many_files(size: int) -> dict[str, str]:
    """Each model has its file, its loop and its optimizer."""
    files, rows = {}, []
    for n in range(size):
        files[f"part{n}.py"] = HEAD + "\n" + NET.format(n=n) + "\n\n" + LOOP.format(n=n)
        rows += [f"from part{n} import build{n}, train{n}"]
    rows += ["import torch", HEAD]
    for n in range(size):
        rows += [f"model{n} = build{n}(None)", f"optimizer{n} = torch.optim.SGD(model{n}.parameters(), lr=0.1)"]
        rows += [f"train{n}(model{n}, {DATA}, optimizer{n})"]
    return {**files, "train.py": "\n".join(rows) + "\n"}


def long_chain(size: int) -> dict[str, str]:
    """The model goes through one function after the other, each in a file of its own."""
    files = {}
    for n in range(size):
        below = f"from step{n + 1} import step{n + 1}\n" if n + 1 < size else "from loop import train0\n"
        call = f"step{n + 1}" if n + 1 < size else "train0"
        body = "\n".join(f"    value{k} = len(str({k}))" for k in range(8))
        files[f"step{n}.py"] = below + f"\n\ndef step{n}(model, loader, optimizer):\n{body}\n"
        files[f"step{n}.py"] += f"    return {call}(model, loader, optimizer)\n"
    files["loop.py"] = HEAD + "\n" + LOOP.format(n=0)
    files["net.py"] = HEAD + "\n" + NET.format(n=0)
    rows = ["from net import build0", "from step0 import step0", HEAD, "model = build0(None)"]
    rows += ["optimizer = torch.optim.SGD(model.parameters(), lr=0.1)", f"step0(model, {DATA}, optimizer)"]
    return {**files, "train.py": "\n".join(rows) + "\n"}


def shared_object(size: int) -> dict[str, str]:
    """One trainer with many methods, which all read and write its attributes."""
    rows = ["from net import build0", HEAD, "", "class Trainer:", "    def __init__(self):"]
    rows += ["        self.model = build0(None)", f"        self.loader = {DATA}"]
    rows += ["        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)", ""]
    for n in range(size):
        rows += [f"    def hook{n}(self, value):", f"        self.state{n} = self.hook{max(0, n - 1)}(self.model)"]
        rows += [
            "        for x, y in self.loader:",
            f"            self.last{n} = (x, y, value)",
            "        return self",
            "",
        ]
    body = LOOP.format(n="").replace("model(", "self.model(").replace("in loader", "in self.loader")
    body = body.replace("optimizer.", "self.optimizer.").replace("(model, loader, optimizer, ", "(self, ")
    rows += ["    " + row if row else row for row in body.split("\n")]
    rows += ["", "trainer = Trainer()", "trainer.train()"]
    return {"net.py": HEAD + "\n" + NET.format(n=0), "train.py": "\n".join(rows) + "\n"}


def registry(size: int) -> dict[str, str]:
    """Many classes in one dictionary, from which one function chooses."""
    rows = [HEAD, *(NET.format(n=n) for n in range(size)), "MODELS = {"]
    rows += [f"    'net{n}': Net{n}," for n in range(size)]
    rows += ["}", "", "", "def build(cfg):", "    return MODELS[cfg]()", ""]
    entry = ["from models import build", "from loop import train0", HEAD, "model = build('net0')"]
    entry += ["optimizer = torch.optim.SGD(model.parameters(), lr=0.1)", f"train0(model, {DATA}, optimizer)"]
    return {
        "models.py": "\n".join(rows),
        "loop.py": HEAD + "\n" + LOOP.format(n=0),
        "train.py": "\n".join(entry) + "\n",
    }


SHAPES: dict[str, Callable[[int], dict[str, str]]] = {
    "many files": many_files,
    "long chain": long_chain,
    "shared object": shared_object,
    "registry": registry,
}
