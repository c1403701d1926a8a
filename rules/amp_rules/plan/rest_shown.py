"""What else a script shows of the batches of one process, beside the numbers that are told by name.

The abstract run of the ranks knows of each expression whether it rests on the batches of one process. So the notes on
numbers end with what they do not name, and a script that shows only what no way of adding up is known for gets a note
of its own.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from amp_rules.plan.batch_loops import BatchLoop
from amp_rules.plan.distribution import Distribution
from amp_rules.plan.joint_metrics import names_joint_metrics
from amp_rules.plan.rank_numbers import Told, all_loops, of_the_share
from amp_rules.plan.training_loops import TrainingLoop, variable
from amp_rules.plan.ways_to_show import tells, tells_failure
from amp_rules.ranks.analysis import Ranks
from amp_rules.ranks.origins import Kind, Origin
from amp_rules.roles.kinds import is_module
from amp_rules.roles.path_objects import assigned
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import COMPREHENSIONS, called_name, is_text, values_given, walk

REST = "the same holds for all else that is shown of the training batches and not reduced"
"""What the notes on numbers end with, where there is more."""

DRAWN = "it holds as well for what is shown and rests on random numbers, which each process draws for itself"
"""The same, where what is shown besides rests on no batch: the loss of a generator that is given noise."""

OF_BATCHES = (
    "is made of the batches of one process: what is shown is no number of all processes",
    "are made of the batches of one process: what is shown are no numbers of all processes",
)

OF_DRAWS = (
    "is made of the random numbers of one process: what is shown is no number of all processes",
    "are made of the random numbers of one process: what is shown are no numbers of all processes",
)

_OF_SHARES = (
    "rests on the batches of one process: what is shown covers only rank 0's share of the data",
    "rest on the batches of one process: what is shown covers only rank 0's share of the data",
)

_SAVING = frozenset({"write", "save", "savez", "savez_compressed", "savemat", "to_csv", "scatter", "hist", "bar"})
"""Functions and methods that write numbers to a file, or draw them."""

_KEEPING = frozenset({"append", "extend", "update", "add", "insert"})
"""Methods by which lists and meters take a number."""

_COMPUTES = ("torch.", "numpy.", "math.", "jax.", "scipy.")
"""Libraries of which a function that is called ``log`` computes a logarithm."""

_MAX_ROUNDS = 6
"""Rounds in which what is made of a number is followed: each goes through one function or variable more."""

_Path = tuple[ast.AST | None, str]
"""A variable, with the function that it is one of; none where it is an attribute of the object itself."""

Shown = tuple[Site, str]
"""A call that shows something, and the variable that it shows."""


def has_rest(processes: Distribution, places: Sequence[Shown], told: Sequence[Told]) -> bool:
    """Whether more is shown of the batches of one process than what is told, and what is made of that."""
    # A bar over the batches knows only how many there were.
    bars = {_path(loop.body, ast.unparse(loop.loop.iter)) for loop in processes.loops}
    return any(_path(site.body, name) not in bars for site, name in not_named(processes, places, told))


def not_named(processes: Distribution, places: Sequence[Shown], told: Sequence[Told]) -> list[Shown]:
    """The places that show something else than what is told, and what is made of that."""
    known = _made_of(processes, {_path(one.site.body, one.name) for one in told}) if places else set()
    return [(site, name) for site, name in places if _path(site.body, name) not in known]


def shown_alone(processes: Distribution, places: Sequence[Shown], what: tuple[str, str] = OF_BATCHES) -> Iterator[Told]:
    """Yield what training loops show of a batch in their rounds, or of what they draw in them."""
    summed = {(item.place.body, root_of(item.path)) for item in processes.sums.after}
    summed |= {
        (item.place.body, root_of(path))
        for item in processes.sums.here
        for part in walk(item.node)
        if (path := variable(part)) is not None
    }
    loops = [*all_loops(processes), *(_drawing(processes) if what is OF_DRAWS else ())]
    within = {node: loop for loop in loops for node in of_the_share(processes, loop)}
    for site, name in places:
        loop = within.get(site.node)
        counters = loop.counters if isinstance(loop, TrainingLoop) else set()
        if loop is not None and (site.body, root_of(name)) not in summed and root_of(name) not in counters:
            yield Told(site, name, *what)


def shown_elsewhere(processes: Distribution, places: Sequence[Shown]) -> Iterator[Told]:
    """Yield the first place that shows what loops have kept of their batches, in no way that is known by name.

    Where sums are made those of all processes, or metrics put theirs together, what is shown may be made of these.
    """
    if processes.sums.after or processes.sums.here or names_joint_metrics(processes.program):
        return
    for site, name in in_order(places)[:1]:
        yield Told(site, name, *_OF_SHARES)


def in_order(places: Iterable[Shown]) -> list[Shown]:
    """By file and line."""
    return sorted(places, key=lambda shown: (str(shown[0].module.path), shown[0].line, shown[1]))


def _drawing(processes: Distribution) -> Iterator[BatchLoop]:
    """Yield the loops in which a step draws its batch: no loader has a part in them."""
    for backward in processes.data.random:
        located = processes.program.locate(backward)
        loop = blocks.loop_around(located[1].module, backward) if located is not None else None
        if located is not None and isinstance(loop, (ast.For, ast.While)):
            yield BatchLoop(located[1].module, located[1], located[0], loop, loop)


def shown_of_shares(
    program: Program, ranks: Ranks, kind: Kind = Kind.BATCH, *, as_a_whole: bool = False
) -> Iterator[Shown]:
    """Yield the calls that show what rests on the batches of one process, each with the variable that does.

    Or on what one process draws. With ``as_a_whole``, only what does so itself: what is in a dictionary may be there of
    an evaluation, too.
    """
    asked = ranks.own_origins if as_a_whole else ranks.origins

    def differs(value: ast.expr) -> bool:
        return any(origin.kind is kind and not _is_order(origin) for origin in ranks.origins(value))

    for body, scope in program.bodies:
        for node in program.nodes_of(body):
            if isinstance(node, ast.Call) and shows(program, node, scope) and not tells_failure(scope.module, node):
                parts = (part for value in values_given(node) for part in reads_of(value, differs))
                for part in sorted(parts, key=lambda item: isinstance(item, ast.Call)):
                    if is_key(scope.module, part) or _is_length(program, part, scope):
                        continue
                    if tells(node) and _is_network(program, part, scope):
                        continue
                    # In what order a loader is gone through changes no total of it.
                    if any(origin.kind is kind and not _is_order(origin) for origin in asked(part)):
                        yield Site(scope.module, scope, body, node), ast.unparse(taken_from(scope.module, part))


def taken_from(module: Module, node: ast.expr) -> ast.expr:
    """What a comprehension around a variable of its own takes it from: ``losses`` in ``[x.item() for x in losses]``."""
    if not isinstance(node, ast.Name):
        return node
    for around in module.ancestors(node):
        for item in around.generators if isinstance(around, COMPREHENSIONS) else ():
            names = [part.id for part in walk(item.target) if isinstance(part, ast.Name)]
            source = item.iter
            if isinstance(source, ast.Call) and isinstance(source.func, ast.Attribute):
                source = source.func.value if called_name(source) in ("items", "values") else source
            if node.id in names and isinstance(source, (ast.Name, ast.Attribute)):
                return source
    return node


def _is_order(origin: Origin) -> bool:
    return origin.kind is Kind.DRAW and not isinstance(origin.node, ast.Call)


def _is_length(program: Program, node: ast.expr, scope: Scope) -> bool:
    """Whether a variable only holds how many there are of something: ``number = len(names)``."""
    given = assigned(program, node, scope) if isinstance(node, ast.Name) else []
    return bool(given) and all(isinstance(item, ast.Call) and called_name(item) == "len" for item in given)


def _is_network(program: Program, node: ast.expr, scope: Scope) -> bool:
    """Whether it is a module of torch: of that a text shows the layers, whatever it keeps of its batches."""
    values = program.flow.values(node, scope)
    return bool(values) and all(is_module(value) and not value.is_result for value in values)


def is_key(module: Module, node: ast.expr) -> bool:
    """Whether a name is that of a key, by which numbers are told apart: ``for key in sorted(totals.keys()):``."""
    if not isinstance(node, ast.Name):
        return False
    for around in module.ancestors(node):
        loops: list[ast.For | ast.comprehension] = [around] if isinstance(around, ast.For) else []
        if isinstance(around, COMPREHENSIONS):
            loops = [*around.generators]
        for loop in loops:
            target = loop.target
            asked = {called_name(part) for part in walk(loop.iter) if isinstance(part, ast.Call)}
            if isinstance(target, ast.Tuple) and "items" in asked:
                target = target.elts[0]
            elif "keys" not in asked:
                continue
            if isinstance(target, ast.Name) and target.id == node.id:
                return True
    return False


def shows(program: Program, call: ast.Call, scope: Scope) -> bool:
    """Whether a call of a library shows or writes what it is given."""
    if program.flow.callees(call):
        return False
    if not (tells(call) or called_name(call) in _SAVING):
        return prints(program, call, scope)
    return not any(name.startswith(_COMPUTES) for name in program.callee_names(call, scope))


def prints(program: Program, call: ast.Call, scope: Scope) -> bool:
    """Whether a variable is called that may hold ``print``: ``tell = print if logger is None else logger.info``."""
    return any(value.name == "builtins.print" for value in program.flow.values(call.func, scope))


def reads_of(value: ast.AST, differs: Callable[[ast.expr], bool] | None = None) -> Iterator[ast.expr]:
    """Yield the variables that an expression is made of, each as a whole: ``losses.avg``, not ``losses`` as well.

    Of what a call gives, only where that ``differs``: ``mean_of_all(loss)`` is made of a number of all.
    """
    open_nodes: list[ast.AST] = [value]
    while open_nodes:
        node = open_nodes.pop()
        if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
            yield node
        elif isinstance(node, ast.Call):
            if called_name(node) == "len":
                continue  # all processes have as many batches
            if differs is not None and not differs(node):
                continue
            open_nodes += values_given(node)
            owner = node.func.value if isinstance(node.func, ast.Attribute) else None
            if isinstance(owner, ast.Name) and owner.id == "self":
                yield node  # what a method gives is no more than that of all that its object has
            elif owner is not None:
                open_nodes.append(owner)
        else:
            open_nodes += ast.iter_child_nodes(node)


def root_of(name: str) -> str:
    """The variable that a number is a part of: ``losses`` of ``losses["a"].avg``, ``self.a`` of ``self.a.avg``."""
    first, *rest = re.findall(r"\w+", name) or [name]
    return f"self.{rest[0]}" if first == "self" and rest else first


def _path(body: ast.AST, name: str) -> _Path:
    root = root_of(name)
    return (None if root.startswith("self.") else body), root


@dataclass(frozen=True)
class _Writing:
    """Something that a variable gets, in one of the places where it does.

    Attributes:
        path: the variable.
        of: the variables that what it gets is made of.
        parts: the same of each that rests on batches of what is put into it side by side: values of a dictionary, parts
            of a text.
        adds: whether it keeps what it has besides, as a list does, or a parameter for which other calls give another.
    """

    path: _Path
    of: frozenset[_Path]
    parts: tuple[frozenset[_Path], ...]
    adds: bool


def _made_of(processes: Distribution, known: set[_Path]) -> set[_Path]:
    """The variables that hold some numbers, or what is made of them: by assignments, in callees and for callers.

    One that also gets other numbers of the batches is none of them: a meter of losses and of scores.
    """
    told, known = known, set(known)
    writings = list(_writings(processes))
    for _ in range(_MAX_ROUNDS):
        before = len(known)
        found: set[_Path] = set()
        mixed: set[_Path] = set()
        for item in writings:
            has_others = any(map(known.isdisjoint, item.parts))
            if has_others and item.adds:
                mixed.add(item.path)
            elif not has_others and not known.isdisjoint(item.of):
                found.add(item.path)
        known |= found - mixed
        if len(known) == before:
            break
    return known | told


def _writings(processes: Distribution) -> Iterator[_Writing]:
    """Yield what variables, lists, meters and parameters get, where the program gives it to them."""
    program = processes.program
    for body, _scope in program.bodies:
        for node in program.nodes_of(body):
            if isinstance(node, ast.Call):
                yield from _given_by(processes, body, node)
            elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.For)):
                value = node.iter if isinstance(node, ast.For) else node.value
                if value is None:
                    continue
                for name in blocks.writes_itself(node):
                    given = _given_to(node, name) if isinstance(node, ast.Assign) else value
                    yield _writing(processes, _path(body, name), body, given, adds=root_of(name) != name)


def _given_by(processes: Distribution, body: ast.AST, call: ast.Call) -> Iterator[_Writing]:
    """Yield what a call gives the parameters of its function, and the list or meter of which it is a method."""
    for info in processes.program.flow.callees(call):
        for name, value in info.bound(call):
            if name is not None and value is not None:
                yield _writing(processes, _path(info.node, name), body, value)
    if isinstance(call.func, ast.Attribute) and called_name(call) in _KEEPING:
        path = _path(body, ast.unparse(call.func.value))
        for value in values_given(call):
            yield _writing(processes, path, body, value)


def _writing(processes: Distribution, path: _Path, body: ast.AST, value: ast.expr, *, adds: bool = True) -> _Writing:
    parts = tuple(
        frozenset(_read(processes.program, inner, part))
        for inner, part in _side_by_side(processes, body, value)
        if _rests_on_batches(processes, inner, part)
    )
    return _Writing(path, frozenset(_read(processes.program, body, value)), parts, adds)


def _given_to(statement: ast.Assign, name: str) -> ast.expr:
    """What a variable gets of what is assigned, where that is spelt out for each."""
    pairs = [pair for target in statement.targets for pair in blocks.unpacked(target, statement.value)]
    return next((value for item, value in pairs if blocks.path_of(item) == name), statement.value)


def _side_by_side(processes: Distribution, body: ast.AST, value: ast.expr) -> Iterator[tuple[ast.AST, ast.expr]]:
    """Yield what an expression puts into one thing without computing anything of it: the parts of a text, or values."""
    inner: list[ast.expr] | None = None
    if isinstance(value, ast.Dict):
        inner = value.values
    elif isinstance(value, (ast.List, ast.Tuple, ast.Set)):
        inner = value.elts
    elif isinstance(value, ast.JoinedStr):
        inner = [item.value for item in value.values if isinstance(item, ast.FormattedValue)]
    elif isinstance(value, ast.BinOp) and is_text(value):
        inner = [value.left, value.right]
    elif isinstance(value, ast.Call) and (is_text(value) or called_name(value) == "dict"):
        inner = values_given(value)
    if inner is None:
        yield body, value
        for info in processes.program.flow.callees(value) if isinstance(value, ast.Call) else ():
            for given_back in info.returns:
                if isinstance(given_back, (ast.Dict, ast.JoinedStr)):
                    yield from _side_by_side(processes, info.node, given_back)
        return
    for item in inner:
        yield from _side_by_side(processes, body, item)


def _rests_on_batches(processes: Distribution, body: ast.AST, value: ast.expr) -> bool:
    """Whether an expression is made of a number that rests on the batches of one process."""
    scope = processes.program.flow.scopes[body]
    for part in reads_of(value):
        if is_key(scope.module, part) or _is_length(processes.program, part, scope):
            continue
        if any(origin.kind is Kind.BATCH for origin in processes.agreed.ranks.origins(part)):
            return True
    return False


def _read(program: Program, body: ast.AST, value: ast.expr) -> Iterator[_Path]:
    """Yield the variables that an expression is made of, and those of functions that give back what they make."""
    for part in reads_of(value):
        yield _path(body, ast.unparse(part))
    for call in walk(value):
        for info in program.flow.callees(call) if isinstance(call, ast.Call) else ():
            for given_back in info.returns:
                for part in reads_of(given_back):
                    yield _path(info.node, ast.unparse(part))
