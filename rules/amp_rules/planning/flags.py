"""Loops that train or evaluate by a flag: which of their loaders is the one for training."""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass, field

from amp_rules.planning.reaching import assignment_of
from amp_rules.planning.sharing import Rebinding
from amp_rules.program import blocks
from amp_rules.program.data import TrainingData
from amp_rules.program.kinds import is_optimizer
from amp_rules.program.loaders import LoaderUse, is_loader
from amp_rules.program.steps import Backward, Program, Site, calling
from amp_rules.program.syntax import walk
from amp_rules.program.values import CallSite, FunctionInfo

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
            return parent, _flag(parent.test, in_body)
    return None


def tell_apart(program: Program, use: LoaderUse, flag: Flag, data: TrainingData) -> Apart | None:
    """Find the training loader among those that the loop iterates; None where that is not certain."""
    if isinstance(use.loader, ast.Subscript):
        return _item(program, use, use.loader, flag, data)
    if not isinstance(use.loader, ast.Name):
        return None
    chosen = _chosen(program, use, use.loader.id, flag)
    if chosen is not None:
        return chosen
    info = program.function_of(use.scope.owner(flag.name).node)
    if info is None or use.scope.owner(use.loader.id).node is not info.node or not info.callers:
        return None
    found = Apart()
    for caller in info.callers:
        given = _argument(info, flag.name, caller)
        loader = _argument(info, use.loader.id, caller)
        trains = _decide(program, flag, given, caller) if given is not None else None
        if trains is None or loader is None or loader in _defaults(info):
            return None
        (found.training if trains else found.evaluated).append(_use(program, loader, calling(caller)))
    return found if found.training and all(use.values for use in found.training) else None


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


def _use(program: Program, loader: ast.expr, site: Site) -> LoaderUse:
    values = frozenset(value for value in program.flow.values(loader, site.scope) if is_loader(value))
    return LoaderUse(site.module, site.scope, site.body, loader, loader, values)


def _defaults(info: FunctionInfo) -> list[ast.expr]:
    return [*info.node.args.defaults, *(item for item in info.node.args.kw_defaults if item is not None)]


def _argument(info: FunctionInfo, name: str, caller: CallSite) -> ast.expr | None:
    """What a call gives for a parameter, or its default; None where that is not plain."""
    call, arguments = caller.call, info.node.args
    if any(item.arg is None for item in call.keywords) or any(isinstance(item, ast.Starred) for item in call.args):
        return None
    given = info.argument(call, name)
    if given is not None:
        return given
    parameters = info.positional
    if name not in parameters:
        keyword_only = [argument.arg for argument in arguments.kwonlyargs]
        return arguments.kw_defaults[keyword_only.index(name)] if name in keyword_only else None
    index = parameters.index(name)
    first_default = len(parameters) - len(arguments.defaults)
    return arguments.defaults[index - first_default] if index >= first_default else None


def _decide(program: Program, flag: Flag, given: ast.expr, caller: CallSite) -> bool | None:
    """Whether a call trains; None where it depends on more than the call says."""
    if isinstance(given, ast.Constant):
        return flag.decide(given.value)
    if any(is_optimizer(value) for value in program.flow.values(given, caller.scope)):
        return flag.decide(True) if flag.value is _NOTHING or flag.value is None else None
    return None
