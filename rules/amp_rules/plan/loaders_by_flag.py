"""Loops that train or evaluate by a flag: where each of their loaders comes from, and which is the one for training."""

from __future__ import annotations

import ast
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from itertools import takewhile

from amp_rules.flow.values import CallSite
from amp_rules.plan.loaders_to_prepare import behind_opened_bar
from amp_rules.plan.model_reads import Taken, assignment_of
from amp_rules.plan.phases_in_lists import listed
from amp_rules.plan.rebindings import Rebinding
from amp_rules.plan.training_flags import NOTHING, Flag, flag_in, followed
from amp_rules.roles.batches import TrainingData
from amp_rules.roles.kinds import is_optimizer
from amp_rules.roles.loaders import LoaderUse, is_loader
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.syntax import walk
from amp_rules.torch.wrappers import RETURNS_FIRST_ARGUMENT


@dataclass
class Apart:
    """What tells training and evaluation apart: uses of loaders, or a variable to rebind."""

    training: list[LoaderUse] = field(default_factory=list)
    evaluated: list[LoaderUse] = field(default_factory=list)
    rebindings: list[Rebinding] = field(default_factory=list)


def tell_apart(program: Program, use: LoaderUse, flag: Flag, data: TrainingData) -> Apart | None:
    """Find the training loader among those that the loop iterates; None where that is not certain."""
    use = behind_opened_bar(program, use)
    if isinstance(use.loader, ast.Subscript):
        return _item(program, use, use.loader, flag, data)
    if not isinstance(use.loader, ast.Name):
        return None
    name = use.loader.id
    chosen = (
        _chosen(program, use, name, flag)
        or _paired(program, use, name, flag, data)
        or _looked_up(program, use, name, flag, data)
        or _made_in_turn(use, name, flag)
    )
    if chosen is not None:
        return chosen
    info = program.function_of(use.scope.owner(flag.name).node)
    if info is None or use.scope.owner(use.loader.id).node is not info.node:
        return None
    name = _parameter_behind(program, use, name, info.parameters)
    found = Apart()
    for caller in program.flow.callers(info):
        given = info.argument_or_default(caller.call, flag.name)
        loader = info.argument_or_default(caller.call, name)
        trains = _decide(program, flag, given, caller) if given is not None else None
        if trains is None or loader is None or loader in info.defaults.values():
            return None
        (found.training if trains else found.evaluated).append(use_of(program, loader, calling(caller)))
    return found if found.training and all(use.values for use in found.training) else None


def _parameter_behind(program: Program, use: LoaderUse, name: str, parameters: Collection[str]) -> str:
    """The parameter that a variable goes through: ``loader`` of ``bar = tqdm(loader)``; else the name itself."""
    seen: set[str] = set()
    current = name
    while current not in parameters and current not in seen:
        seen.add(current)
        given = [node for node in program.nodes_of(use.body) if current in blocks.writes_itself(node)]
        value = _given_to(given[0], current) if len(given) == 1 else None
        if isinstance(value, ast.Call) and program.callee_names(value, use.scope) & RETURNS_FIRST_ARGUMENT:
            value = value.args[0] if value.args else None
        if not isinstance(value, ast.Name):
            return name
        current = value.id
    return name if any(current in blocks.writes_itself(node) for node in program.nodes_of(use.body)) else current


def _given_to(statement: ast.AST, name: str) -> ast.expr | None:
    """What a statement assigns to a variable, as one of several too: ``total, bar = 0.0, tqdm(loader)``."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    target, value = statement.targets[0], statement.value
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        pairs = zip(target.elts, value.elts, strict=True)
        return next((given for item, given in pairs if blocks.path_of(item) == name), None)
    return value if blocks.path_of(target) == name else None


def _item(program: Program, use: LoaderUse, loader: ast.Subscript, flag: Flag, data: TrainingData) -> Apart | None:
    """``for batch in loaders[phase]: ... if phase == "train"``: the item of that name, or the one at its place."""
    if isinstance(loader.slice, ast.Name) and loader.slice.id == flag.name:
        return _of_mapping(program, use, loader.value, flag, data)
    site = Site(use.module, use.scope, use.body, loader)
    found = Apart()
    for given, item in listed(program, site, flag.name):
        (found.training if flag.decide(given) else found.evaluated).append(use_of(program, item, site))
    return found if found.training and all(item.values for item in found.training) else None


def _of_mapping(program: Program, use: LoaderUse, mapping: ast.expr, flag: Flag, data: TrainingData) -> Apart | None:
    """The item of a mapping that the flag names: it is prepared where the mapping is made, for each that is given.

    What goes over that item before the training, for a mean of the data say, goes over all of it: below that, then.
    """
    if not isinstance(flag.value, str) or not flag.holds:
        return None
    passes = _passes(program, flag, data)
    found = Apart()
    for site in _given_for(program, Site(use.module, use.scope, use.body, mapping)):
        place = assignment_of(program, site)
        last = _below_passes(program, place, passes) if place is not None else None
        if place is None or last is None:
            return None
        variable = f"{place.variable}[{json.dumps(flag.value)}]"
        found.rebindings.append(Rebinding(place.module, last, variable, after=True))
    return found


def pass_in_the_way(program: Program, use: LoaderUse, flag: Flag, data: TrainingData) -> Site | None:
    """The entry of a mapping that another loop goes over, where but for that the loaders could be told apart."""
    passes = _passes(program, flag, data)
    if not passes or tell_apart(program, use, flag, replace(data, evaluated=[])) is None:
        return None
    return passes[0]


def _passes(program: Program, flag: Flag, data: TrainingData) -> list[Site]:
    """The entries of the flag's name that loops which do not train go over."""
    return [
        site
        for other in data.evaluated
        for site in _entries(program, Site(other.module, other.scope, other.body, other.loader), frozenset())
        if site.node.slice.value == flag.value  # type: ignore[attr-defined]
    ]


def _entries(program: Program, site: Site, seen: frozenset[ast.AST]) -> Iterator[Site]:
    """Yield the entry of a container that an expression is, or that callers give it: ``spread(loaders["train"])``."""
    if isinstance(site.node, ast.Subscript) and isinstance(site.node.slice, ast.Constant):
        yield site
    info = program.function_of(site.body)
    if info is None or site.body in seen or not isinstance(site.node, ast.Name) or site.node.id not in info.parameters:
        return
    for caller in program.flow.callers(info):
        given, outer = info.argument(caller.call, site.node.id), calling(caller)
        if given is not None:
            yield from _entries(program, Site(outer.module, outer.scope, outer.body, given), seen | {site.body})


def _below_passes(program: Program, place: Taken, passes: list[Site]) -> ast.stmt | None:
    """The statement below which nothing but the training goes over an entry; None where that is not certain.

    It is the one that makes the container, or the last of those that go over the entry, all of them between that one
    and the training. Where something asks for the entry's length between them, it would be that of all processes.
    """
    if not passes:
        return place.statement
    where = blocks.place(place.module, place.statement)
    below = where.suite[where.index + 1 :]
    before = list(takewhile(lambda item: _is_definition(item) or not program.runs_backward(item), below))
    if len(before) == len(below):
        return None
    entries = {site.node for site in passes}
    held = {item: entries.intersection(walk(item)) for item in before if not _is_definition(item)}
    if set().union(*held.values()) != entries:
        return None
    last = [item for item in before if held.get(item)][-1]
    texts = {ast.dump(node) for node in entries}
    asked = (node for item in before[: before.index(last) + 1] for node in walk(item) if isinstance(node, ast.Call))
    if any(blocks.path_of(node.func) == "len" and ast.dump(node.args[0]) in texts for node in asked if node.args):
        return None
    return last


def _is_definition(statement: ast.stmt) -> bool:
    return isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))


def _given_for(program: Program, site: Site) -> list[Site]:
    """What the callers give for a parameter that is not assigned again; the expression itself where it is none."""
    info = program.function_of(site.body)
    name = site.node.id if isinstance(site.node, ast.Name) else None
    if info is None or name not in info.parameters or len(program.flow.callers(info)) < 2:
        return [site]
    if any(isinstance(node, ast.Assign) and name in blocks.writes(node) for node in program.nodes_of(site.body)):
        return [site]
    given = [(info.argument(caller.call, name), calling(caller)) for caller in program.flow.callers(info)]
    return [Site(where.module, where.scope, where.body, value) if value is not None else site for value, where in given]


def _paired(program: Program, use: LoaderUse, name: str, flag: Flag, data: TrainingData) -> Apart | None:
    """``for phase, loader in (("train", one), ("val", other))``, in ``zip`` of both, or in ``loaders.items()``."""
    for loop in blocks.enclosing(use.module, use.loader):
        if not isinstance(loop, ast.For) or not isinstance(loop.target, ast.Tuple):
            continue
        paths = [blocks.path_of(target) for target in loop.target.elts]
        if name not in paths or flag.name not in paths:
            continue
        site = Site(use.module, use.scope, use.body, loop)
        if isinstance(loop.iter, ast.Call) and isinstance(loop.iter.func, ast.Attribute):
            mapping = loop.iter.func.value
            if loop.iter.func.attr != "items" or loop.iter.args or paths != [flag.name, name]:
                return None
            if not isinstance(mapping, ast.Dict):
                return _of_mapping(program, use, mapping, flag, data)
        rows = _rows(program, loop.iter, site)
        if not rows or any(len(row) != len(paths) for row in rows):
            return None
        found = Apart()
        for row in rows:
            given, loader = row[paths.index(flag.name)], row[paths.index(name)]
            if not isinstance(given, ast.Constant):
                return None
            (found.training if flag.decide(given.value) else found.evaluated).append(use_of(program, loader, site))
        return found if found.training and all(item.values for item in found.training) else None
    return None


def _looked_up(program: Program, use: LoaderUse, name: str, flag: Flag, data: TrainingData) -> Apart | None:
    """``loader = loaders[phase]`` before the loop."""
    values = [
        node.value
        for node in program.nodes_of(use.body)
        if isinstance(node, ast.Assign) and [blocks.path_of(target) for target in node.targets] == [name]
    ]
    if len(values) != 1 or not isinstance(values[0], ast.Subscript):
        return None
    return _item(program, use, values[0], flag, data)


def _rows(program: Program, node: ast.expr, site: Site) -> list[list[ast.expr]]:
    """The rows that a loop over literals goes through; none where they are not known."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Dict):
        mapping = node.func.value
        pairs = zip(mapping.keys, mapping.values, strict=True)
        rows = [[key, value] for key, value in pairs if key is not None]
        return rows if len(rows) == len(mapping.values) else []
    if isinstance(node, ast.Call) and "builtins.zip" in program.callee_names(node, site.scope):
        columns = [item.elts for item in node.args if isinstance(item, (ast.Tuple, ast.List))]
        alike = len(columns) == len(node.args) and len({len(column) for column in columns}) == 1
        return [list(row) for row in zip(*columns, strict=True)] if alike else []
    if not isinstance(node, (ast.Tuple, ast.List)):
        return []
    rows = [list(item.elts) for item in node.elts if isinstance(item, (ast.Tuple, ast.List))]
    return rows if len(rows) == len(node.elts) else []


def _chosen(program: Program, use: LoaderUse, name: str, flag: Flag) -> Apart | None:
    """``loader = train_loader if train else valid_loader``, or an ``if`` with an assignment in each branch."""
    found = Apart()
    for node in program.nodes_of(use.body):
        if not (isinstance(node, ast.Assign) and name in {blocks.path_of(target) for target in node.targets}):
            continue
        site = Site(use.module, use.scope, use.body, node)
        choice = _choice(program, node.value, site, flag)
        sides = choice if choice is not None else [(node.value, _branch(program, use, node, flag))]
        for value, trains in sides:
            if trains is None or len(node.targets) != 1:
                return None
            (found.training if trains else found.evaluated).append(use_of(program, value, site))
    return found if found.training and all(item.values for item in found.training) else None


def _choice(program: Program, node: ast.expr, site: Site, flag: Flag) -> list[tuple[ast.expr, bool | None]] | None:
    """Both sides of ``one if train else other``, and whether each is trained on."""
    if not isinstance(node, ast.IfExp):
        return None
    test = followed(program, site.body, flag_in(node.test, True))
    if test is None or (test.name, test.value) != (flag.name, flag.value):
        return None
    return [(node.body, test.holds is flag.holds), (node.orelse, test.holds is not flag.holds)]


def _branch(program: Program, use: LoaderUse, statement: ast.stmt, flag: Flag) -> bool | None:
    """Whether a statement stands in a branch that is run for training; None where that is not certain."""
    inner: ast.stmt = statement
    for parent in blocks.enclosing(use.module, statement):
        if isinstance(parent, ast.If):
            test = followed(program, use.body, flag_in(parent.test, True))
            if test is not None and test.name == flag.name:
                in_body = inner in parent.body
                if test.value == flag.value:
                    return (test.holds is flag.holds) is in_body
                if in_body and test.holds and test.value is not NOTHING and flag.value is not NOTHING:
                    return flag.decide(test.value)
        inner = parent
    return None


def _made_in_turn(use: LoaderUse, name: str, flag: Flag) -> Apart | None:
    """``for split in splits: loader = DataLoader(...); for batch in loader: ... if split == "train"``.

    What runs makes a loader each time, and trains with some of them: it is prepared where the flag says so.
    """
    inner = blocks.statement_of(use.module, use.loader)
    if not isinstance(inner, (ast.For, ast.Assign)) or flag.name in blocks.writes(inner):
        return None
    where = blocks.place(use.module, inner)
    before = where.suite[: where.index]
    made = [item for item in before if name in blocks.writes(item)]
    if not made or not isinstance(made[-1], ast.Assign):
        return None
    known = [item for item in before if name in blocks.writes(item) or flag.name in blocks.writes(item)]
    return Apart(rebindings=[Rebinding(use.module, known[-1], name, after=True, condition=flag.text)])


def use_of(program: Program, loader: ast.expr, site: Site) -> LoaderUse:
    """An expression that holds a loader, with the loaders that it can be."""
    values = frozenset(value for value in program.flow.values(loader, site.scope) if is_loader(value))
    return LoaderUse(site.module, site.scope, site.body, loader, loader, values)


def _decide(program: Program, flag: Flag, given: ast.expr, caller: CallSite) -> bool | None:
    """Whether a call trains; None where it depends on more than the call says."""
    if isinstance(given, ast.Constant):
        return flag.decide(given.value)
    if any(is_optimizer(value) for value in program.flow.values(given, caller.scope)):
        return flag.decide(True) if flag.value is NOTHING or flag.value is None else None
    return None
