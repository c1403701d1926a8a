"""Random draws that must be the same on all ranks: those that decide what is trained, or are written to weights."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property

from amp_rules.lattice.operation_names import FACTORIES, LIKES
from amp_rules.plan.definitions import Definitions
from amp_rules.plan.sinks import Need, Sink
from amp_rules.plan.weight_writes import only_makes
from amp_rules.ranks.analysis import Ranks
from amp_rules.ranks.origins import Kind, Origin, Origins
from amp_rules.roles.batches import TrainingData
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import walk
from amp_rules.torch.evaluating import SINGLE
from amp_rules.torch.replication import (
    ARRAY_DRAWS,
    DRAWING_METHODS,
    DRAWS,
    DROPOUT,
    GENERATORS,
    RESETTING,
    SEEDS,
    SIZED_DRAWS,
)

_DRAWN = frozenset({Kind.DRAW, Kind.GENERATOR})
_MAKING = frozenset(f"torch.{name}" for name in FACTORIES | LIKES)
"""Functions that make a tensor."""

_WRAPPING = frozenset({"torch.autograd.Variable"})
_MOVING = frozenset({"cuda", "to", "cpu", "float", "normal_", "uniform_", "zero_", "fill_"})
"""Methods that give the same numbers elsewhere, or others in the same memory."""

_MAX_DEPTH = 4
"""Calls and variables through which a tensor is followed to where it is made; people wrap and move it."""


class Draws:
    """Chooses among the draws of a program.

    Args:
        program: the program.
        data: what feeds its training steps.
        definitions: where its variables get their values.
    """

    def __init__(self, program: Program, data: TrainingData, definitions: Definitions) -> None:
        self._program = program
        sites = [value.site for use in data.uses for value in use.values]
        self._loaders = [call for call in sites if isinstance(call, ast.Call)]
        drawn = {node for site in data.random.values() for node in blocks.walk_own(site.statement)}
        self._batches = drawn | program.called_from(drawn)
        self._loops = [loop.node for loop in data.loops]
        self._definitions = definitions

    def alike(self, ranks: Ranks, sinks: list[Sink]) -> dict[ast.Call, Module]:
        """The calls that have to draw alike for the places to be the same on all ranks, as far as that mends them."""
        found: dict[ast.Call, Module] = {}
        for sink in sinks:
            inside = {*walk(sink.what if sink.need is Need.WEIGHTS else sink.node)}
            is_drawn = all(origin.kind in _DRAWN for origin in sink.origins)
            for origin in sink.origins:
                # Beside what differs with the batch, noise in it stays each rank's own.
                if (is_drawn or origin.node in inside) and self._can(origin, is_noise=sink.need is Need.WEIGHTS):
                    assert isinstance(origin.node, ast.Call)
                    found[origin.node] = origin.module
        for origin in (*self._choices(ranks), *self._sources(ranks), *self._orders(ranks)):
            if self._can(origin, is_noise=False):
                assert isinstance(origin.node, ast.Call)
                found[origin.node] = origin.module
        found.update(self._resets)
        return dict(sorted(found.items(), key=lambda item: (str(item[1].path), item[0].lineno, item[0].col_offset)))

    def _choices(self, ranks: Ranks) -> Iterator[Origin]:
        """Yield draws that choose which part of a model runs: others would have no gradient on one rank."""
        calls = [item for item in self._program.calls() if self._program.called_models(item[0], item[2])]
        again: set[tuple[ast.AST, ast.AST]] = set()
        for call, _, scope in calls:
            for origin in ranks.control_origins(call):
                if origin.kind in _DRAWN and _repeats(scope.module, call, origin):
                    again |= {(item, origin.node) for item in (call, *self._program.called_from([call]))}
        for call, body, _ in calls:
            yield from _only_drawn(ranks.own_origins(call.func))
            for decision in ranks.decisions(call):
                for origin in _only_drawn(decision.origins):
                    if again.isdisjoint({(call, origin.node), (body, origin.node)}):
                        yield origin

    def _sources(self, ranks: Ranks) -> Iterator[Origin]:
        """Yield draws that choose which data a batch is taken from: each rank has its share of the batch of all."""
        inside, bodies = self._in_loops
        for site in self._program.calls_to(frozenset({"builtins.next"})):
            call = site.node
            if isinstance(call, ast.Call) and call.args and (call in inside or site.body in bodies):
                yield from _only_drawn(ranks.own_origins(call.args[0]))
                for decision in ranks.decisions(call):
                    yield from _only_drawn(decision.origins)

    def _orders(self, ranks: Ranks) -> Iterator[Origin]:
        """Yield draws that make the data of a loader: what is shared out must be the same, and validation left out."""
        for call in self._loaders:
            for given in (*call.args, *(item.value for item in call.keywords)):
                yield from (origin for origin in ranks.origins(given) if origin.kind is Kind.GENERATOR)

    @cached_property
    def _in_loops(self) -> tuple[set[ast.AST], set[ast.AST]]:
        """What stands in the loops that take the batches, and the functions that it runs."""
        inside = {node for loop in self._loops for item in getattr(loop, "body", []) for node in blocks.walk_own(item)}
        return inside, self._program.called_from(inside)

    @cached_property
    def _resets(self) -> dict[ast.Call, Module]:
        """Calls that draw weights anew while a batch is worked on, and seeds that the script sets there.

        What a model's constructor draws is none of them: a model is prepared after that.
        """
        inside, bodies = self._in_loops
        found: dict[ast.Call, Module] = {}
        for call, body, scope in self._program.calls():
            if not (call in inside or body in bodies) or not self._resets_by(call, scope):
                continue
            if call in inside or not only_makes(self._program, body):
                found[call] = scope.module
        return found

    def _resets_by(self, call: ast.Call, scope: Scope) -> bool:
        names = self._program.callee_names(call, scope)
        if any(name.startswith("torch.nn.init.") for name in names):
            # Into a tensor that is made for it, it draws noise.
            is_drawn = any(name.startswith(DRAWS) for name in names)
            return is_drawn and not (call.args and self._is_new_tensor(call.args[0], scope))
        if names & SEEDS:
            return True
        if not isinstance(call.func, ast.Attribute) or self._program.flow.callees(call):
            return False
        owner = call.func.value
        if call.func.attr in RESETTING:
            return True
        if call.func.attr in DRAWING_METHODS:
            # A tensor that is made for it is noise, which is drawn anew into the same memory.
            of_data = isinstance(owner, ast.Attribute) and owner.attr == "data"
            return of_data and not self._is_own_tensor(owner.value, scope)  # type: ignore[attr-defined]
        if call.func.attr != "apply" or not self._program.roles.modules(owner, scope):
            return False
        functions = [value.ref for item in call.args for value in self._program.flow.values(item, scope)]
        nodes = [node for info in functions if isinstance(info, FunctionFacts) for node in walk(info.node)]
        return any(isinstance(node, ast.Call) and self._resets_in(node) for node in nodes)

    def _is_new_tensor(self, node: ast.expr, scope: Scope) -> bool:
        """``torch.empty(8, 4)``, and the like of it."""
        return isinstance(node, ast.Call) and bool(self._program.callee_names(node, scope) & _MAKING)

    def _is_own_tensor(self, node: ast.expr, scope: Scope, depth: int = 0) -> bool:
        """Whether a variable holds tensors that the script makes, moved and wrapped at most: no weights."""
        if isinstance(node, ast.Call):
            if self._is_new_tensor(node, scope):
                return True
            given = node.args[0] if self._program.callee_names(node, scope) & _WRAPPING and node.args else None
            moved = node.func.value if isinstance(node.func, ast.Attribute) and node.func.attr in _MOVING else None
            inner = given or moved
            return inner is not None and depth < _MAX_DEPTH and self._is_own_tensor(inner, scope, depth + 1)
        known = [item for item in self._definitions.of(node, scope) if not self._is_moved(item.value, node)]
        return bool(known) and all(
            item.whole and depth < _MAX_DEPTH and self._is_own_tensor(item.value, item.scope, depth + 1)
            for item in known
        )

    @staticmethod
    def _is_moved(value: ast.expr, node: ast.expr) -> bool:
        """``noise = noise.cuda()``: what it was before decides."""
        moved = isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _MOVING
        path = blocks.path_of(node)
        return moved and path is not None and blocks.path_of(value.func.value) == path  # type: ignore[attr-defined]

    def _resets_in(self, call: ast.Call) -> bool:
        located = self._program.locate(call)
        return located is not None and self._resets_by(call, located[1])

    def _can(self, origin: Origin, *, is_noise: bool) -> bool:
        """Whether a draw is one that can be made alike: no batch, no mask, and unless it is for weights no noise."""
        call = origin.node
        if origin.kind not in _DRAWN or not isinstance(call, ast.Call) or self._is_of_batch(origin):
            return False
        located = self._program.locate(call)
        if located is None or self._program.called_models(call, located[1]):
            return False
        names = self._program.callee_names(call, located[1])
        if origin.kind is Kind.GENERATOR:
            return bool(names & GENERATORS)
        if any(name.startswith(DROPOUT) for name in names):
            return False
        if names & SINGLE:
            return False  # it goes through something that draws, and draws nothing where it is called
        return is_noise or (bool(names) and not self._draws_array(call, names))

    def _is_of_batch(self, origin: Origin) -> bool:
        return origin.node in self._batches or blocks.body_of(origin.module, origin.node) in self._batches

    @staticmethod
    def _draws_array(call: ast.Call, names: set[str]) -> bool:
        """Whether a draw gives many numbers, as noise does; ``torch.rand(1)`` is one."""
        sizes = [item.value for item in call.keywords if item.arg in ("size", "shape")]
        if any(name.endswith("_like") for name in names) or not all(map(_is_one, sizes)):
            return True
        if names & SIZED_DRAWS:
            return not all(map(_is_one, call.args))
        if names & ARRAY_DRAWS:
            # The last argument is the size: `torch.randint(0, 3, (1,))`.
            return bool(call.args) and not sizes and not _is_one(call.args[-1])
        return any(isinstance(item, (ast.Tuple, ast.Starred)) and not _is_one(item) for item in call.args)


def _only_drawn(origins: Origins) -> Origins:
    """Draws; nothing where the batch is asked, noise in it too: that has another answer on each rank in any case."""
    return origins if all(origin.kind in _DRAWN for origin in origins) else frozenset()


def _repeats(module: Module, call: ast.Call, origin: Origin) -> bool:
    """Whether a draw only decides how often a loop runs a part again that has run above it: the end of a sentence."""
    loop = blocks.loop_around(module, call)
    statement = blocks.statement_of(module, call)
    if loop is None or origin.module is not module or statement not in loop.body:
        return False
    return any(origin.node in set(walk(later)) for later in loop.body[loop.body.index(statement) + 1 :])


def _is_one(node: ast.expr) -> bool:
    """Whether a size is that of one number: ``1``, ``(1,)``, ``()``."""
    if isinstance(node, (ast.Tuple, ast.List)):
        return all(map(_is_one, node.elts))
    return isinstance(node, ast.Constant) and node.value in (1, None)
