"""Where a step may leave parameters out, plain PyTorch averages at the step, and nowhere else because of that.

The runtime completes such a pass itself.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from amp_rules import migrate
from amp_rules.plan.gradient_averaging import Averaging, averaging
from amp_rules.plan.options import Options
from amp_rules.plan.precision import plan
from amp_rules.roles.program import Program
from amp_rules.source.project import Project

SCRIPT = """import random
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self, normed=True):
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.paths = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(8, 3)
        self.normed = normed
        self.stage = 0

    def forward(self, x, choice=0, extra=None):
        x = self.body(x)
{forward}
        return self.head(x)

loader = DataLoader(TensorDataset(torch.randn(96, 8), torch.randint(0, 3, (96,))), batch_size=16, shuffle=True)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for i, (x, y) in enumerate(loader):
        optimizer.zero_grad()
{step}
        loss.backward()
        optimizer.step()
"""
ALL = "for path in self.paths:\n    x = path(x)"
PLAIN = "loss = F.cross_entropy(model(x), y)"


def written(folder: Path, source: str) -> Path:
    entry = folder / "train.py"
    entry.write_text(source, encoding="utf-8")
    return entry


def averaged(folder: Path, source: str, *, completes: bool = False) -> Averaging:
    """How the gradients of a script are averaged, by the runtime or by what does not complete a backward pass."""
    program = Program(Project(written(folder, source)))
    precision = plan(program)
    assert precision is not None
    return averaging(program, precision, completes=completes)


def script(forward: str = ALL, step: str = PLAIN) -> str:
    return SCRIPT.format(forward=textwrap.indent(forward, " " * 8), step=textwrap.indent(step, " " * 8))


def message(folder: Path, forward: str = ALL, step: str = PLAIN) -> str:
    found = averaged(folder, script(forward, step))
    assert found.delayed is bool(found.reason) and not found.unused
    return found.reason


@pytest.mark.parametrize(
    "forward",
    [
        ALL,
        "for i in range(len(self.paths)):\n    x = self.paths[i](x)",
        "for i, path in enumerate(self.paths):\n    x = path(x) if i else torch.relu(path(x))",
        "if self.normed:\n    x = self.paths[0](x)\nx = self.paths[1](x) + self.paths[2](x)",
        "if x.shape[1] == 8 and x.dim() == 2:\n    x = self.paths[0](x)\nx = self.paths[-1](self.paths[1](x))",
        f"if extra is not None:\n    x = self.paths[0](extra)\n{ALL}",
        f"if isinstance(choice, int) and choice > 3:\n    return self.paths[0](x)\n{ALL}",
        f"if self.training and random.random() < 0.5:\n    x = self.drop(x)\n{ALL}",
        f"{ALL}\nif torch.rand(1).item() < 0.1:\n    x = x * 2",
        "def step(h, number):\n    return self.paths[number](h)\nfor i in range(3):\n    x = step(x, i)",
        "found = [x]\nfor i in range(2):\n    found.append(torch.relu(found[-1]))\n"
        "for i, part in enumerate(found):\n    x = x + self.paths[i](part)",
        f"{ALL}\nkept = (x.argmax(1) >= 0).nonzero()[:, 0]\nx = self.paths[0](x)[kept]",
    ],
)
def test_parts_that_every_step_uses_leave_the_wrapper_where_it_was(tmp_path: Path, forward: str) -> None:
    assert message(tmp_path, forward) == ""


@pytest.mark.parametrize(
    "forward",
    [
        "x = self.paths[random.randrange(3)](x)",
        "x = random.choice(self.paths)(x)",
        "if random.random() < 0.5:\n    return self.head(x)\n" + ALL,
        "for path in self.paths:\n    if self.training and torch.rand(1) < 0.2:\n        continue\n    x = path(x)",
        "near = x.mean()\nif near.item() > 0:\n    x = self.paths[0](x)",
        "for i, path in enumerate(self.paths):\n    rows = (x.argmax(1) % 3 == i).nonzero()[:, 0]\n"
        "    if len(rows) == 0:\n        continue\n    x[rows] = path(x[rows])",
        "for path in self.paths[: random.randint(1, 3)]:\n    x = path(x)",
        "for i, h in enumerate(iterable=x[: random.randint(1, 3)]):\n    x = x + self.paths[i](h)",
        "x = self.paths[0](x) if bool((x > 0).any()) else self.paths[1](x)",
        "with torch.no_grad():\n    x = self.paths[0](x)",
    ],
)
def test_parts_that_are_chosen_anew_in_each_step_are_averaged_at_the_step(tmp_path: Path, forward: str) -> None:
    assert "`" in message(tmp_path, forward)


@pytest.mark.parametrize(
    ("forward", "step", "delayed"),
    [
        ("x = self.paths[choice](x)", "loss = F.cross_entropy(model(x, i % 3), y)", True),
        ("x = self.paths[choice](x)", "task = i % 3\nloss = F.cross_entropy(model(x, choice=task), y)", True),
        ("x = self.paths[choice](x)", PLAIN, False),
        ("if choice > 1:\n    x = self.paths[0](x)", "loss = F.cross_entropy(model(x, epoch), y)", True),
        ("if choice > 1:\n    x = self.paths[0](x)", "loss = F.cross_entropy(model(x, 2), y)", False),
        (
            "if extra is not None:\n    x = x + self.paths[0](extra)",
            "given = x\nif random.random() < 0.1:\n    given = None\nloss = F.cross_entropy(model(x, extra=given), y)",
            True,
        ),
        (
            "if extra is not None:\n    x = x + self.paths[0](extra)",
            "loss = F.cross_entropy(model(x, extra=x), y)",
            False,
        ),
        ("if self.stage > 1:\n    x = self.paths[0](x)", "model.stage = epoch\n" + PLAIN, True),
        ("if self.stage > 1:\n    x = self.paths[0](x)", PLAIN, True),
        (ALL, PLAIN + "\nif type(model) is Net:\n    pass", True),
        (ALL, PLAIN + "\nif type(model).__name__ == 'Net' and isinstance(model, Net):\n    pass", False),
    ],
)
def test_what_the_loop_gives_decides(tmp_path: Path, forward: str, step: str, delayed: bool) -> None:
    assert bool(message(tmp_path, forward, step)) is delayed


@pytest.mark.parametrize(
    ("returned", "step", "delayed"),
    [
        ("self.head(hidden), self.paths[1](hidden)", "a, b = model(x)\nloss = F.cross_entropy(a, y) + b.mean()", False),
        ("self.head(hidden), self.paths[1](hidden)", "a, _ = model(x)\nloss = F.cross_entropy(a, y)", True),
        ("self.head(hidden), hidden", "a, _ = model(x)\nloss = F.cross_entropy(a, y)", False),
        (
            "self.head(hidden), self.paths[1](hidden)",
            "a, b = model(x)\nloss = F.cross_entropy(a, y)\nif epoch > 1:\n    loss = loss + b.mean()",
            True,
        ),
        (
            "self.head(hidden), self.paths[1](hidden)",
            "a, b = model(x)\nloss = F.cross_entropy(a, y) if i % 2 else b.mean()",
            True,
        ),
        (
            '{"a": self.head(hidden), "b": self.paths[1](hidden)}',
            'out = model(x)\nloss = F.cross_entropy(out["a"], y)\nif epoch > 1:\n    loss += out["b"].mean()',
            True,
        ),
        (
            '{"a": self.head(hidden), "b": self.paths[1](hidden)}',
            'out = model(x)\nloss = F.cross_entropy(out["a"], y)',
            True,
        ),
        ("self.head(hidden), self.paths[1](hidden)", "loss = F.cross_entropy(model(x)[0], y)", True),
        ("self.head(hidden), hidden", "loss = F.cross_entropy(model(x)[0], y)", False),
        (
            "self.head(hidden), self.paths[1](hidden)",
            "out = model(x)\nloss = F.cross_entropy(out[0], y)\nloss = loss + sum(out)",
            False,
        ),
        (
            "self.head(hidden), self.paths[1](hidden)",
            "a, b = model(x)\nlosses = [F.cross_entropy(a, y), b.mean()]\nloss = losses[i % 2]",
            True,
        ),
    ],
)
def test_outputs_that_enter_the_loss_in_some_steps_only(
    tmp_path: Path, returned: str, step: str, delayed: bool
) -> None:
    forward = f"hidden = self.paths[0](x)\nreturn {returned}"
    assert bool(message(tmp_path, forward, step)) is delayed


LOSSES = """import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.kind = nn.Linear(8, 3)
        self.box = nn.Linear(8, 4)

    def forward(self, x):
        hidden = torch.relu(self.body(x))
        box = self.box(hidden)
        box = box.view(-1, 4)
        return {returned}


class Criterion(nn.Module):
    def __init__(self, weight=1.0):
        super().__init__()
        self.weight = weight

    def forward(self, kinds, boxes, targets):
        kind, place = targets[:, 0].long(), targets[:, 1:]
        found = kind > 0
        first = F.cross_entropy(kinds, kind)
{body}


loader = DataLoader(TensorDataset(torch.randn(96, 8), torch.randint(0, 3, (96, 5))), batch_size=16, shuffle=True)
model = Net()
criterion = Criterion()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    kinds, boxes = model(x)
    loss = criterion(kinds, boxes, y)
    loss.backward()
    optimizer.step()
"""
TWO_HEADS = "self.kind(hidden), box"


@pytest.mark.parametrize(
    ("returned", "body", "delayed"),
    [
        (
            TWO_HEADS,
            "if found.any():\n    second = F.l1_loss(boxes[found], place[found])\n"
            "else:\n    second = torch.tensor(0.0)\nreturn first + second",
            True,
        ),
        (
            TWO_HEADS,
            "second = 0.0\nif found.sum() > 0:\n    second = F.l1_loss(boxes[found], place[found])\n"
            "return first + second",
            True,
        ),
        (
            TWO_HEADS,
            "losses = [first]\nchosen = boxes[found]\nif found.sum() > 0:\n"
            "    losses.append(F.l1_loss(chosen, place[found]))\nreturn torch.stack(losses).sum()",
            True,
        ),
        (TWO_HEADS, "if not found.any():\n    return first\nreturn first + F.l1_loss(boxes, place)", True),
        (
            TWO_HEADS,
            "chosen = boxes[found]\nif chosen.shape[0] == 0:\n    return first\nreturn first + chosen.mean()",
            True,
        ),
        (
            TWO_HEADS,
            "second = F.l1_loss(boxes, place) if found.any() else torch.tensor(0.0)\nreturn first + second",
            True,
        ),
        (
            TWO_HEADS,
            "if found.any():\n    second = F.l1_loss(boxes[found], place[found])\n"
            "else:\n    second = boxes.sum() * 0.0\nreturn first + second",
            False,
        ),
        (
            TWO_HEADS,
            "if not found.any():\n    return first + boxes.sum() * 0\nreturn first + F.l1_loss(boxes, place)",
            False,
        ),
        (
            TWO_HEADS,
            "second = F.l1_loss(boxes, place)\nif found.any():\n    second = second + F.mse_loss(boxes, place)\n"
            "return first + second",
            False,
        ),
        (TWO_HEADS, "if found.any():\n    print(boxes.mean())\nreturn first + F.l1_loss(boxes, place)", False),
        (
            TWO_HEADS,
            "if self.weight == 1.0:\n    return first + F.l1_loss(boxes, place)\nreturn first + boxes.mean()",
            False,
        ),
        (
            TWO_HEADS,
            "if found.any():\n    first = first * 2\nreturn first + F.l1_loss(boxes, place)",
            False,
        ),
        (
            "self.kind(box.repeat(1, 2)), box",
            "second = 0.0\nif found.any():\n    second = F.l1_loss(boxes[found], place[found])\nreturn first + second",
            False,
        ),
        (
            "self.kind(hidden), hidden[:, :4]",
            "second = 0.0\nif found.any():\n    second = F.l1_loss(boxes[found], place[found])\nreturn first + second",
            False,
        ),
    ],
)  # fmt: skip
def test_outputs_of_which_a_loss_is_made_for_some_data_alone(
    tmp_path: Path, returned: str, body: str, delayed: bool
) -> None:
    source = LOSSES.format(returned=returned, body=textwrap.indent(body, " " * 8))
    assert ("decides which outputs of the model enter the loss" in averaged(tmp_path, source).reason) is delayed


NETWORK = """import torch
import torch.nn.functional as F
import torchvision
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
{imports}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
{made}
        self.head = nn.Linear(8, 3)

    def forward(self, x):
{forward}
        return self.head(x)


loader = DataLoader(TensorDataset(torch.randn(96, 8), torch.randint(0, 3, (96,))), batch_size=16, shuffle=True)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
"""
RESNET = "self.net = torchvision.models.resnet18()"
PARTS = "x = self.net.layer1(self.net.bn1(self.net.conv1(x)))\nx = self.net.layer4(self.net.layer3(self.net.layer2(x)))"
BERT = 'self.bert = BertModel.from_pretrained("bert-base-uncased")'


def of_network(folder: Path, made: str, forward: str, imports: str = "") -> str:
    made, forward = (textwrap.indent(lines, " " * 8) for lines in (made, forward))
    return averaged(folder, NETWORK.format(imports=imports, made=made, forward=forward)).reason


@pytest.mark.parametrize(
    ("made", "forward", "reason"),
    [
        (RESNET, "x = self.net(x)", ""),
        (RESNET, PARTS, "`Net.net` is a whole network, of which `fc` takes no part in a forward pass"),
        (f"{RESNET}\nself.net.fc = nn.Identity()", PARTS, ""),
        (f"{RESNET}\ndel self.net.fc", PARTS, ""),
        (f"{RESNET}\nself.net.fc = nn.Linear(512, 8)", "x = self.net(x)", ""),
        (f"{RESNET}\nwidth = self.net.fc.in_features", PARTS, "of which `fc` takes no part"),
        (f"{RESNET}\nself.body = nn.Sequential(*list(self.net.children())[:-1])", "x = self.body(x)", "of which"),
        (f"{RESNET}\nfor p in self.net.parameters():\n    p.requires_grad = False", PARTS, ""),
        (RESNET.replace("resnet18", "googlenet"), "x = self.net.conv1(x)", "`Net.net` is a network of a library"),
        ("self.body = nn.Sequential(*list(torchvision.models.resnet18().children())[:-1])", "x = self.body(x)", ""),
        (RESNET.replace("resnet18", "vgg16"), "x = self.net.features(x)", "of which `classifier` takes no part"),
        (BERT, "x = self.bert(x)[0]", "nothing is seen to use the pooled output of `Net.bert`"),
        (BERT, "out = self.bert(x)\nx = out.last_hidden_state[:, 0]", "pooled output of `Net.bert`"),
        (BERT, "hidden, pooled = self.bert(x)\nx = hidden[:, 0]", "pooled output of `Net.bert`"),
        (BERT, "hidden, pooled = self.bert(x)\nx = pooled", ""),
        (BERT, "x = self.bert(x).pooler_output", ""),
        (BERT, "out = self.bert(x)\nx = out[1]", ""),
        (BERT.replace('")', '", add_pooling_layer=False)'), "x = self.bert(x)[0]", ""),
        (BERT.replace("Bert", "DistilBert"), "x = self.bert(x)[0]", ""),
    ],
)  # fmt: skip
def test_networks_of_libraries_of_which_a_part_is_used(tmp_path: Path, made: str, forward: str, reason: str) -> None:
    found = of_network(tmp_path, made, forward, "from transformers import BertModel, DistilBertModel\n")
    assert reason in found
    assert bool(found) is bool(reason)


@pytest.mark.parametrize(
    ("setting", "forward", "skipped"),
    [
        ("normed", "if self.normed:\n    x = self.norm(x)", True),
        ("normed", "if not self.normed:\n    x = self.norm(x)", True),
        ("kind", "if self.kind == 'layer':\n    x = self.norm(x)", True),
        ("kind", "if self.kind == 'pre':\n    x = self.norm(x)\nelse:\n    x = self.norm(x * 2)", False),
        ("kind", "if self.kind == 'pre':\n    x = self.norm(x)\nelse:\n    raise ValueError(self.kind)", False),
        ("kind", "if self.kind == 'bare':\n    return x\nx = self.norm(x)", True),
        ("kind", "if self.norm is not None:\n    x = self.norm(x)", False),
        ("kind", "if self.norm:\n    x = self.norm(x)", False),
        ("kind", "if self.norm == 1:\n    x = self.norm(x)", True),
        ("kind", "if self.training:\n    x = self.norm(x)", False),
        ("kind", "if self.kind in ('layer', 'group'):\n    x = self.norm(x)", True),
        ("kind", "if self.kind is not None:\n    x = self.norm(x)", False),
        ("kind", "if self.kind == 'pre' or self.kind == 'post':\n    x = self.norm(x)", True),
        ("kind", "if self.kind.normed:\n    x = self.norm(x)", True),
        ("kind", "if OPTIONS.normed:\n    x = self.norm(x)", True),
        ("kind", "if OPTIONS['depth'] > 1:\n    x = self.norm(x)", True),
        ("kind", "if self.head.bias is not None:\n    x = self.norm(x)", False),
        ("kind", "if self.kind.normed:\n    x = self.norm(x)\nelse:\n    x = self.norm(x + 1)", False),
        ("kind", "if self.kind.normed:\n    for part in [self.norm]:\n        x = part(x)", True),
        ("kind", "if torch.backends.cudnn.enabled:\n    x = self.norm(x)", False),
    ],
)  # fmt: skip
def test_layers_that_a_setting_leaves_out(tmp_path: Path, setting: str, forward: str, skipped: bool) -> None:
    made = f"import os\nself.{setting} = os.environ.get('SETTING')\nself.norm = nn.LayerNorm(8)"
    (tmp_path / "options.py").write_text("import os\nOPTIONS = make(os.environ)\n", encoding="utf-8")
    found = of_network(tmp_path, made, forward, "from options import OPTIONS")
    assert ("is a setting, by which layers may be left out" in found) is skipped


@pytest.mark.parametrize(
    ("forward", "skipped"),
    [
        ("if x.size(-1) != self.width:\n    x = self.norm(x)", True),
        ("if x.shape[-1] == 8:\n    x = self.norm(x)", True),
        ("if x.dim() == 2 and self.width > 4:\n    x = self.norm(x)", True),
        ("rows, width = x.shape\nif width != self.width:\n    x = self.norm(x)", True),
        ("if x.dim() == 3:\n    return x\nx = self.norm(x)", True),
        ("if x.dim() == 2:\n    x = self.norm(x)\nelse:\n    x = self.norm(x[0])", False),
        ("if x.dim() == 2:\n    x = self.norm(x)\nelse:\n    raise ValueError(x.shape)", False),
        ("if x.dim() == 3:\n    x = x[0]\nx = self.norm(x)", False),
        ("if x.size(-1) != self.width:\n    x = self.norm(x)\nx = self.norm(x)", False),
        ("for i in range(x.size(0)):\n    if i < x.size(0) - 1:\n        x = self.norm(x)", False),
        ("for part in (x, x[:4]):\n    if part.size(0) > 4:\n        x = self.norm(part)", False),
        ("if self.head.weight.size(0) == 3:\n    x = self.norm(x)", False),
        ("if x.dtype == torch.float16:\n    x = self.norm(x)", False),
    ],
)  # fmt: skip
def test_layers_that_a_shape_leaves_out(tmp_path: Path, forward: str, skipped: bool) -> None:
    found = of_network(tmp_path, "self.width = 8\nself.norm = nn.LayerNorm(8)", forward)
    assert ("may leave layers out" in found) is skipped


@pytest.mark.parametrize(
    ("forward", "reason"),
    [
        ("x = x + self.norm(x).detach()", "`self.norm(x).detach()` (line 16) cuts off"),
        ("found = self.norm(x)\nx = x + found.detach()", "`found.detach()` (line 17) cuts off"),
        ("x = x + self.norm(x).data", "`self.norm(x).data` (line 16) cuts off"),
        ("x = x + self.norm(x).argmax(1)[:, None]", "cuts off"),
        ("found = self.norm(x)\nx = found + found.detach()", ""),
        ("x = self.norm(x) + self.norm(x).detach()", ""),
        ("self.norm.requires_grad_(False)\nx = x + self.norm(x).detach()", ""),
        ("if not self.training:\n    x = self.norm(x)", "`not self.training` (line 16) leaves layers out of training"),
        ("if not self.training:\n    return self.norm(x)", "leaves layers out of training"),
        ("x = self.norm(x)\nif not self.training:\n    x = self.plain(x)", ""),
        ("if self.training:\n    return self.norm(x)", "`self.training` (line 16) leaves layers out of training"),
        ("if self.training:\n    x = self.norm(x)", ""),
    ],
)  # fmt: skip
def test_parts_that_no_gradient_comes_to(tmp_path: Path, forward: str, reason: str) -> None:
    found = of_network(tmp_path, "self.plain = nn.ReLU()\nself.norm = nn.LayerNorm(8)", forward)
    assert reason in found
    assert bool(found) is bool(reason)


TURNS = "x = self.paths[choice](x)"
DRAWN = "loss = F.cross_entropy(model(x, random.randrange(3)), y)"
MOVED = """
def move(model, kept):
    for name, weight in model.named_parameters():
        if "body" in name:
            kept[name] = weight.data.clone()
            norm = torch.norm(weight.grad)
            if norm != 0:
                weight.data.add_(0.1 * weight.grad / norm)


def move_back(model, kept):
    for name, weight in model.named_parameters():
        if name in kept:
            weight.data = kept[name]


loader ="""
MOVES = f"{DRAWN}\nloss.backward()\nkept = {{}}\nmove(model, kept)\n{DRAWN}\nloss.backward()\nmove_back(model, kept)"


def test_the_runtime_completes_a_pass_that_leaves_the_same_part_out_on_all_ranks(tmp_path: Path) -> None:
    source = script(ALL).replace("        self.stage", "        self.spare = nn.Linear(8, 3)\n        self.stage")
    assert averaged(tmp_path, source).delayed
    assert averaged(tmp_path, source, completes=True) == Averaging(False)
    report = migrate(tmp_path / "train.py", Options(ddp=True))
    assert (report.precision, report.distribution) == ("migrated", "migrated"), report.refusals
    assert "amp.prepare_model(Net())" in "".join(change.after for change in report.changes)
    assert not [note for note in report.notes if note.code == "AMP289"]


def test_parts_that_differ_between_ranks_wait_for_the_step(tmp_path: Path) -> None:
    assert averaged(tmp_path, script(TURNS, DRAWN), completes=True).delayed


def test_a_script_that_moves_weights_along_its_gradients_needs_them_whole_before_the_step(tmp_path: Path) -> None:
    step = textwrap.indent(f"{MOVES}\n", " " * 8)
    source = SCRIPT.format(forward=textwrap.indent(TURNS, " " * 8), step=step).replace("\nloader =", MOVED)
    source = source.replace(f"{step}\n        loss.backward()\n", step)
    assert averaged(tmp_path, source, completes=True).delayed


AGAIN = """
def refined(model, x, rounds, wide):
    out = model(x, wide)
    return out if rounds == 0 else out + refined(model, x, rounds - 1, wide)


loader ="""


def test_an_argument_that_a_function_hands_to_itself_is_followed_once(tmp_path: Path) -> None:
    source = script("if choice:\n    x = self.paths[0](x)", "loss = F.cross_entropy(refined(model, x, 2, 1), y)")
    assert averaged(tmp_path, source.replace("\nloader =", AGAIN)).delayed


SCRIPTS = Path(__file__).parent.parent.parent / "fixtures" / "AMP108"
REASONS = {
    "average_kept_within_the_model": "`Denoiser.average_net` takes no part in a forward pass",
    "chosen_head": "`self.heads[task]` (line 16) takes another part of the model in another step",
    "derived_from_a_library_s_network": (
        "`Ranker` has parts of `transformers.T5ForConditionalGeneration`, which cannot be read"
    ),
    "derived_from_a_network_of_diffusers": "`Denoiser` has parts of `diffusers.UNet2DModel`, which cannot be read",
    "first_output_under_its_name_again": "nothing is seen to use the pooled output of `Classifier.encoder`",
    "late_loss": "`epoch > 1` (line 26) decides which outputs of the model enter the loss",
    "layer_for_another_shape": "`x.size(-1) != self.width` (line 16) may leave layers out",
    "layer_of_a_method_said_once_more": "`Net.norm` takes no part in a forward pass",
    "loss_of_no_boxes": "`target[0] > 1` (line 23) decides which outputs of the model enter the loss",
    "made_by_an_unknown_call": (
        "the model that `getattr(importlib.import_module(module), name)(8)` (line 21) makes cannot be read"
    ),
    "model_of_a_setting_given_to_a_trainer": (
        'the model that `initialize(settings["model"])` (line 33) makes cannot be read'
    ),
    "model_saved_whole_given_to_a_trainer": (
        'the model that `torch.load("model.pth", weights_only=False)` (line 20) makes cannot be read'
    ),
    "network_by_another_name": (
        "`Net.base` is a whole network, of which `fc` and `layer2` and `layer3` and `layer4` "
        "take no part in a forward pass"
    ),
    "network_on_a_body_of_fastai": "the model that `DynamicUnet(body, 2, (64, 64))` (line 12) makes cannot be read",
    "network_used_in_parts": "`Backbone.resnet` is a whole network, of which `fc` takes no part in a forward pass",
    "one_of_its_classes_keeps_a_layer_unused": "`Deep.head` takes no part in a forward pass",
    "output_compared_in_later_tasks": "`args.task > 0` (line 28) decides which outputs of the model enter the loss",
    "output_never_read_under_a_name_used_before": "`out` (line 30), which a part of the model makes, enters no loss",
    "output_read_in_one_branch": "`aux` (line 34), which a part of the model makes, enters no loss",
    "part_cut_off_by_a_switch": "`features = features.detach()` (line 16) cuts off the gradients of a part",
    "part_under_an_option": "`placed` (line 17) is a setting, by which layers may be left out",
    "parts_named_by_setattr": "`Net.auxlayer` takes no part in a forward pass",
    "skipped_block": (
        "`self.training and torch.rand(1).item() < self.rate` (line 14) may leave a part of the model out of a step"
    ),
    "unused_layer_derived_from_a_layer": "`Net.spare` takes no part in a forward pass",
    "unused_layer_of_a_part": "`Backbone.fc` takes no part in a forward pass",
    "weight_handed_back_in_a_branch": "`self.revision.weight` (line 13) may take no part in a step",
    "weights_begun_in_a_part": "`self.features(x)` (line 21) runs without gradients",
}
"""The scripts of which a step may leave parameters out, and why; the runtime completes the pass, without a word."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(path.parent.name, marks=() if path.parent.name in REASONS else pytest.mark.heavy)
        for path in sorted(SCRIPTS.glob("*/before.py"))
    ],
)
def test_of_which_scripts_a_step_may_leave_parameters_out(name: str, tmp_path: Path) -> None:
    source = (SCRIPTS / name / "before.py").read_text(encoding="utf-8")
    if not trains(tmp_path, source):
        assert name not in REASONS
    elif name in REASONS or not averaged(tmp_path, source, completes=True).delayed:
        assert averaged(tmp_path, source).reason == REASONS.get(name, "")


def trains(folder: Path, source: str) -> bool:
    """Whether the rules take a script for one with training steps of its own, which they migrate."""
    report = migrate(written(folder, source), Options())
    return report.precision == "migrated"


def test_every_reason_has_its_script() -> None:
    assert not [name for name in REASONS if not (SCRIPTS / name / "before.py").exists()]
