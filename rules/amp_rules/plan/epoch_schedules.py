"""Schedules that are stepped once an epoch, and the lengths of loaders that they are given: ``T_max=len(loader)``.

Several processes make as many epochs as one, of fewer batches each: such a length has to stay that of the whole loader.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.flow.cells import CellKey
from amp_rules.flow.values import Value
from amp_rules.plan.training_loops import SHOWING
from amp_rules.roles.batches import TrainingData
from amp_rules.roles.kinds import is_loader_value, is_scheduler
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.syntax import values_given, walk


class EpochSchedules:
    """The schedules that are stepped, though by no loop over batches.

    Attributes:
        calls: the calls that make them.
        lengths: the lengths of training loaders that they are given, as calls of ``len``.
        loaders: these loaders, which have to be whole there.
        mixed: numbers that they are given through a variable which is read for something else too.
    """

    def __init__(self, program: Program, data: TrainingData) -> None:
        self._program = program
        self._arguments: set[ast.AST] = set()
        self.calls: set[ast.AST] = set()
        self.lengths: list[Site] = []
        self.loaders: set[Value] = set()
        self.mixed: list[Site] = []
        trained = {value for use in data.uses for value in use.values if is_loader_value(value)}
        made = list(_schedules(program)) if trained else []
        stepped = _stepped_once_an_epoch(program, data) if made else set()
        for site in made:
            if any(value.site is site.node for value in stepped):
                assert isinstance(site.node, ast.Call)
                self.calls.add(site.node)
                self._arguments.update(part for item in values_given(site.node) for part in walk(item))
        for call, body, scope in program.calls() if self._arguments else ():
            if blocks.path_of(call.func) == "len" and len(call.args) == 1:
                values = program.flow.values(call.args[0], scope) & trained
                site = Site(scope.module, scope, body, call)
                if values and self.need(site):
                    self.lengths.append(site)
                    self.loaders |= values

    def need(self, site: Site) -> bool:
        """Whether they are given a number, as it stands or through a variable; that is noted if others read it too."""
        if not self._arguments or site.node in self._arguments:
            return bool(self._arguments)
        reads = _reads(self._program, site)
        if self._arguments.isdisjoint(reads):
            return False
        if not self._arguments.issuperset(reads) and site.node not in {item.node for item in self.mixed}:
            self.mixed.append(site)
        return True


def _schedules(program: Program) -> Iterator[Site]:
    """Yield the calls that make a schedule."""
    for call, body, scope in program.calls():
        if any(is_scheduler(value) and value.site is call for value in program.flow.values(call, scope)):
            yield Site(scope.module, scope, body, call)


def _stepped_once_an_epoch(program: Program, data: TrainingData) -> set[Value]:
    """The schedules that are stepped, and not by what runs within a loop over batches."""
    inner = {node for loop in data.loops for item in getattr(loop.node, "body", ()) for node in blocks.walk_own(item)}
    bodies = program.called_from(inner)
    with_batches: set[Value] = set()
    others: set[Value] = set()
    for call, body, scope in program.calls():
        if isinstance(call.func, ast.Attribute) and call.func.attr == "step":
            schedules = {value for value in program.flow.values(call.func.value, scope) if is_scheduler(value)}
            info = program.function_of(body)
            # What nothing is known to call may be called for each batch.
            is_open = info is not None and not program.flow.callers(info)
            (with_batches if call in inner or body in bodies or is_open else others).update(schedules)
    return others - with_batches


def _reads(program: Program, site: Site) -> list[ast.AST]:
    """Where the variable is read that a length is assigned to, other than to show it."""
    statement = site.statement
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return []
    key: CellKey | None = program.flow.key(blocks.reading(statement.targets[0]), site.scope)
    return [
        node
        for node, _, scope in program.nodes()
        if key is not None
        and isinstance(node, (ast.Name, ast.Attribute))
        and isinstance(node.ctx, ast.Load)
        and program.flow.key(node, scope) == key
        and not any(_shows(parent) for parent in scope.module.ancestors(node))
    ]


def _shows(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in SHOWING
