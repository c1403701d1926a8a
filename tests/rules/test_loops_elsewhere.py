"""Loops, hooks and loaders that stand in another place than the step: engines, callbacks, generators, partials."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from amp_rules import migrate
from amp_rules.plan.options import Options
from amp_rules.source.modules import parse
from amp_rules.source.search_path import added_folders
from amp_rules.source.text import source_from_bytes

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
loader = DataLoader(data, batch_size=8, shuffle=True)
valid = DataLoader(data, batch_size=8)
"""
STEP = """
def step(x, y):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
"""


@pytest.fixture
def change(tmp_path):
    """Migrate a script; its text and the report."""

    def run(*parts):
        entry = tmp_path / "train.py"
        entry.write_text("".join(textwrap.dedent(part) for part in parts))
        report = migrate(entry, Options(ddp=True))
        return next((item.after for item in report.changes), ""), report

    return run


def outcome(report):
    return report.precision, report.distribution


BOTH = ("migrated", "migrated")


# ---- loaders -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "taken"),
    [
        ("def cycle(batches):\n    while True:\n        yield from batches\n", "stream = cycle(loader)"),
        (
            "def cycle(batches):\n    while True:\n        for batch in batches:\n            yield batch\n",
            "stream = cycle(loader)",
        ),
        (
            "class Endless:\n    def __init__(self, batches):\n        self.batches = batches\n"
            "    def __iter__(self):\n        while True:\n            for batch in self.batches:\n"
            "                yield batch\n",
            "stream = iter(Endless(loader))",
        ),
    ],
)
def test_a_loader_behind_a_generator_is_shared_out(change, source, taken):
    after, report = change(HEAD, source, STEP, taken, "\nfor i in range(9):\n    x, y = next(stream)\n    step(x, y)\n")
    assert outcome(report) == BOTH
    assert after.count("amp.prepare_loader") == 1
    assert "prepare_loader(DataLoader(data, batch_size=8, shuffle=True))" in after or "prepare_loader(loader)" in after


def test_a_batch_that_a_method_fetches_comes_from_its_loader(change):
    after, report = change(
        HEAD,
        STEP,
        """
        class Batches:
            def __init__(self, loader):
                self.loader = loader
                self.iterator = iter(loader)
            def get(self):
                try:
                    batch = next(self.iterator)
                except StopIteration:
                    self.iterator = iter(self.loader)
                    batch = next(self.iterator)
                return batch
        batches = Batches(loader)
        for i in range(9):
            x, y = batches.get()
            step(x, y)
        """,
    )
    assert outcome(report) == BOTH
    assert "amp.prepare_loader" in after


def test_a_generator_that_only_hands_on_is_no_evaluation(change):
    after, report = change(
        HEAD,
        STEP,
        """
        def log_every(batches):
            for batch in batches:
                yield batch
        for x, y in log_every(loader):
            step(x, y)
        for x, y in log_every(valid):
            model(x)
        """,
    )
    assert outcome(report) == BOTH
    assert "loader = amp.prepare_loader(DataLoader(data, batch_size=8, shuffle=True))" in after
    assert after.count("prepare_loader") == 1


def test_batches_of_a_generator_of_its_own_are_shared_out(change):
    after, report = change(
        HEAD,
        STEP,
        """
        def batches(size):
            for start in range(0, 64, size):
                yield data.tensors[0][start:start + size], data.tensors[1][start:start + size]
        for x, y in batches(8):
            step(x, y)
        """,
    )
    assert outcome(report) == BOTH
    assert "for x, y in amp.prepare_loader(batches(8)):" in after


def test_batches_that_a_function_draws_through_another_differ_by_rank(change):
    after, report = change(
        HEAD,
        STEP,
        """
        import random
        lines = list(data)
        def pick(items):
            return items[random.randint(0, len(items) - 1)]
        def batch():
            chosen = []
            for _ in range(8):
                chosen.append(pick(lines))
            return torch.stack([x for x, _ in chosen]), torch.stack([y for _, y in chosen])
        for i in range(9):
            x, y = batch()
            step(x, y)
        """,
    )
    assert outcome(report) == BOTH
    assert "amp.seed_by_rank()" in after


def test_batches_drawn_in_advance_are_the_same_on_all_ranks(change):
    _, report = change(
        HEAD,
        STEP,
        """
        import random
        class Cache:
            def __init__(self):
                self.fill()
            def fill(self):
                self.items = [random.choice(data) for _ in range(8)]
                return self.items
            def next_batch(self):
                if not self.items:
                    self.items = self.fill()
                item = self.items[0]
                return item
        cache = Cache()
        for i in range(9):
            x, y = cache.next_batch()
            step(x, y)
        """,
    )
    assert outcome(report) == ("migrated", "declined")


def test_a_figure_in_memory_is_drawn_by_every_process(change):
    after, report = change(
        HEAD,
        STEP,
        """
        import io
        import matplotlib.pyplot as plt
        for x, y in loader:
            step(x, y)
        buffer = io.BytesIO()
        plt.savefig(buffer)
        plt.savefig("loss.png")
        """,
    )
    assert outcome(report) == BOTH
    assert "\nplt.savefig(buffer)\n" in after
    assert 'is_main_process():\n    plt.savefig("loss.png")' in after


# ---- engines -----------------------------------------------------------------------------------------------

ENGINE = """
class Engine:
    def __init__(self, process):
        self.process = process
    def run(self, batches):
        for x, y in batches:
            self.process(x, y)
def look(x, y):
    with torch.no_grad():
        model(x)
"""


def test_only_the_engine_that_trains_gets_a_share(change):
    after, report = change(HEAD, STEP, ENGINE, "Engine(step).run(loader)\nEngine(look).run(valid)\n")
    assert outcome(report) == BOTH
    assert "loader = amp.prepare_loader(DataLoader(data, batch_size=8, shuffle=True))" in after
    assert "valid = DataLoader(data, batch_size=8)" in after


def test_the_subclass_says_whether_its_loop_trains(change):
    after, report = change(
        HEAD,
        """
        class Runner:
            def run(self, batches):
                for x, y in batches:
                    self.once(x, y)
        class Trainer(Runner):
            def once(self, x, y):
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(x), y)
                loss.backward()
                optimizer.step()
        class Tester(Runner):
            @torch.no_grad()
            def once(self, x, y):
                model(x)
        Trainer().run(loader)
        Tester().run(valid)
        """,
    )
    assert outcome(report) == BOTH
    assert "valid = DataLoader(data, batch_size=8)" in after


def test_an_engine_that_is_not_understood_shares_out_all_it_may_train_on(change):
    after, report = change(
        HEAD, STEP, ENGINE, "def run(engine, batches):\n    engine.run(batches)\nrun(Engine(step), loader)\n"
    )
    assert outcome(report) == BOTH
    assert after.count("prepare_loader") == 1


# ---- partial -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "called"),
    [
        ("partial(epoch, model, loader)", "run(optimizer)"),
        ("partial(epoch, model, optimizer=optimizer)", "run(loader)"),
        ("partial(partial(epoch, model), loader)", "run(optimizer)"),
    ],
)
def test_partial_keeps_what_it_was_given(change, made, called):
    after, report = change(
        "from functools import partial\n",
        HEAD,
        """
        def epoch(net, batches, optimizer):
            for x, y in batches:
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(net(x), y)
                loss.backward()
                optimizer.step()
        """,
        f"run = {made}\nfor _ in range(2):\n    {called}\n",
    )
    assert outcome(report) == BOTH
    assert "amp.scaler.step(optimizer)" in after
    assert "amp.prepare_loader" in after


# ---- hooks -------------------------------------------------------------------------------------------------

HOOKS = """
class Clip:
    def on_begin(self):
        pass
    def on_after_backward(self):
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
class Trainer:
    def __init__(self, callbacks):
        self.callbacks = callbacks
    def call(self, {parameter}):
        for callback in self.callbacks:
            getattr(callback, {name})()
    def fit(self):
        self.call("{begin}")
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            self.call("{after}")
            optimizer.step()
Trainer([Clip()]).fit()
"""


@pytest.mark.parametrize(
    ("parameter", "name", "begin", "after"),
    [
        ("hook", "hook", "on_begin", "on_after_backward"),
        ("event", '"on_" + event', "begin", "after_backward"),
        ("event", 'f"on_{event}"', "begin", "after_backward"),
    ],
)
def test_a_hook_that_clips_is_called_with_unscaled_gradients(change, parameter, name, begin, after):
    text, report = change(HEAD, HOOKS.format(parameter=parameter, name=name, begin=begin, after=after))
    assert outcome(report) == BOTH
    lines = [line.strip() for line in text.splitlines()]
    assert lines.count("amp.scaler.unscale_(optimizer)") == 1
    assert lines[lines.index("amp.scaler.unscale_(optimizer)") + 1] == f'self.call("{after}")'


def test_a_hook_that_clips_is_declined_where_its_name_is_known_at_run_time_only(change):
    hooks = HOOKS.format(parameter="event", name="event.hook()", begin="begin", after="after_backward")
    _, report = change(HEAD, hooks)
    assert report.precision == "declined"
    assert "it is not known when `on_after_backward` runs" in report.refusals[0].message


def test_a_method_that_nothing_calls_may_clip(change):
    _, report = change(
        HEAD,
        STEP,
        """
        class Tools:
            def clip(self):
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        tools = Tools()
        for x, y in loader:
            step(x, y)
        """,
    )
    assert outcome(report) == BOTH


# ---- the model's home --------------------------------------------------------------------------------------


def test_a_model_is_prepared_when_it_is_loaded_and_frozen(change):
    after, report = change(
        """
        import torch
        from torch import nn
        from torch.utils.data import DataLoader, TensorDataset
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.Linear(4, 4)
                self.head = nn.Linear(4, 1)
            def forward(self, x):
                return self.head(self.body(x))
        def restore(path, net):
            net.load_state_dict(torch.load(path))
        loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.randn(64, 1)), batch_size=8, shuffle=True)
        net = Net()
        restore("net.pt", net)
        for param in net.body.parameters():
            param.requires_grad = False
        optimizer = torch.optim.SGD(net.head.parameters(), lr=0.1)
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(net(x), y)
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            out = net(torch.randn(2, 4))
        """
    )
    assert outcome(report) == BOTH
    assert after.count("prepare_model") == 1
    assert after.index("param.requires_grad = False") < after.index("amp.prepare_model(net)")
    assert after.index("amp.prepare_model(net)") < after.index("amp.optim.SGD")
    assert after.count("with amp.autocast():") == 2


# ---- sys.path ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "folder"),
    [
        ('sys.path.append("..")', "/a/b"),
        ('sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))', "/a/b/src"),
        ("ROOT = Path(__file__).parents[1]\nsys.path.append(str(ROOT))", "/a/b"),
        ('sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))', "/a/b/lib"),
        ('sys.path.append(abspath(dirname(__file__) + "/../"))', "/a/b"),
        ('sys.path.append(os.path.join(sys.path[0], "../"))', "/a/b"),
        (
            'def add(path):\n    sys.path.insert(0, path)\nadd(os.path.join(os.path.dirname(__file__), "lib"))',
            "/a/b/c/lib",
        ),
        ('for part in ("lib",):\n    sys.path.append(part)', "/a/b/c/lib"),
        ('there = "old"\nprint(there)\nthere = "lib"\nsys.path.append(there)\nthere = "x"', "/a/b/c/lib"),
        ('sys.path += ["lib"]', "/a/b/c/lib"),
        ('sys.path.extend([os.path.join(os.pardir, "lib")])', "/a/b/lib"),
    ],
)
def test_folders_on_the_path_are_read_off_their_expressions(text, folder):
    module = parse(source_from_bytes(text.encode(), Path("/a/b/c/train.py")))
    assert added_folders(module) == [Path(folder)]


@pytest.mark.parametrize("text", ['sys.path.append("./")', "sys.path.insert(0, os.getcwd())"])
def test_a_script_that_adds_the_folder_it_is_started_from_may_lie_below_it(text):
    module = parse(source_from_bytes(text.encode(), Path("/a/b/c/train.py")))
    assert added_folders(module) == [Path("/a/b/c"), Path("/a/b")]


@pytest.mark.parametrize("text", ["sys.path.append(sys.argv[1])", "sys.path.append(args.home)", "sys.path.append(f())"])
def test_folders_that_depend_on_the_run_are_left_out(text):
    module = parse(source_from_bytes(text.encode(), Path("/a/b/c/train.py")))
    assert added_folders(module) == []


# ---- the wrapper -------------------------------------------------------------------------------------------

SUBCLASSES = """
class Trainer:
    def __init__(self, net):
        self.net = net
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
    def fit(self):
        for x, y in loader:
            self.optimizer.zero_grad()
            loss = self.loss(x, y)
            loss.backward()
            self.optimizer.step()
class Squared(Trainer):
    def loss(self, x, y):
        return nn.functional.mse_loss(self.net(x), y)
class Absolute(Trainer):
    def loss(self, x, y):
        return nn.functional.l1_loss(self.net(x), y)
"""


def test_losses_of_subclasses_need_no_delayed_averaging(change):
    run = "import sys\nnet = nn.Linear(4, 1)\nkind = {'a': Absolute, 's': Squared}[sys.argv[1]]\nkind(net).fit()\n"
    after, report = change(HEAD, SUBCLASSES, run)
    assert outcome(report) == BOTH
    assert "delay_allreduce" not in after


def test_models_of_several_stages_may_share_parts(change):
    run = "for kind in (Absolute, Squared):\n    net = nn.Linear(4, 1)\n    kind(net).fit()\n"
    after, report = change(HEAD, SUBCLASSES, run)
    assert outcome(report) == BOTH
    assert "delay_allreduce=True" in after
