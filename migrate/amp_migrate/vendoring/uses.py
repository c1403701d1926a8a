"""What migrated files use of the runtime: names, keywords that turn something on, and levels."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from amp_migrate.runtimes import PACKAGE

EVERYTHING = "*"
"""A name that stands for all of them, where a file hands the package itself on."""

HALF_MODELS = ("O2", "O3")
_NAMESPACES = ("optim", "scaler")
_DEFAULT_LEVEL = "O1"
_LEVELS = ("O0", "O1", *HALF_MODELS)


@dataclass(frozen=True)
class Uses:
    """What some files use.

    Attributes:
        names: names of the package, those of ``amp.optim`` and ``amp.scaler`` after a dot; ``*`` for all.
        words: what calls are given: keywords, ``**`` for those that are not known, and ``closure`` for a step with one.
        levels: the levels that are asked for.
    """

    names: frozenset[str] = frozenset()
    words: frozenset[str] = frozenset()
    levels: frozenset[str] = frozenset()

    def __or__(self, other: Uses) -> Uses:
        return Uses(self.names | other.names, self.words | other.words, self.levels | other.levels)

    def __bool__(self) -> bool:
        return bool(self.names)

    @property
    def everything(self) -> bool:
        """Whether the whole package is used."""
        return EVERYTHING in self.names

    @property
    def half_models(self) -> bool:
        """Whether a level is asked for whose model is half."""
        return bool(self.levels.intersection(HALF_MODELS))


def uses_of(texts: Iterable[str]) -> Uses:
    """What the files of these texts use together; all, of one that is no Python."""
    found = Uses()
    for text in texts:
        if PACKAGE not in text:
            continue
        try:
            found |= _Reader(ast.parse(text)).uses
        except (SyntaxError, ValueError, RecursionError):
            found |= Uses(frozenset({EVERYTHING}))
    return found


class _Reader:
    """Reads one file.

    Names are taken for the package wherever they stand: too much is copied rather than too little.
    """

    def __init__(self, tree: ast.Module) -> None:
        self._package: set[str] = set()
        self._names: dict[str, str] = {}
        self._used: set[str] = set()
        self._words: set[str] = set()
        self._levels: set[str] = set()
        for node in ast.walk(tree):
            self._import(node)
        self._values = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        for node in ast.walk(tree):
            self._read(node)
        self.uses = Uses(frozenset(self._used), frozenset(self._words), frozenset(self._levels))

    def _import(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == PACKAGE:
                    self._package.add(alias.asname or alias.name)
                elif alias.name.startswith(PACKAGE + "."):
                    self._used.add(EVERYTHING)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            if node.module in (PACKAGE, f"{PACKAGE}.optim"):
                inner = node.module.removeprefix(PACKAGE).lstrip(".")
                for alias in node.names:
                    name = f"{inner}.{alias.name}" if inner else alias.name
                    self._names[alias.asname or alias.name] = name
                    self._used.add(EVERYTHING if alias.name == "*" else name)
            elif node.module.startswith(PACKAGE + "."):
                self._used.add(EVERYTHING)

    def _name(self, node: ast.AST) -> str | None:
        """The name of the package that an expression reads, ``""`` for the package itself."""
        if isinstance(node, ast.Name):
            return "" if node.id in self._package else self._names.get(node.id)
        if isinstance(node, ast.Attribute):
            owner = self._name(node.value)
            if owner == "":
                return node.attr
            return f"{owner}.{node.attr}" if owner in _NAMESPACES else None
        return None

    def _read(self, node: ast.AST) -> None:
        name = self._name(node)
        if name is not None and id(node) not in self._values:
            # What is handed on may be asked for any of its names.
            self._used.add(name + ".*" if name in _NAMESPACES else name or EVERYTHING)
        elif name and name not in _NAMESPACES:
            self._used.add(name)
        if _spells_copying(node):
            self._words.add("deepcopy")
        if isinstance(node, ast.Call):
            self._call(node, self._name(node.func))

    def _call(self, node: ast.Call, name: str | None) -> None:
        given = {keyword.arg or "**" for keyword in node.keywords}
        self._words |= given if name is not None else given - {"**"}
        if isinstance(node.func, ast.Attribute) and node.func.attr == "step" and name == "scaler.step":
            if len(node.args) > 1 or "closure" in given or "**" in given or _starred(node):
                self._words.add("closure")
        if name == "init":
            self._levels |= set(_levels_of(node))


def _spells_copying(node: ast.AST) -> bool:
    """Whether it is a name under which models are copied."""
    return "deepcopy" in (getattr(node, "id", None), getattr(node, "attr", None), getattr(node, "name", None))


def _starred(node: ast.Call) -> bool:
    return any(isinstance(argument, ast.Starred) for argument in node.args)


def _levels_of(call: ast.Call) -> Iterator[str]:
    """The level that a call of ``amp.init`` names; all, where only a run can tell."""
    if _starred(call) or any(keyword.arg is None for keyword in call.keywords):
        yield from _LEVELS
        return
    if any(keyword.arg == "override" for keyword in call.keywords):
        yield from _LEVELS
        return
    given = [*call.args[:1], *(keyword.value for keyword in call.keywords if keyword.arg == "opt_level")]
    if not given:
        yield _DEFAULT_LEVEL
    elif isinstance(given[0], ast.Constant) and given[0].value in _LEVELS:
        yield str(given[0].value)
    else:
        yield from _LEVELS
