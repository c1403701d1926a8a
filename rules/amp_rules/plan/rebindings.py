"""Variables that are given their loader once more, shared out: before a use of it, or once in a constructor."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from amp_rules.roles.batches import TrainingData
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.modules import Module
from amp_rules.source.syntax import is_super, walk

_TELLS = frozenset({"batch_size", "dataset", "sampler", "batch_sampler", "num_workers", "collate_fn"})
"""Attributes of a loader that a prepared one has, too."""


@dataclass(frozen=True)
class Rebinding:
    """``loader = prepare_loader(loader)`` before a statement, or after the one that gives the variable its loader.

    With a ``condition``, written as it stands in the script, only where that holds.
    """

    module: Module
    statement: ast.stmt
    variable: str
    after: bool = False
    condition: str = ""


class Constructors:
    """Moves what a method would do in each epoch for an attribute into the constructor of the class."""

    def __init__(self, program: Program, data: TrainingData) -> None:
        self._program = program
        self._data = data
        self._trained = {use.loader for use in data.uses}

    def moved(self, place: Rebinding) -> Rebinding:
        """The place itself, or one in the constructor, where the methods take batches or ask for the length alone."""
        owner, _, name = place.variable.partition(".")
        method = self._program.function_of(blocks.body_of(place.module, place.statement))
        cls = self._program.flow.class_of(method) if method is not None else None
        if place.after or place.condition or method is None or cls is None or owner != method.receiver or "." in name:
            return place
        made = cls.facts.methods.get("__init__")
        if made is None or made is method or made.receiver != owner or not self._only_trains(name, made):
            return place
        last = self._last_look(made, place.variable)
        if last is None:
            return place
        return Rebinding(made.module.module, last, place.variable, after=True)

    def _only_trains(self, name: str, made: FunctionFacts) -> bool:
        """Whether no method but the constructor gives the loader to anything that needs the whole of it."""
        for node, body, scope in self._program.nodes():
            if not (isinstance(node, ast.Attribute) and node.attr == name) or body is made.node:
                continue
            if not isinstance(node.ctx, ast.Load):
                if body is not made.node and not self._is_of_constructor(body):
                    return False
                continue
            if node in self._trained or self._is_of_constructor(body) or self._is_told(scope.module, node):
                continue
            if not self._is_in_training_bar(scope.module, node):
                return False
        return True

    def _is_of_constructor(self, body: ast.AST) -> bool:
        info = self._program.function_of(body)
        return info is not None and info.name == "__init__"

    @staticmethod
    def _is_told(module: Module, node: ast.Attribute) -> bool:
        """``len(self.loader)``, ``self.loader.dataset``."""
        parent = module.parents[node]
        if isinstance(parent, ast.Attribute):
            return parent.attr in _TELLS
        return isinstance(parent, ast.Call) and node in parent.args and blocks.path_of(parent.func) == "len"

    def _is_in_training_bar(self, module: Module, node: ast.Attribute) -> bool:
        """Whether what a training loop iterates is made of it: ``bar = tqdm(self.loader)``."""
        statement = blocks.statement_of(module, node)
        body = blocks.body_of(module, node)
        names = blocks.writes(statement) if isinstance(statement, ast.Assign) else set()
        return any(use.body is body and blocks.path_of(use.loader) in names for use in self._data.uses) or any(
            loader in set(walk(statement)) for loader in self._trained
        )

    def _last_look(self, made: FunctionFacts, variable: str) -> ast.stmt | None:
        """The last statement of a constructor that assigns the attribute, or hands the loader on as a whole."""
        module = made.module.module
        suite = [item for item in made.body if isinstance(item, ast.stmt)]
        last: int | None = None
        for index, item in enumerate(suite):
            if self._program.runs_backward(item):
                break
            own = list(blocks.walk_own(item))
            assigns = variable in blocks.writes(item) or any(
                isinstance(node, ast.Call) and is_super(node) for node in own
            )
            hands_on = any(
                isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Load)
                and blocks.path_of(node) == variable
                and not self._is_told(module, node)
                for node in own
            )
            if assigns or hands_on:
                last = index
        return suite[last] if last is not None else None
