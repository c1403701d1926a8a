"""What calls give to parameters: one that gives a half tensor is enough for a finding in the function."""

from __future__ import annotations

from pathlib import Path

import pytest
from abstractly import CUDA, HALF, IMPORTS, Mode, source
from amp_rules.checks import all_checks
from amp_rules.lint import Linter
from amp_rules.source.mentions import Mentions
from amp_rules.source.text import read_source


def found(text: str, mode: Mode = CUDA, code: str = "AMP605") -> list[str]:
    """The lines at which a rule finds something."""
    whole = IMPORTS + text
    findings = Linter(mode, all_checks(), {code}).lint(source(whole)).findings
    return [whole.splitlines()[item.span.start.line - 1].strip() for item in findings]


HELPERS = """
def unit(x):
    return x / (x.std(-1, keepdim=True) + 1e-9)

class Norm(nn.Module):
    def forward(self, x):
        return x / (x.std(-1, keepdim=True) + 2e-9)

class A(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.norm = Norm()
        self.norms = nn.ModuleList([Norm()])

    def forward(self, x):
        h = self.fc(x)
        return {call}

    def _unit(self, x):
        return x / (x.std(-1, keepdim=True) + 3e-9)
"""


@pytest.mark.parametrize(
    ("call", "epsilon"),
    [
        ("unit(h)", "1e-9"),
        ("unit(x=h)", "1e-9"),
        ("unit(h.float()) + unit(h)", "1e-9"),
        ("self.norm(h)", "2e-9"),
        ("self.norms[0](h)", "2e-9"),
        ("self._unit(h)", "3e-9"),
    ],
)
def test_a_call_gives_half(call: str, epsilon: str):
    lines = found(HELPERS.format(call=call))
    assert len(lines) == 1
    assert epsilon in lines[0]


@pytest.mark.parametrize(
    "call",
    ["unit(h.float())", "unit(x)", "self.norm(h.float())", "self._unit(h.double())", "h", "unit", "unit(*[h])"],
)
def test_a_call_gives_something_else(call: str):
    assert found(HELPERS.format(call=call)) == []


def test_a_call_with_autocast_off_gives_what_it_is_given():
    text = (
        HELPERS.format(call="h")
        + """
    def other(self, x):
        h = self.fc(x)
        with torch.autocast("cuda", enabled=False):
            return unit({given})
"""
    )
    assert found(text.format(given="h.float()")) == []


def test_a_trial_is_not_believed():
    text = """
def unit(x):
    return x / (x.std(-1, keepdim=True) + 1e-9)

def test_unit():
    assert unit(torch.ones(4).half()).sum() == 0
"""
    assert found(text) == []
    assert found(text.replace("test_unit", "measure")) != []


def test_what_is_said_without_callers_is_said_once():
    text = """
def unit(x):
    x = x.half()
    return x / (x.std(-1, keepdim=True) + 1e-9)

def use(x):
    return unit(x.half())
"""
    assert len(found(text)) == 1
    assert len(found(text, HALF)) == 1


UTILS = """
def unit(x):
    return x / (x.std(-1, keepdim=True) + 1e-9)

def product(x, y):
    return (x.float() @ y.float()).sum()
"""
MODEL = """
{imports}

class A(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        h = self.fc(x)
        {body}
"""


def project(folder: Path, imports: str, body: str) -> Path:
    """A project whose model uses helpers of another file; the file of the helpers."""
    (folder / "setup.cfg").write_text("")
    package = folder / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "utils.py").write_text(IMPORTS + UTILS)
    (package / "model.py").write_text(IMPORTS + MODEL.format(imports=imports, body=body))
    return package / "utils.py"


def found_in(path: Path, code: str) -> tuple[int, set[str]]:
    """How many findings of a rule a file has, and on which other files they rest."""
    result = Linter(CUDA, all_checks(), {code}).lint(read_source(path))
    return len(result.findings), {item.name for item in result.dependencies}


@pytest.mark.parametrize(
    ("imports", "called"),
    [
        ("from package.utils import unit", "unit"),
        ("from .utils import unit", "unit"),
        ("from .utils import unit as normed", "normed"),
        ("from package import utils", "utils.unit"),
        ("import package.utils as helpers", "helpers.unit"),
    ],
)
def test_a_call_of_another_file_gives_half(tmp_path: Path, imports: str, called: str):
    path = project(tmp_path, imports, f"return {called}(h)")
    assert found_in(path, "AMP605") == (1, {"model.py"})


@pytest.mark.parametrize("given", ["x", "h.float()"])
def test_a_call_of_another_file_gives_something_else(tmp_path: Path, given: str):
    path = project(tmp_path, "from .utils import unit", f"return unit({given})")
    assert found_in(path, "AMP605")[0] == 0


def test_many_files_that_use_a_helper_are_not_asked(tmp_path: Path):
    path = project(tmp_path, "from .utils import unit", "return unit(h)")
    for count in range(8):
        (path.parent / f"other{count}.py").write_text((path.parent / "model.py").read_text())
    assert found_in(path, "AMP605")[0] == 0


def test_a_function_that_another_file_calls_with_autocast_off_alone(tmp_path: Path):
    region = 'with torch.autocast("cuda", enabled={enabled}):\n            return product(h, h)'
    for enabled, count in (("True", 1), ("False", 0)):
        folder = tmp_path / enabled
        folder.mkdir()
        path = project(folder, "from .utils import product", region.format(enabled=enabled))
        assert found_in(path, "AMP712")[0] == count


def test_a_large_project_is_not_searched(tmp_path: Path):
    path = project(tmp_path, "from .utils import unit", "return unit(h)")
    assert Mentions(path).of("unit", "utils") == [path.parent / "model.py"]
    for count in range(401):
        (tmp_path / f"file{count}.py").write_text("")
    assert Mentions(path).of("unit", "utils") == []


def test_folders_beside_a_script_that_stands_alone_are_not_searched(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text("def unit(): ...")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "other.py").write_text("from script import unit")
    assert Mentions(script).of("unit") == [script]
    (tmp_path / "theirs" / "__init__.py").write_text("")
    assert len(Mentions(script).of("unit")) == 2
