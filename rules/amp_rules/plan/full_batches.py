"""Numbers of steps that keep the last, incomplete batch out: ``if i == len(train_set) // batch_size: break``.

What stands behind such a guard counts on full batches. A share of the number, which is rounded up, would let the last
batch of a rank in. ``len(loader.sampler)`` of a prepared loader is how many samples the rank draws, so what the script
works out of the samples is right for it too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Literal

from amp_rules.flow.values import Value
from amp_rules.plan.batch_loops import BatchLoop
from amp_rules.plan.whole_lengths import WholeLengths
from amp_rules.roles.batches import TrainingData
from amp_rules.roles.kinds import is_stream
from amp_rules.roles.loader_arguments import given_to_loader
from amp_rules.roles.loaders import Loaders
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.syntax import walk
from amp_rules.torch.data import LOADER_PARTS

_MAX_VARIABLES = 4
"""Variables and parameters between a number and the guard; beyond, it is a number like others."""

Limit = Literal["guard", "range"]
"""What ends a loop: a condition that leaves it, or the range that it goes over."""

_LEAVING = (ast.Break, ast.Continue, ast.Return)

_OWN_ORDER = ("sampler", "batch_sampler")


class FullBatches:
    """Says which numbers end a loop before its last batch, and what of them counts samples."""

    def __init__(self, program: Program, lengths: WholeLengths, data: TrainingData) -> None:
        self._program = program
        self._lengths = lengths
        self._loaders = Loaders(program)
        self._loops = {loop.node for loop in data.loops}
        self._elsewhere = {value for use in data.evaluated for value in use.values}

    def limits(self, site: Site) -> Limit | None:
        """How a number, or a variable that it is given to, decides how many batches of an epoch a loop takes."""
        if all(map(_drops_last, self._lengths.loaders)):
            return None
        found = {self._limits_here(use) for use in self._uses(site)}
        return "guard" if "guard" in found else "range" if "range" in found else None

    def samples(self, node: ast.expr, site: Site) -> ast.expr | None:
        """The part of a number that is the length of the loaders' dataset itself; None where that is not certain."""
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            counted = [part for part in (node.left, node.right) if self._lengths.count(part, site.scope) is not None]
            return self.samples(counted[0], site) if len(counted) == 1 else None
        loaders = self._lengths.loaders
        measured = _measured(node)
        if isinstance(measured, ast.Attribute) and measured.attr in LOADER_PARTS:
            loaders = loaders & self._program.flow.values(measured.value, site.scope)
        return node if loaders and all(self._is_length_of(node, site, value) for value in loaders) else None

    # ---- guards --------------------------------------------------------------------------------------------------

    def _uses(self, site: Site) -> Iterator[Site]:
        """Yield the number, and where variables and parameters are read that have it."""
        yield site
        program, parts = self._program, {site.node}
        keys: set[object] = set()
        for _ in range(_MAX_VARIABLES):
            before = len(keys)
            for key, given in self._lengths.assigned.items():
                if any(part in parts for value, _ in given for part in walk(value)):
                    keys.add(key)
            if len(keys) == before:
                return
            for node, body, scope in program.nodes():
                if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
                    if node not in parts and program.flow.key(node, scope) in keys:
                        parts.add(node)
                        yield Site(scope.module, scope, body, node)

    def _limits_here(self, site: Site) -> Limit | None:
        child: ast.AST = site.node
        for parent in site.module.ancestors(site.node):
            if isinstance(parent, ast.Call) and blocks.path_of(parent.func) == "range":
                statement = blocks.statement_of(site.module, parent)
                return "range" if isinstance(statement, ast.For) and self._takes_batches(statement, site) else None
            if isinstance(parent, ast.If) and child is parent.test:
                return "guard" if self._leaves(parent, site) else None
            if isinstance(parent, ast.stmt):
                return None
            child = parent
        return None

    def _leaves(self, guard: ast.If, site: Site) -> bool:
        """Whether a round of a loop over an epoch's batches ends under a condition on their number, without a step."""
        around = blocks.loop_around(site.module, guard)
        if around is None or not isinstance(guard.body[-1], _LEAVING) or any(map(self._program.runs_step, guard.body)):
            return False
        if not (around in self._loops or self._takes_batches(around, site)):
            return False
        loop = BatchLoop(site.module, site.scope, site.body, around, around)
        return bool(blocks.reads(guard.test) & loop.of_epoch)

    def _takes_batches(self, loop: ast.stmt, site: Site) -> bool:
        """Whether a loop takes its batches from a shared loader by ``next``, and does not begin it anew in between."""
        if any(isinstance(node, ast.Try) for item in getattr(loop, "body", ()) for node in blocks.walk_own(item)):
            return False
        inner = Site(site.module, site.scope, site.body, loop)
        return any(
            not self._lengths.loaders.isdisjoint(use.values)
            for item in getattr(loop, "body", ())
            for node in blocks.walk_own(item)
            for use in self._loaders.taken(node, inner)
        )

    # ---- the samples ---------------------------------------------------------------------------------------------

    def _is_length_of(self, node: ast.expr, site: Site, loader: Value) -> bool:
        """Whether a number is how many samples a loader draws: all of its dataset, in an order of torch's own."""
        located = self._program.locate(loader.site) if isinstance(loader.site, ast.Call) else None
        if located is None or not isinstance(loader.site, ast.Call) or loader in self._elsewhere:
            return False
        if any(item.arg is None for item in loader.site.keywords) or any(
            isinstance(item, ast.Starred) for item in loader.site.args
        ):
            return False
        if any(given_to_loader(loader.site, name) is not None for name in _OWN_ORDER):
            return False
        data = given_to_loader(loader.site, "dataset")
        if data is None or any(map(is_stream, self._program.flow.values(data, located[1]))):
            return False
        return self._measures(node, site, loader, Site(located[1].module, located[1], located[0], data))

    def _measures(self, node: ast.expr, site: Site, loader: Value, data: Site, depth: int = 0) -> bool:
        if isinstance(node, (ast.Name, ast.Attribute)) and depth < _MAX_VARIABLES:
            key = self._program.flow.key(node, site.scope)
            given = self._lengths.assigned.get(key, []) if key is not None else []
            return bool(given) and all(
                self._measures(value, Site(where.module, where, where.node, value), loader, data, depth + 1)
                for value, where in given
            )
        measured = _measured(node)
        if measured is None:
            return False
        if isinstance(measured, ast.Attribute) and measured.attr in LOADER_PARTS:
            return loader in self._program.flow.values(measured.value, site.scope)
        assert isinstance(data.node, ast.expr)
        return self._lengths.is_same(measured, site.scope, data.node, data.scope)


def _measured(node: ast.expr) -> ast.expr | None:
    """``x`` of ``len(x)`` and of ``x.__len__()``."""
    if not isinstance(node, ast.Call) or node.keywords:
        return None
    if blocks.path_of(node.func) == "len" and len(node.args) == 1:
        return node.args[0]
    is_method = isinstance(node.func, ast.Attribute) and node.func.attr == "__len__" and not node.args
    return node.func.value if is_method else None  # type: ignore[attr-defined]


def _drops_last(loader: Value) -> bool:
    """Whether a loader leaves the last batch out itself."""
    given = given_to_loader(loader.site, "drop_last") if isinstance(loader.site, ast.Call) else None
    return isinstance(given, ast.Constant) and given.value is True
