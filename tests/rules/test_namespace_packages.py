"""Packages that need no ``__init__.py``, in a folder that nothing marks as the top of a project."""

from amp_rules import migrate
from amp_rules.plan.options import Options

MAIN = """
import torch
from speech.utils.executor import Executor
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(80, 4), torch.randn(80, 1)), batch_size=8)
Executor().run(model, optimizer, loader)
"""
EXECUTOR = """
from torch import nn


class Executor:
    def run(self, model, optimizer, loader):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
"""


def written(folder, package):
    files = {f"{package}/bin/main.py": MAIN, f"{package}/utils/executor.py": EXECUTOR}
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder / package / "bin" / "main.py"


def test_a_folder_around_the_script_is_the_package_that_it_imports(tmp_path):
    report = migrate(written(tmp_path, "speech"), Options())
    assert report.precision == "migrated"
    assert {change.path.name for change in report.changes} == {"main.py", "executor.py"}


def test_a_folder_of_another_name_is_not(tmp_path):
    assert migrate(written(tmp_path, "sound"), Options()).precision != "migrated"
