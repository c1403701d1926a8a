"""Models in torch's own words: DistributedDataParallel, what it averages, and what reads the model inside of it."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent, indent

import pytest
from amp_rules import migrate
from amp_rules.plan.options import Options
from amp_rules.plan.report import Report

HEAD = """\
import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

dataset = TensorDataset(torch.randn(80, 4), torch.randn(80, 1))
loader = DataLoader(dataset, batch_size=8, shuffle=True)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(4, 4)
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        return self.head(self.encoder(x))

    def loss(self, x, y):
        return (self(x) - y).pow(2).mean()


"""

STEP = """\
optimizer.zero_grad()
loss = nn.functional.mse_loss(model(x), y)
loss.backward()
optimizer.step()
"""


def trained(step: str = STEP, *, before: str = "", after: str = "", model: str = "Net()", moved: str = "") -> str:
    """A script that trains a model, with more before, in and after the loop."""
    made = f"model = {model}\n{moved}optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    loop = "for epoch in range(2):\n    for x, y in loader:\n" + indent(dedent(step), " " * 8)
    return HEAD + dedent(before) + made + loop + dedent(after)


def in_torch(folder: Path, text: str, *, ddp: bool = True, sync_bn: bool = True) -> tuple[Report, str]:
    """The report, and the text in torch's words."""
    path = folder / "train.py"
    path.write_text(text)
    report = migrate(path, Options(target="torch", ddp=ddp, sync_bn=sync_bn))
    after = report.changes[0].after if report.changes else text
    compile(after, "train.py", "exec")
    assert "amp_runtime" not in after
    return report, after


def distributed(folder: Path, text: str, *, sync_bn: bool = True) -> str:
    """The text for several processes."""
    report, after = in_torch(folder, text, sync_bn=sync_bn)
    assert report.distribution == "migrated", report.refusals
    return after


def refused(folder: Path, text: str) -> str:
    """Why there is precision alone."""
    report, after = in_torch(folder, text)
    assert (report.precision, report.distribution) == ("migrated", "declined")
    assert "DistributedDataParallel" not in after
    return " ".join(item.message for item in report.refusals)


# ---- the wrapper ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["Net()", "Net()\nmodel.apply(print)"])
def test_nothing_is_left_of_a_model_without_several_processes(tmp_path: Path, model: str) -> None:
    """On a line of its own, too."""
    text = trained(model=model)
    _, after = in_torch(tmp_path, text, ddp=False)
    made = [row for row in after.splitlines() if row.startswith("model")]
    assert made == [row for row in text.splitlines() if row.startswith("model")]


def test_a_model_that_may_be_missing_leaves_no_empty_condition(tmp_path: Path) -> None:
    """``if model is not None:`` goes with what it was for."""
    before = "model = None\nif len(dataset) > 1:\n    model = Net()\n    model.apply(print)\n"
    text = HEAD + before + trained().removeprefix(HEAD).partition("\n")[2]
    _, after = in_torch(tmp_path, text, ddp=False)
    assert "is not None" not in after and "    pass" not in after


def test_the_wrapper_comes_after_the_model_is_made(tmp_path: Path) -> None:
    """Before the optimizer, for several processes alone."""
    after = distributed(tmp_path, trained())
    assert "model = Net()\nif WORLD_SIZE > 1:\n    model = DistributedDataParallel(model)\noptimizer" in after


def test_a_script_that_names_a_gpu_says_which(tmp_path: Path) -> None:
    """The CPU is none."""
    after = distributed(tmp_path, trained(moved='model.to("cuda" if torch.cuda.is_available() else "cpu")\n'))
    assert "model = DistributedDataParallel(model)" in after


@pytest.mark.parametrize("sync_bn", [True, False])
def test_batch_norm_is_synchronised_on_cuda(tmp_path: Path, sync_bn: bool) -> None:
    """Unless that is not wished for; without batch norm there is none to synchronise."""
    text = trained(model="nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 1))", moved="model.cuda()\n")
    report, after = in_torch(tmp_path, text, sync_bn=sync_bn)
    assert ("        model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)" in after) is sync_bn
    assert any("batch norm over all processes on the CPU" in note.text for note in report.notes) is sync_bn
    assert "SyncBatchNorm" not in distributed(tmp_path, trained(moved="model.cuda()\n"))


def test_three_models_share_a_function(tmp_path: Path) -> None:
    """And two do not."""
    step = """\
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss = nn.functional.mse_loss(a(x) + b(x) + c(x), y)
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    """
    loop = "for epoch in range(2):\n    for x, y in loader:\n" + indent(dedent(step), " " * 8)
    made = "a = Net()\nb = Net()\nc = Net()\n"
    text = HEAD + made + "optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (a, b, c)]\n" + loop
    after = distributed(tmp_path, text)
    assert after.count("DistributedDataParallel(") == 1
    assert all(f"{name} = distributed(Net())" in after for name in "abc")


# ---- what is averaged -----------------------------------------------------------------------------------------------


def test_pairs_of_passes_are_averaged(tmp_path: Path) -> None:
    """Gradients of several batches add up."""
    step = """\
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    if epoch:
        optimizer.step()
        optimizer.zero_grad()
    """
    assert "DistributedDataParallel(model)" in distributed(tmp_path, trained(step))


def test_a_second_backward_pass_without_a_forward_pass_is_refused(tmp_path: Path) -> None:
    """The wrapper averages one backward pass for each forward pass, and says nothing of another."""
    step = """\
    optimizer.zero_grad()
    out = model(x)
    near = nn.functional.mse_loss(out, y)
    far = nn.functional.l1_loss(out, y)
    near.backward(retain_graph=True)
    far.backward()
    optimizer.step()
    """
    assert "the backward pass of `far` has no forward pass of its own" in refused(tmp_path, trained(step))


def test_two_forward_passes_before_two_backward_passes_are_refused(tmp_path: Path) -> None:
    """The first backward pass uses up both."""
    step = """\
    optimizer.zero_grad()
    one = model(x).mean()
    two = model(-x).pow(2).mean()
    one.backward()
    two.backward()
    optimizer.step()
    """
    assert "the backward pass of `two` has no forward pass of its own" in refused(tmp_path, trained(step))


def test_a_backward_pass_that_another_round_follows_uses_up_none(tmp_path: Path) -> None:
    """As in a warm-up; without ``continue`` both would come of one forward pass."""
    step = """\
    optimizer.zero_grad()
    out = model(x)
    near = nn.functional.mse_loss(out, y)
    if epoch == 0:
        near.backward(retain_graph=True)
        optimizer.step()
        continue
    loss = near + out.abs().mean()
    loss.backward()
    optimizer.step()
    """
    distributed(tmp_path, trained(step))
    both = step.replace("        optimizer.step()\n        continue\n", "", 1)
    assert "the backward pass of `loss` has no forward pass of its own" in refused(tmp_path, trained(both))
    inner = both.replace("if epoch == 0:\n        near", "for _ in range(2):\n        if epoch:\n            near")
    inner = inner.replace("graph=True)\n", "graph=True)\n            continue\n")
    assert "has no forward pass of its own" in refused(tmp_path, trained(inner))


def test_a_numbered_loader_gives_its_number_to_its_sampler(tmp_path: Path) -> None:
    """A name does not begin with a digit."""
    text = trained().replace("loader", "loader1").replace("DataLoader1", "DataLoader")
    after = distributed(tmp_path, text.replace("DataLoader(dataset,", "DataLoader(TensorDataset(*dataset.tensors),"))
    assert "dataset_1 = TensorDataset(" in after and "sampler_1 = DistributedSampler(dataset_1)" in after


def test_imports_under_try_stand_above_what_reads_them(tmp_path: Path) -> None:
    """The new constants do."""
    imports = (
        "try:\n    import os\n    import torch\n    from torch import nn\nexcept ImportError:\n    raise SystemExit\n"
    )
    text = trained().replace("import torch\nfrom torch import nn\n", imports, 1)
    after = distributed(tmp_path, text)
    assert after.index("raise SystemExit") < after.index("WORLD_SIZE = int(os.environ")


def gan(discriminate: str) -> str:
    """Two models, of which one judges the other."""
    step = f"""\
fake = model(x)
optimizer_d.zero_grad()
{discriminate}
optimizer_d.step()
optimizer.zero_grad()
loss_g = judge(fake).mean()
loss_g.backward()
optimizer.step()
"""
    before = "judge = nn.Linear(1, 1)\noptimizer_d = torch.optim.SGD(judge.parameters(), lr=0.1)\n"
    return trained(step, before=before)


def test_two_models_that_train_in_turn_are_averaged(tmp_path: Path) -> None:
    """What is detached takes no part in a backward pass."""
    after = distributed(tmp_path, gan("loss_d = (judge(fake.detach()) - judge(y)).mean()\nloss_d.backward()"))
    assert "judge = DistributedDataParallel(judge)" in after and "model = DistributedDataParallel(model)" in after


def test_a_pass_through_both_models_uses_up_the_forward_pass(tmp_path: Path) -> None:
    """Without ``detach`` the first backward pass goes through the generator, too."""
    after = gan("loss_d = (judge(fake) - judge(y)).mean()\nloss_d.backward(retain_graph=True)")
    assert "the backward pass of `loss_g` has no forward pass of its own" in refused(tmp_path, after)


def test_the_wrapper_looks_for_parts_that_a_step_leaves_out(tmp_path: Path) -> None:
    """A part that takes no part would hold back the others."""
    text = trained(STEP.replace("model(x)", "model(x, epoch % 2 == 0)")).replace(
        "    def forward(self, x):\n        return self.head(self.encoder(x))",
        "    def forward(self, x, brief=False):\n        hidden = self.encoder(x)\n"
        "        if brief:\n            return hidden.mean(1, keepdim=True)\n        return self.head(hidden)",
    )
    assert "DistributedDataParallel(model, find_unused_parameters=True)" in distributed(tmp_path, text)


SKIPPED = "x = self.norms[i](x) if self.normed and i < 5 else x"

LAYERED = """\
class Layered(nn.Module):
    def __init__(self, normed=True):
        super().__init__()
        self.normed = normed
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(4) for _ in range(2))
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        for i in range(2):
            x = self.layers[i](x)
            if self.normed:
                x = self.norms[i](x)
        return self.head(x)


"""


@pytest.mark.parametrize(
    ("made", "old", "new", "looks"),
    [
        ("Layered(normed=False)", "", "", True),
        ("Layered(bool(len(dataset) % 2))", "", "", True),
        ("Layered()", "", "", False),
        ("Layered(True)", "", "", False),
        ("Layered(False)", "self.normed:", "not self.normed:", False),
        ("Layered()", "if self.normed:", "if not self.normed:", True),
        ("Layered()", "if self.normed:", "if self.training:", False),
        ("Layered(False)", "return self.head(x)", "return self.head(self.norms[1](self.norms[0](x)))", False),
        ("Layered(False)", "self.norms = nn", "if normed:\n            self.norms = nn", False),
        ("Layered(False)", "if self.normed:\n                x = self.norms[i](x)", SKIPPED, True),
    ],
)
def test_the_wrapper_looks_for_layers_that_a_setting_leaves_out(
    tmp_path: Path, made: str, old: str, new: str, looks: bool
) -> None:
    """Not where each construction uses them, nor where they are made under the condition that they run under."""
    text = trained(model=made).replace(
        "model = Layered", f"{LAYERED.replace(old, new) if old else LAYERED}model = Layered"
    )
    after = distributed(tmp_path, text)
    assert ("DistributedDataParallel(model, find_unused_parameters=True)" in after) is looks


def test_parameters_that_train_again_later_are_refused(tmp_path: Path) -> None:
    """The wrapper knows those that train when it is made."""
    moved = "for p in model.encoder.parameters():\n    p.requires_grad = False\n"
    later = "    for p in model.parameters():\n        p.requires_grad = True\n"
    assert "frozen" in refused(tmp_path, trained(moved=moved) + later)
    distributed(tmp_path, trained(moved=moved + moved.replace("encoder", "head").replace("False", "True")))


def test_parameters_that_a_constructor_froze_and_that_train_again_later_are_refused(tmp_path: Path) -> None:
    """So does the wrapper when it is made of such a model."""
    later = "    if epoch:\n        for p in model.encoder.parameters():\n            p.requires_grad_(True)\n"
    text = trained() + later
    frozen = "self.encoder = nn.Linear(4, 4)\n        for p in self.encoder.parameters(): p.requires_grad = False"
    assert "frozen" in refused(tmp_path, text.replace("self.encoder = nn.Linear(4, 4)", frozen))


CHANGES = [
    "model.head = nn.Linear(4, 1)",
    "model.head.weight = nn.Parameter(torch.zeros(1, 4))",
    "setattr(model, 'head', nn.Linear(4, 1))",
    "model.add_module('head', nn.Linear(4, 1))",
    "model.widen()",
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_model_that_is_changed_after_it_was_wrapped_is_refused(tmp_path: Path, change: str) -> None:
    """The wrapper averages the gradients of the parameters that were there."""
    widen = "    def widen(self):\n        self.head = nn.Linear(4, 1)\n\n    def loss("
    text = trained().replace("    def loss(", widen)
    assert "changes the model after" in refused(tmp_path, f"{text}    {change}\n")


@pytest.mark.parametrize("change", CHANGES[:2])
def test_a_model_that_is_changed_before_it_is_wrapped_is_wrapped(tmp_path: Path, change: str) -> None:
    """The wrapper comes after the change."""
    after = distributed(tmp_path, trained(moved=f"{change}\n"))
    assert after.index(change) < after.index("DistributedDataParallel(model)")


def test_a_model_that_is_changed_in_a_loop_that_makes_it_anew_is_wrapped(tmp_path: Path) -> None:
    """Each round has a wrapper of its own."""
    text = trained(moved="model.head = nn.Linear(4, 1)\nmodel.width = 2\n")
    made = "model = Net()" + text.partition("model = Net()")[2]
    folds = "for fold in range(2):\n" + indent(made, "    ")
    assert "DistributedDataParallel(model)" in distributed(tmp_path, text.replace(made, folds))


BUFFERS = """\
        self.register_buffer("steps", torch.zeros(1))
        self.register_buffer("center", torch.zeros(4))

    def forward(self, x):
"""


@pytest.mark.parametrize(
    "line", ["self.center.mul_(0.9).add_(x.mean(0))", "self.center = x.mean(0)", "self.center[:] = x.mean(0)"]
)
def test_buffers_that_a_model_writes_from_its_batch_are_refused(tmp_path: Path, line: str) -> None:
    """Each process would write its own; what counts steps is the same for all."""
    text = trained().replace("\n    def forward(self, x):\n", BUFFERS + "        LINE\n")
    assert "writes a buffer from the batch" in refused(tmp_path, text.replace("LINE", line))
    distributed(tmp_path, text.replace("LINE", "self.steps += 1"))


@pytest.mark.parametrize("call", ["model.loss(x, y)", "nn.functional.mse_loss(model.head(model.encoder(x)), y)"])
def test_a_part_of_the_model_in_a_training_step_is_refused(tmp_path: Path, call: str) -> None:
    """Gradients of what the wrapper does not run are not averaged."""
    step = f"optimizer.zero_grad()\nloss = {call}\nloss.backward()\noptimizer.step()\n"
    assert "runs a part of the model in a training step" in refused(tmp_path, trained(step))


@pytest.mark.parametrize(
    "lines",
    [
        "sample = model.encoder(x)\nprint(sample.mean().item())",
        "torch.save(model.encoder(x), 'sample.pt')",
        "shown = []\nshown.append(model.encoder(x))\nprint(len(shown))",
    ],
)
def test_a_part_of_the_model_whose_result_is_in_no_loss_is_the_models_own(tmp_path: Path, lines: str) -> None:
    """There are no gradients to average."""
    assert 'getattr(model, "module", model).encoder(x)' in distributed(tmp_path, trained(STEP + lines + "\n"))


@pytest.mark.parametrize(
    "lines",
    [
        "hidden = model.encoder(x)\nloss = nn.functional.mse_loss(model(x), y) + hidden.mean()",
        "hidden = []\nhidden.append(model.encoder(x))\nloss = model(x).mean() + sum(hidden).mean()",
        "loss = nn.functional.mse_loss(model(x), y) + kept\nkept = model.encoder(x).mean()",
        "keep.hidden = model.encoder(x)\nloss = nn.functional.mse_loss(model(x), y) + keep.hidden.mean()",
    ],
)
def test_a_part_of_the_model_whose_result_may_be_in_a_loss_is_refused(tmp_path: Path, lines: str) -> None:
    """By whatever way it comes there."""
    step = f"optimizer.zero_grad()\n{lines}\nloss.backward()\noptimizer.step()\n"
    before = "class Keep:\n    pass\n\n\nkeep = Keep()\nkept = 0\n"
    assert "runs a part of the model" in refused(tmp_path, trained(step, before=before))


PENALTY = """\
def penalty(judge, x):
    x = x.detach().requires_grad_(True)
    judged = judge(x)
    slope = torch.autograd.grad(judged, x, torch.ones_like(judged), create_graph=True)[0]
    return (slope.norm(2, dim=1) - 1).pow(2).mean()


"""


@pytest.mark.parametrize("judge", ["nn.Linear(4, 1)", "nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 1))"])
def test_batch_norm_that_is_not_differentiated_twice_is_no_reason(tmp_path: Path, judge: str) -> None:
    """Here the other model has some."""
    step = """\
    optimizer_d.zero_grad()
    loss_d = judge(y.expand(-1, 4)).mean() - judge(model(x).detach()).mean() + penalty(judge, x)
    loss_d.backward()
    optimizer_d.step()
    optimizer.zero_grad()
    loss_g = judge(model(x)).mean()
    loss_g.backward()
    optimizer.step()
    """
    made = f"judge = {judge}\noptimizer_d = torch.optim.SGD(judge.parameters(), lr=0.1)\n"
    text = trained(step, before=PENALTY + made, model="nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))")
    report, _ = in_torch(tmp_path, text)
    told = " ".join(item.message for item in report.refusals)
    assert ("differentiated again" in told) is ("BatchNorm" in judge)


# ---- what reads the model -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("print(model.encoder)", 'print(getattr(model, "module", model).encoder)'),
        ("print(isinstance(model, Net))", 'print(isinstance(getattr(model, "module", model), Net))'),
        ("best = copy.deepcopy(model)", 'best = copy.deepcopy(getattr(model, "module", model))'),
        ("for name, p in model.named_parameters(): print(name)", 'getattr(model, "module", model).named_parameters()'),
        ("model.load_state_dict(model.state_dict())", 'getattr(model, "module", model).load_state_dict('),
        ("model.width = 3", 'getattr(model, "module", model).width = 3'),
        ("with torch.no_grad(): print(model.encoder(x))", 'getattr(model, "module", model).encoder(x)'),
    ],
)
def test_the_model_itself_is_asked_for_what_the_wrapper_lacks(tmp_path: Path, line: str, wanted: str) -> None:
    """After it was put around the model."""
    assert wanted in distributed(tmp_path, trained(after=line + "\n"))


@pytest.mark.parametrize("line", ["model.eval()", "print(sum(p.numel() for p in model.parameters()))", "print(model)"])
def test_the_wrapper_does_what_the_model_does(tmp_path: Path, line: str) -> None:
    """Nothing stands in its place there."""
    assert line in distributed(tmp_path, trained(after=line + "\n"))


def test_the_model_is_itself_before_it_is_wrapped(tmp_path: Path) -> None:
    """So it is in functions that get it before."""
    before = "def start(net):\n    net.encoder.reset_parameters()\n\n\n"
    after = distributed(tmp_path, trained(before=before, moved="start(model)\nprint(model.head)\nmodel.apply(print)\n"))
    assert "    net.encoder.reset_parameters()" in after and "print(model.head)" in after


def test_functions_and_objects_that_hold_the_wrapper_ask_for_the_model(tmp_path: Path) -> None:
    """Wherever it is passed to."""
    before = """\
    class Judge:
        def __init__(self, net):
            self.net = net

        @torch.no_grad()
        def judge(self, x):
            return self.net.encoder(x)


    """
    after = distributed(tmp_path, trained(before=before, after="print(Judge(model).judge(x))\n"))
    assert 'return getattr(self.net, "module", self.net).encoder(x)' in after


def test_what_one_process_runs_is_the_model_itself(tmp_path: Path) -> None:
    """The wrapper would send its buffers to processes that do not wait for them."""
    step = STEP + "if amp.is_main_process():\n    print(model(x).mean())\n"
    text = trained(step).replace("import copy\n", "import copy\nimport amp_runtime as amp\n", 1)
    text = text.replace("dataset = ", 'amp.init(opt_level="O1", ddp=True)\ndataset = ', 1)
    path = tmp_path / "train.py"
    path.write_text(text.replace("model = Net()", "model = amp.prepare_model(Net())"))
    report = migrate(path, Options(target="torch", ddp=True))
    after = report.changes[0].after if report.changes else ""
    assert 'print(getattr(model, "module", model)(x).mean())' in after, report.refusals


def test_a_list_of_models_is_wrapped_where_they_are_made(tmp_path: Path) -> None:
    """What a loop takes out of the list is the wrapper."""
    step = """\
    for net, opt in zip(nets, optimizers):
        opt.zero_grad()
        loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
        opt.step()
    """
    loop = "for epoch in range(2):\n    for x, y in loader:\n" + indent(dedent(step), " " * 8)
    made = (
        "nets = [Net() for _ in range(2)]\noptimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in nets]\n"
    )
    after = distributed(tmp_path, HEAD + made + loop + "print([net.head for net in nets])\n")
    assert "nets = [distributed(Net()) for _ in range(2)]" in after
    assert 'print([getattr(net, "module", net).head for net in nets])' in after


def test_who_asks_for_a_wrapper_asks_the_model_itself(tmp_path: Path) -> None:
    """Copies of weights then have the names of the model in any case."""
    before = """\
    def update(average, net):
        wrapped = hasattr(net, "module")
        state = net.state_dict()
        for name, p in average.items():
            p.copy_(state["module." + name if wrapped else name])


    """
    step = STEP + "with torch.no_grad():\n    update(average, model)\n"
    after = distributed(tmp_path, trained(step, before=before, moved="average = copy.deepcopy(model.state_dict())\n"))
    assert 'hasattr(getattr(net, "module", net), "module")' in after
    assert 'state = getattr(net, "module", net).state_dict()' in after


def test_a_model_that_is_compiled_with_its_wrapper_is_refused(tmp_path: Path) -> None:
    """Its checkpoints would have other names; one that is compiled first keeps them."""
    step = STEP.replace("model(x)", "fast(x)")
    text = trained(step, moved="model.apply(print)\nfast = torch.compile(model)\n")
    assert "compiled together with DistributedDataParallel" in refused(tmp_path, text)
    distributed(tmp_path, trained(moved="model = torch.compile(model)\n"))


def test_a_model_with_a_part_of_the_wrappers_name_is_refused(tmp_path: Path) -> None:
    """``model.module`` would be that part, alone."""
    text = trained(after="print(model.module, model.head)\n").replace(
        "self.head = nn.Linear(4, 1)", "self.head = nn.Linear(4, 1)\n        self.module = self.head"
    )
    assert "has a part `module`" in refused(tmp_path, text)


# ---- devices and DataParallel ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ('torch.device("cuda:0" if torch.cuda.is_available() else "cpu")', 'f"cuda:{LOCAL_RANK}" if torch.cuda'),
        ('torch.device("cuda:1")', 'torch.device(f"cuda:{LOCAL_RANK if WORLD_SIZE > 1 else 1}")'),
        ('torch.device("cuda", 0)', 'torch.device("cuda", LOCAL_RANK)'),
    ],
)
def test_a_numbered_device_is_that_of_the_process(tmp_path: Path, given: str, wanted: str) -> None:
    """Alone it is the one that the script names."""
    assert wanted in distributed(tmp_path, trained(before=f"device = {given}\n", moved="model.to(device)\n"))


def test_data_parallel_stays_for_one_process(tmp_path: Path) -> None:
    """DistributedDataParallel gives the same names."""
    after = distributed(
        tmp_path, trained(model="nn.DataParallel(Net())", after='torch.save(model.state_dict(), "model.pt")\n')
    )
    assert "model = torch.nn.DataParallel(Net(), device_ids=[LOCAL_RANK] if WORLD_SIZE > 1 else None)" in after
    assert "DistributedDataParallel(model.module" in after and "torch.save(model.state_dict()" in after
    whole = trained(model="nn.DataParallel(Net())", after='torch.save(model, "model.pt")\n')
    assert "saved as a whole" in refused(tmp_path, whole)


# ---- models that are saved as wholes ---------------------------------------------------------------------------------

_ITSELF = 'getattr(model, "module", model)'


@pytest.mark.parametrize(
    ("saved", "expected"),
    [
        ('state = {"net": model, "epoch": epoch}\ntorch.save(state, "x.pt")\n', f'{{"net": {_ITSELF}, "epoch"'),
        ('state = {"epoch": epoch}\nstate["net"] = model\ntorch.save(state, "x.pt")\n', f'state["net"] = {_ITSELF}\n'),
        ('torch.save([model, epoch], "x.pt")\n', f"torch.save([{_ITSELF}, epoch], "),
        ('torch.save([net for net in (model,)], "x.pt")\n', '[getattr(net, "module", net) for net in '),
        ('torch.save(dict(net=model), "x.pt")\n', f"torch.save(dict(net={_ITSELF}), "),
        ('torch.save({"all": (model, epoch)}, "x.pt")\n', f'{{"all": ({_ITSELF}, epoch)}}'),
        ('import pickle\npickle.dump({"net": model}, open("x.pt", "wb"))\n', f'{{"net": {_ITSELF}}}'),
    ],
)
def test_the_model_itself_is_saved(tmp_path: Path, saved: str, expected: str) -> None:
    """In a dictionary, a list or a tuple: whoever loads it has no other processes."""
    assert expected in distributed(tmp_path, trained(after=saved))


def test_a_function_that_saves_is_given_the_model_itself(tmp_path: Path) -> None:
    """What it is given holds the model where it is called."""
    text = trained(after='write({"net": model})\n', before='def write(state):\n    torch.save(state, "x.pt")\n\n\n')
    assert f'write({{"net": {_ITSELF}}})' in distributed(tmp_path, text)


def test_what_is_not_saved_keeps_the_wrapper(tmp_path: Path) -> None:
    """A list that training steps go over."""
    after = distributed(tmp_path, trained(after='torch.save({"epoch": epoch}, "x.pt")\nnets = [model]\n'))
    assert "nets = [model]" in after


@pytest.mark.parametrize(
    "saved",
    [
        'state = {"net": model}\nstate["net"].train()\ntorch.save(state, "x.pt")\n',
        'nets = [model]\nfor net in nets:\n    net.eval()\ntorch.save(nets, "x.pt")\n',
    ],
)
def test_what_is_used_besides_declines(tmp_path: Path, saved: str) -> None:
    """The model in it would be the wrapper for one, and the model itself for the other."""
    assert "saved as a whole" in refused(tmp_path, trained(after=saved))


def test_an_object_that_keeps_the_model_declines(tmp_path: Path) -> None:
    """Its attribute is the wrapper."""
    before = "class Holder:\n    def __init__(self, net):\n        self.net = net\n\n\n"
    text = trained(before=before, after='import pickle\npickle.dump(Holder(model), open("x.pt", "wb"))\n')
    assert "saved as a whole" in refused(tmp_path, text)


# ---- devices --------------------------------------------------------------------------------------------------------

MOVING = (
    HEAD[: HEAD.index("class Net")]
    + """\
class Trainer:
    def __init__(self, model, optimizer):
        self.model = model.to("cuda" if torch.cuda.is_available() else "cpu")
        self.optimizer = optimizer

    def train(self):
        for x, y in loader:
            self.optimizer.zero_grad()
            loss = nn.functional.mse_loss(self.model(x), y)
            loss.backward()
            self.optimizer.step()


def main():
    model = nn.Linear(4, 1)
    {moved}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    Trainer(model, optimizer).train()


main()
"""
)


def test_a_model_that_its_trainer_moves_is_wrapped_there(tmp_path: Path) -> None:
    after = distributed(tmp_path, MOVING.format(moved="pass"))
    moves = 'self.model = model.to("cuda" if torch.cuda.is_available() else "cpu")\n'
    wraps = "        if WORLD_SIZE > 1:\n            self.model = DistributedDataParallel(self.model)\n"
    assert moves + wraps in after and "model = nn.Linear(4, 1)\n" in after


@pytest.mark.parametrize(
    "old, new",
    [
        ('        self.model = model.to("cuda"', '        self.model = model\n        if True: self.model.to("cuda"'),
        ("    Trainer(model, optimizer).train()", "    for _ in range(2):\n        Trainer(model, optimizer).train()"),
        ("    Trainer(model, optimizer).train()", "    if len(dataset):\n        Trainer(model, optimizer).train()"),
        (
            "    Trainer(model, optimizer).train()",
            "    Trainer(model, optimizer)\n    Trainer(model, optimizer).train()",
        ),
    ],
)
def test_a_model_that_its_trainer_may_move_after_it_was_wrapped_declines(tmp_path: Path, old: str, new: str) -> None:
    text = MOVING.format(moved="pass")
    assert old in text
    assert "after DistributedDataParallel wrapped it" in refused(tmp_path, text.replace(old, new))


def test_a_model_that_is_trained_by_another_name_declines(tmp_path: Path) -> None:
    """What its trainer moves and wraps is not what the steps run."""
    text = MOVING.format(moved="pass").replace("self.model(x), y", "self.inner(x), y")
    text = text.replace(
        "        self.optimizer = optimizer\n", "        self.inner = model\n        self.optimizer = optimizer\n"
    )
    assert "made before DistributedDataParallel was put around it" in refused(tmp_path, text)


@pytest.mark.parametrize("away", ["model.cpu()", 'model.to("cpu")', 'model.to(torch.device("cpu"))'])
def test_a_model_that_leaves_its_device_between_steps_declines(tmp_path: Path, away: str) -> None:
    """Its parameters come back without the hooks that average their gradients."""
    text = MOVING.format(moved='model = model.to("cuda")').replace(
        "            self.optimizer.step()\n",
        f'            self.optimizer.step()\n            torch.save(self.{away}.state_dict(), "x.pt")\n'
        '            self.model.to("cuda")\n',
    )
    assert "takes a model from its device between steps" in refused(tmp_path, text)


@pytest.mark.parametrize(
    "saved", ["best = copy.deepcopy(model)\n    best.cpu()\n", 'torch.save(model.cpu().state_dict(), "x.pt")\n']
)
def test_a_model_that_leaves_its_device_at_the_end_is_wrapped(tmp_path: Path, saved: str) -> None:
    text = "import copy\n" + MOVING.format(moved='model = model.to("cuda")')
    text = text.replace("optimizer).train()\n", f"optimizer).train()\n    {saved}")
    assert "model = DistributedDataParallel(model)" in distributed(tmp_path, text)


def test_a_model_that_was_on_its_device_before_is_wrapped(tmp_path: Path) -> None:
    text = MOVING.format(moved='model = model.to("cpu")')
    assert "model = DistributedDataParallel(model)" in distributed(tmp_path, text)


# ---- numbers that a model keeps --------------------------------------------------------------------------------------

SIZED = """
class Sized(Net):
    def __init__(self, size):
        super().__init__()
        self.size = size
        self.place = torch.device("cpu")
        self.extra = nn.Linear(4, 1)
        self.given = {given}

"""
ASKED = """\
optimizer.zero_grad()
start = torch.zeros({asked})
loss = nn.functional.mse_loss(model(x), y) + {used}
loss.backward()
optimizer.step()
"""


@pytest.mark.parametrize("size", ["len(dataset)", "4", "dataset.tensors[0].size(1)"])
def test_a_number_of_the_model_is_read_from_itself(tmp_path: Path, size: str) -> None:
    """In a training step, too: no loss comes of it."""
    step = ASKED.format(asked="2, model.size, device=model.place", used="start.sum()")
    after = distributed(tmp_path, trained(step, before=SIZED.format(given="size"), model=f"Sized({size})"))
    itself = 'getattr(model, "module", model)'
    assert f"torch.zeros(2, {itself}.size, device={itself}.place)" in after


@pytest.mark.parametrize("used", ["apply(model.extra, x)", "apply(model.given, x)"])
def test_a_layer_of_the_model_is_none(tmp_path: Path, used: str) -> None:
    """Whoever is given it may run it."""
    before = SIZED.format(given="nn.Sequential(self.extra)") + "def apply(layer, x):\n    return layer(x).sum()\n\n\n"
    text = trained(ASKED.format(asked="2", used=used), before=before, model="Sized(4)")
    assert "runs a part of the model" in refused(tmp_path, text)


# ---- what is noted ---------------------------------------------------------------------------------------------------


def _kept(folder: Path, text: str) -> list[str]:
    """The sentences on what torch does not keep."""
    report, _ = in_torch(folder, text)
    return [note.text for note in report.notes if note.code == "AMP183"]


def test_one_gpu_in_place_of_several_is_noted_once(tmp_path: Path) -> None:
    """Also where several models had them; where there was no DataParallel nothing is said of it."""
    spread = "if torch.cuda.device_count() > 1:\n    model = nn.DataParallel(model)\n"
    step = STEP.replace("model(x)", "model(x.cuda())")
    for times in (1, 2):
        found = _kept(tmp_path, trained(step, moved=spread * times))
        assert sum("several GPUs in one process" in text for text in found) == 1
    assert not any("several GPUs" in text for text in _kept(tmp_path, trained(moved="model.cuda()\n")))


def test_inputs_that_the_wrapper_took_to_the_gpu_are_still_taken_there(tmp_path: Path) -> None:
    """In one process by DataParallel, in several by DistributedDataParallel, which does so for devices it is told."""
    after = distributed(tmp_path, trained(moved="model.cuda()\nmodel = nn.DataParallel(model)\n"))
    assert "model = torch.nn.DataParallel(model, device_ids=[LOCAL_RANK] if WORLD_SIZE > 1 else None)" in after
    assert "model.module, device_ids=[LOCAL_RANK] if next(model.parameters()).is_cuda else None" in after


@pytest.mark.parametrize(
    ("model", "moved", "is_noted"),
    [
        ("nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 1))", "model.cuda()\n", True),
        ("nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 1))", "", False),
        ("nn.Sequential(vgg.features(4), nn.Linear(4, 1))", "model.cuda()\n", False),
    ],
)
def test_batch_norm_of_each_process_is_noted_where_there_is_one(
    tmp_path: Path, model: str, moved: str, is_noted: bool
) -> None:
    """Nothing is said of what a package may have, nor of a program that never uses a GPU."""
    text = trained(model=model, moved=moved, before="import vgg\n" if "vgg" in model else "")
    assert any(note.startswith("plain torch does not keep batch norm") for note in _kept(tmp_path, text)) is is_noted


def test_each_limit_is_a_note_of_its_own_and_the_first_matters_most(tmp_path: Path) -> None:
    """What may train otherwise comes before batch norm on the CPU."""
    model = "nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 1))"
    step = STEP.replace("model(x)", "model(x.cuda())")
    found = _kept(tmp_path, trained(step, model=model, moved="model.cuda()\nmodel = nn.DataParallel(model)\n"))
    assert len(found) > 2 and not any("; batch norm" in text for text in found)
    assert "several GPUs" in found[0] and any("batch norm" in text for text in found[1:])


def test_where_gradients_are_averaged_is_said_as_it_is(tmp_path: Path) -> None:
    """Accumulated ones are averaged at the step by the runtime, and in each backward pass by the wrapper."""
    (tmp_path / "train.py").write_text(
        """import torch
from torch import nn

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(64, 4))
for i, (x,) in enumerate(torch.utils.data.DataLoader(data, batch_size=8)):
    (model(x).square().mean() / 4).backward()
    if (i + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
""",
        encoding="utf-8",
    )
    said = {}
    for target in ("runtime", "torch"):
        edits = migrate(tmp_path / "train.py", Options(target=target, ddp=True)).edits
        said[target] = " ".join(edit.message for edit in edits if edit.code == "AMP108")
    assert "averaged at the step, because" in said["runtime"]
    assert "averaged in each backward pass" in said["torch"] and "at the step" not in said["torch"]


# ---- exclusive branches ----------------------------------------------------------------------------------------------

TWICE = (
    HEAD[: HEAD.index("class Net")]
    + """\
if len(dataset) > 40:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
    torch.save(model.state_dict(), "narrow.pt")
else:
    model = nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
"""
)


def test_a_wrapper_of_the_other_branch_is_another_model(tmp_path: Path) -> None:
    after = distributed(tmp_path, TWICE)
    assert after.count("model = DistributedDataParallel(model)") == 2
    assert f'torch.save({_ITSELF}.state_dict(), "narrow.pt")' in after
