"""What one process alone computes, and the others go on to use: results of an evaluation, above all."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from amp_rules.checks.common.rank_branches import names_rank
from amp_rules.checks.common.rank_paths import Reach
from amp_rules.plan.own_ddp.bound import is_bound, is_bound_at
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.roles.kinds import is_scheduler
from amp_rules.roles.path_objects import assigned
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.index import literal
from amp_rules.source.modules import Module
from amp_rules.source.resolver import names_of
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import COMPREHENSIONS, last_name, walk
from amp_rules.torch.wrappers import PROGRESS_BARS

_Found = tuple[Module, ast.AST, str]

_BARS = frozenset(name.rpartition(".")[2] for name in PROGRESS_BARS)

_MAX_NAMES = 4
"""Names that a flag has from where it is computed: a setting, a parameter, an attribute."""


@dataclass(frozen=True)
class _Alone(Site):
    """An ``if`` that one process alone enters.

    Attributes:
        names: the variables that are written in it alone.
        counted: those that it adds up from the number 0, and that are 0 on the others.
        unbound: those that the others do not have at all.
    """

    branch: ast.If
    names: frozenset[str]
    counted: frozenset[str]
    unbound: frozenset[str]


def known_to_first(own: OwnDdp) -> Iterator[_Found]:
    """Yield what every process does by a value that one of them has computed: the first place of each ``if``."""
    exchanges = own.runs_exchange
    told: set[ast.AST] = set()
    for node, body, scope in own.program.nodes():
        if not isinstance(node, ast.If) or scope.module not in own.modules or not own.parts_first(scope.module, node):
            continue
        site = Site(scope.module, scope, body, node)
        if ended := _ends_training(own, site, node):
            yield site.module, ended, _ending(site.module, node)
        alone = _alone(own, site, node)
        if alone.names and not exchanges(node) and not _goes_elsewhere(node.orelse):
            found = [*_first_use(own, alone, exchanges)] or [*_first_lack_outside(own, alone)]
            found = found or [*_first_lack_elsewhere(own, alone)]
            yield from (item for item in found if item[1] not in told)
            told.update(place for _, place, _ in found)


def _alone(own: OwnDdp, site: Site, branch: ast.If) -> _Alone:
    """The variables of an ``if`` that other processes do not write."""
    written = {path for item in branch.body for path in blocks.writes(item)}
    written -= {path for item in branch.orelse for path in blocks.writes(item)}
    names = {path for path in written if "." not in path and path in site.scope.owner(path).bound}
    counted, unbound = set(), set()
    for name in names:
        if not is_bound(site.scope.owner(name), name, site.module, branch):
            unbound.add(name)
        elif _is_zero_before(site, branch, name):
            counted.add(name)
    return _Alone(
        site.module, site.scope, site.body, site.node, branch, frozenset(names), frozenset(counted), frozenset(unbound)
    )


def _goes_elsewhere(suite: list[ast.stmt]) -> bool:
    """Whether the other processes do not come to what stands below."""
    return bool(suite) and isinstance(suite[-1], (ast.Return, ast.Raise, ast.Continue, ast.Break))


def _is_zero_before(site: Site, branch: ast.If, name: str) -> bool:
    """Whether the last statement above in the same suite that writes a variable makes it the number 0."""
    where = blocks.place(site.module, branch)
    for item in reversed(where.suite[: where.index]):
        if name in blocks.writes(item):
            value = item.value if isinstance(item, ast.Assign) else None
            number = literal(value)
            return isinstance(number, (int, float)) and number == 0 and not isinstance(value, ast.Tuple)
    return False


def _first_use(own: OwnDdp, alone: _Alone, exchanges: Callable[[ast.AST], bool]) -> Iterator[_Found]:
    """Yield the first place below where the others go on with what they do not have."""
    names = set(alone.names)
    for item in _below(alone):
        if not isinstance(item, (ast.Assign, ast.AugAssign)):
            # A loop over the name, or a test for the other processes, gives it a value of its own there.
            names -= blocks.writes(item)
        lacking = alone.unbound & names  # who has no such name cannot be told, either
        if exchanges(item):
            names -= {name for name in names if blocks.touches({name}, blocks.reads(item))}  # the others are told
        for node in blocks.walk_own(item):
            text = _lacks(own, alone, lacking, node) or _use(own, alone, names, node)
            if text is not None and not _is_of_first(own, alone.module, node):
                yield alone.module, node, text
                return
        if isinstance(item, ast.Assign) and not blocks.reads(item.value) & names:
            names -= blocks.writes(item)
        elif isinstance(item, ast.Assign):
            names |= {path for path in blocks.writes(item) if "." not in path}


def _below(alone: _Alone) -> Iterator[ast.stmt]:
    """Yield the statements below an ``if``, and below those around it within its function."""
    for where in (blocks.place(alone.module, alone.branch), *_places_outside(alone)):
        yield from where.suite[where.index + 1 :]


def _first_lack_outside(own: OwnDdp, alone: _Alone) -> Iterator[_Found]:
    """Yield the first place below the suite of an ``if`` that reads what nothing gives the others, on any way."""
    names = frozenset(name for name in alone.unbound if _is_given_to_first_alone(own, alone, name))
    for where in _places_outside(alone) if names else ():
        for item in where.suite[where.index + 1 :]:
            for node in blocks.walk_own(item):
                text = _lacks(own, alone, names, node)
                if text is None or _is_of_first(own, alone.module, node):
                    continue
                # A test around both may let one process by alone, and be read by no name of a rank.
                if isinstance(node, ast.Name) and not is_bound_at(alone.module, alone.scope, node.id, node):
                    yield alone.module, node, text
                    return


def _first_lack_elsewhere(own: OwnDdp, alone: _Alone) -> Iterator[_Found]:
    """Yield the first place in another function that reads a global which nothing gives the others."""
    names = {name for name in alone.unbound if alone.scope.owner(name) is alone.scope.top}
    if not names or names_of(alone.module).stars or any(_binds(node, names) for node in alone.module.nodes):
        return
    named = [
        Site(alone.module, scope, body, node)
        for node, body, scope in own.program.nodes()
        if isinstance(node, ast.Name) and node.id in names and scope.module is alone.module
        if scope.owner(node.id) is alone.scope.top
    ]
    for name in sorted(names):
        written = [site for site in named if _names(site, name) and not isinstance(site.node.ctx, ast.Load)]  # type: ignore[attr-defined]
        if not all(own.reach(site.module, site.node) in (Reach.ONE, Reach.EACH_NODE) for site in written):
            names.discard(name)
    for site in sorted(named, key=lambda site: site.line):
        text = _lacks(own, alone, frozenset(names), site.node)
        if text is None or site.body in (alone.body, *own.uncalled) or _may_fail(site):
            continue
        if own.reach(site.module, site.node) is Reach.EVERY and not _is_of_first(own, site.module, site.node):
            yield site.module, site.node, text
            return


def _names(site: Site, name: str) -> bool:
    return isinstance(site.node, ast.Name) and site.node.id == name


def _binds(node: ast.AST, names: set[str]) -> bool:
    """Whether a definition or an import gives a name to a whole file, for all that is known of where it stands."""
    if isinstance(node, ast.alias):
        return (node.asname or node.name.partition(".")[0]) in names
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and node.name in names


def _may_fail(site: Site) -> bool:
    """Whether a place is where an error is caught."""
    return any(isinstance(item, ast.Try) for item in blocks.enclosing(site.module, site.node))


def _places_outside(alone: _Alone) -> Iterator[blocks.Place]:
    """Yield the places of the statements around an ``if`` within its function: what stands below them runs later."""
    yield from (blocks.place(alone.module, item) for item in blocks.enclosing(alone.module, alone.branch))


def _is_of_first(own: OwnDdp, module: Module, node: ast.AST) -> bool:
    """Whether the others do not come to a place, by a test that is further out too."""
    if own.is_of_first_alone(module, node) or own.several_alone(module, node) is False:
        return True
    if any(isinstance(item, ast.If) and _asks_for_some(item.test) for item in module.ancestors(node)):
        return True  # which of them come by cannot be told from ``rank < workers``
    for item in blocks.enclosing(module, node):
        if isinstance(item, blocks.BODIES):
            return False
        # The innermost test may ask whether there is one process only: ``if local_rank == -1 and args.evaluate``.
        if isinstance(item, ast.If) and own.parts_first(module, item):
            if any(node is part for inner in item.body for part in walk(inner)):
                return True
        if isinstance(item, ast.If) and isinstance(item.test, (ast.Name, ast.Attribute)) and _is_set_by_rank(own, item):
            return True
    return False


def _asks_for_some(test: ast.expr) -> bool:
    """Whether a test parts the processes by a number of them: ``rank < workers``."""
    return (
        isinstance(test, ast.Compare)
        and isinstance(test.ops[0], (ast.Lt, ast.LtE, ast.Gt, ast.GtE))
        and not isinstance(test.comparators[0], ast.Constant)
        and names_rank(test.left)
    )


def _is_set_by_rank(own: OwnDdp, branch: ast.If) -> bool:
    """Whether a flag is computed from the rank: ``params["verb"] = verb * (rank == 0)``, and ``if self.verb:``."""
    located = own.program.locate(branch)
    pending = [(branch.test, located[1], _MAX_NAMES)] if located is not None else []
    for node, scope, depth in pending:
        if names_rank(node):
            return True
        if depth and isinstance(node, (ast.Name, ast.Attribute)):
            found = assigned(own.program, node, scope)
            pending += [(value, own.program.flow.scopes[_body(own, value, scope)], depth - 1) for value in found]
        elif depth and isinstance(node, ast.Subscript):
            path = (blocks.path_of(node.value) or "").rpartition(".")[2]
            for stored, site in own.put_into.get(path, ()) if path else ():
                keys = site.node.targets if isinstance(site.node, ast.Assign) else ()
                if any(isinstance(item, ast.Subscript) and _is_same_key(item, node) for item in keys):
                    pending.append((stored, site.scope, depth - 1))
    return False


def _body(own: OwnDdp, value: ast.expr, scope: Scope) -> ast.AST:
    return blocks.body_of(own.program.module_of(value) or scope.module, value)


def _is_same_key(one: ast.Subscript, other: ast.Subscript) -> bool:
    return ast.dump(one.slice) == ast.dump(other.slice)


def _is_given_to_first_alone(own: OwnDdp, alone: _Alone, name: str) -> bool:
    """Whether all that binds a variable stands where one process alone comes by, or where there are not several."""
    return all(
        own.reach(alone.module, node) in (Reach.ONE, Reach.EACH_NODE)
        for node in own.program.nodes_of(alone.body)
        if isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Load)
        if not _is_of_comprehension(alone.module, node)
    )


def _lacks(own: OwnDdp, alone: _Alone, names: frozenset[str], node: ast.AST) -> str | None:
    """What is said of a name that the others do not have."""
    if not (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in names):
        return None
    if any(node in set(walk(other)) for other, _ in own.branches(alone.module, node)):
        return None
    if _is_of_comprehension(alone.module, node):
        return None
    test = alone.module.text(alone.branch.test)
    return f"`{node.id}` is assigned only under `{test}`: the other processes read it here without a value"


def _is_of_comprehension(module: Module, node: ast.Name) -> bool:
    """Whether a comprehension around a name gives it a variable of its own."""
    return any(
        isinstance(part, ast.Name) and part.id == node.id
        for parent in module.ancestors(node)
        if isinstance(parent, COMPREHENSIONS)
        for item in parent.generators
        for part in walk(item.target)
    )


def _use(own: OwnDdp, alone: _Alone, names: set[str], node: ast.AST) -> str | None:
    """What a place does wrong on the others."""
    module = alone.module
    test = module.text(alone.branch.test)
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Div, ast.FloorDiv, ast.Mod)):
        divisor = node.right
        if isinstance(divisor, ast.Name) and divisor.id in alone.counted & names:
            return (
                f"`{divisor.id}` is counted only under `{test}`: the other processes divide by 0 in "
                f"`{module.text(node)}`"
            )
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "step":
        given = [item for item in node.args if blocks.reads(item) & names]
        values = own.program.flow.values(node.func.value, alone.scope) if given else set()
        if any(map(is_scheduler, values)):
            return (
                f"`{module.text(given[0])}` is computed only under `{test}`: `{module.text(node)}` gives the other "
                "processes a different learning rate"
            )
    if isinstance(node, ast.For) and _goes_on_by(own, alone, names, node):
        number = min(blocks.reads(node.iter) & names)
        return (
            f"`{number}` is set only under `{test}`: one process goes through `{module.text(node.iter)}` another "
            "number of times, and waits where the others do not come"
        )
    if isinstance(node, ast.If) and blocks.reads(node.test) & names:
        site = Site(module, alone.scope, alone.body, node)
        if _ends_training(own, site, node):
            return (
                f"`{module.text(node.test)}` is known only under `{test}`: one process ends the training there, and "
                "the others wait for it"
            )
    return None


def _goes_on_by(own: OwnDdp, alone: _Alone, names: set[str], loop: ast.For) -> bool:
    """Whether a loop that trains goes as often as a variable says; of one that is resumed from the state is told."""
    varying = {name for name in blocks.reads(loop.iter) & names if not _is_bar(own, alone, name, loop)}
    if not varying or not own.program.runs_backward(loop):
        return False
    return not any(isinstance(node, ast.Attribute) and node.attr == "load_state_dict" for node in walk(alone.branch))


def _is_bar(own: OwnDdp, alone: _Alone, name: str, loop: ast.For) -> bool:
    """Whether a variable is a bar around what the others go through: ``loader if bar is None else bar``."""
    others = blocks.reads(loop.iter) | {name}
    given = [
        item.value
        for statement in alone.branch.body
        for item in blocks.walk_own(statement)
        if isinstance(item, ast.Assign) and name in blocks.writes(item)
    ]
    return bool(given) and all(
        isinstance(item, ast.Call)
        # By its last name too: ``from tqdm import *``.
        and (bool(own.program.callee_names(item, alone.scope) & PROGRESS_BARS) or last_name(item.func) in _BARS)
        and bool(item.args)
        and blocks.path_of(item.args[0]) in others
        for item in given
    )


# ---- the end of the training ----------------------------------------------------------------------------------------


def _ends_training(own: OwnDdp, site: Site, branch: ast.If) -> ast.AST | None:
    """What in an ``if`` leaves the loop around it that trains in all processes; None where nothing does."""
    loop = blocks.loop_around(site.module, branch)
    if loop is None or not own.program.runs_backward(loop) or own.program.runs_backward(branch):
        return None
    if any(_ends_training(own, site, item) for item in branch.orelse if isinstance(item, ast.If)):
        return None
    if any(isinstance(node, (ast.Break, ast.Return)) for item in branch.orelse for node in blocks.walk_own(item)):
        return None  # the others leave as well
    for item in branch.body:
        for node in blocks.walk_own(item):
            if isinstance(node, ast.Break):
                around = (other for other in blocks.enclosing(site.module, node) if isinstance(other, blocks.LOOPS))
                if next(around, None) is loop and not _is_of_one_process(own, site.module, node, branch):
                    return node
            elif isinstance(node, ast.Return) and not _is_of_one_process(own, site.module, node, branch):
                return node
    return None


def _is_of_one_process(own: OwnDdp, module: Module, node: ast.AST, branch: ast.If) -> bool:
    """Whether a test within a branch lets a process there only where it is alone: ``if rank == -1: break``."""
    inside = set(walk(branch))
    tests = blocks.tests_around(module, node)
    return any(test in inside and own.in_several(test) is (not holds) for test, holds in tests)


def _ending(module: Module, branch: ast.If) -> str:
    return f"under `{module.text(branch.test)}` one process leaves the training loop, and the others wait for it"
