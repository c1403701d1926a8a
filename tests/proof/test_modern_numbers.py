"""What the rewrites of old PyTorch make of a program gives the numbers that it gave, or that PyTorch says it gave."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pytest
from amp_rules import migrate
from amp_rules.plan.options import Options

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

HEAD = """import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.autograd import Variable

torch.manual_seed(0)
x, y = torch.randn(6, 4), torch.randn(6, 4)
labels = torch.tensor([0, 1, 2, 3, 0, 1])
"""


def modern(tmp_path: Path, text: str) -> str:
    """The text with nothing but the rewrites of old PyTorch; it must change."""
    path = tmp_path / "script.py"
    path.write_text(text)
    report = migrate(path, Options(modernize=True, ignore=("AMP1", "AMP2", "AMP3", "AMP4")))
    assert [change.path for change in report.changes] == [path.resolve()]
    return report.changes[0].after


def run(text: str) -> dict[str, object]:
    """The variables of a program after its run; a warning about something old is an error in ``modern``."""
    names: dict[str, object] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(text, "script.py", "exec"), names)
    return names


def same(one: object, other: object) -> bool:
    """Equal bit for bit, and of one type."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.dtype == other.dtype and one.requires_grad == other.requires_grad and torch.equal(one, other)
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(same, one, other))  # type: ignore[arg-type]
    return type(one) is type(other) and one == other


STILL_RUN = {
    "variable": "result = Variable(x), Variable(x + 1) * 2, Variable(y, requires_grad=True)",
    "variable_of_a_graph": """
w = torch.ones(4, requires_grad=True)
part = Variable(x * w) * w
part.sum().backward()
result = w.grad
""",
    "variable_with_gradient": """
z = Variable(torch.ones(4), requires_grad=True)
(x * z).sum().backward()
result = z, z.grad, x
""",
    "volatile": "z = Variable(x, volatile=True)\nresult = (z * 2).sum().item()",
    "reduction": """
result = [
    F.mse_loss(x, y, size_average=False),
    F.mse_loss(x, y, True, False),
    F.mse_loss(x, y, reduce=False, reduction="sum"),
    nn.L1Loss(size_average=None, reduce=True)(x, y),
    nn.CrossEntropyLoss(None, False, 0)(x, labels),
    F.nll_loss(x, labels, None, False, 1),
    F.kl_div(x, y.abs(), size_average=False),
    nn.TripletMarginLoss(1.0, 2, 1e-6, False, False)(x, y, x + y),
    nn.MultiMarginLoss(1, 1.0, None, False)(x, labels),
]
""",
    "initialisers": """
import torch.nn.init as init
from torch.nn.init import uniform, constant as fill
w = torch.empty(4, 4)
result = [init.xavier_normal(w).clone(), init.kaiming_uniform(w).clone(), uniform(w).clone(), fill(w, 3), w]
""",
    "clipping": """
w = torch.ones(4, requires_grad=True)
(w * x).sum().backward()
result = nn.utils.clip_grad_norm([w], 0.1), w.grad
""",
    "upsample": "result = F.upsample(x[None], 12, mode='linear'), F.upsample(x[None, None], scale_factor=2)",
    "softmax": """
result = [
    F.softmax(x.view(24)), F.softmax(x.view(6, 4)), F.log_softmax(x.view(2, 3, 4)), F.softmin(x.view(2, 3, 2, 2)),
]
""",
    "arithmetic": """
square = torch.ones(6, 4)
result = [
    x.clone().add_(-0.5, y), x.clone().sub_(2, y), x.clone().addcmul_(0.1, y, y), x.clone().addcdiv_(-0.1, y, square),
    torch.add(x, 3, y), torch.sub(x, 3, y), torch.addcmul(x, 0.5, y, y), torch.addcdiv(x, 0.5, y, square),
    torch.zeros(4, 4).addmm_(0.5, 2, x.t(), y), torch.zeros(4, 4).addmm(0.5, x.t(), y),
    torch.addmm(0.5, torch.ones(4, 4), 2, x.t(), y), torch.zeros(6).addmv_(0.5, x, y[0]),
    torch.ones(6, 4).addr_(0.5, torch.ones(6), y[0]), torch.ones(1, 4, 4).baddbmm_(0.5, 2, x.t()[None], y[None]),
]
""",
    "range": "result = torch.range(0, 9), torch.range(-2, 2)",
    "linear_algebra": """
gram = x.t() @ x + torch.eye(4)
result = torch.qr(gram), torch.cholesky(gram)
""",
}


@pytest.mark.parametrize("name", STILL_RUN)
def test_what_still_runs_gives_the_same_numbers(name, tmp_path):
    text = HEAD + STILL_RUN[name].strip() + "\n"
    assert same(list_of(run(text)["result"]), list_of(run(modern(tmp_path, text))["result"]))


def list_of(value: object) -> list[object]:
    return list(value) if isinstance(value, tuple) else [value]


GONE = {
    "item": ("result = F.mse_loss(x, y).data[0], (x > 0).sum().data[0]", "F.mse_loss(x, y).item(), int((x > 0).sum())"),
    "mask": (
        "m = x > 0\nresult = (1 - m).sum().item(), x * (1 - (x == y)).float(), (1 - m.byte())",
        "(x <= 0).sum().item(), x * (x != y).float(), (x <= 0).byte()",
    ),
    "bytes": (
        "m = (x > 0).byte()\nresult = x.masked_fill(m, -1), x.masked_select((x > 1).byte())",
        "torch.where(x > 0, -torch.ones(6, 4), x), x[x > 1]",
    ),
    "retain": (
        "w = torch.ones(4, requires_grad=True)\nloss = (w * x).sum()\nloss.backward(retain_variables=True)\n"
        "loss.backward()\nresult = w.grad",
        "2 * x.sum(0)",
    ),
    "next": ("result = iter([x, y]).next()", "x"),
    "verbose": (
        "o = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=1.0)\n"
        "s = torch.optim.lr_scheduler.StepLR(o, 1, 0.5, verbose=True)\no.step()\ns.step()\n"
        "result = o.param_groups[0]['lr']",
        "0.5",
    ),
    "numpy": (
        "import numpy as np\nresult = np.zeros(2, np.int).dtype.str, np.ones(2).astype(np.float).tolist(), np.Inf",
        "__import__('numpy').zeros(2, int).dtype.str, [1.0, 1.0], float('inf')",
    ),
    "collections": (
        "import collections\nfrom collections import Mapping\n"
        "result = isinstance({}, Mapping), isinstance([], collections.Sequence)",
        "True, True",
    ),
    "six": (
        "from torch._six import string_classes, container_abcs, inf\n"
        "result = isinstance('', string_classes), isinstance({}, container_abcs.Mapping), inf",
        "True, True, float('inf')",
    ),
}


@pytest.mark.parametrize("name", GONE)
def test_what_is_gone_gives_what_it_gave(name, tmp_path):
    old, wanted = GONE[name]
    after = modern(tmp_path, f"{HEAD}{old}\n")
    # The values are made in the program itself, where the random numbers are.
    names = run(after + f"wanted = {wanted}\n")
    assert same(list_of(names["result"]), list_of(names["wanted"]))


def test_solutions_and_eigenvalues_are_those_of_the_old_functions(tmp_path):
    text = HEAD + "gram = x.t() @ x + torch.eye(4)\nvalues, vectors = torch.symeig(gram, eigenvectors=True)\n"
    text += "solution = torch.gesv(y.t(), gram)[0]\nrank = torch.matrix_rank(gram)\n"
    names = run(modern(tmp_path, text))
    gram = names["gram"]
    assert torch.allclose(gram @ names["solution"], names["y"].t(), atol=1e-4)
    assert torch.allclose(gram @ names["vectors"], names["vectors"] * names["values"], atol=1e-4)
    assert bool((names["values"][1:] >= names["values"][:-1]).all()) and names["rank"] == 4


def test_upper_and_lower_parts_are_read_as_before(tmp_path):
    head = "import torch\na = torch.tensor([[2.0, 5.0], [1.0, 3.0]])\n"
    for arguments, part in (("", "U"), (", upper=True", "U"), (", upper=False", "L")):
        names = run(modern(tmp_path, f"{head}values, _ = torch.symeig(a, eigenvectors=True{arguments})\n"))
        wanted = np.linalg.eigvalsh(np.array([[2.0, 5.0], [1.0, 3.0]]), UPLO=part)
        assert np.allclose(names["values"], wanted, atol=1e-5)


def test_the_default_type_is_the_same(tmp_path):
    try:
        text = "import torch\ntorch.set_default_tensor_type(torch.DoubleTensor)\nresult = torch.ones(2)\n"
        assert same(run(text)["result"], run(modern(tmp_path, text))["result"])
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_whole_model_is_loaded(tmp_path):
    file = str(tmp_path / "model.pt")
    torch.save(torch.nn.Linear(2, 2), file)
    text = f"import torch\nmodel = torch.load({file!r})\nmodel.eval()\nresult = type(model).__name__\n"
    assert run(modern(tmp_path, text))["result"] == "Linear"


def test_computing_under_no_grad_records_nothing(tmp_path):
    text = HEAD + "w = torch.ones(4, requires_grad=True)\nz = Variable(x, volatile=True)\nresult = (z * w).sum()\n"
    before, after = run(text)["result"], run(modern(tmp_path, text))["result"]
    assert torch.equal(before, after) and before.requires_grad and not after.requires_grad


@pytest.mark.skipif(sys.version_info < (3, 10), reason="collections still has them")
def test_old_programs_do_not_run_here():
    """What is called gone above is: else the tests say nothing."""
    for name, (old, _) in GONE.items():
        with pytest.raises((AttributeError, ImportError, IndexError, RuntimeError, TypeError)):
            run(f"{HEAD}{old}\n")
            pytest.fail(f"{name} still runs")
