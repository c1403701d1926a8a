"""Copies of the real runtime: for every migrated script of the fixtures they are whole, and they are small."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from vendored import copied, lines_of_code, source, statements, used, write

FIXTURES = Path(__file__).parent.parent.parent / "fixtures"
SCRIPT = """
import amp_runtime as amp

amp.init(opt_level="O1", ddp=True)
loader = amp.prepare_loader(DataLoader(data, batch_size=8, shuffle=True))
model = amp.prepare_model(Net().to(amp.device()))
optimizer = amp.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for x, y in loader:
    optimizer.zero_grad()
    with amp.autocast():
        loss = F.cross_entropy(model(x), y)
    amp.scaler.scale(loss).backward()
    amp.scaler.step(optimizer)
    amp.scaler.update()
if amp.is_main_process():
    torch.save(amp.unwrap(model).state_dict(), "model.pt")
"""
"""What most scripts become at O1 with --ddp."""

# A statement on several lines counts once in the first, and each of its lines in the second.
MOST_STATEMENTS = 4_470
MOST_LINES = 5_080


def test_o1_with_ddp_is_small():
    texts = copied(used([SCRIPT])).values()
    assert sum(map(statements, texts)) <= MOST_STATEMENTS
    assert sum(map(lines_of_code, texts)) <= MOST_LINES


def test_docstrings_and_comments_are_kept():
    found, modules = copied(used([SCRIPT])), source().modules
    original = {module.path: module.text for module in modules.values()}
    for path in ("_prepare.py", "_distributed/engine.py", "_data/shards.py"):
        lines = set(original[path].splitlines())
        assert [line for line in found[path].splitlines() if line not in lines and "import" not in line] == []
    assert "In this order: rank 0's weights on all ranks" in found["_prepare.py"]


def test_every_module_that_has_a_stand_in_is_there_and_every_stand_in_is_known():
    found = source()
    assert set(found.wanted_by) == set(found.stand_ins)
    assert set(found.stand_ins) <= set(found.modules)


def test_no_stand_in_gives_a_name_that_its_module_does_not_have():
    for name, stand_in in source().stand_ins.items():
        own = {bound for statement in source().modules[name].statements for bound in statement.binds}
        given = {
            bound
            for statement in stand_in.statements
            for bound in statement.binds
            if not statement.is_import and not bound.startswith("_")
        }
        assert given <= own, name


def test_the_package_itself_imports_no_stand_in():
    for module in source().modules.values():
        assert "_without" not in {part for node in ast.walk(ast.parse(module.text)) for part in _imported(node)}


def _imported(node):
    name = getattr(node, "module", None) or ""
    return [*name.split("."), *(part for alias in getattr(node, "names", ()) for part in str(alias).split("."))]


@pytest.mark.heavy
def test_for_every_name_of_the_fixtures_nothing_is_missing_and_nothing_too_much(tmp_path):
    texts = {path.read_text(encoding="utf-8", errors="replace") for path in FIXTURES.glob("AMP[1-4]*/*/after.py")}
    uses = sorted({used([text]) for text in texts} - {used([])}, key=lambda own: (len(own.names), sorted(own.names)))
    # For each name and each word the script that uses the least besides.
    smallest = {part: own for own in reversed(uses) for part in own.names | own.words | own.levels}
    chosen = set(smallest.values())
    assert len(smallest) > 40 and len(chosen) > 15
    for number, uses in enumerate(chosen):
        write(copied(uses), tmp_path / str(number))
    # F821 is a name that nothing defines, F401 an import that nothing uses.
    command = ("-m", "ruff", "check", "--isolated", "--select", "F821,F401,F811,F822", "--no-cache", str(tmp_path))
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:]
    for number in range(len(chosen)):
        _require_imports(tmp_path / str(number))


def _require_imports(folder):
    """Whatever a file of the copy imports of the package is there."""
    root = folder / "amp_runtime"
    for file in root.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "amp_runtime":
                place = root.joinpath(*node.module.split(".")[1:])
                where = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
                bound = _bound(where)
                for alias in node.names:
                    inner = place / alias.name
                    there = alias.name in bound or inner.is_dir() or inner.with_suffix(".py").exists()
                    assert there, (file, node.module, alias.name)


def _bound(file):
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.alias):
            found.add(node.asname or node.name)
    return found
