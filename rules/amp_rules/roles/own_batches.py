"""Iterables of batches that a script makes by itself: lists, generators, objects with an iteration of their own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property

from amp_rules.flow.cells import CellKey
from amp_rules.roles.program import Program
from amp_rules.roles.sites import calling
from amp_rules.source import blocks
from amp_rules.source.index import argument_at
from amp_rules.source.scopes import Scope
from amp_rules.torch.data import BATCH_SAMPLERS, CUTS, PLACES_OF_SAMPLES, RANDOM_SAMPLERS, SEQUENTIAL_SAMPLERS
from amp_rules.torch.devices import MOVING

_MAX_DEPTH = 6
"""Variables and functions between a loop and what makes its batches. Beyond, it is not known what that is."""

_CUTTING = frozenset({"torch.split", "torch.chunk", "numpy.array_split", "numpy.split", "torch.Tensor.split"})
_DATASETS = frozenset({f"torch.utils.data.{name}" for name in ("ConcatDataset", "Subset", "TensorDataset")})
_ITERATING = ("__iter__", "__getitem__")


class OwnBatches:
    """Says whether the project itself makes what an expression gives one by one, the same in all processes."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def gives(self, node: ast.expr, scope: Scope, depth: int = 0) -> bool:
        """Whether iterating an expression gives what the project has made, one by one."""
        if depth > _MAX_DEPTH:
            return False
        if isinstance(node, (ast.ListComp, ast.GeneratorExp)) or _lists_samples(node):
            return True
        if isinstance(node, ast.Call):
            return self._is_made_by(node, scope, depth + 1)
        if isinstance(node, (ast.Name, ast.Attribute)):
            if self._is_iterable(node, scope):
                return True
            given = [*self._given(node, scope)]
            return bool(given) and all(self._is_filled(item, node) or self.gives(*item, depth + 1) for item in given)
        return False

    def _is_made_by(self, call: ast.Call, scope: Scope, depth: int) -> bool:
        names = self._program.callee_names(call, scope)
        if names & {"builtins.zip", "builtins.list", "builtins.iter"}:
            return bool(call.args) and all(self.gives(item, scope, depth) for item in call.args)
        if names & _CUTTING or self._cuts_order(call, scope) or self._is_iterable(call, scope):
            return True
        if names & BATCH_SAMPLERS:
            return self._joins_places(call, scope)
        callees = self._program.flow.callees(call)
        return bool(callees) and all(
            info.yields
            or (
                bool(info.returns)
                and all(self.gives(item, self._program.flow.scopes[info.node], depth) for item in info.returns)
            )
            for info in callees
        )

    def _cuts_order(self, call: ast.Call, scope: Scope) -> bool:
        """``torch.randperm(len(x)).split(size)``, where a variable may hold the order."""
        if not isinstance(call.func, ast.Attribute) or call.func.attr not in CUTS:
            return False
        given = [(call.func.value, scope)]
        if isinstance(call.func.value, ast.Name):
            given = [*self._given(call.func.value, scope)]
        return bool(given) and all(self._is_order(*item) for item in given)

    def _is_order(self, node: ast.expr, scope: Scope) -> bool:
        while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MOVING:
            node = node.func.value
        return isinstance(node, ast.Call) and bool(self._program.callee_names(node, scope) & PLACES_OF_SAMPLES)

    def _joins_places(self, call: ast.Call, scope: Scope) -> bool:
        """``BatchSampler(RandomSampler(range(len(x))), size, False)``: batches of places that torch draws or counts."""
        given = argument_at(call, "sampler", 0)
        samplers = self._program.flow.values(given, scope) if given is not None else ()
        return bool(samplers) and all(
            value.kind == "object" and value.ref in RANDOM_SAMPLERS | SEQUENTIAL_SAMPLERS for value in samplers
        )

    def _is_iterable(self, node: ast.expr, scope: Scope) -> bool:
        """Whether an expression is an object of a class of the project that says how it is iterated."""
        values = self._program.flow.values(node, scope)
        if values and all(value.kind == "object" and value.ref in _DATASETS for value in values):
            return True
        made = [value for value in values if value.kind == "instance"]
        return bool(made) and all(any(value.ref.find_method(name) for name in _ITERATING) for value in made)

    def _is_filled(self, given: tuple[ast.expr, Scope], node: ast.expr) -> bool:
        """Whether a variable begins as an empty list, to which is appended."""
        value, scope = given
        empty = isinstance(value, ast.List) and not value.elts
        return empty and any(
            isinstance(item, ast.Attribute)
            and item.attr in ("append", "extend")
            and blocks.path_of(item.value) == blocks.path_of(node)
            for item in self._program.nodes_of(scope.node)
        )

    def _given(self, node: ast.expr, scope: Scope) -> Iterator[tuple[ast.expr, Scope]]:
        """What a variable is assigned, or given as a parameter."""
        key = self._program.flow.key(node, scope)
        if key is None:
            return
        yield from self._assigned.get(key, ())
        info = self._program.function_of(key[0]) if isinstance(key[0], ast.AST) else None
        for caller in self._program.flow.callers(info) if info is not None else ():
            argument = info.argument(caller.call, key[1]) if info is not None else None
            if argument is not None:
                yield argument, calling(caller).scope

    @cached_property
    def _assigned(self) -> dict[CellKey, list[tuple[ast.expr, Scope]]]:
        """What each variable is assigned, with the scope of its names."""
        found: dict[CellKey, list[tuple[ast.expr, Scope]]] = {}
        for statement, _, where in self._program.nodes():
            if not isinstance(statement, ast.Assign):
                continue
            for target in statement.targets:
                for one, value in blocks.unpacked(target, statement.value):
                    key = self._program.flow.key(blocks.reading(one), where)
                    if key is not None:
                        found.setdefault(key, []).append((value, where))
        return found


def _lists_samples(node: ast.expr) -> bool:
    """``[(words, tags), (words, tags)]``."""
    return (
        isinstance(node, ast.List)
        and node.elts != []
        and all(isinstance(item, (ast.Tuple, ast.List)) for item in node.elts)
    )
