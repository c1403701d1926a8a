"""Numbers that count the whole of a dataset of which each process has a share: its samples, and steps made of them.

``len(loader)`` of a prepared loader is a rank's own. ``len(loader.dataset)`` is not, nor is what a script works out of
it: ``len(train_set) // batch_size`` counts the steps of all processes together.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cached_property
from typing import Literal

from amp_rules.flow.cells import CellKey
from amp_rules.flow.values import Form, Value
from amp_rules.plan.training_loops import added_to
from amp_rules.roles.batches import TrainingData
from amp_rules.roles.kinds import is_loader_value
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import last_name, walk
from amp_rules.torch.data import DATA_PARTS, LISTING, LISTS_TO_TENSORS, LOADER_PARTS, SPLITS

Count = Literal["samples", "steps", "unknown"]
"""What a number counts: samples of the whole dataset, batches of it, or something else that comes of its length."""

Reach = Literal["all", "rank"]
"""What a number is about: all processes together, or one of them."""

KEEPING = frozenset({"int", "float", "round", "max", "min", "abs"}) | {
    f"{library}.{name}"
    for library, names in (
        ("math", ("ceil", "floor", "trunc")),
        ("numpy", ("ceil", "floor", "trunc", "rint", "round", "int", "int32", "int64", "float", "float32", "float64")),
    )
    for name in names
}
"""Functions that give a number of the same things."""

_MAX_ROUNDS = 8
"""Rounds over the assignments until no new variable counts anything: one for each variable between a length and its
use. Beyond, a number counts for nothing, and stays as it is."""


class WholeLengths:
    """Says of an expression what of the whole dataset it counts.

    Attributes:
        loaders: the loaders that are shared out, as values.
    """

    def __init__(self, program: Program, data: TrainingData) -> None:
        self.program = program
        self.loaders = {value for use in data.uses for value in use.values if is_loader_value(value)}
        self._known: dict[CellKey, Count] = {}
        # By function, and the item of the tuple that it gives back; None for the whole.
        self._returned: dict[tuple[ast.AST, int | None], Count] = {}
        self._listed: set[CellKey] = set()
        # Names are given to each other in many ways: each is asked for once.
        self._asked: dict[tuple[ast.expr, Scope], bool] = {}
        self._asked_itself: dict[tuple[ast.expr, Scope], bool] = {}
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
            return node.func.attr == "__len__" and self._is_data(node.func.value, scope)
        if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
            if blocks.path_of(node.func) == "len":
                return self._is_data(node.args[0], scope) or self._is_listed(node.args[0], scope)
            if isinstance(node.func, ast.Attribute) and node.func.attr == "size" and _is_zero(node.args[0]):
                return self._is_data(node.func.value, scope)
        if isinstance(node, ast.Attribute) and isinstance(node.value, (ast.Name, ast.Attribute)):
            values = self.program.flow.values(node.value, scope)
            if any(node.attr in _length_attributes(value) for value in values) and self._is_data(node.value, scope):
                return True
        if isinstance(node, ast.Subscript) and _is_zero(node.slice) and isinstance(node.value, ast.Attribute):
            return node.value.attr == "shape" and self._is_data(node.value.value, scope)
        return False

    def measures(self, node: ast.expr, scope: Scope) -> bool:
        """Whether the expression is a length of anything: a quotient of two lengths is a ratio."""
        return isinstance(node, ast.Call) and blocks.path_of(node.func) == "len" and not self.is_batch_size(node, scope)

    def is_about(self, node: ast.expr, scope: Scope) -> bool:
        """Whether the expression is the data of a shared loader, or counts something of it."""
        return self.count(node, scope) is not None or self._is_data(node, scope) or self.holds(node, scope)

    def keeps(self, call: ast.Call, scope: Scope) -> bool:
        """Whether the call gives a number of the same things as its argument."""
        names = {name.removeprefix("builtins.") for name in self.program.callee_names(call, scope)}
        return bool(names & KEEPING)

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
        if key is None or depth >= _MAX_ROUNDS:
            return False
        # What a caller gives, or another name for it.
        given = [item for item in self.assigned.get(key, ()) if isinstance(item[0], (ast.Name, ast.Attribute))]
        return any(self.is_batch_size(value, where, depth + 1) for value, where in given)

    def holds(self, node: ast.expr, scope: Scope) -> bool:
        """Whether the expression may be a loader that is shared out."""
        return not self.loaders.isdisjoint(self.program.flow.values(node, scope))

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
            if blocks.path_of(node.func) == "len" and self.holds(node.args[0], scope):
                return "rank"
            return _together(self.reach(item, scope, depth) for item in node.args) if self.keeps(node, scope) else None
        if isinstance(node, (ast.Name, ast.Attribute)) and depth < _MAX_ROUNDS:
            return self._of_variable(node, scope, depth)
        return None

    def _counts_in_data(self, node: ast.expr, scope: Scope) -> bool:
        """Whether an expression counts in what the whole dataset keeps: ``loader.dataset.labels.sum()``."""
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            return False
        kept = node.func.value
        if node.func.attr not in ("sum", "count") or not isinstance(kept, ast.Attribute):
            return False
        return self._is_data(kept.value, scope) and all(isinstance(item, ast.Constant) for item in node.args)

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
    def assigned(self) -> dict[CellKey, list[tuple[ast.expr, Scope]]]:
        """What each variable is assigned or given as a parameter, with the scope of its names."""
        found: dict[CellKey, list[tuple[ast.expr, Scope]]] = {}
        for node, _, scope in self.program.nodes():
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    key = self.program.flow.key(blocks.reading(target), scope)
                    if key is not None:
                        found.setdefault(key, []).append((node.value, scope))
            elif isinstance(node, ast.Call):
                for info in self.program.flow.callees(node):
                    for name, given in info.bound(node):
                        if name is not None:
                            found.setdefault((info.node, name), []).append((given, scope))
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
            target = node.target if isinstance(node, ast.AugAssign) else node.targets[0]
            key = self.program.flow.key(blocks.reading(target), scope)
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

    def _is_data(self, node: ast.expr, scope: Scope) -> bool:
        known = self._asked.get((node, scope))
        if known is None:
            known = not self._is_sample(node, scope) and self._leads_to_data(node, scope)
            self._asked[node, scope] = known
        return known

    def _is_sample(self, node: ast.expr, scope: Scope) -> bool:
        """Whether an expression is one item of the data, with a length of its own: ``songs[i]`` of ``len(songs)``."""
        is_item = isinstance(node, ast.Subscript) and not isinstance(node.slice, (ast.Slice, ast.Tuple))
        return is_item and isinstance(node, ast.Subscript) and self._is_data(node.value, scope)

    def _leads_to_data(self, node: ast.expr, scope: Scope) -> bool:
        """Whether an expression is the data, by what a caller gives or by another name for it: ``len(data)``."""
        pending = [(node, scope)]
        seen: set[CellKey] = set()
        while pending:
            one, where = pending.pop()
            if self._is_data_itself(one, where):
                return True
            key = self.program.flow.key(one, where) if isinstance(one, (ast.Name, ast.Attribute)) else None
            if key is None or key in seen:
                continue
            if key in self._kept:
                return True
            seen.add(key)
            given = self.assigned.get(key, ())
            pending.extend(item for item in given if isinstance(item[0], (ast.Name, ast.Attribute)))
        return False

    def _is_data_itself(self, node: ast.expr, scope: Scope) -> bool:
        known = self._asked_itself.get((node, scope))
        if known is None:
            known = (
                isinstance(node, ast.Attribute) and node.attr in LOADER_PARTS and self.holds(node.value, scope)
            ) or (any(self.is_same(node, scope, other.node, other.scope) for other in self._data))
            self._asked_itself[node, scope] = known
        return known

    def is_same(self, one: ast.expr, scope: Scope, other: ast.AST, other_scope: Scope) -> bool:
        """Whether two expressions are one variable, one object, or one constant."""
        flow = self.program.flow
        if not isinstance(other, ast.expr):
            return False
        key = flow.key(one, scope)
        if key is not None and key == flow.key(other, other_scope):
            return True
        values, others = flow.values(one, scope), flow.values(other, other_scope)
        constants = {value.ref for value in values if value.kind == "constant"}
        if constants and constants == {value.ref for value in others if value.kind == "constant"}:
            return True
        if isinstance(one, (ast.Attribute, ast.Subscript)) and ast.dump(one) == ast.dump(other):
            return True
        objects = {
            value for value in values if value.kind in ("object", "instance", "sequence") and not value.is_result
        }
        if any(value.ref is Form.LOADED for value in objects):
            # All that a file of settings holds is one value: its entries are told apart by their names.
            return objects <= others and bool(self._entries(one, scope) & self._entries(other, other_scope))
        return bool(objects) and objects <= others

    def _entries(self, node: ast.expr, scope: Scope, depth: int = 0) -> set[str]:
        """The names of the entries of settings that an expression may be: ``rate`` of ``config["rate"]``."""
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            return {str(node.slice.value)}
        if isinstance(node, ast.Call) and node.args:
            first = node.args[0]
            if isinstance(node.func, ast.Attribute) and node.func.attr == "get" and isinstance(first, ast.Constant):
                return {str(first.value)}
            return self._entries(first, scope, depth) if self.keeps(node, scope) else set()
        if not isinstance(node, (ast.Name, ast.Attribute)):
            return set()
        key = self.program.flow.key(node, scope)
        given = self.assigned.get(key, []) if key is not None and depth < _MAX_ROUNDS else []
        if given:
            return {name for value, where in given for name in self._entries(value, where, depth + 1)}
        return {node.attr} if isinstance(node, ast.Attribute) else set()

    @property
    def _data(self) -> list[Site]:
        """The datasets of the shared loaders, and what they are made of: tensors, lists of files, indices."""
        return self._data_and_kept[0]

    @property
    def _kept(self) -> set[CellKey]:
        """Variables of the datasets' classes that keep what their length is taken of: those of other objects as well,
        so that they are known by name alone."""
        return self._data_and_kept[1]

    @cached_property
    def _data_and_kept(self) -> tuple[list[Site], set[CellKey]]:
        found: list[Site] = []
        kept: set[CellKey] = set()
        pending = [site for value in self.loaders for site in self._arguments(value, ("dataset", "sampler"), 1)]
        seen: set[ast.AST] = set()
        while pending:
            site = pending.pop()
            if site.node in seen or not isinstance(site.node, ast.expr):
                continue
            seen.add(site.node)
            found.append(site)
            pending.extend(self._converted(site.node, site.scope))
            for value in self.program.flow.values(site.node, site.scope):
                pending.extend(self._measured(value, kept))
                if value.name.rpartition(".")[2] in DATA_PARTS:
                    chosen = DATA_PARTS[value.name.rpartition(".")[2]]
                    pending.extend(
                        item
                        for index, item in enumerate(self._arguments(value, (), None))
                        if chosen is None or index == chosen
                    )
        return sorted(found, key=lambda site: (str(site.module.path), site.module.start(site.node))), kept

    def _converted(self, node: ast.expr, scope: Scope) -> Iterable[Site]:
        """What a dataset's part is made of one by one: ``features`` of ``torch.tensor([f.ids for f in features])``.

        Then the examples that a function of the project has gone through to make them.
        """
        key = self.program.flow.key(node, scope) if isinstance(node, (ast.Name, ast.Attribute)) else None
        for value, where in [(node, scope)] if key is None else self.assigned.get(key, ()):
            if not isinstance(value, ast.Call) or not value.args:
                continue
            first = value.args[0]
            if self.program.callee_names(value, where) & LISTS_TO_TENSORS:
                if isinstance(first, ast.ListComp) and len(first.generators) == 1 and not first.generators[0].ifs:
                    yield Site(where.module, where, where.node, first.generators[0].iter)
                continue
            for info in self.program.flow.callees(value):
                yield from (
                    Site(where.module, where, where.node, given)
                    for name, given in info.bound(value)
                    if isinstance(given, ast.Name) and name is not None and _goes_through(info.node, name)
                )

    def _measured(self, value: Value, kept: set[CellKey]) -> Iterable[Site]:
        """What the ``__len__`` of a dataset of the project measures: ``self.files`` of ``return len(self.files)``."""
        info = value.ref.find_method("__len__") if value.kind == "instance" else None
        for node in info.returns if info is not None else ():
            assert info is not None
            scope = self.program.flow.scopes[info.node]
            for measured in self._lengths_in(node, scope):
                assert isinstance(measured.node, ast.expr)
                key = self.program.flow.key(measured.node, measured.scope)
                if key is not None:
                    kept.add(key)
                if isinstance(measured.node, ast.Name):
                    yield from self._given(value, measured.node, measured.scope)
                    continue
                for given, where in self.assigned.get(key, ()) if key is not None else ():
                    self._note_folder(value, given, where)
                    inner = self.program.flow.key(given, where)
                    if inner is not None:
                        kept.add(inner)
                    else:
                        yield Site(where.module, where, where.node, given)
                    yield from self._given(value, given, where)

    def _note_folder(self, value: Value, node: ast.expr, scope: Scope) -> None:
        """Note what folder a dataset has its files from: ``[load(name) for name in os.listdir(path)]``."""
        while True:
            if isinstance(node, ast.ListComp) and len(node.generators) == 1 and not node.generators[0].ifs:
                node = node.generators[0].iter
            elif isinstance(node, ast.Call) and blocks.path_of(node.func) in ("sorted", "list") and node.args:
                node = node.args[0]
            else:
                break
        if isinstance(node, ast.Call) and len(node.args) == 1 and self.program.callee_names(node, scope) & LISTING:
            for site in self._given(value, node.args[0], scope):
                key = self.program.flow.key(site.node, site.scope) if isinstance(site.node, ast.expr) else None
                if key is not None:
                    self._listed.add(key)

    def _is_listed(self, node: ast.expr, scope: Scope) -> bool:
        """Whether an expression lists the folder that a dataset has its samples from."""
        if not (isinstance(node, ast.Call) and len(node.args) == 1):
            return False
        if not (self._data and self.program.callee_names(node, scope) & LISTING):
            return False
        return self.program.flow.key(node.args[0], scope) in self._listed

    def _given(self, value: Value, node: ast.expr, scope: Scope) -> Iterable[Site]:
        """What a variable of a dataset's constructor was given where this one was made; others were given others."""
        key = self.program.flow.key(node, scope)
        made = value.site if isinstance(value.site, ast.Call) else None
        info = self.program.function_of(scope.node)
        if made is not None and info is not None and isinstance(node, ast.Name) and node.id in info.parameters:
            located = self.program.locate(made)
            given = dict(info.bound(made)).get(node.id)
            if located is not None and given is not None:
                yield Site(located[1].module, located[1], located[0], given)
            return
        for source, where in self.assigned.get(key, ()) if key is not None else ():
            yield Site(where.module, where, where.node, source)

    def _lengths_in(self, node: ast.expr, scope: Scope) -> Iterable[Site]:
        """What ``len(self.files)`` measures, or ``self.size`` where that is all that the attribute is."""
        key = self.program.flow.key(node, scope) if isinstance(node, ast.Attribute) else None
        for value, where in [(node, scope)] if key is None else self.assigned.get(key, ()):
            if isinstance(value, ast.Call) and blocks.path_of(value.func) == "len" and len(value.args) == 1:
                yield Site(where.module, where, where.node, value.args[0])

    @cached_property
    def _batch_sizes(self) -> list[Site]:
        given = [
            site
            for value in self.loaders
            for site in self._arguments(value, ("batch_size",), None)
            if _is_keyword(site, "batch_size") or _is_second(site)
        ]
        return [*given, *(part for site in given for part in _factors(site))]

    def _arguments(self, value: Value, names: tuple[str, ...], first: int | None) -> Iterable[Site]:
        """What the call that made a value was given: its first arguments by place, and those of some names."""
        call = value.site
        located = self.program.locate(call) if isinstance(call, ast.Call) else None
        if located is None or not isinstance(call, ast.Call):
            return
        body, scope = located
        for item in call.args[:first]:
            yield Site(scope.module, scope, body, item)
        for keyword in call.keywords:
            if keyword.arg in names:
                yield Site(scope.module, scope, body, keyword.value)

    # ---- variables -----------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Find the variables that count something, through assignments and parameters."""
        if not self.loaders:
            return
        self._note_splits()
        self._note_slices()
        for _ in range(_MAX_ROUNDS):
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


def _goes_through(function: ast.AST, name: str) -> bool:
    """Whether a function makes something of each item of a parameter: ``for index, item in enumerate(examples)``."""
    return any(
        isinstance(node, ast.For)
        and isinstance(node.target, (ast.Name, ast.Tuple))
        and any(isinstance(part, ast.Name) and part.id == name for part in [node.iter, *_wrapped(node.iter)])
        and any(isinstance(part, ast.Call) and last_name(part.func) == "append" for part in walk(node))
        for node in blocks.walk_body(function)
    )


def _wrapped(node: ast.expr) -> list[ast.expr]:
    """What ``enumerate(tqdm(x))`` goes through."""
    found: list[ast.expr] = []
    while isinstance(node, ast.Call) and node.args:
        node = node.args[0]
        found.append(node)
    return found


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
