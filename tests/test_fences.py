"""Imports run one way: the tools need no torch, and the runtime needs nothing but torch."""

from __future__ import annotations

import ast
import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

BLOCK = """
import importlib.abc, sys

class Fence(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ImportError("fenced off: " + name)

sys.meta_path.insert(0, Fence())
"""


def run(code: str, *arguments: str, blocked: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BLOCK.format(names=set(blocked)) + code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)


CLI = """
from amp_migrate.cli import main
main(prog_name="amp-migrate")
"""
LINT = CLI.replace("amp_migrate.cli", "amp_migrate.lint.cli").replace("amp-migrate", "amp-lint")


@pytest.mark.parametrize(("code", "name"), [(CLI, "amp-migrate"), (LINT, "amp-lint")])
def test_help_needs_no_torch(code, name):
    done = run(code, "--help", blocked=("torch", "amp_runtime"))
    assert (done.returncode, done.stderr) == (0, "")
    assert f"Usage: {name}" in done.stdout


def test_a_file_is_migrated_without_torch(tmp_path):
    pytest.importorskip("amp_rules.codemods")
    file = tmp_path / "train.py"
    file.write_text("import torch\n\nprint(torch.ones(1))\n")
    done = run(CLI, str(file), blocked=("torch", "amp_runtime"))
    assert done.returncode == 0, done.stderr
    assert "no training step found" in done.stderr


def test_a_file_is_linted_without_torch_and_without_libcst(tmp_path):
    file = tmp_path / "train.py"
    file.write_text("import torch\n\nprint(torch.ones(1))\n")
    done = run(LINT, str(file), "--no-cache", blocked=("torch", "amp_runtime", "libcst", "numpy"))
    assert (done.returncode, done.stderr) == (0, "nothing found in 1 file\n")


def test_every_tool_module_imports_without_torch_and_without_the_extra():
    names = [
        ".".join(path.relative_to(ROOT / root).with_suffix("").parts).removesuffix(".__init__")
        for root in ("migrate", "rules")
        for path in sorted((ROOT / root).rglob("*.py"))
        # What stands in for Apex is imported by training scripts alone.
        if path.name != "__main__.py" and "stand_in" not in path.parts
    ]
    assert {"amp_migrate.cli", "amp_migrate.lint.cli", "amp_migrate.lint.formats.sarif"} <= set(names)
    of_extra = {f"amp_migrate.report.{name}" for name in ("figures", "html", "syntax")}
    assert of_extra < set(names)
    for part, blocked in (
        (sorted(set(names) - of_extra), ("torch", "amp_runtime", "numpy", "jinja2", "markupsafe", "matplotlib")),
        (sorted(of_extra), ("torch", "amp_runtime")),
    ):
        done = run(f"import importlib\nfor name in {part!r}: importlib.import_module(name)", blocked=blocked)
        assert done.returncode == 0, done.stderr


def test_the_runtime_imports_without_the_tools_libraries():
    blocked = ("libcst", "click", "rich", "pathspec", "tomli", "amp_rules", "amp_migrate")
    done = run("import amp_runtime", blocked=blocked)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", ["amp_migrate.cli", "amp_migrate.lint.cli"])
def test_help_imports_nothing_slow(module):
    code = f"""
import sys
from {module} import main
main(["--help"], standalone_mode=False)
slow = {{"libcst", "rich", "pathspec", "multiprocessing", "hypothesis", "amp_rules.lint.linter", "amp_rules.codemods"}}
print("LOADED", sorted(slow & set(sys.modules)))
"""
    assert run(code).stdout.splitlines()[-1] == "LOADED []"


def emitted_names(source: str) -> set[str]:
    """Return the names ``{amp}.<name>`` that the templates of a rule's code hold, docstrings left out."""
    tree = ast.parse(source)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    strings = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
    ]
    found = {name for text in strings for name in re.findall(r"\{amp\}\.([A-Za-z_]\w*)", text)}
    for node in ast.walk(tree):
        parts = node.values if isinstance(node, ast.JoinedStr) else []
        for part, following in itertools.pairwise(parts):
            if isinstance(part, ast.FormattedValue) and ast.unparse(part.value) == "file.amp":
                text = following.value if isinstance(following, ast.Constant) else ""
                found |= set(re.findall(r"^\.([A-Za-z_]\w*)", str(text)))
    return found


def test_emitted_names_are_found_in_strings_and_not_in_docstrings():
    source = '"""{amp}.doc"""\nx = "with {amp}.scaler.scale(y)"\nw = "torch.amp.nope, {amp}.autocast()"\n'
    source += 'v = f"{file.amp}.init({x}.nope)"\n'
    assert emitted_names(source) == {"scaler", "autocast", "init"}


def test_every_name_that_a_rule_emits_is_exported_by_the_runtime():
    emitted: dict[str, list[str]] = {}
    rules = ROOT / "rules/amp_rules"
    folders = ("codemods", "planning", "tables", "legacy")
    for path in sorted(path for folder in folders for path in (rules / folder).rglob("*.py")):
        for name in emitted_names(path.read_text(encoding="utf-8")):
            emitted.setdefault(name, []).append(path.name)
    assert {"init", "autocast", "scaler", "prepare_model", "prepare_loader"} <= set(emitted)
    done = run("import amp_runtime; print(*amp_runtime.__all__)")
    assert done.returncode == 0, done.stderr
    missing = {name: files for name, files in emitted.items() if name not in done.stdout.split()}
    assert missing == {}


def test_the_runtime_has_the_optimizers_and_modules_that_apex_scripts_get():
    from amp_rules.tables import apex_api

    done = run("import amp_runtime.optim; print(*amp_runtime.optim.__all__)")
    assert done.returncode == 0, done.stderr
    assert {path.rpartition(".")[2] for path in apex_api.OPTIMIZER_PATHS.values()} <= set(done.stdout.split())
    folder = ROOT / "runtime/amp_runtime/apex"
    names = {".".join(path.relative_to(folder.parent).with_suffix("").parts) for path in folder.rglob("*.py")}
    modules = {name.removesuffix(".__init__").removeprefix("apex.amp_C").removeprefix("apex.apex_C") for name in names}
    public = {name for name in modules if name and not re.search(r"\._(?!amp_state)", name)}
    assert public | apex_api.EXTENSIONS == apex_api.DROPIN_MODULES


def imports_of(path: Path) -> set[str]:
    """The modules that a file imports, those under ``if TYPE_CHECKING`` left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {
        id(item)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for item in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


@pytest.mark.parametrize(
    ("folder", "above"),
    [
        ("program", ("lint", "evidence", "checks", "planning", "codemods", "legacy")),
        ("lint", ("evidence", "checks.", "planning", "codemods", "legacy")),
        ("evidence", ("checks", "planning", "codemods", "legacy")),
        ("checks", ("checks", "planning", "codemods", "legacy")),
        ("tables", ("program", "lint", "evidence", "checks", "planning", "codemods", "legacy")),
    ],
)
def test_layers_know_only_those_below(folder, above):
    """The linter's engine knows no rule, what rules share knows no rule, and no rule knows another."""
    files = sorted((ROOT / "rules/amp_rules" / folder).rglob("*.py"))
    assert files
    for path in files:
        wrong = {name for name in imports_of(path) for layer in above if name.startswith(f"amp_rules.{layer}")}
        assert wrong == set(), path.name
