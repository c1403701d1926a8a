"""Imports run one way: the tools need no torch, and the runtime needs nothing but torch."""

from __future__ import annotations

import ast
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
from amp_migrate.commands.migrate import main
main(prog_name="amp-migrate")
"""
LINT = CLI.replace("amp_migrate.commands.migrate", "amp_migrate.commands.lint").replace("amp-migrate", "amp-lint")


@pytest.mark.parametrize(("code", "name"), [(CLI, "amp-migrate"), (LINT, "amp-lint")])
def test_help_needs_no_torch(code, name):
    done = run(code, "--help", blocked=("torch", "amp_runtime"))
    assert (done.returncode, done.stderr) == (0, "")
    assert f"Usage: {name}" in done.stdout


def test_a_file_is_migrated_without_torch(tmp_path):
    pytest.importorskip("amp_rules.rewrites")
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
    assert {"amp_migrate.commands.migrate", "amp_migrate.commands.lint", "amp_migrate.out.lint.lint_sarif"} <= set(
        names
    )
    of_extra = {f"amp_migrate.report.{name}" for name in ("figures", "html", "syntax")}
    of_extra |= {f"amp_migrate.server.{name}" for name in ("editor", "messages", "positions", "serving")}
    assert of_extra < set(names)
    for part, blocked in (
        (
            sorted(set(names) - of_extra),
            ("torch", "amp_runtime", "numpy", "jinja2", "markupsafe", "matplotlib", "pygls", "lsprotocol"),
        ),
        (sorted(of_extra), ("torch", "amp_runtime")),
    ):
        done = run(f"import importlib\nfor name in {part!r}: importlib.import_module(name)", blocked=blocked)
        assert done.returncode == 0, done.stderr


def test_the_runtime_imports_without_the_tools_libraries():
    blocked = ("libcst", "click", "rich", "pathspec", "tomli", "amp_rules", "amp_migrate")
    done = run("import amp_runtime", blocked=blocked)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", ["amp_migrate.commands.migrate", "amp_migrate.commands.lint"])
def test_help_imports_nothing_slow(module):
    code = f"""
import sys
from {module} import main
main(["--help"], standalone_mode=False)
slow = {{"libcst", "rich", "pygls", "pathspec", "multiprocessing", "hypothesis"}}
slow |= {{"amp_rules.lint.linter", "amp_rules.rewrites", "importlib.metadata", "urllib.request"}}
print("LOADED", sorted(slow & set(sys.modules)))
"""
    assert run(code).stdout.splitlines()[-1] == "LOADED []"


def test_a_migration_to_the_runtime_loads_no_words_of_torch():
    code = "import sys, amp_rules.plan.migration; print('amp_rules.plain_torch.stage' in sys.modules)"
    assert run(code).stdout.splitlines()[-1] == "False"


def emitted_names(source: str) -> set[str]:
    """Return the names ``{amp}.<name>`` that templates of code hold, docstrings left out."""
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
    return found


def test_emitted_names_are_found_in_strings_and_not_in_docstrings():
    source = '"""{amp}.doc"""\nx = "with {amp}.scaler.scale(y)"\nw = "torch.amp.nope, {amp}.autocast()"\n'
    assert emitted_names(source) == {"scaler", "autocast"}


VOCABULARY = ROOT / "rules/amp_rules/text/runtime_vocabulary.py"


def test_every_name_that_the_vocabulary_emits_is_exported_by_the_runtime():
    from amp_rules.torch import apex

    emitted = emitted_names(VOCABULARY.read_text(encoding="utf-8"))
    assert {"init", "autocast", "scaler", "prepare_model", "prepare_loader"} <= emitted
    counterparts = (apex.RENAMED | apex.OPTIMIZER_PATHS | apex.PARALLEL).values()
    done = run("import amp_runtime; print(*amp_runtime.__all__)")
    assert done.returncode == 0, done.stderr
    assert emitted | {path.partition(".")[0] for path in counterparts} <= set(done.stdout.split())


def test_only_the_vocabulary_writes_the_runtime_into_a_script():
    """What reads a script, to find what was migrated before, may name it; recipes for people do, too."""
    rules = ROOT / "rules/amp_rules"
    files = [path for folder in ("rewrites", "plan", "text") for path in (rules / folder).rglob("*.py")]
    assert len(files) > 80 and VOCABULARY in files
    assert {path.name for path in files if emitted_names(path.read_text(encoding="utf-8"))} == {VOCABULARY.name}
    for path in (rules / "rewrites").rglob("*.py"):
        code = path.read_text(encoding="utf-8").partition("from __future__ import annotations")[2]
        assert "amp_runtime" not in code, path.name


def test_the_runtime_has_the_optimizers_and_modules_that_apex_scripts_get():
    from amp_rules.torch import apex

    done = run("import amp_runtime.optim; print(*amp_runtime.optim.__all__)")
    assert done.returncode == 0, done.stderr
    assert {path.rpartition(".")[2] for path in apex.OPTIMIZER_PATHS.values()} <= set(done.stdout.split())
    folder = ROOT / "runtime/amp_runtime/apex"
    names = {".".join(path.relative_to(folder.parent).with_suffix("").parts) for path in folder.rglob("*.py")}
    modules = {name.removesuffix(".__init__").removeprefix("apex.amp_C").removeprefix("apex.apex_C") for name in names}
    public = {name for name in modules if name and not re.search(r"\._(?!amp_state)", name)}
    assert public | apex.EXTENSIONS == apex.DROPIN_MODULES


HAS = """
import importlib, sys
for name in sys.argv[1:]:
    path = ("amp_runtime.apex." + name.removeprefix("apex.")).split(".")
    for cut in range(len(path), 0, -1):
        try:
            found = importlib.import_module(".".join(path[:cut]))
        except ImportError:
            continue
        for part in path[cut:]:
            found = getattr(found, part, None)
        if found is not None:
            print(name)
        break
"""


def test_the_runtime_has_nothing_of_apex_that_the_rules_say_is_missing():
    from amp_rules.torch import apex

    assert not any(apex.has_dropin(name) for name in apex.MISSING)
    done = run(HAS, *sorted(apex.MISSING), "apex.amp.scale_loss", "amp_C.multi_tensor_scale")
    assert (done.stdout.split(), done.stderr) == (["apex.amp.scale_loss", "amp_C.multi_tensor_scale"], "")


def test_the_runtime_has_each_name_of_apex_that_the_rules_may_write():
    from amp_rules.torch import apex
    from amp_rules.torch.apex_names import DROPIN_NAMES

    assert not DROPIN_NAMES & apex.MISSING
    done = run(HAS, *sorted(DROPIN_NAMES))
    assert (set(done.stdout.split()), done.stderr) == (set(DROPIN_NAMES), "")


@pytest.mark.parametrize(
    "name",
    [
        "apex.transformer.parallel_state",
        "apex.optimizers.FusedOther",
        "apex.amp.handle.other",
        "apex.contrib.bottleneck",
    ],
)
def test_what_the_runtime_may_not_have_is_not_written(name):
    from amp_rules.torch import apex

    assert not apex.has_dropin(name)


RULES = ROOT / "rules/amp_rules"
LAYERS = (
    ("torch",),
    ("source",),
    ("flow", "roles"),
    ("ranks",),
    ("text",),
    ("lattice",),
    ("lint",),
    ("checks",),
    ("plan", "rewrites", "plain_torch"),
    ("folder",),
)
"""The packages of the rules, each knowing those of its own row and of rows above it."""


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(RULES.parent).with_suffix("").parts).removesuffix(".__init__")


FILES = {module_name(path): path for path in sorted(RULES.rglob("*.py"))}


def imports_of(path: Path) -> set[str]:
    """The files of the rules that a file imports, those for its annotations alone among them."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, path
            members = {f"{node.module}.{alias.name}" for alias in node.names} & FILES.keys()
            found |= members or {str(node.module)} & FILES.keys()
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & FILES.keys()
    return found - {module_name(path)}


def test_every_package_has_a_layer():
    packages = {path.parent.name for path in RULES.glob("*/__init__.py")}
    assert packages == {package for row in LAYERS for package in row}


@pytest.mark.parametrize(("row", "package"), [(i, package) for i, row in enumerate(LAYERS) for package in row])
def test_layers_know_only_those_below(row, package):
    above = {other for later in LAYERS[row + 1 :] for other in later}
    for path in sorted((RULES / package).rglob("*.py")):
        known = {name for name in imports_of(path) if name.split(".")[1:2] and name.split(".")[1] in above}
        assert known == set(), path.name


FAMILIES = ("numbers", "types", "step", "processes")


@pytest.mark.parametrize("folder", ["common", *FAMILIES])
def test_no_rule_knows_another(folder):
    rules = tuple(f"amp_rules.checks.{family}" for family in FAMILIES)
    files = sorted((RULES / "checks" / folder).rglob("*.py"))
    assert files
    for path in files:
        assert not {name for name in imports_of(path) if name.startswith(rules)}, path.name


def circles(links: dict[str, set[str]]) -> list[str]:
    """The names that lie on a circle: those that are left when whatever leads nowhere is taken away, both ways."""
    left = dict(links)
    while True:
        reached = {target for targets in left.values() for target in targets}
        ends = {name for name, targets in left.items() if not targets & left.keys() or name not in reached}
        if not ends:
            return sorted(left)
        left = {name: targets - ends for name, targets in left.items() if name not in ends}


def test_circles_are_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}) == ["b", "c"]


def test_no_files_of_the_rules_import_each_other_in_a_circle():
    assert circles({name: imports_of(path) for name, path in FILES.items()}) == []
