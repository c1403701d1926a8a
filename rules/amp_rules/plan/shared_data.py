"""The data of the loaders that are shared out: expressions that are a dataset of one, or what that is made of."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cached_property

from amp_rules.flow.cells import CellKey
from amp_rules.flow.values import Form, Value
from amp_rules.roles.batches import TrainingData
from amp_rules.roles.kinds import is_loader_value
from amp_rules.roles.loaders import Slices
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.roles.sliced_batches import measured_by
from amp_rules.source import blocks
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import last_name, walk
from amp_rules.torch.data import DATA_PARTS, LISTING, LISTS_TO_TENSORS, LOADER_SAMPLERS, OF_COLUMNS, TABLES

KEEPING = frozenset({"int", "float", "round", "max", "min", "abs"}) | {
    f"{library}.{name}"
    for library, names in (
        ("math", ("ceil", "floor", "trunc")),
        ("numpy", ("ceil", "floor", "trunc", "rint", "round", "int", "int32", "int64", "float", "float32", "float64")),
    )
    for name in names
}
"""Functions that give a number of the same things."""

MAX_ROUNDS = 8
"""Rounds over the assignments, and names that are followed: one for each variable between a length and its use.

Beyond, a number counts for nothing, and stays as it is.
"""


class SharedData:
    """Says of an expression whether it is data of which each process has a share.

    Attributes:
        loaders: the loaders that are shared out, as values.
        slices: what else is, cut out of the data by the script.
    """

    def __init__(self, program: Program, data: TrainingData) -> None:
        self.program = program
        self.loaders = {value for use in data.uses for value in use.values if is_loader_value(value)}
        self.slices = [use.slices for use in data.uses if use.slices is not None]
        self._listed: set[CellKey] = set()
        # Names are given to each other in many ways: each is asked for once.
        self._asked: dict[tuple[ast.expr, Scope], bool] = {}
        self._asked_itself: dict[tuple[ast.expr, Scope], bool] = {}

    # ---- questions -----------------------------------------------------------------------------------------------

    def holds(self, node: ast.expr, scope: Scope) -> bool:
        """Whether the expression may be a loader that is shared out."""
        return not self.loaders.isdisjoint(self.program.flow.values(node, scope))

    def is_data(self, node: ast.expr, scope: Scope) -> bool:
        """Whether an expression is the data of a shared loader, whole or in part: ``loader.dataset``, ``x_train``."""
        known = self._asked.get((node, scope))
        if known is None:
            known = not (self._is_sample(node, scope) or self._is_loader_now(node, scope))
            known = known and self._leads_to_data(node, scope)
            self._asked[node, scope] = known
        return known

    def is_sampler(self, node: ast.expr, scope: Scope) -> bool:
        """Whether an expression is the sampler of a shared loader: a prepared loader has one of its rank's share."""
        is_part = isinstance(node, ast.Attribute) and node.attr in LOADER_SAMPLERS
        return is_part and isinstance(node, ast.Attribute) and self.holds(node.value, scope)

    def is_listed(self, node: ast.expr, scope: Scope) -> bool:
        """Whether an expression lists the folder that a dataset has its samples from."""
        if not (isinstance(node, ast.Call) and len(node.args) == 1):
            return False
        if not (self._data and self.program.callee_names(node, scope) & LISTING):
            return False
        return self.program.flow.key(node.args[0], scope) in self._listed

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

    def keeps(self, call: ast.Call, scope: Scope) -> bool:
        """Whether the call gives a number of the same things as its argument."""
        names = {name.removeprefix("builtins.") for name in self.program.callee_names(call, scope)}
        return bool(names & KEEPING)

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

    # ---- how -----------------------------------------------------------------------------------------------------

    def _is_sample(self, node: ast.expr, scope: Scope) -> bool:
        """Whether an expression is one item of the data, with a length of its own: ``songs[i]`` of ``len(songs)``."""
        is_item = isinstance(node, ast.Subscript) and not isinstance(node.slice, (ast.Slice, ast.Tuple))
        return is_item and isinstance(node, ast.Subscript) and self.is_data(node.value, scope)

    def _is_loader_now(self, node: ast.expr, scope: Scope) -> bool:
        """Whether a variable holds a shared loader that is made of what it held above: ``data = DataLoader(data)``.

        In the body that makes it, that is so below the statement; a function that is given the variable, or reads it,
        runs later.
        """
        if not isinstance(node, (ast.Name, ast.Attribute)) or not self.holds(node, scope):
            return False
        key = self.program.flow.key(node, scope)
        given = self.assigned.get(key, ()) if key is not None else ()
        return not any(self.holds(value, at) and at is scope and _begins_above(node, value) for value, at in given)

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
            if self.is_sampler(node, scope):
                known = False
            elif isinstance(node, ast.Attribute) and node.attr == "dataset" and self.holds(node.value, scope):
                known = True
            else:
                known = any(self.is_same(node, scope, other.node, other.scope) for other in self._data)
            self._asked_itself[node, scope] = known
        return known

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
        given = self.assigned.get(key, []) if key is not None and depth < MAX_ROUNDS else []
        if given:
            return {name for value, where in given for name in self._entries(value, where, depth + 1)}
        return {node.attr} if isinstance(node, ast.Attribute) else set()

    # ---- what the data is made of --------------------------------------------------------------------------------

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
        for slices in self.slices:
            for site in (*slices.data, *self._counted(slices)):
                kept.update(self._variables(site))
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

    def _variables(self, site: Site) -> Iterable[CellKey]:
        """The variable that is cut into slices, and those that it was given by, where nothing else gives it.

        What is evaluated may come from the same function, and is told apart by its variable alone.
        """
        pending = [(site.node, site.scope)]
        seen: set[CellKey] = set()
        while pending:
            node, scope = pending.pop()
            key = self.program.flow.key(node, scope) if isinstance(node, (ast.Name, ast.Attribute)) else None
            if key is not None and key not in seen:
                seen.add(key)
                yield key
                given = self.assigned.get(key, ())
                pending.extend(given if len(given) == 1 else ())

    def _counted(self, slices: Slices) -> Iterable[Site]:
        """What is counted where the range of some slices ends: ``x`` of ``len(x)``, or of ``count = len(x)``."""
        stop, scope = slices.stop, slices.scope
        if stop is None:
            return
        key = self.program.flow.key(stop, scope) if isinstance(stop, (ast.Name, ast.Attribute)) else None
        for value, where in [(stop, scope), *(self.assigned.get(key, ()) if key is not None else ())]:
            measured = measured_by(value)
            if measured is not None:
                yield Site(where.module, where, where.node, measured)

    def _converted(self, node: ast.expr, scope: Scope) -> Iterable[Site]:
        """What a dataset's part is made of one by one: ``features`` of ``torch.tensor([f.ids for f in features])``.

        Then the examples that a function of the project has gone through to make them. A column of a table is as long
        as the table.
        """
        table = _table_of(node)
        if table is not None and any(value.name.startswith(TABLES) for value in self.program.flow.values(table, scope)):
            yield Site(scope.module, scope, scope.node, table)
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


def _begins_above(node: ast.expr, other: ast.expr) -> bool:
    """Whether an expression begins above the end of another."""
    end = (other.end_lineno or other.lineno, other.end_col_offset or other.col_offset)
    return (node.lineno, node.col_offset) < end


def _table_of(node: ast.expr) -> ast.expr | None:
    """What an expression is a column of: ``frame["text"].values``, ``frame.text.to_numpy()``."""
    while True:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in OF_COLUMNS:
            node = node.func.value
        elif isinstance(node, ast.Attribute) and node.attr in OF_COLUMNS:
            node = node.value
        else:
            break
    is_column = isinstance(node, ast.Attribute) or (
        isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str)
    )
    table = node.value if is_column and isinstance(node, (ast.Attribute, ast.Subscript)) else None
    return table if isinstance(table, ast.Name) else None  # a part of it, ``frame[mask]``, has fewer rows


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
