"""What the new code of one file needs at its head: imports, constants and helper functions, under free names."""

from __future__ import annotations

import ast
import sys
from collections.abc import Container, Iterator
from dataclasses import dataclass, field

from amp_rules.plain_torch.uses import import_of_runtime
from amp_rules.source.head import import_place
from amp_rules.source.modules import Module
from amp_rules.source.resolver import names_of
from amp_rules.torch.distributed import WORLD_SIZE_READ

_STANDARD = sys.stdlib_module_names


@dataclass(frozen=True)
class Import:
    """An import: ``import os``, ``import torch.distributed as dist``, ``from a import B``.

    Attributes:
        target: the qualified name, as in ``torch.nn.parallel.DistributedDataParallel``.
        name: what it is called in the file if that is free.
        is_member: whether it is a member of a module.
    """

    target: str
    name: str
    is_member: bool = False

    @property
    def is_standard(self) -> bool:
        """Whether it is of the standard library."""
        return self.target.partition(".")[0] in _STANDARD

    def line(self, name: str) -> str:
        """The statement that binds it to a name."""
        if self.is_member:
            module, _, member = self.target.rpartition(".")
            return f"from {module} import {member}" + ("" if name == member else f" as {name}")
        return f"import {self.target}" + ("" if name == self.target else f" as {name}")


OS = Import("os", "os")
FUNCTOOLS = Import("functools", "functools")
SYS = Import("sys", "sys")
RANDOM = Import("random", "random")
LOGGING = Import("logging", "logging")
CONTEXTLIB = Import("contextlib", "contextlib")
NUMPY = Import("numpy", "np")
TORCH = Import("torch", "torch")
DISTRIBUTED = Import("torch.distributed", "dist")
DDP = Import("torch.nn.parallel.DistributedDataParallel", "DistributedDataParallel", is_member=True)
SAMPLER = Import("torch.utils.data.distributed.DistributedSampler", "DistributedSampler", is_member=True)
LOADER = Import("torch.utils.data.DataLoader", "DataLoader", is_member=True)
RANDOM_SAMPLER = Import("torch.utils.data.RandomSampler", "RandomSampler", is_member=True)
_ALSO_KNOWN = {SAMPLER.target: "torch.utils.data.DistributedSampler"}


@dataclass(frozen=True)
class Constant:
    """A name of the file's own level; ``code`` may name others in braces: ``{os}``, ``{torch}``, or constants."""

    name: str
    code: str


@dataclass(frozen=True)
class Helper:
    """A function of the file's own level; the source holds names in braces as that of constants does."""

    name: str
    code: str


RANK = Constant("RANK", 'int({os}.environ.get("RANK", "0"))')
LOCAL_RANK = Constant("LOCAL_RANK", 'int({os}.environ.get("LOCAL_RANK", "0"))')
WORLD_SIZE = Constant("WORLD_SIZE", WORLD_SIZE_READ)
DEVICE_TYPE = Constant("DEVICE_TYPE", '"cuda" if {torch}.cuda.is_available() else "cpu"')
USE_AMP = Constant("USE_AMP", '%(where)s{os}.environ.get("AMP_OPT_LEVEL", "%(level)s") != "O0"')
AMP_DTYPE = Constant("AMP_DTYPE", "%(dtype)s")
_CONSTANTS = (RANK, LOCAL_RANK, WORLD_SIZE, USE_AMP, DEVICE_TYPE, AMP_DTYPE)
_IMPORTS = {
    "os": OS,
    "functools": FUNCTOOLS,
    "sys": SYS,
    "random": RANDOM,
    "logging": LOGGING,
    "contextlib": CONTEXTLIB,
    "np": NUMPY,
    "torch": TORCH,
    "dist": DISTRIBUTED,
    "DDP": DDP,
    "sampler": SAMPLER,
    "loader": LOADER,
    "random_sampler": RANDOM_SAMPLER,
}


@dataclass
class FileHead:
    """The head of one file on its way.

    Attributes:
        module: the file, in the runtime's words.
        settings: what the constants are made of: ``level``, ``dtype``, ``where`` (on which devices).
        asks_for_devices: how they ask for a GPU: ``is_available`` lets nothing hide one that is hidden later.
    """

    module: Module
    settings: dict[str, str]
    asks_for_devices: str = "is_available()"
    _imports: dict[Import, str] = field(default_factory=dict)
    _constants: dict[Constant, str] = field(default_factory=dict)
    _helpers: dict[Helper, tuple[str, str]] = field(default_factory=dict)

    def code(self, template: str) -> str:
        """New code with the names in braces replaced by those of this file, which are noted as needed.

        Names in small letters, ``{DDP}`` too, are imports; capital letters are constants.
        """
        names = {name: item for name, item in _IMPORTS.items() if "{" + name + "}" in template}
        found = {name: self.imported(item) for name, item in names.items()}
        found |= {item.name: self.constant(item) for item in _CONSTANTS if "{" + item.name + "}" in template}
        for name, text in found.items():
            template = template.replace("{" + name + "}", text)
        return template

    def constant(self, constant: Constant) -> str:
        """The name of a constant of the file."""
        if constant not in self._constants:
            self._constants[constant] = self._free(constant.name)
            self.code(constant.code % self.settings)
            if constant is AMP_DTYPE:
                self.code(self.settings["dtype"])
        return self._constants[constant]

    def helper(self, helper: Helper) -> str:
        """The name of a helper function of the file."""
        if helper not in self._helpers:
            name = self._free(helper.name)
            self._helpers[helper] = name, self.code(helper.code)
        return self._helpers[helper][0]

    @property
    def helpers(self) -> list[Helper]:
        """The helper functions that the new code calls."""
        return list(self._helpers)

    def imported(self, item: Import) -> str:
        """The name of something that is imported, by the file already or by a new import."""
        if item not in self._imports:
            names = names_of(self.module)
            targets = (item.target, _ALSO_KNOWN.get(item.target))
            own = next((name for name, target in names.imports.items() if target in targets), None)
            if own is not None and own not in names.rebound:
                return own
            self._imports[item] = self._free(item.name)
        return self._imports[item]

    def _free(self, wanted: str) -> str:
        names = names_of(self.module)
        prefix = "AMP" if wanted.isupper() else "python" if wanted in _STANDARD else "torch"
        candidates = [wanted, f"{prefix}_{wanted}"]
        candidates += [f"{wanted}_{number}" for number in range(2, 100)]
        return next(name for name in candidates if not names.is_taken(name))

    # ---- writing ---------------------------------------------------------------------------------------------------

    def written(self, text: str) -> str:
        """The text of the file, translated but for its head, with its new head in place of the runtime's import."""
        newline = "\r\n" if "\r\n" in text else "\n"
        lines = text.splitlines(keepends=True)
        tree = ast.parse(text)
        statement: ast.stmt | None = import_of_runtime(Module(self.module.source, tree, is_entry=False))
        is_replaced = statement is not None
        names = {*self._constants.values(), *(name for name, _ in self._helpers.values())}
        names |= {name for item, name in self._imports.items() if not item.is_standard}
        if statement is None:
            if not (self._imports or self._constants or self._helpers):
                return text
            statement, is_after = import_place(tree)
            first = (statement.end_lineno or 0) if is_after else statement.lineno - 1
            below = _end_of_imports(tree, statement, names) if is_after else first
        else:
            first = statement.lineno - 1
            below = _end_of_imports(tree, statement, names)
        constants = [f"{name} = {self._value(item)}" for item, name in self._ordered()]
        functions = [code for _, code in self._helpers.values()]
        block = ["", *constants] if constants else []
        for code in functions:
            block += ["", "", *code.splitlines()]
        read = min(
            (node.lineno for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id in names), default=0
        )
        for name, line in _lines_of_imports(tree, ast.parse("\n".join(block))):
            again = next((item for item in _IMPORTS.values() if item.is_standard and item.target == name), None)
            if again is not None and below < read <= line:
                self._imports[again] = name  # the file imports it below what reads the constants
            else:
                below = max(below, line)
        imports = [item.line(name) for item, name in self._imports.items() if not item.is_standard]
        new = [row + newline for row in sorted(imports, key=lambda row: (row.startswith("from"), row))]
        tail = [row + newline for row in block]
        rest = lines[below:]
        if tail and functions:
            while rest and not rest[0].strip():
                rest = rest[1:]
            rest = [newline, newline, *rest]
        elif tail and rest and rest[0].strip():
            rest = [newline, *rest]
        kept = lines[statement.end_lineno if is_replaced else first : below]
        lines = [*lines[:first], *new, *kept, *tail, *rest]
        standard = sorted((item for item in self._imports if item.is_standard), key=lambda item: item.target)
        places = [min(_place_in_standard(tree, statement, item.target), first) for item in standard]
        for index, (item, where) in reversed([*enumerate(zip(standard, places, strict=True))]):
            is_last = index + 1 == len(standard) or places[index + 1] != where
            is_apart = is_last and where < len(lines) and _is_of_packages(lines[where])
            lines.insert(where, item.line(self._imports[item]) + newline + (newline if is_apart else ""))
        return "".join(lines)

    def _value(self, constant: Constant) -> str:
        code = self.code(constant.code % self.settings)
        return code.replace(".cuda.is_available()", f".cuda.{self.asks_for_devices}")

    def _ordered(self) -> list[tuple[Constant, str]]:
        return [(item, self._constants[item]) for item in _CONSTANTS if item in self._constants]


def _end_of_imports(tree: ast.Module, statement: ast.stmt, names: Container[str]) -> int:
    """The line after which the file's head ends: its last import before anything is defined or reads one of ``names``.

    ``sys.path.append(...)`` and ``matplotlib.use(...)`` stand among the imports.
    """
    index = tree.body.index(statement)
    last: ast.stmt = statement
    for item in tree.body[index + 1 :]:
        if isinstance(item, (ast.Import, ast.ImportFrom)):
            last = item
        elif not isinstance(item, (ast.Expr, ast.Assign)) or any(
            isinstance(node, ast.Name) and node.id in names for node in ast.walk(item)
        ):
            break
    assert last.end_lineno is not None
    return last.end_lineno


def _lines_of_imports(tree: ast.Module, block: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield names that a block reads and the lines after which they are imported, under ``try:`` perhaps."""
    names = [node for node in ast.walk(block) if isinstance(node, ast.Name)]
    wanted = {node.id for node in names} - {node.id for node in names if isinstance(node.ctx, ast.Store)}
    for statement in tree.body:
        if isinstance(statement, (ast.Import, ast.ImportFrom, ast.Try)):
            given = [
                item
                for node in ast.walk(statement)
                if isinstance(node, (ast.Import, ast.ImportFrom))
                for item in node.names
            ]
            found = {(item.asname or item.name).partition(".")[0] for item in given} & wanted
            wanted -= found
            for name in sorted(found):
                yield name, statement.end_lineno or 0


def _place_in_standard(tree: ast.Module, statement: ast.stmt, name: str) -> int:
    """The index of the line above which an import goes: among the standard library's imports, else above all."""
    head = tree.body[: tree.body.index(statement)]
    imports = [item for item in head if isinstance(item, (ast.Import, ast.ImportFrom)) and not _is_future(item)]
    plain = [item for item in imports if isinstance(item, ast.Import) and item.names[0].name in _STANDARD]
    for item in plain:
        if item.names[0].name > name:
            return item.lineno - 1
    if plain:
        assert plain[-1].end_lineno is not None
        return plain[-1].end_lineno
    return (imports[0] if imports else statement).lineno - 1


def _is_of_packages(line: str) -> bool:
    """Whether a line imports from outside of the standard library, which stands apart from what does."""
    words = line.split()
    return words[:1] in (["import"], ["from"]) and words[1].partition(".")[0] not in _STANDARD


def _is_future(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"
