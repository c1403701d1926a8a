"""Numbers that count the whole of a dataset of which each process has a share: its samples, and steps made of them.

``len(loader)`` of a prepared loader is a rank's own, and so is ``len(loader.sampler)``. ``len(loader.dataset)`` is not,
nor is what a script works out of it: ``len(train_set) // batch_size`` counts the steps of all processes together.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cached_property
from typing import Literal

from amp_rules.flow.cells import CellKey
from amp_rules.flow.values import Value
from amp_rules.plan.shared_data import MAX_ROUNDS, SharedData
from amp_rules.plan.training_loops import added_to
from amp_rules.roles.batches import TrainingData
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.index import literal
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import walk
from amp_rules.torch.data import SPLITS

Count = Literal["samples", "steps", "unknown"]
"""What a number counts: samples of the whole dataset, batches of it, or something else that comes of its length."""

Reach = Literal["all", "rank"]
"""What a number is about: all processes together, or one of them."""


class WholeLengths(SharedData):
    """Says of an expression what of the whole dataset it counts.

    Attributes:
        loaders: the loaders that are shared out, as values.
    """

    def __init__(self, program: Program, data: TrainingData) -> None:
        super().__init__(program, data)
        self._known: dict[CellKey, Count] = {}
        # By function, and the item of the tuple that it gives back; None for the whole.
        self._returned: dict[tuple[ast.AST, int | None], Count] = {}
        self._settle()

    # ---- questions -----------------------------------------------------------------------------------------------

    def count(self, node: ast.expr, scope: Scope) -> Count | None:
        """What the expression counts; None for what has nothing to do with the dataset's length, or is not known."""
        if self.is_length(node, scope):
            return "samples"
        if isinstance(node, (ast.Name, ast.Attribute)):
            key = self.program.flow.key(node, scope)
            return self._known.get(key) if key is not None else None
        if isinstance(node, ast.Subscript):
            return self.count(node.value, scope)
        if isinstance(node, ast.BinOp):
            return self._of_operation(node, scope)
        if isinstance(node, ast.UnaryOp):
            return self.count(node.operand, scope)
        if isinstance(node, ast.IfExp):
            return self.count(node.body, scope) or self.count(node.orelse, scope)
        if isinstance(node, ast.Call) and node.args and self.keeps(node, scope):
            return next(filter(None, (self.count(item, scope) for item in node.args)), None)
        if isinstance(node, ast.Call):
            return self._of_functions(node)
        if isinstance(node, ast.DictComp):
            return self.count(node.value, scope)
        if isinstance(node, ast.Dict):
            return next(filter(None, (self.count(item, scope) for item in node.values)), None)
        return None

    def is_length(self, node: ast.expr, scope: Scope) -> bool:
        """Whether the expression asks for the length of a shared loader's dataset: ``len(x)``, ``x.size(0)``."""
        if isinstance(node, ast.Call) and not (node.args or node.keywords) and isinstance(node.func, ast.Attribute):
            return node.func.attr == "__len__" and self.is_data(node.func.value, scope)
        if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
            if blocks.path_of(node.func) == "len":
                return self.is_data(node.args[0], scope) or self.is_listed(node.args[0], scope)
            if isinstance(node.func, ast.Attribute) and node.func.attr == "size" and _is_zero(node.args[0]):
                return self.is_data(node.func.value, scope)
        if isinstance(node, ast.Attribute) and isinstance(node.value, (ast.Name, ast.Attribute)):
            values = self.program.flow.values(node.value, scope)
            if any(node.attr in _length_attributes(value) for value in values) and self.is_data(node.value, scope):
                return True
        if isinstance(node, ast.Subscript) and _is_zero(node.slice) and isinstance(node.value, ast.Attribute):
            return node.value.attr == "shape" and self.is_data(node.value.value, scope)
        return False

    def measures(self, node: ast.expr, scope: Scope) -> bool:
        """Whether the expression is a length of anything: a quotient of two lengths is a ratio."""
        return isinstance(node, ast.Call) and blocks.path_of(node.func) == "len" and not self.is_batch_size(node, scope)

    def is_about(self, node: ast.expr, scope: Scope) -> bool:
        """Whether the expression is the data of a shared loader, or counts something of it."""
        return self.count(node, scope) is not None or self.is_data(node, scope) or self.holds(node, scope)

    def is_batch_size(self, node: ast.expr, scope: Scope, depth: int = 0) -> bool:
        """Whether the expression is the batch size of a shared loader, or a multiple of it.

        A variable that the batch size is a multiple of is one of each device: the steps it counts are as many times
        those of the loader as before.
        """
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            return self.is_batch_size(node.left, scope) or self.is_batch_size(node.right, scope)
        if isinstance(node, ast.Call) and node.args and self.keeps(node, scope):
            return self.is_batch_size(node.args[0], scope)
        if isinstance(node, ast.Attribute) and node.attr == "batch_size" and self.holds(node.value, scope):
            return True
        if any(self.is_same(node, scope, other.node, other.scope) for other in self._batch_sizes):
            return True
        if isinstance(node, ast.Call):
            # ``len(gpus)`` beside ``per_gpu * len(gpus)``.
            sizes = [other.node for other in self._batch_sizes if other.scope is scope]
            return any(ast.dump(node) == ast.dump(other) for other in sizes)
        key = self.program.flow.key(node, scope) if isinstance(node, (ast.Name, ast.Attribute)) else None
        if key is None or depth >= MAX_ROUNDS:
            return False
        # What a caller gives, or another name for it.
        given = [item for item in self.assigned.get(key, ()) if isinstance(item[0], (ast.Name, ast.Attribute))]
        return any(self.is_batch_size(value, where, depth + 1) for value, where in given)

    def reach(self, node: ast.expr, scope: Scope, depth: int = 0) -> Reach | None:
        """Whether a number that something is divided by is about all processes, or about one; None for not known."""
        count = self.count(node, scope)
        if count is not None:
            return {"samples": "all", "steps": "rank", "unknown": None}[count]
        if isinstance(node, ast.Constant):
            return "all" if isinstance(node.value, (int, float)) else None
        if isinstance(node, ast.UnaryOp):
            return self.reach(node.operand, scope, depth)
        if isinstance(node, ast.BinOp):
            return _together(self.reach(part, scope, depth) for part in (node.left, node.right))
        if self._counts_in_data(node, scope):
            return "all"
        if isinstance(node, ast.Call) and node.args:
            measured = node.args[0]
            if blocks.path_of(node.func) == "len" and (self.holds(measured, scope) or self.is_sampler(measured, scope)):
                return "rank"
            return _together(self.reach(item, scope, depth) for item in node.args) if self.keeps(node, scope) else None
        if isinstance(node, (ast.Name, ast.Attribute)) and depth < MAX_ROUNDS:
            return self._of_variable(node, scope, depth)
        return None

    def _counts_in_data(self, node: ast.expr, scope: Scope) -> bool:
        """Whether an expression counts in what the whole dataset keeps: ``loader.dataset.labels.sum()``."""
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            return False
        kept = node.func.value
        if node.func.attr not in ("sum", "count") or not isinstance(kept, ast.Attribute):
            return False
        return self.is_data(kept.value, scope) and all(isinstance(item, ast.Constant) for item in node.args)

    def _of_variable(self, node: ast.Name | ast.Attribute, scope: Scope, depth: int) -> Reach | None:
        key = self.program.flow.key(node, scope)
        if key in self._counters:
            return None
        sources = self.assigned.get(key, []) if key is not None else []
        if sources:
            return _together(self.reach(value, where, depth + 1) for value, where in sources)
        values = self.program.flow.values(node, scope)
        if values and all(value.kind == "constant" and isinstance(value.ref, (int, float)) for value in values):
            return "all"
        owners = self.program.flow.values(node.value, scope) if isinstance(node, ast.Attribute) else set()
        return "all" if any(value.name.startswith("argparse.") for value in owners) else None

    @cached_property
    def entries(self) -> dict[str, list[tuple[ast.expr, Scope]]]:
        """What dictionaries of settings are given under names: ``config["steps_per_epoch"] = len(loader)``."""
        found: dict[str, list[tuple[ast.expr, Scope]]] = {}
        for node, _, scope in self.program.nodes():
            for target in node.targets if isinstance(node, ast.Assign) else ():
                name = literal(target.slice) if isinstance(target, ast.Subscript) else None
                if isinstance(name, str) and isinstance(node, ast.Assign):
                    found.setdefault(name, []).append((node.value, scope))
        return found

    @cached_property
    def _counters(self) -> set[CellKey]:
        """Variables that are counted up in rounds: ``step += 1``. Only where they begin can be a length of the dataset.

        What the function that works a length out adds outside of loops, as ``if len(data) % size: steps += 1`` does,
        is added once, and the sum of lengths is one: ``total += len(data)``.
        """
        found: set[CellKey] = set()
        for node, body, scope in self.program.nodes():
            if not any(added_to(node)) or not isinstance(node, (ast.Assign, ast.AugAssign)):
                continue
            key = self.program.flow.key(blocks.reading(blocks.target_of(node)), scope)
            begins = key is not None and any(where.node is body for _, where in self.assigned.get(key, ()))
            in_loop = any(isinstance(item, blocks.LOOPS) for item in blocks.enclosing(scope.module, node))
            lengths = any(self.is_length(part, scope) for part in walk(node.value) if isinstance(part, ast.expr))
            if key is not None and not lengths and (in_loop or not begins):
                found.add(key)
        return found

    # ---- how -----------------------------------------------------------------------------------------------------

    def _of_operation(self, node: ast.BinOp, scope: Scope) -> Count | None:
        left = self.count(node.left, scope)
        if isinstance(node.op, (ast.Div, ast.FloorDiv)):
            if left == "samples":
                return "steps" if self.is_batch_size(node.right, scope) else "unknown"
            return left
        return left or self.count(node.right, scope) if isinstance(node.op, (ast.Mult, ast.Add, ast.Sub)) else None

    def _of_functions(self, call: ast.Call, item: int | None = None) -> Count | None:
        """What the functions of the project that a call runs give back, or an item of it; None where they differ."""
        found = {self._returned.get((info.node, item)) for info in self.program.flow.callees(call)}
        return found.pop() if len(found) == 1 else None

    @cached_property
    def _batch_sizes(self) -> list[Site]:
        given = [
            site
            for value in self.loaders
            for site in self._arguments(value, ("batch_size",), None)
            if _is_keyword(site, "batch_size") or _is_second(site)
        ]
        given += [
            Site(item.scope.module, item.scope, item.scope.node, item.size)
            for item in self.slices
            if item.size is not None
        ]
        return [*given, *(part for site in given for part in _factors(site))]

    # ---- variables -----------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Find the variables that count something, through assignments and parameters."""
        if not (self.loaders or self.slices):
            return
        self._note_splits()
        self._note_slices()
        for _ in range(MAX_ROUNDS):
            before = len(self._known) + len(self._returned)
            for node, body, scope in self.program.nodes():
                self._follow(node, scope)
                if isinstance(node, ast.Return):
                    self._note_returned(body, scope)
            if len(self._known) + len(self._returned) == before:
                return

    def _note_returned(self, function: ast.AST, scope: Scope) -> None:
        """``return sizes``: what all that a function gives back counts, or the same item of all.

        Not of a function that several calls give something: it may measure the data for one, a loader for another.
        """
        info = self.program.function_of(function)
        if (
            info is None
            or info.yields
            or (set(info.parameters) - {info.receiver} and len(self.program.flow.callers(info)) > 1)
        ):
            return
        returns = info.returns
        items = {len(node.elts) if isinstance(node, ast.Tuple) else None for node in returns}
        size = items.pop() if len(items) == 1 else None
        for index in (None,) if size is None else range(size):
            parts = [node if index is None else node.elts[index] for node in returns]  # type: ignore[attr-defined]
            counts = {self.count(part, scope) for part in parts}
            count = counts.pop() if len(counts) == 1 else None
            if count is not None:
                self._returned.setdefault((function, index), count)

    def _follow(self, node: ast.AST, scope: Scope) -> None:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            self._assign(node.targets[0], node.value, scope)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._assign(node.target, node.value, scope)
        elif isinstance(node, ast.Call):
            for info in self.program.flow.callees(node):
                for name, given in info.bound(node):
                    count = self.count(given, scope) if name is not None else None
                    if count is not None and name is not None:
                        self._known.setdefault((info.node, name), count)

    def _assign(self, target: ast.expr, value: ast.expr, scope: Scope) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            for one, other in zip(target.elts, value.elts, strict=True):
                self._assign(one, other, scope)
            return
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Call):
            for index, one in enumerate(target.elts):
                self._set(one, self._of_functions(value, index), scope)
            return
        self._set(target, self.count(value, scope), scope)

    def _set(self, target: ast.expr, count: Count | None, scope: Scope) -> None:
        owner = target.value if isinstance(target, ast.Subscript) else target
        key = self.program.flow.key(blocks.reading(owner), scope) if count is not None else None
        if count is not None and key is not None and key not in self._counters:
            self._known.setdefault(key, count)

    def _note_slices(self) -> None:
        """``TensorDataset(x[:n_train])``: the number that the data is cut at."""
        for site in self._data:
            cut = site.node.slice if isinstance(site.node, ast.Subscript) else None
            if isinstance(cut, ast.Slice) and cut.lower is None and cut.step is None and cut.upper is not None:
                key = self.program.flow.key(cut.upper, site.scope)
                if key is not None:
                    self._known[key] = "samples"

    def _note_splits(self) -> None:
        """``train, val = random_split(data, [n_train, n_val])``: the number beside a dataset that is shared out."""
        data = {self.program.flow.key(site.node, site.scope) for site in self._data if isinstance(site.node, ast.expr)}
        for node, _, scope in self.program.nodes():
            if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and len(node.value.args) > 1):
                continue
            target, sizes = node.targets[0], node.value.args[1]
            if not (isinstance(target, ast.Tuple) and isinstance(sizes, (ast.List, ast.Tuple))):
                continue
            if not self.program.callee_names(node.value, scope) & SPLITS or len(target.elts) != len(sizes.elts):
                continue
            for one, size in zip(target.elts, sizes.elts, strict=True):
                key = self.program.flow.key(size, scope)
                if key is not None and self.program.flow.key(blocks.reading(one), scope) in data - {None}:
                    self._known[key] = "samples"


def _length_attributes(value: Value) -> set[str]:
    """Attributes that the ``__len__`` of an object of the project gives back: ``size`` of ``return self.size``."""
    info = value.ref.find_method("__len__") if value.kind == "instance" else None
    return {node.attr for node in info.returns if isinstance(node, ast.Attribute)} if info is not None else set()


def _together(parts: Iterable[Reach | None]) -> Reach | None:
    """Of a number made of several: about one rank where a part is, and known where all are."""
    found = set(parts)
    if None in found or not found:
        return None
    return "rank" if "rank" in found else "all"


def _is_zero(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 0 and not isinstance(node.value, bool)


def _factors(site: Site) -> list[Site]:
    """The variables that a product is made of: ``per_gpu`` and ``gpus`` of ``per_gpu * gpus``."""
    pending: list[ast.AST] = [site.node] if isinstance(site.node, ast.BinOp) else []
    found = []
    while pending:
        node = pending.pop()
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            pending += [node.left, node.right]
        elif isinstance(node, (ast.Name, ast.Attribute, ast.Call)):
            found.append(Site(site.module, site.scope, site.body, node))
    return found


def _is_keyword(site: Site, name: str) -> bool:
    parent = site.module.parents[site.node]
    return isinstance(parent, ast.keyword) and parent.arg == name


def _is_second(site: Site) -> bool:
    parent = site.module.parents[site.node]
    return isinstance(parent, ast.Call) and len(parent.args) > 1 and parent.args[1] is site.node
