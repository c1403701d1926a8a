"""Folders that a script puts on ``sys.path``: what the expression says, without running it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.scopes import arguments_of
from amp_rules.source.syntax import own_name, walk

_SAME = frozenset({"abspath", "realpath", "normpath", "expanduser", "str", "Path", "PurePath", "fspath", "resolve"})
_SAME_METHODS = frozenset({"resolve", "absolute", "expanduser", "as_posix"})
_HERE = frozenset({"getcwd", "cwd"})
_MAX_DEPTH = 20


def added_folders(module: Module) -> list[Path]:
    """The folders, in the order of the text; those that depend on more than the file's own place are left out."""
    paths = _Paths(module)
    found = []
    for expression in paths.given():
        path = paths.evaluate(expression)
        if path is not None:
            # Relative to the folder that the script is started from, mostly its own.
            found.append((module.path.parent / path).resolve())
            if paths.is_of_a_machine(expression):
                found += _in_this_clone(module, path)
            elif not path.is_absolute() and path == Path():
                # The script's own folder is there already: it is started from the one above, `python steps/train.py`.
                found.append(module.path.parent.parent.resolve())
    return list(dict.fromkeys(found))


def _in_this_clone(module: Module, path: Path) -> list[Path]:
    """``model`` beside the file for ``/home/someone/project/model``: where the author's clone of the project lies."""
    ends = [Path(*path.parts[index:]) for index in range(1, len(path.parts))]
    return [(base / end).resolve() for base in (module.path.parent, module.path.parent.parent) for end in ends]


def path_of(module: Module, node: ast.expr) -> Path | None:
    """The path that an expression of a file gives: ``Path(__file__).parent / "conf"``; None where more decides."""
    return _Paths(module).evaluate(node)


class _Paths:
    """The path expressions of one file."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.assigned: dict[str, list[ast.expr]] = {}
        for node in module.nodes:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        self.assigned.setdefault(target.id, []).append(node.value)

    def given(self) -> Iterator[ast.expr]:
        """What is put on the path, by ``append``, ``insert``, ``extend``, ``+=`` or a function that does so."""
        for node in self.module.nodes:
            if isinstance(node, ast.Call) and node.args and isinstance(node.func, ast.Attribute):
                name = node.func.attr
                if name == "addsitedir" or (_is_sys_path(node.func.value) and name in ("append", "insert")):
                    yield from self._expand(node.args[-1], node)
                elif _is_sys_path(node.func.value) and name == "extend":
                    yield from self._elements(node.args[0])
            elif (isinstance(node, ast.AugAssign) and _is_sys_path(node.target)) or (
                isinstance(node, ast.Assign) and any(_is_sys_path(target) for target in node.targets)
            ):
                yield from self._elements(node.value)

    def is_of_a_machine(self, node: ast.expr) -> bool:
        """Whether a path is written out from the root, as it is on one machine."""
        value = self._value(node) if isinstance(node, ast.Name) else node
        return isinstance(value, ast.Constant) and isinstance(value.value, str) and value.value.startswith("/")

    def _elements(self, node: ast.expr) -> Iterator[ast.expr]:
        for child in walk(node):
            if isinstance(child, (ast.List, ast.Tuple)):
                yield from child.elts

    def _expand(self, argument: ast.expr, call: ast.Call) -> Iterator[ast.expr]:
        """The argument; of a function's parameter or a loop's variable, what it stands for."""
        if isinstance(argument, ast.Name):
            for parent in self.module.ancestors(call):
                if isinstance(parent, ast.For) and isinstance(parent.target, ast.Name):
                    if parent.target.id == argument.id:
                        yield from self._elements(parent.iter)
                        return
                if isinstance(parent, ast.FunctionDef):
                    names = [item.arg for item in arguments_of(parent)]
                    if argument.id in names:
                        index = names.index(argument.id)
                        yield from self._passed(parent.name, index)
                        return
        yield argument

    def _passed(self, function: str, index: int) -> Iterator[ast.expr]:
        for node in self.module.nodes:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == function:
                if index < len(node.args):
                    yield node.args[index]

    def evaluate(self, node: ast.expr, depth: int = 0) -> Path | None:
        """The path that the expression gives, seen from the file; None when it depends on anything else."""
        if depth > _MAX_DEPTH:
            return None
        depth += 1
        if isinstance(node, ast.Constant):
            return Path(node.value) if isinstance(node.value, str) else None
        if isinstance(node, ast.Name):
            if node.id == "__file__":
                return self.module.path
            value = self._value(node)
            return self.evaluate(value, depth) if value is not None else None
        if isinstance(node, ast.BinOp):
            return self._joined(node, depth)
        if isinstance(node, ast.Attribute):
            if node.attr in ("curdir", "pardir"):
                return Path("." if node.attr == "curdir" else "..")
            base = self.evaluate(node.value, depth) if node.attr in ("parent", "stem", "name") else None
            return Path(getattr(_folded(base), node.attr)) if base is not None else None
        if isinstance(node, ast.Subscript):
            return self._indexed(node, depth)
        return self._called(node, depth) if isinstance(node, ast.Call) else None

    def _value(self, name: ast.Name) -> ast.expr | None:
        """What a variable holds: its only value, or of several the last above in the same suite."""
        values = self.assigned.get(name.id, [])
        if len(values) < 2:
            return values[0] if values else None
        where = blocks.place(self.module, blocks.statement_of(self.module, name))
        for earlier in reversed(where.suite[: where.index]):
            if name.id in blocks.writes(earlier):
                return earlier.value if isinstance(earlier, ast.Assign) and earlier.value in values else None
        return None

    def _joined(self, node: ast.BinOp, depth: int) -> Path | None:
        left, right = self.evaluate(node.left, depth), self.evaluate(node.right, depth)
        if left is None or right is None:
            return None
        if isinstance(node.op, ast.Div):
            return left / right
        return Path(f"{left}{_text(node.right, right)}") if isinstance(node.op, ast.Add) else None

    def _indexed(self, node: ast.Subscript, depth: int) -> Path | None:
        """``parents[1]``, ``os.path.split(path)[0]`` and ``sys.path[0]``, the folder of the script."""
        index = node.slice.value if isinstance(node.slice, ast.Constant) else None
        if not isinstance(index, int):
            return None
        if isinstance(node.value, ast.Attribute) and node.value.attr == "parents":
            base = self.evaluate(node.value.value, depth)
            parents = _folded(base).parents if base is not None else ()
            return parents[index] if 0 <= index < len(parents) else None
        if index == 0 and _is_sys_path(node.value):
            return self.module.path.parent
        if isinstance(node.value, ast.Call) and own_name(node.value.func) == "split" and index == 0 and node.value.args:
            base = self.evaluate(node.value.args[0], depth)
            return base.parent if base is not None else None
        return None

    def _called(self, node: ast.Call, depth: int) -> Path | None:
        name = own_name(node.func)
        if name in _HERE and not node.args:
            return Path(".")
        if isinstance(node.func, ast.Attribute) and name in _SAME_METHODS and not node.args:
            base = self.evaluate(node.func.value, depth)
            return _folded(base) if base is not None else None
        parts = [self.evaluate(argument, depth) for argument in node.args]
        known = [part for part in parts if part is not None]
        if not known or len(known) != len(parts):
            return None
        if name == "dirname":
            return known[0].parent
        if name in ("join", "joinpath", "Path"):
            own = self.evaluate(node.func.value, depth) if name == "joinpath" else None  # type: ignore[attr-defined]
            start = [own] if own is not None else []
            return Path(*start, *known)
        return _folded(known[0]) if name in _SAME else None


def _is_sys_path(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "path" and own_name(node.value) == "sys"


def _text(node: ast.expr, value: Path) -> str:
    """A part of a sum as it is written: ``Path`` drops the slash that it ends or begins with."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else str(value)


def _folded(path: Path) -> Path:
    """The path without ``..``."""
    parts: list[str] = []
    for part in path.parts:
        if part == ".." and parts and parts[-1] not in ("..", "/"):
            parts.pop()
        else:
            parts.append(part)
    return Path(*parts)
