"""What every rewrite is given, and what it gives back."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from amp_rules.options import Options
from amp_rules.planning.distribution import Distribution
from amp_rules.planning.precision import Precision
from amp_rules.program import blocks
from amp_rules.program.modules import Module
from amp_rules.program.steps import Program
from amp_rules.rewrite import Action
from amp_rules.rule import Rule


@dataclass(frozen=True)
class Change:
    """One edit for the reader: the rule, the place, the reason, and the actions that carry it out.

    ``uses_runtime`` says whether the new code names the runtime, and so needs its import; ``optional`` what the rule
    says of itself, where this one change differs.
    """

    rule: Rule
    module: Module
    node: ast.AST
    message: str
    actions: Sequence[Action]
    uses_runtime: bool = True
    optional: bool | None = None

    @property
    def is_optional(self) -> bool:
        """Whether the program is right without this change."""
        return self.rule.optional if self.optional is None else self.optional


@dataclass
class Context:
    """The program and what was decided about it.

    Attributes:
        distribution: None when that unit is not migrated.
        initialised: whether the script calls ``init`` and prepares its models already.
        keeps_precision: whether the script keeps a mixed precision of its own, with its own scaler.
    """

    program: Program
    options: Options
    precision: Precision
    distribution: Distribution | None
    initialised: bool = False
    keeps_precision: bool = False

    @cached_property
    def _aliases(self) -> dict[Module, str]:
        return {}

    def alias(self, module: Module) -> str:
        """The name that the runtime has in a file: ``amp``, unless the file uses that name for something else."""
        if module not in self._aliases:
            self._aliases[module] = imported_runtime(module) or free_name(module)
        return self._aliases[module]

    def code(self, module: Module, template: str) -> str:
        """The template with ``{amp}`` replaced by the runtime's name in the file."""
        return template.replace("{amp}", self.alias(module))


def imported_runtime(module: Module) -> str | None:
    """The name under which a file imports the runtime at its head, if it does."""
    for node in module.tree.body:
        for alias in node.names if isinstance(node, ast.Import) else ():
            if alias.name == "amp_runtime":
                return alias.asname or alias.name
    return None


def free_name(module: Module) -> str:
    """``amp``, unless the file uses that name for something else."""
    taken = any("amp" in _names_bound_by(node) for node in module.nodes)
    return "amp_runtime" if taken else "amp"


def adjacent(statements: Sequence[tuple[Module, ast.stmt]]) -> list[tuple[Module, ast.stmt, ast.stmt]]:
    """Join statements that follow each other in one suite: module, first and last of each group."""
    chosen = {statement for _, statement in statements}
    found = []
    for module, statement in statements:
        where = blocks.place(module, statement)
        if where.index and where.suite[where.index - 1] in chosen:
            continue
        last = where.index
        while last + 1 < len(where.suite) and where.suite[last + 1] in chosen:
            last += 1
        found.append((module, statement, where.suite[last]))
    return found


def _names_bound_by(node: ast.AST) -> set[str]:
    """Names that a node uses or binds by itself."""
    if isinstance(node, ast.Name):
        return {node.id}
    if isinstance(node, ast.arg):
        return {node.arg}
    if isinstance(node, ast.alias):
        return {node.asname or node.name}
    return {node.name} if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) else set()
