"""Rules about several processes over several files: what one makes, and another goes through or writes."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from amp_rules.lint import Mode
from amp_rules.source.text import read_source
from linting import linter

O1 = Mode("O1", "fp16", "cuda")
DDP = Mode("O1", "fp16", "cuda", True)


def found(folder: Path, code: str, mode: Mode = O1, **texts: str) -> list[int]:
    """The lines of ``main.py`` at which a rule finds something."""
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(text), encoding="utf-8")
    return [item.span.start.line for item in linter(mode, code).lint(read_source(folder / "main.py")).findings]


LOADERS = """
    from torch.utils.data import DataLoader, DistributedSampler

    def loaders(data, args):
        sampler = DistributedSampler(data{more})
        return DataLoader(data, batch_size=8, sampler=sampler), None
"""

ENGINE = """
    def train_one_epoch(model, loader):
        {first}
        for batch in loader:
            model(batch).sum().backward()
"""


def test_a_loader_of_another_file_is_gone_through_alike_in_every_epoch(tmp_path: Path):
    main = """
        from data import loaders

        def main(args, model):
            train, _ = loaders([], args)
            for epoch in range(3):
                for batch in train:
                    model(batch).sum().backward()
    """
    assert found(tmp_path, "AMP901", main=main, data=LOADERS.format(more="")) == [6]
    (tmp_path / "other").mkdir()
    assert found(tmp_path / "other", "AMP901", main=main, data=LOADERS.format(more=", shuffle=False")) == []


def test_a_loader_of_another_file_that_a_method_goes_through(tmp_path: Path):
    main = """
        from data import loaders

        class Trainer:
            def __init__(self, args, model):
                self.train_loader, self.test_loader = loaders([], args)
                self.model = model

            def train(self):
                for batch in self.train_loader:
                    self.model(batch).sum().backward()

            def fit(self):
                for epoch in range(3):
                    {first}
                    self.train()
    """
    data = LOADERS.format(more="")
    assert found(tmp_path, "AMP901", main=main.format(first="pass"), data=data) == [14]
    (tmp_path / "told").mkdir()
    told = main.format(first="self.train_loader.sampler.set_epoch(epoch)")
    assert found(tmp_path / "told", "AMP901", main=told, data=data) == []


HELPERS = """
    import torch

    def write_state(state, path):
        {write}

    def save_model(model, path):
        state = {{"model": model.state_dict()}}
        write_state(state, path)

    def save_best(loss, best, model, path):
        if loss < best:
            save_model(model, path)
"""


@pytest.mark.parametrize(("write", "lines"), [("torch.save(state, path)", [10]), ("state.clear()", [])])
def test_a_helper_of_another_file_that_writes_by_another_helper(tmp_path: Path, write: str, lines: list[int]):
    main = """
        import torch.distributed as dist
        from files import save_best

        def main(model, batches):
            dist.init_process_group("nccl")
            for epoch in range(3):
                loss = model(batches[epoch]).sum()
                loss.backward()
                save_best(loss.item(), 1.0, model, "best.pt")

        if __name__ == "__main__":
            main(None, [])
    """
    assert found(tmp_path, "AMP903", main=main, files=HELPERS.format(write=write)) == lines


@pytest.mark.parametrize(("first", "lines"), [("pass", [7]), ("loader.sampler.set_epoch(0)", [])])
def test_a_loader_that_is_given_to_another_file(tmp_path: Path, first: str, lines: list[int]):
    main = """
        from data import loaders
        from engine import train_one_epoch

        def main(args, model):
            train, _ = loaders([], args)
            for epoch in range(3):
                train_one_epoch(model, train)
    """
    data, engine = LOADERS.format(more=""), ENGINE.format(first=first)
    assert found(tmp_path, "AMP901", main=main, data=data, engine=engine) == lines


SCRIPT = """
    import torch.distributed as dist
    from helpers import {name}

    def main(model):
        dist.init_process_group("nccl")
        if {test}:
            {name}(model)

    main(None)
"""


@pytest.mark.parametrize(
    ("test", "body", "lines"),
    [
        ("True", "torch.save(model, 'model.pt')", [8]),
        ("dist.is_initialized()", "torch.save(model, 'model.pt')", [8]),
        ("dist.get_rank() == 0", "torch.save(model, 'model.pt')", []),
        ("True", "torch.save(model, f'model_{dist.get_rank()}.pt')", []),
        ("True", "if is_first(): torch.save(model, 'model.pt')", []),
    ],
)
def test_a_helper_of_another_file_writes(tmp_path: Path, test: str, body: str, lines: list[int]):
    helpers = f"""
        import torch
        import torch.distributed as dist

        def is_first():
            return dist.get_rank() == 0

        def save_all(model):
            {body}
    """
    main = SCRIPT.format(name="save_all", test=test)
    assert found(tmp_path, "AMP903", main=main, helpers=helpers) == lines


def test_a_test_in_another_file_has_no_telling_name(tmp_path: Path):
    helpers = """
        import os

        def may_write():
            return os.environ.get("RANK", "0") == "0"
    """
    main = """
        import torch
        import torch.distributed as dist
        from helpers import may_write

        dist.init_process_group("nccl")
        if may_write():
            torch.save({}, "model.pt")
        torch.save({}, "other.pt")
    """
    assert found(tmp_path, "AMP903", main=main, helpers=helpers) == [9]


SETTINGS_READ = """
    import torch

    class Solver:
        def __init__(self, opt, model):
            self.opt = opt
            self.model = model

        def fit(self, batches):
            for epoch in range(3):
                for batch in batches:
                    self.model(batch).sum().backward()
                if self.opt.log:
                    torch.save(self.model.state_dict(), "model.pt")
"""

SETTINGS_MADE = """
    import torch.distributed as dist
    from {file} import {name}
    {more}

    def start(opt, model):
        dist.init_process_group("nccl")
        opt.log = False
        if {test}:
            opt.log = True
        {call}
"""


@pytest.mark.parametrize(
    ("test", "lines"), [("dist.get_rank() == 0", []), ("opt.local_rank in (-1, 0)", []), ("opt.verbose", [14])]
)
@pytest.mark.parametrize("apart", [False, True])
def test_a_setting_that_another_file_sets_by_the_rank(tmp_path: Path, test: str, lines: list[int], apart: bool):
    run = "Solver(opt, model).fit([])"
    texts = {"setup": SETTINGS_MADE.format(file="main", name="Solver", more="", test=test, call=run)}
    if apart:
        # The script imports the file that sets it, and the one that reads it.
        texts["setup"] = SETTINGS_MADE.format(file="os", name="path", more="", test=test, call="return opt")
        texts["script"] = f"""
            from setup import start
            from main import Solver

            def run(opt, model):
                opt = start(opt, model)
                {run}
        """
    assert found(tmp_path, "AMP903", DDP, main=SETTINGS_READ, **texts) == lines


@pytest.mark.parametrize(
    ("made", "lines"),
    [("opt.rank == 0", []), ("is_main()", []), ("is_on()", [14]), ("opt.distributed", [14]), ("Rank(0)", [14])],
)
def test_a_setting_that_another_file_makes_of_the_rank(tmp_path: Path, made: str, lines: list[int]):
    setup = f"""
        from main import Solver

        def start(opt, model):
            opt.log = {made}
            Solver(opt, model).fit([])
    """
    assert found(tmp_path, "AMP903", DDP, main=SETTINGS_READ, setup=setup) == lines


@pytest.mark.parametrize(
    ("test", "lines"),
    [
        ("command == 'export' or world <= 1", []),
        ("args.mode == 'test' or not args.distributed", []),
        ("command == 'export' or world > 1", [9]),
        ("command == 'export'", [9]),
    ],
)
def test_a_command_or_one_process(tmp_path: Path, test: str, lines: list[int]):
    main = f"""
        import torch
        import torch.distributed as dist

        def main(args, command):
            dist.init_process_group("nccl")
            world = dist.get_world_size()
            if {test}:
                torch.save({{}}, "model.pt")

        if __name__ == "__main__":
            main(None, "train")
    """
    assert found(tmp_path, "AMP903", main=main) == lines


# ---- the same wherever it stands -----------------------------------------------------------------------------------

HEAD = """\
import copy
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

"""

BODY = """\
dist.init_process_group("nccl")
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=8, shuffle=True, sampler=sampler)
model = nn.Linear(4, 4)
model = DistributedDataParallel(model)
ema = copy.deepcopy(model)
model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
for epoch in range(10):
    for batch in loader:
        model(batch).sum().backward()
    torch.save(model.state_dict(), "x.pt")
    if dist.get_rank() == 0:
        dist.barrier()
"""


def _renamed(text: str) -> str:
    names = {"sampler": "shares", "loader": "batches", "model": "net", "ema": "ema_net", "epoch": "epoch_number"}
    for name, other in names.items():
        for before in ("", " ", "(", "="):
            for after in (" ", ",", ")", ".", "(", ":"):
                text = text.replace(f"{before}{name}{after}", f"{before}{other}{after}") if before else text
        text = "\n".join(other + row[len(name) :] if row.startswith(f"{name} ") else row for row in text.split("\n"))
    return text.replace("=shares)", "=shares)")


def _indented(text: str, head: str) -> str:
    return head + textwrap.indent(text, "    ")


FORMS = {
    "module": lambda text: HEAD + text,
    "function": lambda text: HEAD + _indented(text, "def main(dataset):\n") + "\nmain([])\n",
    "method": lambda text: (
        HEAD
        + "class Run:\n"
        + textwrap.indent(_indented(text, "def go(self, dataset):\n"), "    ")
        + "\nRun().go([])\n"
    ),
    "try": lambda text: HEAD + _indented(text, "try:\n") + "except KeyboardInterrupt:\n    pass\n",
    "with": lambda text: HEAD + _indented(text, "with torch.enable_grad():\n"),
    "renamed": lambda text: HEAD + _renamed(text),
    "aliased": lambda text: (
        HEAD.replace("import DistributedDataParallel", "import DistributedDataParallel as Wrapper")
        .replace("import DataLoader", "import DataLoader as Batches")
        .replace("import DistributedSampler", "import DistributedSampler as Shares")
        .replace("import torch.distributed as dist", "import torch.distributed as processes")
        + text.replace("DistributedDataParallel", "Wrapper")
        .replace("DataLoader", "Batches")
        .replace("DistributedSampler", "Shares")
        .replace("dist.", "processes.")
    ),
}


def _lines(tmp_path: Path, code: str, text: str) -> list[str]:
    path = tmp_path / "main.py"
    path.write_text(text, encoding="utf-8")
    rows = text.split("\n")
    return [rows[item.span.start.line - 1].strip() for item in linter(O1, code).lint(read_source(path)).findings]


@pytest.mark.parametrize("form", sorted(FORMS))
@pytest.mark.parametrize("code", ["AMP901", "AMP902", "AMP903", "AMP904", "AMP905", "AMP910"])
def test_the_verdict_is_the_same_wherever_it_stands(tmp_path: Path, form: str, code: str):
    change = FORMS[form]
    assert len(_lines(tmp_path, code, HEAD + BODY)) == 1
    assert len(_lines(tmp_path, code, change(BODY))) == 1
