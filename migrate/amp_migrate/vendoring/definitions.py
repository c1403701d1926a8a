"""What the modules of a package define at their top level, and which names each definition mentions."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Target:
    """What a name stands for that was imported: a module of the package, or a name in one."""

    module: str
    name: str | None = None


@dataclass(frozen=True)
class Mention:
    """A name that a statement mentions, and the attribute that is read from it, if that is all that is done with it."""

    name: str
    attribute: str | None = None


@dataclass(eq=False)
class Statement:
    """A statement at the top level of a module.

    Attributes:
        node: its syntax.
        binds: the names that it gives a value.
        mentions: the names that it reads, wherever in it.
        targets: what the names stand for that it imports from the package, by name.
        inner: what is imported from the package inside of its functions.
    """

    node: ast.stmt
    binds: frozenset[str]
    mentions: frozenset[Mention]
    targets: dict[str, Target] = field(default_factory=dict)
    inner: frozenset[Target] = frozenset()

    @property
    def is_import(self) -> bool:
        """Whether it only imports."""
        return isinstance(self.node, (ast.Import, ast.ImportFrom))

    @property
    def acts(self) -> bool:
        """Whether it does something besides giving names a value, so that it stays wherever its module does."""
        node = self.node
        if isinstance(node, ast.Expr):
            return not isinstance(node.value, ast.Constant)
        return not self.binds and not self.is_import


@dataclass
class Module:
    """One module of a package: its text and its statements.

    Attributes:
        name: its dotted name.
        path: where it lies in the package's folder, with slashes.
        text: what it says.
        statements: its statements, in their order.
    """

    name: str
    path: str
    text: str
    statements: list[Statement]

    def binding(self, name: str) -> list[Statement]:
        """The statements that give a name a value."""
        return [statement for statement in self.statements if name in statement.binds]


def read_package(folder: Path) -> dict[str, Module]:
    """Read all modules of the package that lies in ``folder``, by their dotted names."""
    texts = {}
    for file in sorted(folder.rglob("*.py")):
        relative = file.relative_to(folder)
        parts = [folder.name, *relative.with_suffix("").parts]
        if "__pycache__" not in parts:
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            texts[name] = (relative.as_posix(), file.read_bytes().decode())
    names = frozenset(texts)
    return {name: Module(name, path, text, _statements(text, names)) for name, (path, text) in texts.items()}


def _statements(text: str, modules: frozenset[str]) -> list[Statement]:
    return [_statement(node, modules) for node in ast.parse(text).body]


def _statement(node: ast.stmt, modules: frozenset[str]) -> Statement:
    targets = dict(_imported(node, modules)) if isinstance(node, (ast.Import, ast.ImportFrom, ast.If)) else {}
    inner: list[tuple[str, Target]] = []
    if not isinstance(node, (ast.Import, ast.ImportFrom, ast.If)):
        for part in ast.walk(node):
            if isinstance(part, (ast.Import, ast.ImportFrom)):
                inner += _imported(part, modules)
    found = frozenset(_mentions(node))
    own = dict(inner)
    # A function that imports a module itself reads that module's attributes.
    reached = {Target(own[m.name].module, m.attribute) for m in found if m.name in own and own[m.name].name is None}
    reached |= {target for target in own.values() if target.name is not None}
    reached |= {Target(target.module) for target in own.values() if target.module not in {r.module for r in reached}}
    return Statement(node, frozenset(_bound(node)), found, targets, frozenset(reached))


def _imported(node: ast.stmt, modules: frozenset[str]) -> Iterator[tuple[str, Target]]:
    """The names that an import gives, with what they stand for, as far as it is of the package."""
    if isinstance(node, ast.If):
        for inner in (*node.body, *node.orelse):
            yield from _imported(inner, modules)
    elif isinstance(node, ast.ImportFrom) and node.module is not None and node.module in modules:
        for alias in node.names:
            whole = f"{node.module}.{alias.name}"
            target = Target(whole) if whole in modules else Target(node.module, alias.name)
            yield alias.asname or alias.name, target
    elif isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name in modules:
                yield alias.asname or alias.name.partition(".")[0], Target(alias.name)


def _bound(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        for alias in node.names:
            yield alias.asname or alias.name.partition(".")[0]
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _stored(target)
    elif isinstance(node, (ast.AnnAssign, ast.AugAssign)):
        yield from _stored(node.target)
    elif isinstance(node, ast.If) and _is_for_types(node):
        for inner in node.body:
            yield from _bound(inner)


def _is_for_types(node: ast.If) -> bool:
    return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _stored(target: ast.expr) -> Iterator[str]:
    for part in ast.walk(target):
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            yield part.id


def _mentions(node: ast.stmt) -> Iterator[Mention]:
    """Names that are read, in annotations that are texts as well."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return
    attributes = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name):
            attributes.add(id(part.value))
            yield Mention(part.value.id, part.attr)
        elif isinstance(part, ast.Name) and id(part) not in attributes:
            yield Mention(part.id)
