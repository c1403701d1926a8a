"""Loops that train or evaluate by a flag: which of their loaders is the one for training."""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass, field

from amp_rules.flow.values import CallSite
from amp_rules.plan.loaders_to_prepare import Rebinding
from amp_rules.plan.model_reads import assignment_of
from amp_rules.roles.batches import TrainingData
from amp_rules.roles.kinds import is_optimizer
from amp_rules.roles.loaders import LoaderUse, is_loader
from amp_rules.roles.steps import Backward, Program, Site, calling
from amp_rules.source import blocks
from amp_rules.source.syntax import walk

_NOTHING = object()


@dataclass(frozen=True)
class Flag:
    """A condition on one variable: ``train``, ``not val``, ``phase == "train"``, ``optimizer is not None``.

    Attributes:
        name: the variable.
        value: what it is compared with; nothing where its truth is asked for.
        holds: whether it trains where the condition holds.
    """

    name: str
    value: object
    holds: bool

    def decide(self, given: object) -> bool:
        """Whether it trains with this value."""
        return (bool(given) if self.value is _NOTHING else given == self.value) is self.holds

    @property
    def text(self) -> str:
        """The condition under which it trains, as code."""
        if self.value is _NOTHING:
            return self.name if self.holds else f"not {self.name}"
        if self.value is None:
            return f"{self.name} is {'' if self.holds else 'not '}None"
        value = json.dumps(self.value) if isinstance(self.value, str) else repr(self.value)
        return f"{self.name} {'==' if self.holds else '!='} {value}"


@dataclass
class Apart:
    """What tells training and evaluation apart: uses of loaders, or a variable to rebind."""

    training: list[LoaderUse] = field(default_factory=list)
    evaluated: list[LoaderUse] = field(default_factory=list)
    rebindings: list[Rebinding] = field(default_factory=list)


def flag_of(program: Program, site: Backward) -> tuple[ast.If, Flag | None] | None:
    """The condition between a backward pass and the loop around it, and what it asks; None where there is none."""
    for parent in blocks.enclosing(site.module, site.node):
        if isinstance(parent, blocks.LOOPS):
            return None
        if isinstance(parent, ast.If):
            if all(any(map(program.runs_backward, suite)) for suite in (parent.body, parent.orelse)):
                continue  # it trains either way
            in_body = any(site.node in set(walk(item)) for item in parent.body)
            return parent, _followed(program, site, _flag(parent.test, in_body))
    return None


def tell_apart(program: Program, use: LoaderUse, flag: Flag, data: TrainingData) -> Apart | None:
    """Find the training loader among those that the loop iterates; None where that is not certain."""
    if isinstance(use.loader, ast.Subscript):
        return _item(program, use, use.loader, flag, data)
    if not isinstance(use.loader, ast.Name):
        return None
    chosen = _chosen(program, use, use.loader.id, flag) or _made_in_turn(use, use.loader.id, flag)
    if chosen is not None:
        return chosen
    info = program.function_of(use.scope.owner(flag.name).node)
    if info is None or use.scope.owner(use.loader.id).node is not info.node:
        return None
    found = Apart()
    for caller in program.flow.callers(info):
        given = info.argument_or_default(caller.call, flag.name)
        loader = info.argument_or_default(caller.call, use.loader.id)
        trains = _decide(program, flag, given, caller) if given is not None else None
        if trains is None or loader is None or loader in info.defaults.values():
            return None
        (found.training if trains else found.evaluated).append(_use(program, loader, calling(caller)))
    return found if found.training and all(use.values for use in found.training) else None


def _followed(program: Program, site: Backward, flag: Flag | None) -> Flag | None:
    """What a flag is, where the function works it out: ``training`` of ``training = optimizer is not None``."""
    if flag is None or flag.value is not _NOTHING:
        return flag
    values = [
        node.value
        for node in program.nodes_of(site.body)
        if isinstance(node, ast.Assign) and [blocks.path_of(target) for target in node.targets] == [flag.name]
    ]
    return (_flag(values[0], flag.holds) or flag) if len(values) == 1 else flag


def _flag(test: ast.expr, holds: bool) -> Flag | None:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _flag(test.operand, not holds)
    if isinstance(test, ast.Name):
        return Flag(test.id, _NOTHING, holds)
    if not (isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and len(test.ops) == 1):
        return None
    value = test.comparators[0]
    if not isinstance(value, ast.Constant):
        return None
    if isinstance(test.ops[0], (ast.Eq, ast.Is)):
        return Flag(test.left.id, value.value, holds)
    return Flag(test.left.id, value.value, not holds) if isinstance(test.ops[0], (ast.NotEq, ast.IsNot)) else None


def _item(program: Program, use: LoaderUse, loader: ast.Subscript, flag: Flag, data: TrainingData) -> Apart | None:
    """``for batch in loaders[phase]: ... if phase == "train"``: the item of that name."""
    if not (isinstance(loader.slice, ast.Name) and loader.slice.id == flag.name and flag.holds):
        return None
    if not isinstance(flag.value, str):
        return None
    for other in data.evaluated:
        if isinstance(other.loader, ast.Subscript) and isinstance(other.loader.slice, ast.Constant):
            if other.loader.slice.value == flag.value:
                return None
    place = assignment_of(program, Site(use.module, use.scope, use.body, loader.value))
    if place is None:
        return None
    variable = f"{place.variable}[{json.dumps(flag.value)}]"
    return Apart(rebindings=[Rebinding(place.module, place.statement, variable, after=True)])


def _chosen(program: Program, use: LoaderUse, name: str, flag: Flag) -> Apart | None:
    """``loader = train_loader if train else valid_loader``."""
    for node in program.nodes_of(use.body):
        if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.IfExp)):
            continue
        if [blocks.path_of(target) for target in node.targets] != [name]:
            continue
        test = _flag(node.value.test, True)
        if test is None or (test.name, test.value) != (flag.name, flag.value):
            continue
        sides = [node.value.body, node.value.orelse]
        trained, evaluated = sides if test.holds is flag.holds else reversed(sides)
        site = Site(use.module, use.scope, use.body, node)
        return Apart([_use(program, trained, site)], [_use(program, evaluated, site)])
    return None


def _made_in_turn(use: LoaderUse, name: str, flag: Flag) -> Apart | None:
    """``for split in splits: loader = DataLoader(...); for batch in loader: ... if split == "train"``.

    What runs makes a loader each time, and trains with some of them: it is prepared where the flag says so.
    """
    inner = blocks.statement_of(use.module, use.loader)
    if not isinstance(inner, ast.For) or flag.name in blocks.writes(inner):
        return None
    where = blocks.place(use.module, inner)
    before = where.suite[: where.index]
    made = [item for item in before if name in blocks.writes(item)]
    if not made or not isinstance(made[-1], ast.Assign):
        return None
    known = [item for item in before if name in blocks.writes(item) or flag.name in blocks.writes(item)]
    return Apart(rebindings=[Rebinding(use.module, known[-1], name, after=True, condition=flag.text)])


def _use(program: Program, loader: ast.expr, site: Site) -> LoaderUse:
    values = frozenset(value for value in program.flow.values(loader, site.scope) if is_loader(value))
    return LoaderUse(site.module, site.scope, site.body, loader, loader, values)


def _decide(program: Program, flag: Flag, given: ast.expr, caller: CallSite) -> bool | None:
    """Whether a call trains; None where it depends on more than the call says."""
    if isinstance(given, ast.Constant):
        return flag.decide(given.value)
    if any(is_optimizer(value) for value in program.flow.values(given, caller.scope)):
        return flag.decide(True) if flag.value is _NOTHING or flag.value is None else None
    return None
